package plan

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

func TestPropertyWrites(t *testing.T) {
	users := func(name, value string) aboutv1beta1.ClusterProperty {
		return aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7"}, Spec: aboutv1beta1.ClusterPropertySpec{Value: value}}
	}
	own := func(name, value string) aboutv1beta1.ClusterProperty {
		p := users(name, value)
		return *withDerivedValue(&p, value)
	}
	edited := func(edit func(*aboutv1beta1.ClusterProperty)) []aboutv1beta1.ClusterProperty {
		p := own(mcs.PropertyRegion, "eu-west-1")
		edit(&p)
		return []aboutv1beta1.ClusterProperty{p}
	}
	region := mcs.Properties{mcs.PropertyRegion: "eu-west-1"}
	both := mcs.Properties{mcs.PropertyRegion: "eu-west-1", mcs.PropertyZone: "eu-west-1a", mcs.PropertyNetworks: "10.0.0.0/8", mcs.PropertyZones: "eu-west-1a"}
	for name, tt := range map[string]struct {
		derived  mcs.Properties
		existing []aboutv1beta1.ClusterProperty
		want     []string
	}{
		"nothing":                        {nil, nil, nil},
		"new":                            {both, []aboutv1beta1.ClusterProperty{users("other.example.com", "x")}, []string{"create region.topology.k8s.io eu-west-1", "create zone.topology.k8s.io eu-west-1a"}},
		"up to date":                     {both, []aboutv1beta1.ClusterProperty{own(mcs.PropertyZone, "eu-west-1a"), own(mcs.PropertyRegion, "eu-west-1")}, nil},
		"another Region":                 {region, []aboutv1beta1.ClusterProperty{own(mcs.PropertyRegion, "eu-west-2")}, []string{"update region.topology.k8s.io eu-west-1"}},
		"nodes of two zones":             {region, []aboutv1beta1.ClusterProperty{own(mcs.PropertyRegion, "eu-west-1"), own(mcs.PropertyZone, "eu-west-1a")}, []string{"delete zone.topology.k8s.io eu-west-1a"}},
		"left":                           {nil, []aboutv1beta1.ClusterProperty{own(mcs.PropertyRegion, "eu-west-1"), users(mcs.PropertyZone, "eu-west-1a")}, []string{"delete region.topology.k8s.io eu-west-1"}},
		"a user's":                       {region, []aboutv1beta1.ClusterProperty{users(mcs.PropertyRegion, "eu-west-2")}, nil},
		"a user's, no longer derived":    {nil, []aboutv1beta1.ClusterProperty{users(mcs.PropertyRegion, "eu-west-1")}, nil},
		"a user has changed the value":   {region, edited(func(p *aboutv1beta1.ClusterProperty) { p.Spec.Value = "eu-west-2" }), nil},
		"a user has removed the label":   {nil, edited(func(p *aboutv1beta1.ClusterProperty) { p.Labels = nil }), nil},
		"a tool has put its label":       {nil, edited(func(p *aboutv1beta1.ClusterProperty) { p.Labels[LabelAppManagedBy] = "Helm" }), nil},
		"a user has removed the value":   {nil, edited(func(p *aboutv1beta1.ClusterProperty) { p.Annotations = nil }), nil},
		"our label on another property":  {nil, []aboutv1beta1.ClusterProperty{own(mcs.PropertyNetworks, "10.0.0.0/8"), own(aboutv1beta1.ClusterIDProperty, "cls1")}, nil},
		"labels of others do not matter": {region, edited(func(p *aboutv1beta1.ClusterProperty) { p.Labels["team"] = "a" }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, reversed := range []bool{false, true} {
				existing := slices.Clone(tt.existing)
				if reversed {
					slices.Reverse(existing)
				}
				var got []string
				for _, w := range PropertyWrites(tt.derived, existing) {
					got = append(got, string(w.Verb)+" "+w.Property.Name+" "+w.Property.Spec.Value)
					if hasVersion := w.Property.ResourceVersion != ""; hasVersion == (w.Verb == VerbCreate) || !IsDerivedProperty(w.Property) {
						t.Errorf("%s %+v", w.Verb, w.Property)
					}
				}
				if d := cmp.Diff(tt.want, got); d != "" {
					t.Error(d)
				}
			}
		})
	}
}
