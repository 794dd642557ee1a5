package cloudmaplocal

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// Share lets other accounts use a namespace, as AWS RAM does.
//
// They can read all of it, create services, and register and deregister instances; they can change and delete the
// services that they created. They name the namespace and its services by ARN; requests without an ARN
// (DiscoverInstances, DiscoverInstancesRevision, GetOperation) name the owner in OwnerAccount. Otherwise nothing is
// found. Only the owner can share.
type Share struct {
	// Owner is the account of the namespace. Default Options.Account.
	Owner string `json:"owner,omitempty"`
	// Region of the namespace. Default: every Region.
	Region string `json:"region,omitempty"`
	// Namespace is its name or its ID. It need not exist yet. Required.
	Namespace string `json:"namespace"`
	// With are the accounts that may use it. Required.
	With []string `json:"with"`
	// OwnServicesOnly restricts registrations to services that the account created. AWS does not publish whether its managed
	// permission does that.
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

// checkShares returns the shares with default owners, or an error for the first invalid share, counting from 1.
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

// SetShares replaces the current shares. Accounts lose access to resources that are no longer shared, also to the ones
// that they created. An invalid list is an error and changes nothing.
func (s *Server) SetShares(shares []Share) error {
	shares, err := checkShares(shares, s.opts.Account)
	if err != nil {
		return fmt.Errorf("checking the shares: %w", err)
	}
	s.mu.Lock()
	s.shares = shares
	s.mu.Unlock()
	for _, r := range s.allRegions() {
		_ = r.withLock(func() error { r.shares = shares; return nil }) // cannot fail
	}
	return nil
}

// Shares returns the current shares.
func (s *Server) Shares() []Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.shares)
}

// targetRegion returns the region of the account that owns the resource of the request, or the caller's own region. List
// operations always run in the caller's own region.
func (s *Server) targetRegion(caller principal, body []byte) *region {
	own := s.region(caller.homeRegion())
	owner := requestOwner(body, caller.region)
	if owner == "" || owner == caller.account {
		return own
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.regions[regionKey{owner, caller.region}]; other != nil {
		return other
	}
	return own
}

// requestOwner returns the account that a request names as the owner of its resource; "" if it names none.
func requestOwner(body []byte, region string) string {
	ref, err := decode[requestIDs](body)
	if err != nil {
		return ""
	}
	if ref.OwnerAccount != "" {
		return ref.OwnerAccount
	}
	for _, name := range []string{ref.ServiceId, ref.NamespaceId, ref.Id, ref.ResourceARN} {
		// arn:partition:servicediscovery:region:account:kind/id
		parts := strings.Split(name, ":")
		if len(parts) == 6 && parts[2] == signingService && parts[3] == region {
			return parts[4]
		}
	}
	return ""
}

// sharedResources returns the resources that other accounts share with the caller.
func (s *Server) sharedResources(caller principal) (all visibleResources) {
	for _, r := range s.allRegions() {
		if r.key.region != caller.region || r.key.account == caller.account {
			continue
		}
		_ = r.withLock(func() error { // cannot fail
			r.req = request{caller: caller}
			more := r.visibleResources()
			all.namespaces = append(all.namespaces, more.namespaces...)
			all.services = append(all.services, more.services...)
			return nil
		})
	}
	return all
}

// visibleResources are the resources that list operations show.
type visibleResources struct {
	namespaces []wire.Namespace
	services   []wire.Service
}

// visibleResources returns the resources of the region that the caller can see.
func (r *region) visibleResources() (all visibleResources) {
	for _, ns := range r.namespaces {
		if r.isVisible(ns) {
			all.namespaces = append(all.namespaces, r.namespaceShape(ns))
		}
	}
	for _, svc := range r.services {
		if r.isVisible(r.namespaces[svc.NamespaceID]) {
			all.services = append(all.services, r.serviceShape(svc))
		}
	}
	return all
}

// isOwner reports whether the caller's account owns the region.
func (r *region) isOwner() bool { return r.req.caller.account == r.key.account }

// isVisible reports whether the caller can see a namespace: its own, or a shared one.
func (r *region) isVisible(ns *namespace) bool {
	return r.isOwner() || r.shareOf(ns) != nil
}

// shareOf returns the share by which the caller uses a namespace; nil without one.
func (r *region) shareOf(ns *namespace) *Share {
	i := slices.IndexFunc(r.shares, func(s Share) bool {
		return s.Owner == r.key.account && (s.Region == "" || s.Region == r.key.region) &&
			(s.Namespace == ns.Name || s.Namespace == ns.ID) && slices.Contains(s.With, r.req.caller.account)
	})
	if i < 0 {
		return nil
	}
	return &r.shares[i]
}

// Operations that a share does not allow: changes of the namespace itself, and changes of services of other accounts.
var (
	ownersOnly = []string{
		"DeleteNamespace", "UpdateHttpNamespace", "UpdatePrivateDnsNamespace", "UpdatePublicDnsNamespace",
	}
	creatorsOnly = []string{
		"UpdateService", "DeleteService", "UpdateServiceAttributes", "DeleteServiceAttributes", "TagResource", "UntagResource",
	}
	instanceWrites = []string{"RegisterInstance", "DeregisterInstance", "UpdateInstanceCustomHealthStatus"}
)

// checkShare returns an error if a share does not allow the request. For a resource that is not shared the operation
// itself returns not found.
func (r *region) checkShare(about requestTarget) error {
	if r.isOwner() || about.namespace == nil {
		return nil
	}
	share := r.shareOf(about.namespace)
	if share == nil {
		return nil
	}
	created := about.service != nil && r.creatorAccount(about.service.CreatedBy) == r.req.caller.account
	name := r.req.operation
	switch {
	case slices.Contains(ownersOnly, name),
		slices.Contains(creatorsOnly, name) && !created,
		share.OwnServicesOnly && slices.Contains(instanceWrites, name) && !created:
		return accessDenied(r.req.caller.arn, name, about.arn(r), "because no resource-based policy allows the "+actionName(name)+" action")
	}
	return nil
}

// creatorAccount returns the account that created a resource. It is stored only if it is not the owner's.
func (r *region) creatorAccount(account string) string {
	if account == "" {
		return r.key.account
	}
	return account
}

// recordedCreator returns the creator to store for a new resource of the caller.
func (r *region) recordedCreator() string {
	if r.isOwner() {
		return ""
	}
	return r.req.caller.account
}
