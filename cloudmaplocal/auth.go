package cloudmaplocal

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	signingAlgorithm = "AWS4-HMAC-SHA256"
	signingTime      = "20060102T150405Z"
	signingService   = "servicediscovery"

	// maxClockSkew between the signature and the server, as in most AWS services.
	maxClockSkew = 5 * time.Minute
)

// signature is the Authorization header of AWS Signature Version 4:
//
//	AWS4-HMAC-SHA256 Credential=<key>/<date>/<region>/<service>/aws4_request, SignedHeaders=a;b;c, Signature=<hex>
type signature struct {
	keyID, date, region, service string
	signedHeaders                []string
	value                        string
}

var signatureSyntax = regexp.MustCompile(`^AWS4-HMAC-SHA256 +Credential=([^/,\s]+)/(\d{8})/([^/,\s]+)/([^/,\s]+)/aws4_request` +
	`, *SignedHeaders=([^,\s]+), *Signature=([0-9a-f]{64})$`)

// parseSignature reads the Authorization header and reports whether it is complete.
func parseSignature(authorization string) (signature, bool) {
	m := signatureSyntax.FindStringSubmatch(authorization)
	if m == nil {
		return signature{}, false
	}
	return signature{
		keyID: m[1], date: m[2], region: m[3], service: m[4], signedHeaders: strings.Split(m[5], ";"), value: m[6],
	}, true
}

// principal is the identity that sent a request, and the Region of the request.
type principal struct {
	identity
	region string
	keyID  string // "" if it is not signed
}

// homeRegion returns the key of the caller's own region.
func (c principal) homeRegion() regionKey { return regionKey{c.account, c.region} }

// authenticate returns the identity and the Region of a request. Without configured keys all
// requests are accepted and the signature only names the Region; the key of an assumed role still
// identifies that role.
func (k *credentialStore) authenticate(r *http.Request, body []byte, service string, now time.Time) (principal, error) {
	sig, signed := parseSignature(r.Header.Get("Authorization"))
	caller := principal{identity: anonymousIdentity(k.account), region: k.region, keyID: sig.keyID}
	if signed {
		caller.region = sig.region
	}
	if !regionPattern.MatchString(caller.region) {
		return caller, failure("InvalidSignatureException", "Credential should be scoped to a valid region, not '%s'.", caller.region)
	}
	found, known := k.findIdentity(sig.keyID)
	switch {
	case known:
		caller.identity = found
	case k.allowsAnonymous():
	case !signed:
		return caller, unsignedError(r)
	default:
		return caller, failure("UnrecognizedClientException", "The security token included in the request is invalid.")
	}
	if caller.secret == "" {
		return caller, nil
	}
	if err := sig.verify(r, body, caller.secret, service, now); err != nil {
		return caller, err
	}
	return caller, caller.checkSession(r.Header.Get("X-Amz-Security-Token"), now)
}

// unsignedError distinguishes a request without signature from one with an unreadable signature.
func unsignedError(r *http.Request) error {
	if r.Header.Get("Authorization") == "" {
		return failure("MissingAuthenticationTokenException", "Missing Authentication Token")
	}
	return failure("IncompleteSignatureException", "The Authorization header is not a complete %s signature.", signingAlgorithm)
}

// verify computes the signature again and compares.
func (sig signature) verify(r *http.Request, body []byte, secret, service string, now time.Time) error {
	if sig.service != service {
		return failure("InvalidSignatureException", "Credential should be scoped to correct service: '%s'.", service)
	}
	stamp := r.Header.Get("X-Amz-Date")
	at, err := time.Parse(signingTime, stamp)
	switch {
	case err != nil || !strings.HasPrefix(stamp, sig.date):
		return failure("IncompleteSignatureException", "X-Amz-Date '%s' does not fit the credential's date %s.", stamp, sig.date)
	case at.Sub(now).Abs() > maxClockSkew:
		return failure("InvalidSignatureException", "Signature expired: %s is more than %s from %s.",
			stamp, maxClockSkew, now.UTC().Format(signingTime))
	case !slices.Contains(sig.signedHeaders, "host"):
		return failure("InvalidSignatureException", "'Host' must be a 'SignedHeader' in the AWS Authorization.")
	}
	if !hmac.Equal([]byte(sig.compute(r, body, secret, stamp)), []byte(sig.value)) {
		return failure("InvalidSignatureException", "The request signature we calculated does not match the signature you provided. "+
			"Check your AWS Secret Access Key and signing method.")
	}
	return nil
}

// compute returns the expected signature of the request.
func (sig signature) compute(r *http.Request, body []byte, secret, stamp string) string {
	scope := strings.Join([]string{sig.date, sig.region, sig.service, "aws4_request"}, "/")
	toSign := strings.Join([]string{signingAlgorithm, stamp, scope, hexHash([]byte(sig.canonicalRequest(r, body)))}, "\n")
	key := []byte("AWS4" + secret)
	for _, part := range []string{sig.date, sig.region, sig.service, "aws4_request"} {
		key = mac(key, part)
	}
	return hex.EncodeToString(mac(key, toSign))
}

// canonicalRequest returns the request in the form that the caller signed.
func (sig signature) canonicalRequest(r *http.Request, body []byte) string {
	lines := []string{r.Method, (&url.URL{Path: r.URL.Path}).EscapedPath(), r.URL.Query().Encode()}
	if lines[1] == "" {
		lines[1] = "/"
	}
	for _, name := range sig.signedHeaders {
		lines = append(lines, name+":"+signedValue(r, name))
	}
	lines = append(lines, "", strings.Join(sig.signedHeaders, ";"), hexHash(body))
	return strings.Join(lines, "\n")
}

// signedValue returns a header in its signed form: spaces folded, several values joined. net/http
// removes the host and the length from the headers.
func signedValue(r *http.Request, name string) string {
	values := r.Header.Values(name)
	switch name {
	case "host":
		values = []string{r.Host}
	case "content-length":
		values = []string{strconv.FormatInt(r.ContentLength, 10)}
	}
	folded := mapSlice(values, func(v string) string { return strings.Join(strings.Fields(v), " ") })
	return strings.Join(folded, ",")
}

func hexHash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func mac(key []byte, data string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(data))
	return h.Sum(nil)
}
