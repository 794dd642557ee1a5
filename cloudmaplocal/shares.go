package cloudmaplocal

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Share lets other accounts use a namespace, as AWS RAM does.
//
// They can read all of it, create services, and register and deregister instances; they can change
// and delete the services that they created. They name the namespace and its services by ARN;
// requests without an ARN (DiscoverInstances, DiscoverInstancesRevision, GetOperation) name the
// owner in OwnerAccount. Otherwise nothing is found. Only the owner can share.
type Share struct {
	// Owner is the account of the namespace. Default Options.Account.
	Owner string `json:"owner,omitempty"`
	// Region of the namespace. Default: every Region.
	Region string `json:"region,omitempty"`
	// Namespace is its name or its ID. It need not exist yet. Required.
	Namespace string `json:"namespace"`
	// With are the accounts that may use it. Required.
	With []string `json:"with"`
	// OwnServicesOnly restricts registrations to services that the account created. AWS does not
	// publish whether its managed permission does that.
	OwnServicesOnly bool `json:"ownServicesOnly,omitempty"`
}

func (s Share) validate() error {
	switch {
	case s.Namespace == "":
		return errors.New("namespace: required, the name or the ID of the shared namespace")
	case !accountPattern.MatchString(s.Owner):
		return fmt.Errorf("owner %q: must be an account of 12 digits", s.Owner)
	case s.Region != "" && !regionPattern.MatchString(s.Region):
		return fmt.Errorf("region %q: must be like us-east-1", s.Region)
	case len(s.With) == 0:
		return errors.New("with: required, the accounts that may use the namespace")
	case slices.Contains(s.With, s.Owner):
		return fmt.Errorf("with: the owner %s has it already", s.Owner)
	}
	for _, account := range s.With {
		if !accountPattern.MatchString(account) {
			return fmt.Errorf("with %q: must be an account of 12 digits", account)
		}
	}
	return nil
}

// checkShares returns the shares with default owners, or an error for the first invalid share,
// counting from 1.
func checkShares(shares []Share, account string) ([]Share, error) {
	shares = slices.Clone(shares)
	for i := range shares {
		if shares[i].Owner == "" {
			shares[i].Owner = account
		}
		if err := shares[i].validate(); err != nil {
			return nil, fmt.Errorf("share %d: %w", i+1, err)
		}
	}
	return shares, nil
}

// shareList has the current shares of all accounts.
type shareList struct {
	mu      sync.Mutex
	current []Share // never changed in place
}

func (l *shareList) setShares(shares []Share) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = shares
}

func (l *shareList) currentShares() []Share {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}
