package cloudmaplocal

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

const (
	ownAccount   = "111111111111"
	otherAccount = "222222222222"
	roleRegistry = "arn:aws:iam::222222222222:role/registry"
)

// twoAccounts returns options with a key of each account and a role that the first account may
// assume.
func twoAccounts(role Role) Options {
	role.ARN = roleRegistry
	return Options{
		Now: time.Now, Roles: []Role{role},
		AccessKeys: []AccessKey{
			{ID: "AKIDONE", Secret: "one", Account: ownAccount, User: "cls1"},
			{ID: "AKIDTWO", Secret: "two", Account: otherAccount},
		},
	}
}

// sts returns a client of the AWS SDK for STS.
func (w *testServer) sts(credentials aws.CredentialsProvider) *sts.Client {
	return sts.New(sts.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(w.url), Credentials: credentials, RetryMaxAttempts: 1,
		HTTPClient: &http.Client{Transport: plainBody{http.DefaultTransport}},
	})
}

// asAssumedRole returns a client of Cloud Map with the credentials of an assumed role.
func (w *testServer) asAssumedRole(credentials aws.CredentialsProvider) *sd.Client {
	options := w.client("us-east-1", "", "").Options()
	options.Credentials = credentials
	return sd.New(options)
}

func assumeRole(c *sts.Client) aws.CredentialsProvider {
	return stscreds.NewAssumeRoleProvider(c, roleRegistry)
}

// account creates the namespace name and returns the account that owns it.
func account(t *testing.T, c *sd.Client, name string) (string, error) {
	t.Helper()
	created, err := c.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: &name})
	if err != nil {
		return "", err
	}
	got, err := c.GetOperation(t.Context(), &sd.GetOperationInput{OperationId: created.OperationId})
	return *must(t, got, err).Operation.OwnerAccount, nil
}

func TestAssumeRole(t *testing.T) {
	one := staticCredentials{"AKIDONE", "one"}
	tests := []struct {
		name       string
		role       Role
		by         staticCredentials
		externalID string
		wantCode   string
	}{
		{"user", Role{Trust: []string{"arn:aws:iam::111111111111:user/cls1"}}, one, "", ""},
		{"wildcard", Role{Trust: []string{"arn:aws:iam::1111*:user/cls?"}}, one, "", ""},
		{"account", Role{Trust: []string{ownAccount}}, one, "", ""},
		{"root", Role{Trust: []string{"arn:aws:iam::111111111111:root"}}, one, "", ""},
		{"another user", Role{Trust: []string{"arn:aws:iam::111111111111:user/cls2"}}, one, "", "AccessDenied"},
		{"another account", Role{Trust: []string{otherAccount}}, one, "", "AccessDenied"},
		{"external id", Role{Trust: []string{ownAccount}, ExternalID: "x1"}, one, "x1", ""},
		{"wrong external id", Role{Trust: []string{ownAccount}, ExternalID: "x1"}, one, "x2", "AccessDenied"},
		{"no external id", Role{Trust: []string{ownAccount}, ExternalID: "x1"}, one, "", "AccessDenied"},
		{"wrong secret", Role{Trust: []string{ownAccount}}, staticCredentials{"AKIDONE", "two"}, "", "SignatureDoesNotMatch"},
		{"unknown key", Role{Trust: []string{ownAccount}}, staticCredentials{"AKIDX", "one"}, "", "InvalidClientTokenId"},
		{"tokens only", Role{Subjects: []string{"*"}}, one, "", "AccessDenied"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newTestServer(t, twoAccounts(tt.role))
			provider := stscreds.NewAssumeRoleProvider(w.sts(tt.by), roleRegistry, func(o *stscreds.AssumeRoleOptions) {
				if tt.externalID != "" {
					o.ExternalID = &tt.externalID
				}
			})
			got, err := account(t, w.asAssumedRole(provider), "demo")
			if tt.wantCode != "" {
				wantCode(t, err, tt.wantCode)
				return
			}
			assertEqual(t, otherAccount, must(t, got, err))
		})
	}
}

// TestSessions checks credentials of a role: their identity, role chaining, expiry, and that all
// three parts are needed.
func TestSessions(t *testing.T) {
	clock := NewClock(time.Now())
	opts := twoAccounts(Role{Trust: []string{ownAccount}})
	opts.Roles = append(opts.Roles, Role{ARN: "arn:aws:iam::111111111111:role/next", Trust: []string{roleRegistry}})
	opts.Now = clock.Now
	w := newTestServer(t, opts)
	out, err := w.sts(staticCredentials{"AKIDONE", "one"}).AssumeRole(t.Context(), &sts.AssumeRoleInput{
		RoleArn: new(roleRegistry), RoleSessionName: new("cls1"), DurationSeconds: new(int32(900))})
	got := must(t, out, err)
	assertEqual(t, "arn:aws:sts::222222222222:assumed-role/registry/cls1", *got.AssumedRoleUser.Arn)
	assertEqual(t, clock.Now().Add(15*time.Minute).Truncate(time.Second).UTC(), *got.Credentials.Expiration)
	session := aws.Credentials{
		AccessKeyID: *got.Credentials.AccessKeyId, SecretAccessKey: *got.Credentials.SecretAccessKey, SessionToken: *got.Credentials.SessionToken}
	provide := func(change func(*aws.Credentials)) aws.CredentialsProvider {
		changed := session
		change(&changed)
		return fixed(changed)
	}
	valid := provide(func(*aws.Credentials) {})

	caller, err := w.sts(valid).GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{})
	assertEqual(t, "arn:aws:sts::222222222222:assumed-role/registry/cls1", *must(t, caller, err).Arn)
	assertEqual(t, otherAccount, *caller.Account)
	next := stscreds.NewAssumeRoleProvider(w.sts(valid), "arn:aws:iam::111111111111:role/next")
	chained, err := account(t, w.asAssumedRole(next), "chained")
	assertEqual(t, ownAccount, must(t, chained, err))

	_, err = account(t, w.asAssumedRole(provide(func(c *aws.Credentials) { c.SessionToken = "" })), "no-token")
	wantCode(t, err, "UnrecognizedClientException")
	_, err = account(t, w.asAssumedRole(provide(func(c *aws.Credentials) { c.SessionToken += "x" })), "wrong-token")
	wantCode(t, err, "UnrecognizedClientException")
	_, err = account(t, w.asAssumedRole(provide(func(c *aws.Credentials) { c.SecretAccessKey = "x" })), "wrong-secret")
	wantCode(t, err, "InvalidSignatureException")
	token := provide(func(c *aws.Credentials) { c.AccessKeyID, c.SecretAccessKey = "AKIDONE", "one" })
	_, err = account(t, w.asAssumedRole(token), "token-of-another")
	wantCode(t, err, "UnrecognizedClientException")

	if _, err := account(t, w.asAssumedRole(valid), "valid"); err != nil {
		t.Error(err)
	}
	held, known := w.server.credentials.findIdentity(session.AccessKeyID)
	assertEqual(t, true, known)
	wantCode(t, held.checkSession(session.SessionToken, clock.Now().Add(15*time.Minute)), "ExpiredTokenException")
	clock.Advance(4 * time.Minute) // less than signatures may be off
	if _, err := account(t, w.asAssumedRole(valid), "still-valid"); err != nil {
		t.Error(err)
	}
}

type fixed aws.Credentials

func (f fixed) Retrieve(context.Context) (aws.Credentials, error) { return aws.Credentials(f), nil }

func TestSTSRefuses(t *testing.T) {
	w := newTestServer(t, twoAccounts(Role{Trust: []string{ownAccount}}))
	c := w.sts(staticCredentials{"AKIDONE", "one"})
	tests := []struct {
		name string
		in   sts.AssumeRoleInput
		want string
	}{
		{"short", sts.AssumeRoleInput{DurationSeconds: new(int32(899))}, "ValidationError"},
		{"long", sts.AssumeRoleInput{DurationSeconds: new(int32(43201))}, "ValidationError"},
		{"session policy", sts.AssumeRoleInput{Policy: new("{}")}, "ValidationError"},
		{"name", sts.AssumeRoleInput{RoleSessionName: new("a b")}, "ValidationError"},
		{"role", sts.AssumeRoleInput{RoleArn: new("arn:aws:iam::222222222222:role/other")}, "AccessDenied"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.in.RoleArn == nil {
				tt.in.RoleArn = new(roleRegistry)
			}
			if tt.in.RoleSessionName == nil {
				tt.in.RoleSessionName = new("cls1")
			}
			_, err := c.AssumeRole(t.Context(), &tt.in)
			wantCode(t, err, tt.want)
		})
	}
	_, err := c.GetSessionToken(t.Context(), &sts.GetSessionTokenInput{})
	wantCode(t, err, "InvalidAction")
	_, err = w.sts(aws.AnonymousCredentials{}).GetCallerIdentity(t.Context(), &sts.GetCallerIdentityInput{})
	wantCode(t, err, "MissingAuthenticationToken")
	_, body := w.get("/metrics")
	if !strings.Contains(body, `cloudmap_local_requests_total{operation="AssumeRole",result="AccessDenied"} 1`) {
		t.Errorf("/metrics does not count requests to STS:\n%s", body)
	}
}

// webIdentity is a token as a file would give it.
type webIdentity string

func (w webIdentity) GetIdentityToken() ([]byte, error) { return []byte(w), nil }

func webIdentityToken(subject, audience string, expires time.Time) webIdentity {
	payload := fmt.Sprintf(`{"sub":%q,"aud":%s,"exp":%d}`, subject, audience, expires.Unix())
	return webIdentity("e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln")
}

func TestAssumeRoleWithWebIdentity(t *testing.T) {
	const subject = "system:serviceaccount:cloud-map-mcs-system:manager"
	later := time.Now().Add(time.Hour)
	tests := []struct {
		name  string
		token webIdentity
		want  string
	}{
		{"one audience", webIdentityToken(subject, `"sts.amazonaws.com"`, later), ""},
		{"two audiences", webIdentityToken(subject, `["x","sts.amazonaws.com"]`, later), ""},
		{"another audience", webIdentityToken(subject, `["x"]`, later), "InvalidIdentityToken"},
		{"another subject", webIdentityToken("system:serviceaccount:default:manager", `"sts.amazonaws.com"`, later), "AccessDenied"},
		{"expired", webIdentityToken(subject, `"sts.amazonaws.com"`, time.Now()), "ExpiredToken"},
		{"no token", "abc", "InvalidIdentityToken"},
		{"no payload", "a.b.c", "InvalidIdentityToken"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newTestServer(t, twoAccounts(Role{Subjects: []string{"system:serviceaccount:cloud-map-mcs-system:*"}}))
			provider := stscreds.NewWebIdentityRoleProvider(w.sts(aws.AnonymousCredentials{}), roleRegistry, tt.token)
			got, err := account(t, w.asAssumedRole(provider), "demo")
			if tt.want != "" {
				wantCode(t, err, tt.want)
				return
			}
			assertEqual(t, otherAccount, must(t, got, err))
		})
	}
}

// TestOpenServerWithRoles has no access keys: all requests are accepted, and roles that trust the
// account can be assumed.
func TestOpenServerWithRoles(t *testing.T) {
	w := newTestServer(t, Options{Now: time.Now, Roles: []Role{{ARN: roleRegistry, Trust: []string{DefaultAccount}}}})
	got, err := account(t, w.asAssumedRole(assumeRole(w.sts(staticCredentials{"any", "any"}))), "demo")
	assertEqual(t, otherAccount, must(t, got, err))
}

func TestQuery_RejectsInvalidBody(t *testing.T) {
	w := newTestServer(t, Options{})
	for _, body := range []string{"", "%zz", "Action=", "Action=AssumeRole&RoleArn=" + url.QueryEscape("<&>")} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url, strings.NewReader(body))
		must(t, r, err).Header.Set("Content-Type", formType)
		if status, answer := w.do(r); status < 400 || status > 499 || !strings.Contains(answer, "<ErrorResponse") {
			t.Errorf("%q: %d %s", body, status, answer)
		}
	}
}
