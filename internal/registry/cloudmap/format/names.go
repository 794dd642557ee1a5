package format

import (
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

const (
	controlPrefix = "mcs."
	catalogPrefix = "catalog."
	// MembersService is the service with the member records.
	MembersService = "members"
)

// ControlNamespace returns the name of the namespace with a clusterset's records.
func ControlNamespace(clusterSetID string) string { return controlPrefix + clusterSetID }

// CatalogName returns the name of the service with a cluster's pages.
func CatalogName(clusterID string) string { return catalogPrefix + clusterID }

// ParseCatalogName is the inverse of CatalogName; ok is false for other names.
func ParseCatalogName(name string) (clusterID string, ok bool) {
	clusterID, ok = strings.CutPrefix(name, catalogPrefix)
	return clusterID, ok && mcs.ValidateClusterID(clusterID) == nil
}
