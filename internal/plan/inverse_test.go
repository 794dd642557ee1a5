package plan

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// fullExport sets every property that mcs.Merge takes from an export.
func fullExport() mcs.Export {
	e := webExport("cls1")
	e.Ports[0].AppProtocol = "kubernetes.io/h2c"
	e.SessionAffinity = corev1.ServiceAffinityClientIP
	e.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](10)}}
	e.InternalTrafficPolicy = corev1.ServiceInternalTrafficPolicyLocal
	e.TrafficDistribution = corev1.ServiceTrafficDistributionPreferClose
	e.ClusterSelectors, _ = mcs.PreferSameRegion.Selectors()
	e.MinimumReady = 20
	e.Labels, e.Annotations = map[string]string{"team": "a"}, map[string]string{"note": "b"}
	return e
}

// propertiesExport draws an export by leaving out some properties of fullExport.
func propertiesExport(t *rapid.T, cluster string) mcs.Export {
	e := fullExport()
	e.Cluster = cluster
	e.Type = rapid.SampledFrom([]mcsv1beta1.ServiceImportType{mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless}).Draw(t, "type")
	e.Ports = rapid.SampledFrom([][]mcs.Port{
		nil, {{Port: 80}}, e.Ports, {{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}, {Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, AppProtocol: "dns"}},
	}).Draw(t, "ports")
	e.SessionAffinity = rapid.SampledFrom([]corev1.ServiceAffinity{"", corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP}).Draw(t, "affinity")
	e.IPFamilies = rapid.SampledFrom([][]corev1.IPFamily{nil, {v4}, {v6}, {v6, v4}}).Draw(t, "families")
	maps := []map[string]string{nil, {"a": ""}, {"a": "1", "b/c": "2"}}
	e.Labels = rapid.SampledFrom(maps).Draw(t, "labels")
	e.Annotations = rapid.SampledFrom(maps).Draw(t, "annotations")
	for _, unset := range []func(){
		func() { e.SessionAffinityConfig = nil },
		func() { e.InternalTrafficPolicy = "" },
		func() { e.TrafficDistribution = "" },
		func() { e.ClusterSelectors, e.MinimumReady = "", 0 },
	} {
		if rapid.Bool().Draw(t, "unset") {
			unset()
		}
	}
	return e
}

// inImport returns m without the fields that a ServiceImport does not hold.
func inImport(m mcs.Merged) mcs.Merged {
	m.Conflicts, m.PortUses = nil, nil
	m.Ports = append([]mcs.Port(nil), m.Ports...)
	for i := range m.Ports {
		m.Ports[i].TargetPort = ""
	}
	return m
}

// While a cluster cannot be read, the import is made from MergedFromServiceImport: a property that
// it drops would be taken away from a working import by an outage of the registry.
func TestMergedFromServiceImport_IsInverseOfServiceImport(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		exports := []mcs.Export{propertiesExport(t, "cls1")}
		if rapid.Bool().Draw(t, "second cluster") {
			exports = append(exports, propertiesExport(t, "cls2"))
		}
		m := mcs.Merge(exports)
		var existing *mcsv1beta1.ServiceImport
		if rapid.Bool().Draw(t, "existing") {
			existing = ServiceImport(mcs.Merge([]mcs.Export{propertiesExport(t, "cls3")}), &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{
				Labels: map[string]string{"other": "x"}, Annotations: map[string]string{"other": "x"},
			}}, derived, nil, nil, nil)
		}
		imp := ServiceImport(m, existing, derived, nil, nil, nil)
		if diff := cmp.Diff(inImport(m), MergedFromServiceImport(imp, exports)); diff != "" {
			t.Fatalf("(-merged +from the ServiceImport):\n%s", diff)
		}
	})
}

// A field of mcs.Merged that fullExport does not set would escape the test above.
func TestMergedFromServiceImport_CoversEveryField(t *testing.T) {
	m := mcs.Merge([]mcs.Export{fullExport()})
	want := inImport(m)
	imp := ServiceImport(m, nil, derived, nil, nil, nil)
	got := MergedFromServiceImport(imp, []mcs.Export{fullExport()})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-merged +from the ServiceImport):\n%s", diff)
	}
	for _, field := range unsetFields(reflect.ValueOf(got), "Merged") {
		if field != "Merged.Conflicts" && field != "Merged.PortUses" && field != "Merged.Ports[0].TargetPort" {
			t.Errorf("%s is unset: set it in fullExport and propertiesExport if it is part of a ServiceImport", field)
		}
	}
}

// unsetFields lists the fields in v, which is called name, that have their zero value.
func unsetFields(v reflect.Value, name string) []string {
	switch {
	case v.IsZero():
		return []string{name}
	case v.Kind() == reflect.Slice:
		return unsetFields(v.Index(0), name+"[0]")
	case v.Kind() != reflect.Struct:
		return nil
	}
	var out []string
	for i := range v.NumField() {
		out = append(out, unsetFields(v.Field(i), name+"."+v.Type().Field(i).Name)...)
	}
	return out
}
