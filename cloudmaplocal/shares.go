package cloudmaplocal

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Share lets other accounts use a namespace, as AWS RAM does.
//
// They read everything in it, create services, and register and deregister instances; they change and delete the services
// that they created. They name the namespace and its services by ARN, and where a request names no ARN (DiscoverInstances,
// DiscoverInstancesRevision, GetOperation) by OwnerAccount. Without that it is as if there were nothing. Only the owner can
// share.
type Share struct {
	// Owner is the account that has the namespace. Default Options.Account.
	Owner string `json:"owner,omitempty"`
	// Region of the namespace. Default: every one.
	Region string `json:"region,omitempty"`
	// Namespace is its name or its id. It need not exist yet. Required.
	Namespace string `json:"namespace"`
	// With are the accounts that may use it. Required.
	With []string `json:"with"`
	// OwnServicesOnly lets them register instances only in services that they created. AWS does not publish whether its
	// managed permission says so.
	OwnServicesOnly bool `json:"ownServicesOnly,omitempty"`
}

func (s Share) validate() error {
	switch {
	case s.Namespace == "":
		return errors.New("namespace: required, the name or the id of what is shared")
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

// checkShares is shares with the owner filled in, or an error that names the first that cannot be, counting from 1.
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

// SetShares puts shares in the place of those in force. What is not shared any more is gone for those who used it, what
// they created included. A list that cannot be is an error and changes nothing.
func (s *Server) SetShares(shares []Share) error {
	shares, err := checkShares(shares, s.opts.Account)
	if err != nil {
		return fmt.Errorf("checking the shares: %w", err)
	}
	s.mu.Lock()
	s.shares = shares
	s.mu.Unlock()
	for _, r := range s.allRegions() {
		_ = r.do(func() error { r.shares = shares; return nil }) // cannot fail
	}
	return nil
}

// Shares is those in force.
func (s *Server) Shares() []Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.shares)
}

// regionFor is the region that a request works in: that of the account that owns what it names, or the caller's own. Lists
// are always about what the caller sees from its own.
func (s *Server) regionFor(by caller, body []byte) *region {
	own := s.region(by.home())
	owner := ownerIn(body, by.region)
	if owner == "" || owner == by.account {
		return own
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.regions[regionKey{owner, by.region}]; other != nil {
		return other
	}
	return own
}

// ownerIn is the account that a request names as the owner of what it is about; "" if it names none.
func ownerIn(body []byte, region string) string {
	ref, err := decode[reference](body)
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

// sharedWith is what other accounts share with the caller.
func (s *Server) sharedWith(by caller) (all listed) {
	for _, r := range s.allRegions() {
		if r.key.region != by.region || r.key.account == by.account {
			continue
		}
		_ = r.do(func() error { // cannot fail
			r.req = request{by: by}
			more := r.listed()
			all.namespaces = append(all.namespaces, more.namespaces...)
			all.services = append(all.services, more.services...)
			return nil
		})
	}
	return all
}

// listed is what lists show.
type listed struct {
	namespaces []namespaceShape
	services   []serviceShape
}

// listed is what the caller can see of the region.
func (r *region) listed() (all listed) {
	for _, ns := range r.namespaces {
		if r.shows(ns) {
			all.namespaces = append(all.namespaces, r.namespaceShape(ns))
		}
	}
	for _, svc := range r.services {
		if r.shows(r.namespaces[svc.NamespaceID]) {
			all.services = append(all.services, r.serviceShape(svc))
		}
	}
	return all
}

// isOwner reports whether the caller's account owns the region.
func (r *region) isOwner() bool { return r.req.by.account == r.key.account }

// shows reports whether the caller can see a namespace: it owns it, or it is shared with it.
func (r *region) shows(ns *namespace) bool {
	return r.isOwner() || r.shareOf(ns) != nil
}

// shareOf is the share by which the caller uses a namespace; nil without one.
func (r *region) shareOf(ns *namespace) *Share {
	i := slices.IndexFunc(r.shares, func(s Share) bool {
		return s.Owner == r.key.account && (s.Region == "" || s.Region == r.key.region) &&
			(s.Namespace == ns.Name || s.Namespace == ns.ID) && slices.Contains(s.With, r.req.by.account)
	})
	if i < 0 {
		return nil
	}
	return &r.shares[i]
}

// What a share does not allow: anything that changes the namespace itself, and changes of services that others created.
var (
	ownersOnly = []string{
		"DeleteNamespace", "UpdateHttpNamespace", "UpdatePrivateDnsNamespace", "UpdatePublicDnsNamespace",
	}
	creatorsOnly = []string{
		"UpdateService", "DeleteService", "UpdateServiceAttributes", "DeleteServiceAttributes", "TagResource", "UntagResource",
	}
	instanceWrites = []string{"RegisterInstance", "DeregisterInstance", "UpdateInstanceCustomHealthStatus"}
)

// checkShare reports what a share does not allow. That nothing is shared is for the operation to find out: it is not found.
func (r *region) checkShare(about subject) error {
	if r.isOwner() || about.namespace == nil {
		return nil
	}
	share := r.shareOf(about.namespace)
	if share == nil {
		return nil
	}
	created := about.service != nil && r.createdBy(about.service.CreatedBy) == r.req.by.account
	name := r.req.operation
	switch {
	case slices.Contains(ownersOnly, name),
		slices.Contains(creatorsOnly, name) && !created,
		share.OwnServicesOnly && slices.Contains(instanceWrites, name) && !created:
		return accessDenied(r.req.by.arn, name, about.arn(r), "because no resource-based policy allows the "+actionName(name)+" action")
	}
	return nil
}

// createdBy is the account that created something, which is remembered only if it is not the owner's.
func (r *region) createdBy(account string) string {
	if account == "" {
		return r.key.account
	}
	return account
}

// creator is what to remember of the caller as the creator of something.
func (r *region) creator() string {
	if r.isOwner() {
		return ""
	}
	return r.req.by.account
}
