package mcs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

func TestMerge_NoExports(t *testing.T) {
	if diff := cmp.Diff(Merged{}, Merge(nil)); diff != "" {
		t.Errorf("Merge(nil) (-want +got):\n%s", diff)
	}
}

func TestMergeOne(t *testing.T) {
	e := webExport("cls1", 0, clientIP(10), withPorts(tcp("", 80)), func(e *Export) {
		e.InternalTrafficPolicy = corev1.ServiceInternalTrafficPolicyLocal
		e.TrafficDistribution = corev1.ServiceTrafficDistributionPreferClose
		e.Labels = map[string]string{"team": "a"}
		e.Annotations = map[string]string{"note": "b"}
	})
	want := Merged{
		Key:                   e.Key,
		Type:                  mcsv1beta1.ClusterSetIP,
		Ports:                 []Port{tcp("", 80)},
		SessionAffinity:       corev1.ServiceAffinityClientIP,
		SessionAffinityConfig: e.SessionAffinityConfig,
		InternalTrafficPolicy: corev1.ServiceInternalTrafficPolicyLocal,
		TrafficDistribution:   corev1.ServiceTrafficDistributionPreferClose,
		IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol},
		Labels:                map[string]string{"team": "a"},
		Annotations:           map[string]string{"note": "b"},
		Clusters:              []string{"cls1"},
	}
	if diff := cmp.Diff(want, Merge([]Export{e})); diff != "" {
		t.Errorf("Merge (-want +got):\n%s", diff)
	}
}

func TestMergeConflicts(t *testing.T) {
	v4, v6 := corev1.IPv4Protocol, corev1.IPv6Protocol
	labels := func(m map[string]string) func(*Export) { return func(e *Export) { e.Labels = m } }
	tests := []struct {
		name    string
		exports []Export
		want    []Conflict
	}{
		{
			name:    "all agree",
			exports: []Export{webExport("cls1", 0), webExport("cls2", 5)},
		},
		{
			name:    "targetPort and endpoints may differ",
			exports: []Export{webExport("cls1", 0), webExport("cls2", 5, withPorts(tcp("http", 80)), func(e *Export) { e.Backends = nil })},
		},
		{
			name: "an unset property agrees with its default",
			exports: []Export{
				webExport("cls1", 0, clientIP(10800)),
				webExport("cls2", 5, func(e *Export) {
					e.SessionAffinity = corev1.ServiceAffinityClientIP
					e.InternalTrafficPolicy = corev1.ServiceInternalTrafficPolicyCluster
				}),
			},
		},
		{
			name: "PreferClose is an alias",
			exports: []Export{
				webExport("cls1", 0, func(e *Export) { e.TrafficDistribution = "PreferClose" }),
				webExport("cls2", 5, func(e *Export) { e.TrafficDistribution = "PreferSameZone" }),
			},
		},
		{
			name:    "type",
			exports: []Export{webExport("cls1", 5), webExport("cls2", 0, headless), webExport("cls3", 9)},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonTypeConflict,
				"type: using Headless from cluster cls2, 2 of 3 clusters disagree: cls1, cls3",
			}},
		},
		{
			name:    "equally old: the cluster that sorts first decides",
			exports: []Export{webExport("cls2", 0, headless), webExport("cls1", 0)},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonTypeConflict,
				"type: using ClusterSetIP from cluster cls1, 1 of 2 clusters disagree: cls2",
			}},
		},
		{
			name:    "an export without creation time never decides",
			exports: []Export{webExport("cls1", 0, headless, func(e *Export) { e.Created = time.Time{} }), webExport("cls2", 0)},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonTypeConflict,
				"type: using ClusterSetIP from cluster cls2, 1 of 2 clusters disagree: cls1",
			}},
		},
		{
			name:    "an export with a creation time in the future never decides",
			exports: []Export{webExport("cls1", 0, headless, func(e *Export) { e.Created = time.Date(2199, 1, 1, 0, 0, 0, 0, time.UTC) }), webExport("cls2", 0)},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonTypeConflict,
				"type: using ClusterSetIP from cluster cls2, 1 of 2 clusters disagree: cls1",
			}},
		},
		{
			name:    "affinity, but not the timeout that exports without it lack",
			exports: []Export{webExport("cls1", 0, clientIP(10)), webExport("cls2", 5)},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonSessionAffinityConflict,
				"sessionAffinity: using ClientIP from cluster cls1, 1 of 2 clusters disagree: cls2",
			}},
		},
		{
			name:    "affinity timeout",
			exports: []Export{webExport("cls1", 0, clientIP(10)), webExport("cls2", 5, clientIP(20))},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonSessionAffinityConfigConflict,
				"sessionAffinityConfig.clientIP.timeoutSeconds: using 10 from cluster cls1, 1 of 2 clusters disagree: cls2",
			}},
		},
		{
			name:    "labels",
			exports: []Export{webExport("cls1", 0), webExport("cls2", 5, labels(map[string]string{"a": "b"}))},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonLabelsConflict,
				"exportedLabels: using none from cluster cls1, 1 of 2 clusters disagree: cls2",
			}},
		},
		{
			name: "annotations",
			exports: []Export{
				webExport("cls1", 0, func(e *Export) { e.Annotations = map[string]string{"a": "1,b=2", "c": strings.Repeat("x", 99)} }),
				webExport("cls2", 5, func(e *Export) { e.Annotations = map[string]string{"a": "1"} }),
			},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonAnnotationsConflict,
				`exportedAnnotations: using "a"="1,b=2","c"="` + strings.Repeat("x", 47) + "... from cluster cls1, 1 of 2 clusters disagree: cls2",
			}},
		},
		{
			name:    "internalTrafficPolicy",
			exports: []Export{webExport("cls1", 0), webExport("cls2", 5, func(e *Export) { e.InternalTrafficPolicy = "Local" })},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonInternalTrafficPolicyConflict,
				"internalTrafficPolicy: using Cluster from cluster cls1, 1 of 2 clusters disagree: cls2",
			}},
		},
		{
			name:    "trafficDistribution",
			exports: []Export{webExport("cls1", 0), webExport("cls2", 5, func(e *Export) { e.TrafficDistribution = "PreferSameNode" })},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonTrafficDistributionConflict,
				"trafficDistribution: using none from cluster cls1, 1 of 2 clusters disagree: cls2",
			}},
		},
		{
			name:    "IPv6 would reach only some backends",
			exports: []Export{webExport("cls1", 0, withFamilies(v4, v6)), webExport("cls2", 5), webExport("cls3", 6, withFamilies(v6, v4))},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonIPFamilyConflict,
				"ipFamilies: using IPv4,IPv6 from cluster cls1, 1 of 3 clusters disagree: cls2",
			}},
		},
		{
			name:    "no family in common",
			exports: []Export{webExport("cls1", 0), webExport("cls2", 5, withFamilies(v6))},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonIPFamilyConflict,
				"ipFamilies: using IPv4 from cluster cls1, 1 of 2 clusters disagree: cls2",
			}},
		},
		{
			name:    "an unused additional family is no conflict",
			exports: []Export{webExport("cls1", 0), webExport("cls2", 5, withFamilies(v6, v4))},
		},
		{
			name:    "an additional family of a headless service is a conflict",
			exports: []Export{webExport("cls1", 0, headless), webExport("cls2", 5, headless, withFamilies(v4, v6))},
			want: []Conflict{{
				mcsv1beta1.ServiceExportReasonIPFamilyConflict,
				"ipFamilies: using IPv4 from cluster cls1, 1 of 2 clusters disagree: cls2",
			}},
		},
		{
			name:    "an export without families does not disagree",
			exports: []Export{webExport("cls1", 0, withFamilies()), webExport("cls2", 5)},
		},
		{
			name: "everything at once, in the order of mcs-api",
			exports: []Export{webExport("cls1", 0, clientIP(10)), webExport("cls2", 5, clientIP(20), headless, withFamilies(v6), withPorts(tcp("http", 81)), func(e *Export) {
				e.Labels, e.Annotations = map[string]string{"a": "b"}, map[string]string{"a": "b"}
				e.InternalTrafficPolicy, e.TrafficDistribution = "Local", "PreferClose"
			}), webExport("cls3", 6)},
			want: []Conflict{
				{mcsv1beta1.ServiceExportReasonPortConflict, "port: using http 80/TCP from cluster cls1, 1 of 3 clusters disagree: cls2"},
				{mcsv1beta1.ServiceExportReasonTypeConflict, "type: using ClusterSetIP from cluster cls1, 1 of 3 clusters disagree: cls2"},
				{mcsv1beta1.ServiceExportReasonSessionAffinityConflict, "sessionAffinity: using ClientIP from cluster cls1, 1 of 3 clusters disagree: cls3"},
				{mcsv1beta1.ServiceExportReasonSessionAffinityConfigConflict, "sessionAffinityConfig.clientIP.timeoutSeconds: using 10 from cluster cls1, 1 of 3 clusters disagree: cls2"},
				{mcsv1beta1.ServiceExportReasonLabelsConflict, "exportedLabels: using none from cluster cls1, 1 of 3 clusters disagree: cls2"},
				{mcsv1beta1.ServiceExportReasonAnnotationsConflict, "exportedAnnotations: using none from cluster cls1, 1 of 3 clusters disagree: cls2"},
				{mcsv1beta1.ServiceExportReasonInternalTrafficPolicyConflict, "internalTrafficPolicy: using Cluster from cluster cls1, 1 of 3 clusters disagree: cls2"},
				{mcsv1beta1.ServiceExportReasonTrafficDistributionConflict, "trafficDistribution: using none from cluster cls1, 1 of 3 clusters disagree: cls2"},
				{mcsv1beta1.ServiceExportReasonIPFamilyConflict, "ipFamilies: using IPv4 from cluster cls1, 1 of 3 clusters disagree: cls2"},
			},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Merge(tc.exports).Conflicts); diff != "" {
				t.Errorf("Conflicts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMergeValuesOfTheOldest(t *testing.T) {
	oldest := webExport("cls9", 0, headless, withFamilies(corev1.IPv6Protocol, corev1.IPv4Protocol), func(e *Export) {
		e.Labels = map[string]string{"from": "oldest"}
		e.TrafficDistribution = "PreferSameNode"
	})
	young := webExport("cls1", 1, clientIP(10), func(e *Export) {
		e.Labels = map[string]string{"from": "young", "more": "labels"}
		e.Annotations = map[string]string{"from": "young"}
		e.InternalTrafficPolicy = "Local"
	})
	want := Merge([]Export{oldest})
	want.Clusters = []string{"cls1", "cls9"}
	got := Merge([]Export{young, oldest})
	got.Conflicts = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Merge (-oldest alone +both):\n%s", diff)
	}
}

func TestMergePorts(t *testing.T) {
	udp := func(name string, number int32) Port {
		return Port{Name: name, Protocol: corev1.ProtocolUDP, Port: number}
	}
	app := func(p Port, protocol string) Port { p.AppProtocol = protocol; return p }
	tests := []struct {
		name        string
		ports       [][]Port // of cls0, cls1, … from the oldest to the youngest
		want        []Port
		wantMessage []string
	}{
		{
			name:  "identical in another order",
			ports: [][]Port{{tcp("b", 2), tcp("a", 1)}, {tcp("a", 1), tcp("b", 2)}},
			want:  []Port{tcp("b", 2), tcp("a", 1)},
		},
		{
			name:  "union",
			ports: [][]Port{{tcp("http", 80)}, {tcp("http", 80), tcp("https", 443)}, {tcp("http", 80), tcp("https", 443)}},
			want:  []Port{tcp("http", 80), tcp("https", 443)},
			wantMessage: []string{
				"port: using https 443/TCP from cluster cls1, 1 of 3 clusters disagree: cls0",
			},
		},
		{
			name:        "same name, another number",
			ports:       [][]Port{{tcp("http", 80)}, {tcp("http", 8080)}},
			want:        []Port{tcp("http", 80)},
			wantMessage: []string{"port: using http 80/TCP from cluster cls0, 1 of 2 clusters disagree: cls1"},
		},
		{
			name:        "same number, another name",
			ports:       [][]Port{{tcp("http", 80)}, {tcp("web", 80)}},
			want:        []Port{tcp("http", 80)},
			wantMessage: []string{"port: using http 80/TCP from cluster cls0, 1 of 2 clusters disagree: cls1"},
		},
		{
			name:  "same number, another protocol",
			ports: [][]Port{{tcp("dns", 53)}, {udp("dns-udp", 53)}},
			want:  []Port{tcp("dns", 53), udp("dns-udp", 53)},
			wantMessage: []string{
				"port: using dns 53/TCP from cluster cls0, 1 of 2 clusters disagree: cls1",
				"port: using dns-udp 53/UDP from cluster cls1, 1 of 2 clusters disagree: cls0",
			},
		},
		{
			name:        "same name, another protocol",
			ports:       [][]Port{{tcp("dns", 53)}, {udp("dns", 53)}},
			want:        []Port{tcp("dns", 53)},
			wantMessage: []string{"port: using dns 53/TCP from cluster cls0, 1 of 2 clusters disagree: cls1"},
		},
		{
			name:        "appProtocol",
			ports:       [][]Port{{app(tcp("http", 80), "kubernetes.io/h2c")}, {tcp("http", 80)}},
			want:        []Port{app(tcp("http", 80), "kubernetes.io/h2c")},
			wantMessage: []string{"port: using http 80/TCP (kubernetes.io/h2c) from cluster cls0, 1 of 2 clusters disagree: cls1"},
		},
		{
			name:  "both unnamed",
			ports: [][]Port{{tcp("", 80)}, {tcp("", 80)}},
			want:  []Port{tcp("", 80)},
		},
		{
			name:        "the unnamed port is older",
			ports:       [][]Port{{tcp("", 80)}, {tcp("http", 80)}},
			want:        []Port{tcp("", 80)},
			wantMessage: []string{"port: using 80/TCP from cluster cls0, 1 of 2 clusters disagree: cls1"},
		},
		{
			name:        "unnamed ports with different numbers have one name",
			ports:       [][]Port{{tcp("", 80)}, {tcp("", 81)}},
			want:        []Port{tcp("", 80)},
			wantMessage: []string{"port: using 80/TCP from cluster cls0, 1 of 2 clusters disagree: cls1"},
		},
		{
			name:  "an unnamed port beside others gets a name",
			ports: [][]Port{{tcp("", 80)}, {tcp("tcp-80", 443), tcp("metrics", 9090)}},
			want:  []Port{tcp("tcp-80-2", 80), tcp("tcp-80", 443), tcp("metrics", 9090)},
			wantMessage: []string{
				"port: using 80/TCP from cluster cls0, 1 of 2 clusters disagree: cls1",
				"port: using tcp-80 443/TCP from cluster cls1, 1 of 2 clusters disagree: cls0",
				"port: using metrics 9090/TCP from cluster cls1, 1 of 2 clusters disagree: cls0",
			},
		},
		{
			name:  "an unnamed port beside one other gets a name",
			ports: [][]Port{{tcp("", 80)}, {tcp("metrics", 9090)}},
			want:  []Port{tcp("tcp-80", 80), tcp("metrics", 9090)},
			wantMessage: []string{
				"port: using 80/TCP from cluster cls0, 1 of 2 clusters disagree: cls1",
				"port: using metrics 9090/TCP from cluster cls1, 1 of 2 clusters disagree: cls0",
			},
		},
		{
			name:  "a port outside the union takes no name",
			ports: [][]Port{{tcp("x", 80)}, {tcp("y", 80)}, {tcp("y", 90)}},
			want:  []Port{tcp("x", 80), tcp("y", 90)},
			wantMessage: []string{
				"port: using x 80/TCP from cluster cls0, 2 of 3 clusters disagree: cls1, cls2",
				"port: using y 90/TCP from cluster cls2, 2 of 3 clusters disagree: cls0, cls1",
			},
		},
		{
			name:  "a default protocol is TCP",
			ports: [][]Port{{{Name: "http", Port: 80}}, {tcp("http", 80)}},
			want:  []Port{tcp("http", 80)},
		},
		{
			name:        "no ports",
			ports:       [][]Port{nil, {tcp("http", 80)}},
			want:        []Port{tcp("http", 80)},
			wantMessage: []string{"port: using http 80/TCP from cluster cls1, 1 of 2 clusters disagree: cls0"},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var exports []Export
			for i, ports := range tc.ports {
				exports = append(exports, webExport(fmt.Sprintf("cls%d", i), i, withPorts(ports...)))
			}
			slices.Reverse(exports)
			m := Merge(exports)
			if diff := cmp.Diff(tc.want, m.Ports); diff != "" {
				t.Errorf("Ports (-want +got):\n%s", diff)
			}
			var want []Conflict
			if tc.wantMessage != nil {
				want = []Conflict{{mcsv1beta1.ServiceExportReasonPortConflict, strings.Join(tc.wantMessage, ", ")}}
			}
			if diff := cmp.Diff(want, m.Conflicts); diff != "" {
				t.Errorf("Conflicts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMessagesStayShort(t *testing.T) {
	var exports []Export
	for i := range 100 {
		var ports []Port
		for j := range 50 {
			ports = append(ports, tcp(fmt.Sprintf("%s-%d-%d", strings.Repeat("p", 50), i, j), int32(1+50*i+j)))
		}
		exports = append(exports, webExport(fmt.Sprintf("%s-%02d", strings.Repeat("c", 60), i), i, withPorts(ports...)))
	}
	conflicts := Merge(exports).Conflicts
	if len(conflicts) != 2 {
		t.Fatalf("%d conflicts, want 2", len(conflicts))
	}
	message := conflicts[0].Message + conflicts[1].Message
	for _, want := range []string{"99 of 100 clusters disagree", "and 94 more", "and 1995 more ports", "the exports have more than 2000 together"} {
		if !strings.Contains(message, want) {
			t.Errorf("message does not contain %q: %s", want, message)
		}
	}
	if len(message) > 4096 {
		t.Errorf("the message has %d bytes", len(message))
	}
}

func TestMergedBackends(t *testing.T) {
	bp := func(name string, number int32) BackendPort {
		return BackendPort{Name: name, Protocol: corev1.ProtocolTCP, Port: number}
	}
	app := func(p Port, protocol string) Port { p.AppProtocol = protocol; return p }
	one, two := []Endpoint{readyEndpoint("10.0.0.1")}, []Endpoint{readyEndpoint("10.0.0.2")}
	tests := []struct {
		name   string
		oldest Export
		export Export // when it is not the oldest itself
		want   []Backends
	}{
		{
			name:   "all agree",
			oldest: webExport("cls1", 0),
			export: webExport("cls2", 1),
			want:   []Backends{{[]BackendPort{bp("http", 8080)}, []Endpoint{readyEndpoint("10.10.0.1")}}},
		},
		{
			name:   "a port with another name gets the merged name",
			oldest: webExport("cls1", 0, withPorts(tcp("web", 80))),
			export: webExport("cls2", 1),
			want:   []Backends{{[]BackendPort{bp("web", 8080)}, []Endpoint{readyEndpoint("10.10.0.1")}}},
		},
		{
			name:   "an unnamed port gets the merged name",
			oldest: webExport("cls1", 0),
			export: webExport("cls2", 1, withPorts(tcp("", 80)), func(e *Export) { e.Backends = []Backends{{[]BackendPort{bp("", 80)}, one}} }),
			want:   []Backends{{[]BackendPort{bp("http", 80)}, one}},
		},
		{
			name:   "no traffic to a number that the cluster does not expose",
			oldest: webExport("cls1", 0, withPorts(tcp("http", 80), tcp("https", 443))),
			export: webExport("cls2", 1, withPorts(tcp("http", 81), tcp("https", 443)), func(e *Export) {
				e.Backends = []Backends{{[]BackendPort{bp("http", 8080), bp("https", 8443)}, one}}
			}),
			want: []Backends{{[]BackendPort{bp("https", 8443)}, one}},
		},
		{
			name:   "no endpoints without a port in common",
			oldest: webExport("cls1", 0),
			export: webExport("cls2", 1, withPorts(tcp("http", 81))),
		},
		{
			name:   "groups with the same remaining ports are joined",
			oldest: webExport("cls1", 0),
			export: webExport("cls2", 1, withPorts(tcp("http", 80), tcp("http2", 80)), func(e *Export) {
				e.Ports = []Port{tcp("http", 80)}
				e.Backends = []Backends{
					{[]BackendPort{bp("http", 8080), bp("stray", 1)}, two},
					{[]BackendPort{bp("http", 8080)}, append(one, two...)},
				}
			}),
			want: []Backends{{[]BackendPort{bp("http", 8080)}, []Endpoint{one[0], two[0]}}},
		},
		{
			name:   "a headless service without ports",
			oldest: webExport("cls1", 0, headless, withPorts()),
			export: webExport("cls2", 1, headless, withPorts(), func(e *Export) { e.Backends = []Backends{{nil, one}} }),
			want:   []Backends{{nil, one}},
		},
		{
			name:   "headless: another number of the Service port",
			oldest: webExport("cls1", 0, headless),
			export: webExport("cls2", 1, headless, withPorts(tcp("http", 81)), withBackends(Backends{[]BackendPort{bp("http", 80)}, one})),
			want:   []Backends{{[]BackendPort{bp("http", 80)}, one}},
		},
		{
			name:   "headless: another name of the Service port",
			oldest: webExport("cls1", 0, headless),
			export: webExport("cls2", 1, headless, withPorts(tcp("web", 80)), withBackends(Backends{[]BackendPort{bp("web", 8080)}, one})),
			want:   []Backends{{[]BackendPort{bp("web", 8080)}, one}},
		},
		{
			name:   "headless: another protocol",
			oldest: webExport("cls1", 0, headless),
			export: webExport("cls2", 1, headless, withPorts(Port{Protocol: corev1.ProtocolUDP, Port: 53}), withBackends(Backends{[]BackendPort{{Protocol: corev1.ProtocolUDP, Port: 53}}, one})),
			want:   []Backends{{[]BackendPort{{Protocol: corev1.ProtocolUDP, Port: 53}}, one}},
		},
		{
			name:   "headless: the slice has the name of no Service port",
			oldest: webExport("cls1", 0, headless, withPorts(tcp("", 80))),
			export: webExport("cls2", 1, headless, withPorts(tcp("", 80)), withBackends(Backends{[]BackendPort{bp("http", 80)}, one})),
			want:   []Backends{{[]BackendPort{bp("http", 80)}, one}},
		},
		{
			name:   "headless: a slice with ports of a Service without",
			oldest: webExport("cls1", 0, headless),
			export: webExport("cls2", 1, headless, withPorts(), withBackends(Backends{[]BackendPort{bp("x", 1)}, one})),
			want:   []Backends{{[]BackendPort{bp("x", 1)}, one}},
		},
		{
			name:   "headless: a slice without ports of a Service with ports",
			oldest: webExport("cls1", 0, headless),
			export: webExport("cls2", 1, headless, withBackends(Backends{nil, one})),
			want:   []Backends{{nil, one}},
		},
		{
			name:   "headless: several slices with different ports",
			oldest: webExport("cls1", 0, headless),
			export: webExport("cls2", 1, headless, withBackends(
				Backends{[]BackendPort{bp("b", 2)}, two}, Backends{[]BackendPort{bp("a", 1), bp("http", 80)}, one}, Backends{[]BackendPort{bp("b", 2)}, one})),
			want: []Backends{{[]BackendPort{bp("a", 1), bp("http", 80)}, one}, {[]BackendPort{bp("b", 2)}, []Endpoint{one[0], two[0]}}},
		},
		{
			name:   "headless: the appProtocol of the slice, or else of its own Service",
			oldest: webExport("cls1", 0, headless, withPorts(app(tcp("http", 80), "h2c"), app(tcp("b", 81), "h2c"))),
			export: webExport("cls2", 1, headless, withPorts(app(tcp("http", 80), "grpc"), app(tcp("a", 82), "grpc")), withBackends(
				Backends{[]BackendPort{bp("a", 1), bp("b", 2), {Name: "http", Protocol: corev1.ProtocolTCP, Port: 3, AppProtocol: "own"}}, one})),
			want: []Backends{{[]BackendPort{
				{Name: "a", Protocol: corev1.ProtocolTCP, Port: 1, AppProtocol: "grpc"}, bp("b", 2), {Name: "http", Protocol: corev1.ProtocolTCP, Port: 3, AppProtocol: "own"},
			}, one}},
		},
		{
			name:   "clusterset IP: the appProtocol of the merged port",
			oldest: webExport("cls1", 0, withPorts(app(tcp("http", 80), "h2c"))),
			export: webExport("cls2", 1, withPorts(app(tcp("web", 80), "grpc")), withBackends(
				Backends{[]BackendPort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: 3, AppProtocol: "own"}}, one}, Backends{[]BackendPort{bp("web", 3)}, two})),
			want: []Backends{{[]BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 3, AppProtocol: "h2c"}}, []Endpoint{one[0], two[0]}}},
		},
		{
			name:   "type conflict, the clusterset IP wins: without ports no endpoint can be reached",
			oldest: webExport("cls1", 0),
			export: webExport("cls2", 1, headless, withPorts(), func(e *Export) { e.Backends = []Backends{{nil, one}} }),
		},
		{
			name:   "type conflict, headless wins",
			oldest: webExport("cls1", 0, headless),
			export: webExport("cls2", 1, withPorts(tcp("http", 81))),
			want:   []Backends{{[]BackendPort{bp("http", 8080)}, []Endpoint{readyEndpoint("10.10.0.1")}}},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			m := Merge([]Export{tc.oldest, tc.export})
			if diff := cmp.Diff(tc.want, m.Backends(tc.export), compareAddr); diff != "" {
				t.Errorf("Backends (-want +got):\n%s", diff)
			}
		})
	}
}

// However many names the ports of a member take, the name of another cluster's unnamed port is one
// that the API accepts.
func TestMergePorts_TakenNames(t *testing.T) {
	victim := Export{Cluster: "cls1", Created: time.Unix(1, 0), Ports: []Port{{Protocol: corev1.ProtocolTCP, Port: 80}}}
	member := Export{Cluster: "cls2", Created: time.Unix(2, 0)}
	for i := range 58 {
		member.Ports = append(member.Ports,
			Port{Name: "tcp-80" + strings.Repeat("x", i), Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)},
			Port{Name: fmt.Sprintf("tcp-80-%d", i+2), Protocol: corev1.ProtocolTCP, Port: int32(2000 + i)})
	}
	name := Merge([]Export{victim, member}).Ports[0].Name
	if errs := validation.IsValidPortName(name); name != "tcp-80-60" || len(errs) > 0 {
		t.Errorf("the port is named %q (%v), want tcp-80-60", name, errs)
	}
}
