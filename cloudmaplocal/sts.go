package cloudmaplocal

import (
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
)

// The part of AWS STS that the credential providers of the SDKs need, in its query protocol: form
// input, XML output.
const (
	stsService   = "sts"
	stsNamespace = "https://sts.amazonaws.com/doc/2011-06-15/"
	formType     = "application/x-www-form-urlencoded"

	// Session durations [AssumeRole].
	minSession     = 15 * time.Minute
	defaultSession = time.Hour
	maxSession     = 12 * time.Hour

	// tokenAudience is the aud of the tokens that EKS projects for IRSA.
	tokenAudience = "sts.amazonaws.com"
)

var sessionName = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)

// stsHandler answers the requests to STS.
type stsHandler struct {
	roles       []Role
	credentials *credentialStore
	metrics     *metrics
	now         func() time.Time
	log         *slog.Logger
}

// stsOperations are the operations of STS.
var stsOperations = map[string]func(h *stsHandler, caller identity, in url.Values, now time.Time) (any, error){
	"GetCallerIdentity":         (*stsHandler).getCallerIdentity,
	"AssumeRole":                (*stsHandler).assumeRole,
	"AssumeRoleWithWebIdentity": (*stsHandler).assumeRoleWithWebIdentity,
}

// isSTSRequest reports whether a request is for STS instead of Cloud Map.
func isSTSRequest(r *http.Request) bool {
	return r.Header.Get("X-Amz-Target") == "" && strings.HasPrefix(r.Header.Get("Content-Type"), formType)
}

// ServeHTTP implements http.Handler.
func (h *stsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, result, err := h.answerSTS(r)
	status, code, body := http.StatusOK, "ok", result
	if err != nil {
		failed := asSTSError(err)
		status, code = failed.status, failed.code
		body = stsFailure{Type: "Sender", Code: failed.code, Message: failed.message, RequestID: uuid.NewString()}
	}
	h.metrics.countRequest(name, code)
	h.log.Debug("request", "operation", name, "result", code, "error", err)
	raw, err := xml.Marshal(body)
	if err != nil { // does not happen: the types are plain data
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the client may have closed the connection
}

// answerSTS runs an operation and returns its name, which is "unknown" for an unknown operation.
func (h *stsHandler) answerSTS(r *http.Request) (name string, result any, err error) {
	body, err := readBody(r)
	if err != nil {
		return "unknown", nil, err
	}
	in, err := url.ParseQuery(string(body))
	if err != nil {
		return "unknown", nil, failure("MalformedQueryString", "%v", err)
	}
	name = in.Get("Action")
	run, known := stsOperations[name]
	if !known {
		return "unknown", nil, failure("InvalidAction", "Could not find operation %s", name)
	}
	now := h.now()
	var caller principal
	if name != "AssumeRoleWithWebIdentity" { // authenticated by its token
		if caller, err = h.credentials.authenticate(r, body, stsService, now); err != nil {
			return name, nil, err
		}
	}
	result, err = run(h, caller.identity, in, now)
	return name, result, err
}

// asSTSError returns the error with its name and status in the query protocol.
func asSTSError(err error) *apiError {
	failed := *asAPIError(err)
	renamed, known := map[string]string{
		"AccessDeniedException":               "AccessDenied",
		"ExpiredTokenException":               "ExpiredToken",
		"IncompleteSignatureException":        "IncompleteSignature",
		"InvalidSignatureException":           "SignatureDoesNotMatch",
		"MissingAuthenticationTokenException": "MissingAuthenticationToken",
		"UnrecognizedClientException":         "InvalidClientTokenId",
	}[failed.code]
	if known {
		failed.code, failed.status = renamed, http.StatusForbidden
	}
	return &failed
}

type stsFailure struct {
	XMLName   xml.Name `xml:"https://sts.amazonaws.com/doc/2011-06-15/ ErrorResponse"`
	Type      string   `xml:"Error>Type"`
	Code      string   `xml:"Error>Code"`
	Message   string   `xml:"Error>Message"`
	RequestID string   `xml:"RequestId"`
}

// stsAnswer is the answer to every operation: <NameResponse><NameResult>…
type stsAnswer struct {
	name   string
	result any
}

// MarshalXML implements xml.Marshaler.
func (a stsAnswer) MarshalXML(e *xml.Encoder, _ xml.StartElement) error {
	start := xml.StartElement{Name: xml.Name{Space: stsNamespace, Local: a.name + "Response"}}
	if err := e.EncodeToken(start); err != nil {
		return err
	}
	if err := e.EncodeElement(a.result, xml.StartElement{Name: xml.Name{Local: a.name + "Result"}}); err != nil {
		return err
	}
	metadata := struct{ RequestId string }{uuid.NewString()}
	if err := e.EncodeElement(metadata, xml.StartElement{Name: xml.Name{Local: "ResponseMetadata"}}); err != nil {
		return err
	}
	return e.EncodeToken(start.End())
}

type callerIdentity struct{ Arn, UserId, Account string }

func (h *stsHandler) getCallerIdentity(caller identity, _ url.Values, _ time.Time) (any, error) {
	return stsAnswer{"GetCallerIdentity", callerIdentity{Arn: caller.arn, UserId: caller.account, Account: caller.account}}, nil
}

type stsCredentials struct {
	AccessKeyId, SecretAccessKey, SessionToken string
	Expiration                                 string
}

type assumedRoleUser struct{ AssumedRoleId, Arn string }

type assumedRole struct {
	Credentials                 stsCredentials
	AssumedRoleUser             assumedRoleUser
	SubjectFromWebIdentityToken string `xml:",omitempty"`
	Audience                    string `xml:",omitempty"`
}

func (h *stsHandler) assumeRole(caller identity, in url.Values, now time.Time) (any, error) {
	role, known := h.role(in.Get("RoleArn"))
	if !known || !role.trustsPrincipal(caller) || role.ExternalID != "" && role.ExternalID != in.Get("ExternalId") {
		return nil, failure("AccessDeniedException", "User: %s is not authorized to perform: sts:AssumeRole on resource: %s",
			caller.arn, in.Get("RoleArn"))
	}
	if len(caller.policies) > 0 && iampolicy.Evaluate(caller.policies, "sts:AssumeRole", role.ARN, iampolicy.ConditionContext{}) != iampolicy.Allowed {
		return nil, failure("AccessDeniedException", "User: %s is not authorized to perform: sts:AssumeRole on resource: %s "+
			"because no identity-based policy allows the sts:AssumeRole action", caller.arn, role.ARN)
	}
	session, err := h.newSession(role, in, now)
	return stsAnswer{"AssumeRole", session}, err
}

// webToken has the claims of a JSON web token that the server uses.
type webToken struct {
	Sub string          `json:"sub"`
	Exp int64           `json:"exp"`
	Aud json.RawMessage `json:"aud"` // a string or a list of them
}

// parseWebToken reads a token without verifying its signature: the server has no issuer's key.
func parseWebToken(token string) (parsed webToken, ok bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return parsed, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	return parsed, err == nil && json.Unmarshal(payload, &parsed) == nil && parsed.Sub != ""
}

// isFor reports whether the token has the audience.
func (t webToken) isFor(audience string) bool {
	var one string
	var many []string
	return json.Unmarshal(t.Aud, &one) == nil && one == audience ||
		json.Unmarshal(t.Aud, &many) == nil && slices.Contains(many, audience)
}

func (h *stsHandler) assumeRoleWithWebIdentity(_ identity, in url.Values, now time.Time) (any, error) {
	token, ok := parseWebToken(in.Get("WebIdentityToken"))
	role, known := h.role(in.Get("RoleArn"))
	switch {
	case !ok:
		return nil, failure("InvalidIdentityToken", "The ID Token provided is not a valid JWT.")
	case !now.Before(time.Unix(token.Exp, 0)):
		return nil, failure("ExpiredTokenException", "Token expired: current date/time must be before the expiration date/time")
	case !token.isFor(tokenAudience):
		return nil, failure("InvalidIdentityToken", "Incorrect token audience")
	case !known || !role.trustsSubject(token.Sub):
		return nil, failure("AccessDeniedException", "Not authorized to perform sts:AssumeRoleWithWebIdentity")
	}
	session, err := h.newSession(role, in, now)
	session.SubjectFromWebIdentityToken, session.Audience = token.Sub, tokenAudience
	return stsAnswer{"AssumeRoleWithWebIdentity", session}, err
}

// role finds a role by its ARN.
func (h *stsHandler) role(arn string) (Role, bool) {
	i := slices.IndexFunc(h.roles, func(r Role) bool { return r.ARN == arn })
	if i < 0 {
		return Role{}, false
	}
	return h.roles[i], true
}

// newSession returns credentials of an assumed role.
func (h *stsHandler) newSession(role Role, in url.Values, now time.Time) (assumedRole, error) {
	name, duration := in.Get("RoleSessionName"), defaultSession
	if typed := in.Get("DurationSeconds"); typed != "" {
		seconds, err := strconv.ParseInt(typed, 10, 32)
		duration = time.Duration(seconds) * time.Second
		if err != nil || duration < minSession || duration > maxSession {
			return assumedRole{}, failure("ValidationError", "DurationSeconds: must be between %v and %v",
				minSession.Seconds(), maxSession.Seconds())
		}
	}
	switch {
	case !sessionName.MatchString(name):
		return assumedRole{}, failure("ValidationError", "RoleSessionName: '%s' must fit %s", name, sessionName)
	case in.Has("Policy") || in.Has("PolicyArns.member.1.arn"):
		return assumedRole{}, failure("ValidationError", "Policy: cloudmap-local has no session policies")
	}
	session := identity{
		account: role.account(), roleARN: role.ARN, policies: role.Policies, secret: random(lower, 40), token: random(lower, 100), expires: now.Add(duration),
		arn: "arn:aws:sts::" + role.account() + ":assumed-role/" + role.name() + "/" + name,
	}
	return assumedRole{
		Credentials: stsCredentials{
			AccessKeyId: h.credentials.addSession(session, now), SecretAccessKey: session.secret, SessionToken: session.token,
			Expiration: session.expires.UTC().Format(time.RFC3339),
		},
		AssumedRoleUser: assumedRoleUser{AssumedRoleId: "AROA" + random(upper, 17) + ":" + name, Arn: session.arn},
	}, nil
}
