package membership

import (
	"fmt"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// aboutCRD is the CRD of ClusterProperty.
const aboutCRD = "clusterproperties." + aboutv1beta1.GroupName

// properties are the cluster's ClusterProperties.
type properties struct {
	// Installed reports whether the API exists.
	Installed bool
	// ClusterID and ClusterSetID are "" where there is no such ClusterProperty.
	ClusterID, ClusterSetID string
	// All has every ClusterProperty by name, but those that this controller has derived.
	All mcs.Properties
	// Deprecation is the sentence about a deprecated annotation with the drain, or "".
	Deprecation string
	// Objects are all ClusterProperties. They must not be changed.
	Objects []aboutv1beta1.ClusterProperty
}

// decideIdentity returns the cluster's identity, or an error with the action that sets it. A
// ClusterProperty has precedence over the flag of the same meaning.
func decideIdentity(p properties, flags config.Identity, uid string) (mcs.Identity, error) {
	clusterID, err := decideID(p, p.ClusterID, aboutv1beta1.ClusterIDProperty, flags.ClusterID, "--cluster-id")
	clusterSetID, setErr := decideID(p, p.ClusterSetID, aboutv1beta1.ClusterSetIDProperty, flags.ClusterSetID, "--clusterset-id")
	switch {
	case err != nil && setErr != nil:
		err = fmt.Errorf("%w; %w", err, setErr)
	case err == nil:
		err = setErr
	}
	if err != nil {
		return mcs.Identity{}, err
	}
	return mcs.Identity{ClusterID: clusterID, ClusterSetID: clusterSetID, UID: uid}, nil
}

func decideID(p properties, value, property, fallback, flag string) (string, error) {
	source := "ClusterProperty " + property
	if value == "" {
		value, source = fallback, "flag "+flag
	}
	if value == "" && !p.Installed {
		return "", fmt.Errorf("install the CRD %s and create ClusterProperty %s, or set %s", aboutCRD, property, flag)
	}
	if value == "" {
		return "", fmt.Errorf("create ClusterProperty %s, or set %s", property, flag)
	}
	if err := mcs.ValidateClusterID(value); err != nil {
		return "", fmt.Errorf("%s: %w", source, err)
	}
	return value, nil
}
