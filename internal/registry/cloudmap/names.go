package cloudmap

import (
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

const (
	controlPrefix = "mcs."
	catalogPrefix = "catalog."
	// membersService is the service with the member records.
	membersService = "members"
)

// controlNamespace returns the name of the namespace with a clusterset's records.
func controlNamespace(clusterSetID string) string { return controlPrefix + clusterSetID }

// catalogName returns the name of the service with a cluster's pages.
func catalogName(clusterID string) string { return catalogPrefix + clusterID }

// parseCatalogName is the inverse of catalogName; ok is false for other names.
func parseCatalogName(name string) (clusterID string, ok bool) {
	clusterID, ok = strings.CutPrefix(name, catalogPrefix)
	return clusterID, ok && mcs.ValidateClusterID(clusterID) == nil
}
