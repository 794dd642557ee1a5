package cloudmaplocal

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
)

// AccessKey is an access key that callers can use.
type AccessKey struct {
	// ID is the access key id. Required.
	ID string `json:"id"`
	// Secret, if set, must sign requests. Without it a request need only name the ID.
	Secret string `json:"secret,omitempty"`
	// Account is the account that the key belongs to. Default Options.Account.
	Account string `json:"account,omitempty"`
	// User is the name of the IAM user that the key belongs to; it is part of ARNs. Default: the
	// ID.
	User string `json:"user,omitempty"`
	// Policies of the user. Without any the user is allowed everything.
	Policies []iampolicy.Policy `json:"policies,omitempty"`
}

// Role is an IAM role that callers can assume with AssumeRole or AssumeRoleWithWebIdentity.
type Role struct {
	// ARN is like arn:aws:iam::123456789012:role/registry. Required.
	ARN string `json:"arn"`
	// Trust lists the principals that may assume it: ARNs of users and roles, with * and ? as
	// wildcards, or accounts.
	Trust []string `json:"trust,omitempty"`
	// ExternalID, if set, must be in the AssumeRole request.
	ExternalID string `json:"externalId,omitempty"`
	// Subjects lists the Kubernetes service accounts that may assume it with a token (IRSA): the
	// token's sub, with wildcards, for example system:serviceaccount:cloud-map-mcs-system:*. The
	// token's signature is not verified, only its aud and exp.
	Subjects []string `json:"subjects,omitempty"`
	// Policies of the role. Without any it is allowed everything.
	Policies []iampolicy.Policy `json:"policies,omitempty"`
}

var (
	roleARN  = regexp.MustCompile(`^arn:aws[a-z-]*:iam::([0-9]{12}):role/(?:[\w+=,.@/-]*/)?([\w+=,.@-]{1,64})$`)
	userName = regexp.MustCompile(`^[\w+=,.@-]{1,64}$`)
)

// account and name of the role, by its ARN.
func (r Role) account() string { return roleARN.FindStringSubmatch(r.ARN)[1] }
func (r Role) name() string    { return roleARN.FindStringSubmatch(r.ARN)[2] }

func validateRoles(roles []Role) error {
	seen := map[string]bool{}
	for _, role := range roles {
		switch {
		case !roleARN.MatchString(role.ARN):
			return fmt.Errorf("role %q: the ARN must be like arn:aws:iam::123456789012:role/name", role.ARN)
		case seen[role.ARN]:
			return fmt.Errorf("role %s: is listed twice", role.ARN)
		case len(role.Trust)+len(role.Subjects) == 0:
			return fmt.Errorf("role %s: no principal may assume it; set trust or subjects", role.ARN)
		}
		seen[role.ARN] = true
	}
	return nil
}

// trustsPrincipal reports whether an identity may assume the role. An account, or its root, means
// all identities of the account.
func (r Role) trustsPrincipal(caller identity) bool {
	for _, trusted := range r.Trust {
		account := strings.TrimSuffix(strings.TrimPrefix(trusted, "arn:aws:iam::"), ":root")
		if account == caller.account || iampolicy.MatchWildcard(trusted, caller.arn) || caller.roleARN != "" && iampolicy.MatchWildcard(trusted, caller.roleARN) {
			return true
		}
	}
	return false
}

// trustsSubject reports whether the bearer of a token may assume the role.
func (r Role) trustsSubject(subject string) bool {
	for _, trusted := range r.Subjects {
		if iampolicy.MatchWildcard(trusted, subject) {
			return true
		}
	}
	return false
}

// identity is the owner of a key: a user or a session of a role.
type identity struct {
	account string
	arn     string
	roleARN string // the role's ARN, of a session
	// policies of the identity. Without any it is allowed everything.
	policies []iampolicy.Policy
	secret   string // "": signatures are not verified
	token    string // the session's; "": of a key that is no session's
	expires  time.Time
}

// credentialStore has the identities of keys: the access keys of the options, and the sessions of
// assumed roles.
type credentialStore struct {
	account, region string // of unsigned requests
	keys            map[string]identity

	mu       sync.Mutex
	sessions map[string]identity
}

func newCredentialStore(keys []AccessKey, account, region string) *credentialStore {
	k := &credentialStore{account: account, region: region, keys: map[string]identity{}, sessions: map[string]identity{}}
	for _, key := range keys {
		k.keys[key.ID] = identity{
			account: key.Account, secret: key.Secret, policies: key.Policies,
			arn: "arn:aws:iam::" + key.Account + ":user/" + key.User,
		}
	}
	return k
}

// allowsAnonymous reports whether requests need no known key.
func (k *credentialStore) allowsAnonymous() bool { return len(k.keys) == 0 }

// anonymousIdentity returns the identity of a caller without a known key.
func anonymousIdentity(account string) identity {
	return identity{account: account, arn: "arn:aws:iam::" + account + ":root"}
}

// expiredSessionRetention is the time for which an expired session is distinguished from an unknown
// key.
const expiredSessionRetention = time.Hour

// addSession stores a session and returns the ID of its key.
func (k *credentialStore) addSession(session identity, now time.Time) (keyID string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, old := range k.sessions {
		if now.Sub(old.expires) > expiredSessionRetention {
			delete(k.sessions, id)
		}
	}
	keyID = "ASIA" + random(upper, 16)
	k.sessions[keyID] = session
	return keyID
}

// findIdentity returns the identity of a key.
func (k *credentialStore) findIdentity(keyID string) (identity, bool) {
	if found, known := k.keys[keyID]; known {
		return found, true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	found, known := k.sessions[keyID]
	return found, known
}

// checkSession returns an error unless the token belongs to the session and has not expired.
func (i identity) checkSession(token string, now time.Time) error {
	switch {
	case i.token != token:
		return failure("UnrecognizedClientException", "The security token included in the request is invalid.")
	case i.token != "" && !now.Before(i.expires):
		return failure("ExpiredTokenException", "The security token included in the request is expired")
	}
	return nil
}
