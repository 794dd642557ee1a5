package mcs

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

func TestConditions(t *testing.T) {
	v4, v6 := corev1.IPv4Protocol, corev1.IPv6Protocol
	web := exportOf("web")
	service := func(t corev1.ServiceType) *corev1.Service { return &corev1.Service{Spec: corev1.ServiceSpec{Type: t}} }
	ip := func(families ...corev1.IPFamily) Merged {
		return Merged{Type: mcsv1beta1.ClusterSetIP, IPFamilies: families}
	}
	tests := []struct {
		name                 string
		got                  metav1.Condition
		wantType, wantReason string
		wantStatus           metav1.ConditionStatus
		wantMessage          string
	}{
		{"no Service", ExportValid(web, nil), "Valid", "NoService", "False", "create it"},
		{"no Service of another name", ExportValid(exportOf("web", "web-green"), nil), "Valid", "NoService", "False",
			"no Service web-green in this namespace, which annotation cloud-map-mcs.github.io/service names"},
		{"the annotation has the name of the ServiceExport", ExportValid(exportOf("web", "web"), nil), "Valid", "NoService", "False", "no Service of this name"},
		{"no name of a Service", ExportValid(exportOf("web", "Web"), nil), "Valid", "InvalidServiceName", "False", `annotation cloud-map-mcs.github.io/service is "Web"`},
		{"another name", ExportValid(exportOf("web", "web-green"), service("ClusterIP")), "Valid", "Valid", "True", ""},
		{"derived Service by annotation", ExportValid(exportOf("web", DerivedName(Key{"demo", "db"})), &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "demo", Name: DerivedName(Key{"demo", "db"}), Labels: map[string]string{mcsv1beta1.LabelServiceName: "db"}}}),
			"Valid", "InvalidServiceType", "False", "derived Service of ServiceImport db"},
		{"ExternalName", ExportValid(web, service("ExternalName")), "Valid", "InvalidServiceType", "False", "ExternalName"},
		{"ClusterIP", ExportValid(web, service("ClusterIP")), "Valid", "Valid", "True", ""},
		{"LoadBalancer", ExportValid(web, service("LoadBalancer")), "Valid", "Valid", "True", ""},
		{"exported", ExportReady(Progress{Exported: true}), "Ready", "Exported", "True", ""},
		{"pending", ExportReady(Progress{}), "Ready", "Pending", "False", "being written"},
		{"failed", ExportReady(Progress{Problem: "access denied"}), "Ready", "Failed", "False", "access denied"},
		{"not valid", ExportNotReady(ExportValid(web, nil)), "Ready", "Failed", "False", "nothing is exported: there is no Service"},
		{"no conflict", ExportConflict(nil), "Conflict", "NoConflicts", "False", "agree"},
		{
			"conflicts", ExportConflict([]Conflict{{mcsv1beta1.ServiceExportReasonPortConflict, "port: x"}, {mcsv1beta1.ServiceExportReasonTypeConflict, "type: y"}}),
			"Conflict", "PortConflict,TypeConflict", "True", "port: x; type: y",
		},
		{"headless", ImportReady(Merged{Type: mcsv1beta1.Headless, IPFamilies: []corev1.IPFamily{v6}}, []corev1.IPFamily{v4}, nil, ReachAny, ResolutionUnknown), "Ready", "Ready", "True", "DNS name"},
		{"no IP yet", ImportReady(ip(v4), []corev1.IPFamily{v4}, nil, ReachAny, ResolutionUnknown), "Ready", "Pending", "False", "waiting"},
		{"IP", ImportReady(ip(v4, v6), []corev1.IPFamily{v6}, []string{"fd00::1"}, ReachAny, ResolutionUnknown), "Ready", "Ready", "True", "clusterset IP"},
		{"family", ImportReady(ip(v6), []corev1.IPFamily{v4}, nil, ReachAny, ResolutionUnknown), "Ready", "IPFamilyNotSupported", "False", "families IPv6 and this cluster has only IPv4"},
		{"families not known", ImportReady(ip(v6), nil, []string{"fd00::1"}, ReachAny, ResolutionUnknown), "Ready", "Ready", "True", ""},
		{"no endpoint", ImportReady(ip(v4), nil, []string{"10.0.0.1"}, ReachNone, ResolutionUnknown), "Ready", "Ready", "True", "no endpoint of any cluster is ready"},
		{"headless without endpoint", ImportReady(Merged{Type: mcsv1beta1.Headless}, nil, nil, ReachNone, ResolutionUnknown), "Ready", "Ready", "True", "no endpoint of any cluster is ready"},
		{"local traffic, own endpoints", ImportReady(ip(v4), nil, []string{"10.0.0.1"}, ReachOwnNode, ResolutionUnknown), "Ready", "Ready", "True", "only the endpoints on their own node"},
		{"local traffic, no own endpoint", ImportReady(ip(v4), nil, []string{"10.0.0.1"}, ReachNoNode, ResolutionUnknown), "Ready", "Ready", "True", "so they reach none"},
		{"names resolve", ImportReady(ip(v4), nil, []string{"10.0.0.1"}, ReachAny, Resolvable), "Ready", "Ready", "True", "by its DNS name and its clusterset IP"},
		{"names do not resolve", ImportReady(ip(v4), nil, []string{"10.0.0.1"}, ReachAny, NotResolvable), "Ready", "Ready", "True", "by its clusterset IP, but not by its DNS name"},
		{"headless, names do not resolve", ImportReady(Merged{Type: mcsv1beta1.Headless}, nil, nil, ReachAny, NotResolvable), "Ready", "Ready", "True", "clients cannot use its DNS name"},
		{"not resolvable", *ImportNotResolvable(NotResolvable), ConditionNotResolvable, "DNSNotServed", "True", "kubectl mcs dns status"},
		{"resolvable", *ImportNotResolvable(Resolvable), ConditionNotResolvable, "DNSServed", "False", "serves clusterset.local"},
		{"derived Service", ExportValid(web, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: DerivedName(Key{"demo", "web"}), Labels: map[string]string{mcsv1beta1.LabelServiceName: "web"}}}),
			"Valid", "InvalidServiceType", "False", "derived Service of ServiceImport web"},
		{"derived Service of another implementation", ExportValid(web, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "derived-x", OwnerReferences: []metav1.OwnerReference{{Kind: "ServiceImport", Name: "web"}}}}),
			"Valid", "InvalidServiceType", "False", "derived Service of ServiceImport web"},
		{"a Service with the labels of a derived one", ExportValid(web, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "web", Labels: map[string]string{
			mcsv1beta1.LabelServiceName: "web", "app.kubernetes.io/managed-by": "cloud-map-mcs-controller"}}}), "Valid", "Valid", "True", ""},
		{"being deleted", ExportTerminating([]string{"example.com/x"}), "Ready", "Pending", "False", "being deleted"},
		{"left out", ExportReady(Progress{Exported: true, LeftOut: LeftOuts{{Kind: LeftOutEndpoint, Slice: "a", Reason: reasonFQDN, Count: 2}}}), "Ready", "Exported", "True",
			"can see the export; left out: endpoints of EndpointSlice a: " + reasonFQDN},
		{"families not said", ImportReady(ip(), []corev1.IPFamily{v4}, []string{"10.0.0.1"}, ReachAny, ResolutionUnknown), "Ready", "Ready", "True", ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if tc.got.Type != tc.wantType || tc.got.Reason != tc.wantReason || tc.got.Status != tc.wantStatus {
				t.Errorf("got %s=%s (%s), want %s=%s (%s)", tc.got.Type, tc.got.Status, tc.got.Reason, tc.wantType, tc.wantStatus, tc.wantReason)
			}
			if !strings.Contains(tc.got.Message, tc.wantMessage) || tc.got.Message == "" {
				t.Errorf("message %q, want %q in it", tc.got.Message, tc.wantMessage)
			}
		})
	}
}

// TestResolutionOf: a controller that has just started does not know whether names resolve, and
// does not change what an import shows.
func TestResolutionOf(t *testing.T) {
	shown, over := *ImportNotResolvable(NotResolvable), *ImportNotResolvable(Resolvable)
	for _, tc := range []struct {
		names      Resolution
		conditions []metav1.Condition
		want       Resolution
	}{
		{ResolutionUnknown, nil, ResolutionUnknown}, {ResolutionUnknown, []metav1.Condition{over}, ResolutionUnknown},
		{ResolutionUnknown, []metav1.Condition{shown}, NotResolvable}, {Resolvable, []metav1.Condition{shown}, Resolvable},
		{NotResolvable, []metav1.Condition{over}, NotResolvable},
	} {
		if got := ResolutionOf(tc.names, tc.conditions); got != tc.want {
			t.Errorf("%v with %v is %v, want %v", tc.names, tc.conditions, got, tc.want)
		}
	}
	if c := ImportNotResolvable(ResolutionUnknown); c != nil {
		t.Errorf("unknown is the condition %+v, want none", c)
	}
}

func TestSetCondition(t *testing.T) {
	before, now := metav1.NewTime(start), metav1.NewTime(start.Add(time.Hour))
	ready := metav1.Condition{Type: "Ready", Status: "False", Reason: "Pending", Message: "m", ObservedGeneration: 1, LastTransitionTime: before}
	valid := metav1.Condition{Type: "Valid", Status: "True", Reason: "Valid", ObservedGeneration: 1, LastTransitionTime: before}
	edited := func(edit func(*metav1.Condition)) metav1.Condition {
		c := ready
		c.LastTransitionTime = now
		edit(&c)
		return c
	}
	tests := []struct {
		name        string
		list        []metav1.Condition
		set         metav1.Condition
		generation  int64
		want        metav1.Condition // of type Ready
		wantChanged bool
	}{
		{"new", []metav1.Condition{valid}, edited(func(*metav1.Condition) {}), 1, edited(func(*metav1.Condition) {}), true},
		{"same", []metav1.Condition{valid, ready}, edited(func(*metav1.Condition) {}), 1, ready, false},
		{
			"message", []metav1.Condition{ready, valid}, edited(func(c *metav1.Condition) { c.Message = "n" }), 1,
			edited(func(c *metav1.Condition) { c.Message = "n"; c.LastTransitionTime = before }), true,
		},
		{
			"generation", []metav1.Condition{ready}, edited(func(*metav1.Condition) {}), 2,
			edited(func(c *metav1.Condition) { c.ObservedGeneration = 2; c.LastTransitionTime = before }), true,
		},
		{
			"status", []metav1.Condition{ready}, edited(func(c *metav1.Condition) { c.Status = "True" }), 1,
			edited(func(c *metav1.Condition) { c.Status = "True" }), true,
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			list := append([]metav1.Condition(nil), tc.list...)
			got, changed := SetCondition(list, tc.set, tc.generation)
			if changed != tc.wantChanged {
				t.Errorf("changed = %t, want %t", changed, tc.wantChanged)
			}
			if diff := cmp.Diff(tc.list, list); diff != "" {
				t.Errorf("the list was changed (-before +after):\n%s", diff)
			}
			var ready, others []metav1.Condition
			for _, c := range got {
				if c.Type == "Ready" {
					ready = append(ready, c)
					continue
				}
				others = append(others, c)
			}
			if diff := cmp.Diff([]metav1.Condition{tc.want}, ready); diff != "" {
				t.Errorf("Ready (-want +got):\n%s", diff)
			}
			if len(got)-len(ready) != len(others) || len(others) > 0 && !cmp.Equal(others[0], valid) {
				t.Errorf("other conditions changed: %v", others)
			}
		})
	}
}
