package cloudmaplocal

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
)

// AccessKey is somebody who may call.
type AccessKey struct {
	// ID is the access key id. Required.
	ID string `json:"id"`
	// Secret, if set, is what requests must be signed with. If not, a request need only name the ID.
	Secret string `json:"secret,omitempty"`
	// Account is the account that the key belongs to. Default Options.Account.
	Account string `json:"account,omitempty"`
	// User is the name of the IAM user that the key belongs to: it shows in ARNs. Default: the ID.
	User string `json:"user,omitempty"`
	// Policies say what the user may do. Without any it may do everything.
	Policies []iampolicy.Policy `json:"policies,omitempty"`
}

// Role is somebody whom others may become with AssumeRole or AssumeRoleWithWebIdentity.
type Role struct {
	// ARN is like arn:aws:iam::123456789012:role/registry. Required.
	ARN string `json:"arn"`
	// Trust lists who may assume it: ARNs of users and roles, with * and ? as wildcards, or accounts.
	Trust []string `json:"trust,omitempty"`
	// ExternalID, if set, is what AssumeRole must name.
	ExternalID string `json:"externalId,omitempty"`
	// Subjects lists who may assume it with a token of a Kubernetes service account (IRSA): the token's sub, with wildcards,
	// for example system:serviceaccount:cloud-map-mcs-system:*. The token's signature is not verified, only its aud and exp.
	Subjects []string `json:"subjects,omitempty"`
	// Policies say what the role may do. Without any it may do everything.
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
			return fmt.Errorf("role %s: given twice", role.ARN)
		case len(role.Trust)+len(role.Subjects) == 0:
			return fmt.Errorf("role %s: nobody may assume it; set trust or subjects", role.ARN)
		}
		seen[role.ARN] = true
	}
	return nil
}

// trusts reports whether somebody may assume the role. An account, or its root, means everybody in it.
func (r Role) trusts(who identity) bool {
	for _, trusted := range r.Trust {
		account := strings.TrimSuffix(strings.TrimPrefix(trusted, "arn:aws:iam::"), ":root")
		if account == who.account || iampolicy.MatchWildcard(trusted, who.arn) || who.role != "" && iampolicy.MatchWildcard(trusted, who.role) {
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

// identity is who signs with a key.
type identity struct {
	account string
	arn     string
	role    string // the role's ARN, of a session
	// policies say what it may do. Without any it may do everything.
	policies []iampolicy.Policy
	secret   string // "": signatures are not verified
	token    string // the session's; "": of a key that is no session's
	expires  time.Time
}

// keyring knows who signs with which key: the access keys of the options, and the sessions that roles were assumed for.
type keyring struct {
	keys map[string]identity

	mu       sync.Mutex
	sessions map[string]identity
}

func newKeyring(keys []AccessKey) *keyring {
	k := &keyring{keys: map[string]identity{}, sessions: map[string]identity{}}
	for _, key := range keys {
		k.keys[key.ID] = identity{
			account: key.Account, secret: key.Secret, policies: key.Policies,
			arn: "arn:aws:iam::" + key.Account + ":user/" + key.User,
		}
	}
	return k
}

// open reports whether everybody may call.
func (k *keyring) open() bool { return len(k.keys) == 0 }

// anybody is who calls an open server.
func anybody(account string) identity {
	return identity{account: account, arn: "arn:aws:iam::" + account + ":root"}
}

// forgetAfter is how long an expired session is still told from an unknown key.
const forgetAfter = time.Hour

// add takes in a session and gives the id of its key.
func (k *keyring) add(session identity, now time.Time) (keyID string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, old := range k.sessions {
		if now.Sub(old.expires) > forgetAfter {
			delete(k.sessions, id)
		}
	}
	keyID = "ASIA" + random(upper, 16)
	k.sessions[keyID] = session
	return keyID
}

// find is who has a key.
func (k *keyring) find(keyID string) (identity, bool) {
	if who, known := k.keys[keyID]; known {
		return who, true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	who, known := k.sessions[keyID]
	return who, known
}

// checkSession is about the token that comes with a session's key.
func (i identity) checkSession(token string, now time.Time) error {
	switch {
	case i.token != token:
		return failure("UnrecognizedClientException", "The security token included in the request is invalid.")
	case i.token != "" && !now.Before(i.expires):
		return failure("ExpiredTokenException", "The security token included in the request is expired")
	}
	return nil
}
