package format

import (
	"strconv"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

const (
	controlPrefix = "mcs."
	catalogPrefix = "catalog."
	// MembersService is the first service with member records.
	MembersService = "members"
)

const (
	// MaxMembersServices is the number of services with member records. AWS lets a service have
	// 1,000 instances, so the clusterset has room for 4,000 records, those of clusters that have
	// left within a week included. Each further service is one more request of every poll.
	MaxMembersServices = 4
	// FullMembersService is the number of records from which on a further service may exist. It is
	// below the 1,000 of AWS, because records leave a service that was full.
	FullMembersService = 900
)

// MembersServiceName returns the name of a service with member records, the first one with n = 1:
// members, members-2 and so on.
func MembersServiceName(n int) string {
	if n <= 1 {
		return MembersService
	}
	return MembersService + "-" + strconv.Itoa(n)
}

// ParseMembersService is the inverse of MembersServiceName; ok is false for other names.
func ParseMembersService(name string) (n int, ok bool) {
	for n = 1; n <= MaxMembersServices; n++ {
		if name == MembersServiceName(n) {
			return n, true
		}
	}
	return 0, false
}

// ControlNamespace returns the name of the namespace with a clusterset's records.
func ControlNamespace(clusterSetID string) string { return controlPrefix + clusterSetID }

// CatalogName returns the name of the service with a cluster's pages.
func CatalogName(clusterID string) string { return catalogPrefix + clusterID }

// ParseCatalogName is the inverse of CatalogName; ok is false for other names.
func ParseCatalogName(name string) (clusterID string, ok bool) {
	clusterID, ok = strings.CutPrefix(name, catalogPrefix)
	return clusterID, ok && mcs.ValidateClusterID(clusterID) == nil
}
