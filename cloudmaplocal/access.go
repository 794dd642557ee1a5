package cloudmaplocal

import (
	"slices"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// access decides which resources of an owner the caller of a request can see.
type access struct {
	owner  regionKey
	caller principal
	shares []Share
}

// isOwner reports whether the caller's account owns the region.
func (a access) isOwner() bool { return a.caller.account == a.owner.account }

// isVisible reports whether the caller can see a namespace: its own, or a shared one.
func (a access) isVisible(ns *namespace) bool {
	return a.isOwner() || a.shareOf(ns) != nil
}

// shareOf returns the share by which the caller uses a namespace; nil without one.
func (a access) shareOf(ns *namespace) *Share {
	i := slices.IndexFunc(a.shares, func(s Share) bool {
		return s.Owner == a.owner.account && (s.Region == "" || s.Region == a.owner.region) &&
			(s.Namespace == ns.Name || s.Namespace == ns.ID) && slices.Contains(s.With, a.caller.account)
	})
	if i < 0 {
		return nil
	}
	return &a.shares[i]
}

// recordedCreator returns the creator to store for a new resource of the caller.
func (a access) recordedCreator() string {
	if a.isOwner() {
		return ""
	}
	return a.caller.account
}

// isOwnerAccount reports whether OwnerAccount, which is optional, is the account of the owner.
func (a access) isOwnerAccount(ownerAccount string) bool {
	return ownerAccount == "" || ownerAccount == a.owner.account
}

// visibleResources are the resources that list operations show.
type visibleResources struct {
	namespaces []wire.Namespace
	services   []wire.Service
}

// listVisible returns the resources of the store that the caller can see.
func (a access) listVisible(s *store) (all visibleResources) {
	for _, ns := range s.namespaces {
		if a.isVisible(ns) {
			all.namespaces = append(all.namespaces, s.namespaceShape(ns))
		}
	}
	for _, svc := range s.services {
		if a.isVisible(s.namespaceOf(svc)) {
			all.services = append(all.services, s.serviceShape(svc))
		}
	}
	return all
}
