package plan

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// longIDs returns n cluster IDs of the longest length.
func longIDs(n int) []string {
	var ids []string
	for i := range n {
		id := fmt.Sprintf("%04d-", i)
		ids = append(ids, id+strings.Repeat("x", 63-len(id)))
	}
	return ids
}

// TestServiceImport_OfManyClusters: a member that exports a service under 1,000 IDs, as many as
// there are keys (trust.Config.MaxPins), does not make the ServiceImport too large for the API.
func TestServiceImport_OfManyClusters(t *testing.T) {
	ids := longIDs(1000)
	m := mcs.Merged{Key: mcs.Key{Namespace: "shop", Name: "web"}, Type: mcsv1beta1.ClusterSetIP, Labels: map[string]string{}, Annotations: map[string]string{}}
	for i := range 13 { // 4 KiB each, most of it keys
		key := fmt.Sprintf("%s.example.com/%063d", strings.Repeat("x", 240), i)
		m.Labels[key], m.Annotations[key] = "", ""
	}
	imp := ServiceImport(m, nil, derived, nil, []corev1.IPFamily{v4}, ids)
	times := strings.Join(ids, "=?1790000000,") + "=?1790000000"
	SetExportTimes(imp, times)
	SetUnreachable(imp, ids[:500]) // of more, the fault is in this cluster
	for name, tiers := range map[string][]mcs.Tier{"few": {{Clusters: ids[:100]}}, "all in each": manyTiers(ids)} {
		t.Run(name, func(t *testing.T) {
			imp := imp.DeepCopy()
			SetTiers(imp, tiers)
			if err := validation.ValidateAnnotationsSize(imp.Annotations); err != nil {
				t.Error(err)
			}
			if isKept := len(Tiers(imp)) > 0; isKept != (name == "few") {
				t.Errorf("the results of the selectors are kept: %t", isKept)
			}
		})
	}
}

// manyTiers returns as many tiers as there may be, each with all clusters.
func manyTiers(ids []string) (tiers []mcs.Tier) {
	for range 16 {
		tiers = append(tiers, mcs.Tier{Clusters: ids})
	}
	return tiers
}
