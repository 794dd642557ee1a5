package mcs

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// TestFieldConflict_SkipsIrrelevantExport: the exports after one that a field is not relevant for
// still count.
func TestFieldConflict_SkipsIrrelevantExport(t *testing.T) {
	f := field{name: "type", value: func(e Export) string { return string(e.Type) }, isRelevant: func(_, e Export) bool { return e.Cluster != "cls2" }}
	got := f.conflict([]Export{{Cluster: "cls1", Type: mcsv1beta1.ClusterSetIP}, {Cluster: "cls2", Type: "other"}, {Cluster: "cls3", Type: mcsv1beta1.Headless}})
	if got == nil || !strings.HasSuffix(got.Message, "1 of 3 clusters disagree: cls3") {
		t.Errorf("conflict %+v, want one with cls3 alone", got)
	}
}

func TestMergeIPFamilies_SkipsExportsWithoutFamilies(t *testing.T) {
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	families, conflict := mergeIPFamilies([]Export{
		{Cluster: "cls1"}, {Cluster: "cls2", IPFamilies: []corev1.IPFamily{v4}}, {Cluster: "cls3"}, {Cluster: "cls4", IPFamilies: []corev1.IPFamily{v6}},
	}, mcsv1beta1.ClusterSetIP)
	if !slices.Equal(families, []corev1.IPFamily{v4}) {
		t.Errorf("families %v, want those of cls2", families)
	}
	if conflict == nil || !strings.HasSuffix(conflict.Message, "disagree: cls4") {
		t.Errorf("conflict %+v, want one with cls4", conflict)
	}
}

// TestMessagesAtLimit: messages with exactly as many names as fit name no further ones.
func TestMessagesAtLimit(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e"}
	if got := enumerate(names); got != "a, b, c, d, e" {
		t.Errorf("names %q", got)
	}
	if got := enumerate(append(names, "f")); got != "a, b, c, d, e and 1 more" {
		t.Errorf("names %q", got)
	}
	if got := truncateMessages(names); !slices.Equal(got, names) {
		t.Errorf("messages %q", got)
	}
	if got := truncateMessages(append(names, "f")); len(got) != 6 || got[5] != "and 1 more ports" {
		t.Errorf("messages %q", got)
	}
}
