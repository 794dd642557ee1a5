package imports

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/pathhealth"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

var webKey = mcs.Key{Namespace: "demo", Name: "web"}

// incomplete returns view while a registry is not read.
func incomplete(view registry.View) registry.View {
	view.Incomplete = true
	return view
}

// exportOf is a cluster's export of webKey with port 80, and 443 as well if there are two.
func exportOf(cluster string, ports ...int32) mcs.Export {
	e := mcs.Export{
		Key: webKey, Cluster: cluster, Type: mcsv1beta1.ClusterSetIP, Created: time.Unix(1000, 0),
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Backends: []mcs.Backends{{
			Ports:     []mcs.BackendPort{{Protocol: corev1.ProtocolTCP, Port: 8080}},
			Endpoints: []mcs.Endpoint{{Address: netip.MustParseAddr("10.0.0.1"), Ready: true, Serving: true}},
		}},
	}
	for _, p := range ports {
		e.Ports = append(e.Ports, mcs.Port{Protocol: corev1.ProtocolTCP, Port: p})
	}
	return e
}

// importShowing is a ServiceImport of ours with a port of its own, 1, that distinguishes it from a
// newly merged import.
func importShowing(clusters ...string) *mcsv1beta1.ServiceImport {
	imp := &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: webKey.Namespace, Name: webKey.Name, Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}},
		Spec: mcsv1beta1.ServiceImportSpec{
			Type: mcsv1beta1.ClusterSetIP, Ports: []mcsv1beta1.ServicePort{{Port: 1, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, c := range clusters {
		imp.Status.Clusters = append(imp.Status.Clusters, mcsv1beta1.ClusterStatus{Cluster: c})
	}
	return imp
}

func importedFrom(clusters ...string) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, c := range clusters {
		out = append(out, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{mcsv1beta1.LabelSourceCluster: c}}})
	}
	return out
}

func TestDecideImport(t *testing.T) {
	local := exportOf("cls1", 80)
	remote := exportOf("cls2", 80, 443)
	foreignImport := importShowing()
	foreignImport.Labels = nil
	foreignService := &corev1.Service{}
	ownService := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy}}}
	heldService := plan.HeldService(webKey, ownService, time.Unix(1000, 0))
	relabelledService := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Name: mcs.DerivedName(webKey), Labels: map[string]string{plan.LabelAppManagedBy: "foo"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "multicluster.x-k8s.io/v1beta1", Kind: "ServiceImport", Name: webKey.Name}},
	}}
	relabelledImport := importShowing("cls2")
	relabelledImport.UID, relabelledImport.Labels = "7", map[string]string{plan.LabelAppManagedBy: "foo"}
	ownedSlice := importedFrom("cls2")[0]
	ownedSlice.Name, ownedSlice.AddressType = mcs.DerivedName(webKey)+"-cls2-ipv4-0", discoveryv1.AddressTypeIPv4
	ownedSlice.OwnerReferences = []metav1.OwnerReference{{Kind: "ServiceImport", Name: webKey.Name, UID: "7"}}
	tests := []struct {
		name         string
		facts        importFacts
		want         verdict
		wantPort     int32 // of the first port: 1 is what the existing import has
		wantClusters []string
		wantUnknown  []string
	}{
		{name: "no export in any cluster, no objects", facts: importFacts{namespace: true, synced: true}, want: verdictNone},
		{
			name:  "another cluster exports it",
			facts: importFacts{namespace: true, synced: true, view: registrytest.ViewOf(remote)},
			want:  verdictApply, wantPort: 80, wantClusters: []string{"cls2"},
		},
		{
			name:  "this and another cluster export it",
			facts: importFacts{namespace: true, synced: true, local: &local, view: registrytest.ViewOf(remote), imp: importShowing("cls2")},
			want:  verdictApply, wantPort: 80, wantClusters: []string{"cls1", "cls2"},
		},
		{
			name: "an import of the legacy controller",
			facts: importFacts{
				namespace: true, synced: true, view: registrytest.ViewOf(remote), imp: foreignImport, derived: foreignService,
				takeover: TakeoverObjects{TakesImport: true, TakesDerived: true},
			},
			want: verdictApply, wantPort: 80, wantClusters: []string{"cls2"},
		},
		{
			name:  "an import of the legacy controller, no export in any cluster",
			facts: importFacts{namespace: true, synced: true, imp: foreignImport, takeover: TakeoverObjects{TakesImport: true}},
			want:  verdictNone,
		},
		{
			name: "an import of the legacy controller, a cluster is unknown",
			facts: importFacts{
				namespace: true, synced: true, view: registrytest.With(registrytest.ViewOf(remote), registry.Unknown, "cls3"), imp: foreignImport,
				takeover: TakeoverObjects{TakesImport: true},
			},
			want: verdictNone, wantUnknown: []string{"cls3"},
		},
		{
			name: "an import of the legacy controller, a registry is not read yet",
			facts: importFacts{
				namespace: true, synced: true, view: incomplete(registrytest.ViewOf(remote)), imp: foreignImport, takeover: TakeoverObjects{TakesImport: true},
			},
			want: verdictNone,
		},
		{
			name: "an import of the legacy controller, a foreign Service has the derived name",
			facts: importFacts{
				namespace: true, synced: true, view: registrytest.ViewOf(remote), imp: foreignImport, derived: foreignService, takeover: TakeoverObjects{TakesImport: true},
			},
			want: verdictNotOwned,
		},
		{
			name:  "no namespace",
			facts: importFacts{synced: true, view: registrytest.ViewOf(remote)},
			want:  verdictNone,
		},
		{
			name:  "the last export was withdrawn",
			facts: importFacts{namespace: true, synced: true, imp: importShowing("cls2"), slices: importedFrom("cls2")},
			want:  verdictRemove,
		},
		{
			name:  "the last export was withdrawn, a cluster that the import does not contain is unknown",
			facts: importFacts{namespace: true, synced: true, imp: importShowing("cls2"), view: registrytest.With(registry.View{}, registry.Unknown, "cls3")},
			want:  verdictRemove,
		},
		{
			name:  "an imported cluster is unseen since the start",
			facts: importFacts{namespace: true, synced: true, imp: importShowing("cls2"), view: registrytest.With(registry.View{}, registry.Unseen, "cls2")},
			want:  verdictApply, wantPort: 1, wantUnknown: []string{"cls2"},
		},
		{
			name:  "a cluster with slices only is unseen since the start",
			facts: importFacts{namespace: true, synced: true, imp: importShowing(), slices: importedFrom("cls2"), view: registrytest.With(registry.View{}, registry.Unseen, "cls2")},
			want:  verdictApply, wantPort: 1, wantUnknown: []string{"cls2"},
		},
		{
			name: "one of two imported clusters is unseen: spec and IPs stay",
			facts: importFacts{
				namespace: true, synced: true, imp: importShowing("cls2", "cls3"), view: registrytest.With(registrytest.ViewOf(remote), registry.Unseen, "cls3"),
			},
			want: verdictApply, wantPort: 1, wantClusters: []string{"cls2"}, wantUnknown: []string{"cls3"},
		},
		{
			name: "a participating cluster is unknown: spec and IPs stay",
			facts: importFacts{
				namespace: true, synced: true, local: &local, imp: importShowing("cls1", "cls3"), view: registrytest.With(registry.View{}, registry.Unknown, "cls3"),
			},
			want: verdictApply, wantPort: 1, wantClusters: []string{"cls1"}, wantUnknown: []string{"cls3"},
		},
		{
			name: "a participating cluster is unknown, without a status",
			facts: importFacts{
				namespace: true, synced: true, local: &local, imp: importShowing(), slices: importedFrom("cls1", "cls3"), view: registrytest.With(registry.View{}, registry.Unknown, "cls3"),
			},
			want: verdictApply, wantPort: 1, wantClusters: []string{"cls1"}, wantUnknown: []string{"cls3"},
		},
		{
			name: "an unknown cluster that the import does not contain",
			facts: importFacts{
				namespace: true, synced: true, local: &local, imp: importShowing("cls1"), view: registrytest.With(registry.View{}, registry.Unknown, "cls3"),
			},
			want: verdictApply, wantPort: 80, wantClusters: []string{"cls1"}, wantUnknown: []string{"cls3"},
		},
		{
			name:  "a new import is created although a cluster is unknown",
			facts: importFacts{namespace: true, synced: true, local: &local, view: registrytest.With(registry.View{}, registry.Unknown, "cls3")},
			want:  verdictApply, wantPort: 80, wantClusters: []string{"cls1"}, wantUnknown: []string{"cls3"},
		},
		{
			name: "a registry is not read yet: endpoints of unknown clusters stay, those of known clusters are updated",
			facts: importFacts{
				namespace: true, synced: true, cluster: "cls1", imp: importShowing("cls1", "cls2", "cls4"), slices: importedFrom("cls2", "cls5"),
				view: incomplete(registrytest.With(registrytest.With(registrytest.ViewOf(remote), registry.Unknown, "cls3"), registry.Unseen, "cls4", "cls5")),
			},
			want: verdictApply, wantPort: 1, wantClusters: []string{"cls2"}, wantUnknown: []string{"cls3", "cls4", "cls5"},
		},
		{
			name:  "a registry is not read yet, but all clusters of the import have shown that they do not export it",
			facts: importFacts{namespace: true, synced: true, cluster: "cls1", imp: importShowing("cls2"), view: incomplete(registry.View{})},
			want:  verdictRemove,
		},
		{
			name:  "a registry is not read yet, just after the start: a new import waits",
			facts: importFacts{namespace: true, synced: true, starting: true, cluster: "cls1", view: incomplete(registrytest.ViewOf(remote))},
			want:  verdictNone,
		},
		{
			name:  "a registry is not read for long: a new import is created",
			facts: importFacts{namespace: true, synced: true, cluster: "cls1", view: incomplete(registrytest.ViewOf(remote))},
			want:  verdictApply, wantPort: 80, wantClusters: []string{"cls2"},
		},
		{name: "not read yet, no objects", facts: importFacts{namespace: true, local: &local}, want: verdictNone},
		{
			name:  "not read yet: endpoints of other clusters stay, the own ones are updated",
			facts: importFacts{namespace: true, cluster: "cls1", local: &local, imp: importShowing("cls1", "cls2"), slices: importedFrom("cls1", "cls3")},
			want:  verdictApply, wantPort: 1, wantClusters: []string{"cls1"}, wantUnknown: []string{"cls2", "cls3"},
		},
		{
			name:  "not read yet, the own export was withdrawn: the import stays",
			facts: importFacts{namespace: true, cluster: "cls1", imp: importShowing("cls1")},
			want:  verdictApply, wantPort: 1,
		},
		{
			name:  "not read yet, only this cluster exports it",
			facts: importFacts{namespace: true, cluster: "cls1", local: &local, imp: importShowing("cls1"), slices: importedFrom("cls1")},
			want:  verdictApply, wantPort: 80, wantClusters: []string{"cls1"},
		},
		{
			name:  "a foreign ServiceImport exists",
			facts: importFacts{namespace: true, synced: true, imp: foreignImport, view: registrytest.ViewOf(remote)},
			want:  verdictNotOwned,
		},
		{
			name:  "a foreign ServiceImport without any export",
			facts: importFacts{namespace: true, synced: true, imp: foreignImport},
			want:  verdictNone,
		},
		{
			name:  "a foreign Service has the derived name",
			facts: importFacts{namespace: true, synced: true, imp: importShowing(), derived: foreignService, view: registrytest.ViewOf(remote)},
			want:  verdictNotOwned,
		},
		{
			name:  "the namespace may not import, no objects",
			facts: importFacts{namespace: true, excluded: true, synced: true, view: registrytest.ViewOf(remote)},
			want:  verdictNone,
		},
		{
			name: "the namespace may not import any more",
			facts: importFacts{
				namespace: true, excluded: true, synced: true, imp: importShowing("cls2"), view: registrytest.ViewOf(remote),
			},
			want: verdictRemove,
		},
		{
			name: "the namespace may not import any more, a cluster is unknown",
			facts: importFacts{
				namespace: true, excluded: true, imp: importShowing("cls1", "cls3"), view: registrytest.With(registry.View{}, registry.Unknown, "cls3"), local: &local,
			},
			want: verdictRemove,
		},
		{
			name:  "excluded namespace with a foreign ServiceImport",
			facts: importFacts{namespace: true, excluded: true, synced: true, imp: foreignImport, view: registrytest.ViewOf(remote)},
			want:  verdictNone,
		},
		{
			name:  "no export in any cluster, an orphaned derived Service",
			facts: importFacts{namespace: true, synced: true, derived: ownService},
			want:  verdictRemove,
		},
		{
			name:  "an orphaned derived Service, a cluster is unknown",
			facts: importFacts{namespace: true, synced: true, derived: ownService, view: registrytest.With(registry.View{}, registry.Unknown, "cls3")},
			want:  verdictNone,
		},
		{
			name:  "an orphaned derived Service, a foreign ServiceImport",
			facts: importFacts{namespace: true, synced: true, derived: ownService, imp: foreignImport},
			want:  verdictNone,
		},
		{
			name:  "excluded namespace with an orphaned derived Service",
			facts: importFacts{namespace: true, excluded: true, derived: ownService},
			want:  verdictRemove,
		},
		{
			name:  "no export in any cluster, a foreign Service has the derived name",
			facts: importFacts{namespace: true, synced: true, derived: foreignService},
			want:  verdictNone,
		},
		{
			name:  "no export in any cluster, a held derived Service",
			facts: importFacts{namespace: true, synced: true, derived: heldService},
			want:  verdictNone,
		},
		{
			name:  "a held derived Service, exported again",
			facts: importFacts{namespace: true, synced: true, derived: heldService, view: registrytest.ViewOf(remote)},
			want:  verdictApply, wantPort: 80, wantClusters: []string{"cls2"},
		},
		{
			name:  "another client overwrote the label of the derived Service",
			facts: importFacts{namespace: true, synced: true, imp: importShowing("cls2"), derived: relabelledService, view: registrytest.ViewOf(remote)},
			want:  verdictApply, wantPort: 80, wantClusters: []string{"cls2"},
		},
		{
			name: "another client overwrote the label of the ServiceImport, which owns an imported slice",
			facts: importFacts{
				namespace: true, synced: true, imp: relabelledImport, slices: []*discoveryv1.EndpointSlice{ownedSlice}, view: registrytest.ViewOf(remote),
			},
			want: verdictApply, wantPort: 80, wantClusters: []string{"cls2"},
		},
		{
			name:  "slices without a ServiceImport, no export in any cluster",
			facts: importFacts{namespace: true, synced: true, derived: heldService, slices: importedFrom("cls2")},
			want:  verdictRemove,
		},
		{
			name:  "a foreign Service does not keep the import",
			facts: importFacts{namespace: true, synced: true, imp: importShowing(), derived: foreignService},
			want:  verdictRemove,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.facts.key = webKey
			exports := slices.Clone(tt.facts.view.Exports())
			got := decideImport(tt.facts)
			if got.verdict != tt.want {
				t.Errorf("verdict %d, want %d", got.verdict, tt.want)
			}
			if d := cmp.Diff(tt.wantUnknown, got.unknown, cmpopts.EquateEmpty()); tt.want == verdictApply && d != "" {
				t.Errorf("unknown (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.wantClusters, got.merged.Clusters, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("clusters (-want +got):\n%s", d)
			}
			var port int32
			if len(got.merged.Ports) > 0 {
				port = got.merged.Ports[0].Port
			}
			if port != tt.wantPort {
				t.Errorf("first port %d, want %d", port, tt.wantPort)
			}
			if d := cmp.Diff(exports, tt.facts.view.Exports(), cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Errorf("the view was changed:\n%s", d)
			}
		})
	}
}

func TestCanWait(t *testing.T) {
	local := exportOf("cls1", 80)
	for name, c := range map[string]struct {
		facts importFacts
		want  bool
	}{
		"new, exported by this cluster alone":       {importFacts{local: &local}, true},
		"new, exported by another cluster":          {importFacts{view: registrytest.ViewOf(exportOf("cls2", 80))}, false},
		"new, exported by this and another cluster": {importFacts{local: &local, view: registrytest.ViewOf(exportOf("cls2", 80))}, false},
		"existing":                 {importFacts{local: &local, imp: importShowing("cls1")}, false},
		"no export in any cluster": {importFacts{}, false},
		"excluded namespace":       {importFacts{local: &local, excluded: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.facts.key, c.facts.namespace, c.facts.synced = webKey, true, true
			if got := decideImport(c.facts).canWait(c.facts); got != c.want {
				t.Errorf("the import can wait: %v, want %v", got, c.want)
			}
		})
	}
}

func TestDecideUnreachable(t *testing.T) {
	endpointOf := func(cluster, address string) mcs.Export {
		e := exportOf(cluster, 80)
		e.Backends[0].Endpoints = []mcs.Endpoint{{Address: netip.MustParseAddr(address), Ready: true, Serving: true}}
		return e
	}
	cls2, cls3 := endpointOf("cls2", "10.2.0.1"), endpointOf("cls3", "10.3.0.1")
	both := registrytest.ViewOf(cls2, cls3)
	paths := func(text string) pathhealth.Verdict {
		v := pathhealth.Verdict{Paths: map[string]pathhealth.Path{}}
		for _, word := range strings.Fields(text) {
			id, state, _ := strings.Cut(word, "=")
			v.Paths[id] = pathhealth.Path{State: pathhealth.State(state)}
		}
		return v
	}
	faultHere := paths("cls2=Unreachable cls3=Unreachable")
	faultHere.FaultHere = true
	withdrawn := importShowing("cls2", "cls3")
	withdrawn.Annotations = map[string]string{plan.AnnotationUnreachableClusters: "cls2"}
	withdrawn.Spec.Ports[0].Port = 80
	tests := []struct {
		name  string
		facts importFacts
		mode  mcs.PathHealth
		// want are the endpoints in use by cluster, wantList the annotation and the condition's
		// reason.
		want, wantList string
	}{
		{"all paths work", importFacts{view: both, paths: paths("cls2=Reachable cls3=Reachable")}, mcs.PathHealthWithdraw, "cls2=1 cls3=1", " NoneUnreachable"},
		{"nothing is known", importFacts{view: both}, mcs.PathHealthWithdraw, "cls2=1 cls3=1", " NoneUnreachable"},
		{"the path to one cluster fails", importFacts{view: both, paths: paths("cls2=Unreachable cls3=Reachable")}, mcs.PathHealthWithdraw, "cls2=0 cls3=1", "cls2 Withdrawn"},
		{"it is observed", importFacts{view: both, paths: paths("cls2=Unreachable cls3=Reachable")}, mcs.PathHealthObserve, "cls2=1 cls3=1", " Observed"},
		{"the path to a cluster that does not export the service fails", importFacts{view: both, paths: paths("cls4=Unreachable")}, mcs.PathHealthWithdraw, "cls2=1 cls3=1", " NoneUnreachable"},
		{"the path to the only exporter fails", importFacts{view: registrytest.ViewOf(cls2), paths: paths("cls2=Unreachable")}, mcs.PathHealthWithdraw, "cls2=1", "cls2 LastEndpointsKept"},
		{"all paths fail, but most do not", importFacts{view: both, paths: paths("cls2=Unreachable cls3=Unreachable cls4=Reachable")}, mcs.PathHealthWithdraw, "cls2=1 cls3=1", "cls2,cls3 LastEndpointsKept"},
		{"most paths fail", importFacts{view: both, paths: faultHere}, mcs.PathHealthWithdraw, "cls2=1 cls3=1", " FaultInThisCluster"},
		{
			"one cluster is stale, the path to the other fails",
			importFacts{view: registrytest.WithLiveness(both, registry.Stale, "cls3"), paths: paths("cls2=Unreachable")}, mcs.PathHealthWithdraw, "cls2=1 cls3=1", "cls2 LastEndpointsKept",
		},
		{"after a restart", importFacts{imp: withdrawn, view: both}, mcs.PathHealthWithdraw, "cls2=0 cls3=1", "cls2 Withdrawn"},
		{"after a restart, the path works", importFacts{imp: withdrawn, view: both, paths: paths("cls2=Reachable")}, mcs.PathHealthWithdraw, "cls2=1 cls3=1", " NoneUnreachable"},
		{"after a restart, the path cannot be tested", importFacts{imp: withdrawn, view: both, paths: paths("cls2=Unknown")}, mcs.PathHealthWithdraw, "cls2=1 cls3=1", " NoneUnreachable"},
		{"after a restart with another mode", importFacts{imp: withdrawn, view: both}, mcs.PathHealthObserve, "cls2=1 cls3=1", " NoneUnreachable"},
		{
			"after a restart, another exporter is unknown: nothing shows that the service is served",
			importFacts{imp: withdrawn, view: registrytest.With(registrytest.ViewOf(cls2), registry.Unknown, "cls3")}, mcs.PathHealthWithdraw, "cls2=1", "cls2 LastEndpointsKept",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.facts.key, tt.facts.namespace, tt.facts.synced, tt.facts.pathMode = webKey, true, true, tt.mode
			d := decideImport(tt.facts)
			var got []string
			for _, e := range d.endpoints {
				got = append(got, fmt.Sprintf("%s=%d", e.Cluster, e.EndpointCount()))
			}
			if text := strings.Join(got, " "); text != tt.want {
				t.Errorf("endpoints in use are %q, want %q", text, tt.want)
			}
			if text := strings.Join(d.withdrawn(tt.facts), ",") + " " + d.unreachability.Reason; text != tt.wantList {
				t.Errorf("unreachable are %q, want %q", text, tt.wantList)
			}
			if probed := d.probed(tt.facts); len(probed) != len(tt.facts.view.Exports()) {
				t.Errorf("%d exports are probed, want all, also those that are not in use", len(probed))
			}
		})
	}
}

func TestDecideStale(t *testing.T) {
	// endpointOf makes its endpoint the cluster's own, and ready or not.
	endpointOf := func(cluster, address string, ready bool) mcs.Export {
		e := exportOf(cluster, 80)
		e.Backends[0].Endpoints = []mcs.Endpoint{{Address: netip.MustParseAddr(address), Ready: ready, Serving: ready}}
		return e
	}
	local, cls2, cls3 := endpointOf("cls1", "10.1.0.1", true), endpointOf("cls2", "10.2.0.1", true), endpointOf("cls3", "10.3.0.1", true)
	both := []mcs.Export{cls2, cls3}
	withdrawn := importShowing("cls2", "cls3")
	withdrawn.Annotations = map[string]string{plan.AnnotationStaleClusters: "cls2"}
	served := importShowing("cls2", "cls3")
	served.Spec.Ports[0].Port, served.Spec.IPFamilies = 80, []corev1.IPFamily{corev1.IPv4Protocol}
	staleUnknown := func(view registry.View, clusters ...string) registry.View {
		return registrytest.WithLiveness(registrytest.With(view, registry.Unknown, clusters...), registry.Stale, clusters...)
	}
	incomplete := func(view registry.View) registry.View {
		view.Incomplete = true
		return view
	}
	tests := []struct {
		name  string
		facts importFacts
		// want are the endpoints in use by cluster, wantStale the stale clusters and the
		// condition's reason, "" when it is left.
		want          string
		wantStale     string
		wantUntouched []string
	}{
		{"no stale cluster", importFacts{synced: true, view: registrytest.ViewOf(both...)}, "cls2=1 cls3=1", " NoneStale", nil},
		{
			"one of two clusters is stale", importFacts{synced: true, view: registrytest.WithLiveness(registrytest.ViewOf(both...), registry.Stale, "cls2")},
			"cls2=0 cls3=1", "cls2 Withdrawn", nil,
		},
		{
			"the only other cluster is stale, this cluster has endpoints", importFacts{synced: true, local: &local, view: registrytest.WithLiveness(registrytest.ViewOf(both[:1]...), registry.Stale, "cls2")},
			"cls2=0 cls1=1", "cls2 Withdrawn", nil,
		},
		{
			"the only exporter is stale", importFacts{synced: true, view: registrytest.WithLiveness(registrytest.ViewOf(both[:1]...), registry.Stale, "cls2")},
			"cls2=1", "cls2 LastEndpointsKept", nil,
		},
		{
			"after a restart, the liveness of the stale cluster is unknown", importFacts{synced: true, imp: withdrawn, view: registrytest.WithLiveness(registrytest.ViewOf(both...), registry.Undecided, "cls2", "cls3")},
			"cls2=0 cls3=1", "cls2 Withdrawn", nil,
		},
		{
			"after a restart, the stale cluster is live", importFacts{synced: true, imp: withdrawn, view: registrytest.WithLiveness(registrytest.ViewOf(both...), registry.Undecided, "cls3")},
			"cls2=1 cls3=1", " NoneStale", nil,
		},
		{
			"after a restart, another cluster is unknown: no change",
			importFacts{synced: true, imp: withdrawn, view: registrytest.WithLiveness(registrytest.With(registrytest.ViewOf(both[:1]...), registry.Unknown, "cls3"), registry.Undecided, "cls2")},
			"", "cls2 ", []string{"cls3", "cls2"},
		},
		{
			"after a restart, the stale cluster is unknown: no change",
			importFacts{synced: true, imp: withdrawn, view: registrytest.With(registrytest.ViewOf(both[1:]...), registry.Unknown, "cls2")},
			"cls3=1", "cls2 ", []string{"cls2", "cls2"},
		},
		{
			"after a restart, the registry is not read yet: no change", importFacts{imp: withdrawn, local: &local, cluster: "cls1"},
			"cls1=1", "cls2 ", []string{"cls2", "cls3", "cls2"},
		},
		{
			"an unknown cluster that does not participate",
			importFacts{synced: true, imp: importShowing("cls2", "cls3"), view: registrytest.WithLiveness(registrytest.With(registrytest.ViewOf(both...), registry.Unknown, "cls4"), registry.Stale, "cls2")},
			"cls2=0 cls3=1", "cls2 Withdrawn", []string{"cls4"},
		},
		{
			"an unseen cluster, just after the start: no change",
			importFacts{synced: true, imp: served, view: registrytest.With(registrytest.ViewOf(both[1:]...), registry.Unseen, "cls2")},
			"cls3=1", " ", []string{"cls2"},
		},
		{
			"an unseen cluster, long after the start: another one serves all ports",
			importFacts{synced: true, lost: true, imp: served, view: registrytest.With(registrytest.ViewOf(both[1:]...), registry.Unseen, "cls2")},
			"cls3=1", "cls2 Withdrawn", nil,
		},
		{
			"an unseen cluster, long after the start: only this cluster serves all ports",
			importFacts{synced: true, lost: true, local: &local, imp: served, view: registrytest.With(registry.View{}, registry.Unseen, "cls2", "cls3")},
			"cls1=1", "cls2,cls3 Withdrawn", nil,
		},
		{
			"an unseen cluster, long after the start: it has the last endpoints",
			importFacts{synced: true, lost: true, imp: served, view: registrytest.With(registrytest.ViewOf(endpointOf("cls3", "10.3.0.1", false)), registry.Unseen, "cls2")},
			"cls3=1", "cls2 LastEndpointsKept", []string{"cls2"},
		},
		{
			"an unseen cluster, long after the start, and an unknown one: no change",
			importFacts{synced: true, lost: true, local: &local, imp: served, view: registrytest.With(registrytest.With(registry.View{}, registry.Unknown, "cls3"), registry.Unseen, "cls2")},
			"cls1=1", " ", []string{"cls2", "cls3"},
		},
		{
			"an unknown cluster that is stale: another one serves all ports",
			importFacts{synced: true, imp: served, view: staleUnknown(registrytest.ViewOf(both[1:]...), "cls2")},
			"cls3=1", "cls2 Withdrawn", nil,
		},
		{
			"an unknown cluster that is stale: only this cluster serves all ports",
			importFacts{synced: true, local: &local, imp: served, view: staleUnknown(registry.View{}, "cls2", "cls3")},
			"cls1=1", "cls2,cls3 Withdrawn", nil,
		},
		{
			"an unknown cluster that is stale: it has the last endpoints",
			importFacts{synced: true, imp: served, view: staleUnknown(registrytest.ViewOf(endpointOf("cls3", "10.3.0.1", false)), "cls2")},
			"cls3=1", "cls2 LastEndpointsKept", []string{"cls2"},
		},
		{
			"an unknown cluster that is stale, and an unknown one that is live: no change",
			importFacts{synced: true, local: &local, imp: served, view: registrytest.With(staleUnknown(registry.View{}, "cls2"), registry.Unknown, "cls3")},
			"cls1=1", " ", []string{"cls2", "cls3"},
		},
		{
			"an unknown cluster that is stale, and an unseen one just after the start: no change",
			importFacts{synced: true, local: &local, imp: served, view: registrytest.With(staleUnknown(registry.View{}, "cls2"), registry.Unseen, "cls3")},
			"cls1=1", " ", []string{"cls2", "cls3"},
		},
		{
			"an unknown cluster that is stale, and an unseen one long after the start",
			importFacts{synced: true, lost: true, local: &local, imp: served, view: registrytest.With(staleUnknown(registry.View{}, "cls2"), registry.Unseen, "cls3")},
			"cls1=1", "cls2,cls3 Withdrawn", nil,
		},
		{
			"an unknown cluster that is stale, and an exporter that is stale",
			importFacts{synced: true, local: &local, imp: served, view: registrytest.WithLiveness(staleUnknown(registrytest.ViewOf(both[1:]...), "cls2"), registry.Stale, "cls3")},
			"cls1=1", "cls2,cls3 Withdrawn", nil,
		},
		{
			"an unknown cluster that is stale, while a registry is not read: no change",
			importFacts{synced: true, imp: served, view: incomplete(staleUnknown(registrytest.ViewOf(both[1:]...), "cls2"))},
			"cls3=1", " ", []string{"cls2"},
		},
		{
			"an unknown cluster that is stale and that is not imported",
			importFacts{synced: true, imp: served, view: staleUnknown(registrytest.ViewOf(both...), "cls4")},
			"cls2=1 cls3=1", " NoneStale", []string{"cls4"},
		},
		{
			"the annotation names a cluster that is not stale", importFacts{synced: true, imp: withdrawn, view: registrytest.ViewOf(both...)},
			"cls2=1 cls3=1", " NoneStale", nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.facts.key, tt.facts.namespace = webKey, true
			tt.facts.staleRule = mcs.StaleRule{Policy: mcs.StaleWithdraw, After: time.Minute}
			d := decideImport(tt.facts)
			var got []string
			for _, e := range d.endpoints {
				got = append(got, fmt.Sprintf("%s=%d", e.Cluster, e.EndpointCount()))
			}
			if use := strings.Join(got, " "); use != tt.want {
				t.Errorf("endpoints by cluster %q, want %q", use, tt.want)
			}
			reason := ""
			if d.staleness != nil {
				reason = d.staleness.Reason
			}
			if stale := strings.Join(d.stale, ",") + " " + reason; stale != tt.wantStale {
				t.Errorf("stale clusters and reason %q, want %q", stale, tt.wantStale)
			}
			if diff := cmp.Diff(tt.wantUntouched, d.untouched, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("untouched (-want +got):\n%s", diff)
			}
			if len(d.merged.Ports) == 0 {
				t.Error("a stale export takes no part in the merge")
			}
		})
	}
}

// Of a headless service, a cluster that was not seen since the start keeps its endpoints only in a
// family in which no other cluster has a ready one, whatever the families and ports of the Services
// are. The API server gives headless Services without selector both families in a cluster with one.
func TestDecideImport_LostClusterOfHeadless(t *testing.T) {
	slice := func(address string, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
		s := importedFrom("cls2")[0]
		s.AddressType, s.Endpoints = family, []discoveryv1.Endpoint{{Addresses: []string{address}}}
		return s
	}
	ipv4, ipv6 := slice("10.2.0.1", discoveryv1.AddressTypeIPv4), slice("fd00::2", discoveryv1.AddressTypeIPv6)
	imp := importShowing("cls2", "cls3")
	imp.Spec.Type = mcsv1beta1.Headless
	other := exportOf("cls3", 80)
	other.Type = mcsv1beta1.Headless
	for name, tt := range map[string]struct {
		families []corev1.IPFamily
		slices   []*discoveryv1.EndpointSlice
		want     string
	}{
		"replaced":                                 {[]corev1.IPFamily{corev1.IPv4Protocol}, []*discoveryv1.EndpointSlice{ipv4}, mcs.StaleReasonWithdrawn},
		"a family in which nothing is":             {[]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, []*discoveryv1.EndpointSlice{ipv4}, mcs.StaleReasonWithdrawn},
		"the last of a family":                     {[]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}, []*discoveryv1.EndpointSlice{ipv4, ipv6}, mcs.StaleReasonLastEndpoints},
		"the last of a family that no Service has": {[]corev1.IPFamily{corev1.IPv4Protocol}, []*discoveryv1.EndpointSlice{ipv6}, mcs.StaleReasonLastEndpoints},
	} {
		t.Run(name, func(t *testing.T) {
			other.IPFamilies, imp.Spec.IPFamilies = tt.families, tt.families
			d := decideImport(importFacts{
				key: webKey, namespace: true, synced: true, lost: true, imp: imp, slices: tt.slices,
				staleRule: mcs.StaleRule{Policy: mcs.StaleWithdraw}, view: registrytest.With(registrytest.ViewOf(other), registry.Unseen, "cls2"),
			})
			if d.staleness.Reason != tt.want {
				t.Errorf("the endpoints of cls2 are %s, want %s", d.staleness.Reason, tt.want)
			}
		})
	}
}

// While a cluster is unknown, known ones add ports, as far as the import has neither their name nor
// their number.
func TestDecideImport_UnknownKeepsNoPortOut(t *testing.T) {
	imp := importShowing("cls2", "cls3")
	imp.Spec.Ports[0].Name = "http"
	known := exportOf("cls2")
	known.Ports = []mcs.Port{{Name: "http", Port: 80}, {Name: "alias", Port: 1}, {Name: "added", Port: 443, AppProtocol: "https"}}
	f := importFacts{key: webKey, namespace: true, synced: true, imp: imp, view: registrytest.With(registrytest.ViewOf(known), registry.Unknown, "cls3")}
	want := []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 1}, {Name: "added", Protocol: corev1.ProtocolTCP, Port: 443, AppProtocol: "https"}}
	if d := cmp.Diff(want, decideImport(f).merged.Ports); d != "" {
		t.Errorf("ports (-want +got):\n%s", d)
	}
}

// TestDecideImport_KeepsRefusals: while a cluster that the import shows is unknown, as after a
// restart, what was refused of it stays reported. A refusal that is known is reported.
func TestDecideImport_KeepsRefusals(t *testing.T) {
	known := registrytest.ViewOf(exportOf("cls2"))
	unknown := registrytest.With(known, registry.Unknown, "cls3")
	other := []policy.Refusal{{Cluster: "cls4", Reason: policy.ReasonOther, Message: "refused of cls4"}}
	for name, tt := range map[string]struct {
		view     registry.View
		refusals []policy.Refusal
		want     string
	}{
		"all are known":                          {known, nil, "False"},
		"one is unknown":                         {unknown, nil, "stays"},
		"one is unknown, another one is refused": {unknown, other, "True"},
		"one that is not imported is unknown":    {registrytest.With(known, registry.Unknown, "cls5"), nil, "False"},
		"all are known, one of which is refused": {known, other, "True"},
	} {
		d, got := decideImport(importFacts{key: webKey, namespace: true, synced: true, imp: importShowing("cls2", "cls3"), refusals: tt.refusals, view: tt.view}), "stays"
		if d.refused != nil {
			got = string(d.refused.Status)
		}
		if got != tt.want {
			t.Errorf("%s: condition Refused is %s, want %s", name, got, tt.want)
		}
	}
}

// While a cluster is unknown, the metadata of the ServiceImport stays, except keys that
// --import-metadata does not select any more.
func TestDecideImport_SelectsMetadata(t *testing.T) {
	metadata, err := mcs.ParseKeyFilter(mcs.DefaultMetadataKeys)
	if err != nil {
		t.Fatal(err)
	}
	exp := mcs.Export{Key: webKey, Cluster: "cls2", Type: mcsv1beta1.ClusterSetIP, Ports: []mcs.Port{{Name: "http", Port: 80}}, Labels: map[string]string{"team": "a", "istio.io/global": "x"}}
	f := importFacts{key: webKey, namespace: true, synced: true, metadata: metadata, view: registrytest.ViewOf(exp)}
	d := decideImport(f)
	if !maps.Equal(d.merged.Labels, map[string]string{"team": "a"}) || !slices.Equal(d.notImported, []string{"istio.io/global"}) {
		t.Errorf("labels %v, not imported %v", d.merged.Labels, d.notImported)
	}
	f.imp = importShowing("cls2", "cls3")
	f.imp.Labels = maps.Clone(f.imp.Labels)
	maps.Copy(f.imp.Labels, exp.Labels)
	f.imp.Annotations = map[string]string{plan.AnnotationExportedLabels: "team,istio.io/global"}
	f.view = registrytest.With(f.view, registry.Unknown, "cls3")
	d = decideImport(f)
	if !maps.Equal(d.merged.Labels, map[string]string{"team": "a"}) || d.notImported != nil {
		t.Errorf("while a cluster is unknown: labels %v, not imported %v", d.merged.Labels, d.notImported)
	}
}

// The results of cluster selectors stay while the ClusterProperties are not known, and for clusters
// that cannot be read. A drained cluster leaves if another one serves, also while a third one is
// unknown. The slices of a stale or unreadable cluster that stay do not count, or count, like its
// exports.
func TestDecideImport_Drains(t *testing.T) {
	export := func(cluster, address string) mcs.Export {
		e := exportOf(cluster, 80)
		e.Backends[0].Endpoints[0].Address = netip.MustParseAddr(address)
		return e
	}
	slice := func(cluster, address string) *discoveryv1.EndpointSlice {
		s := importedFrom(cluster)[0]
		s.AddressType, s.Ports = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}
		s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{address}}}
		return s
	}
	before := importShowing("cls2", "cls3", "cls4")
	before.Spec.Ports[0].Port = 80
	all := []mcs.Export{export("cls2", "10.2.0.1"), export("cls3", "10.3.0.1")}
	tests := []struct {
		name  string
		facts importFacts
		used  []string
	}{
		{"another cluster serves", importFacts{view: registrytest.ViewOf(all...)}, []string{"cls3"}},
		{"no other cluster serves", importFacts{view: registrytest.ViewOf(all[:1]...)}, []string{"cls2"}},
		{"the other cluster is stale", importFacts{view: registrytest.WithLiveness(registrytest.ViewOf(all...), registry.Stale, "cls3")}, []string{"cls2"}},
		{
			"a third cluster is unknown", importFacts{imp: before, slices: []*discoveryv1.EndpointSlice{slice("cls3", "10.3.0.1")}, view: registrytest.With(registrytest.ViewOf(all...), registry.Unknown, "cls4")},
			[]string{"cls3"},
		},
		{
			"only an unknown cluster serves", importFacts{
				imp: before, slices: []*discoveryv1.EndpointSlice{slice("cls4", "10.4.0.1")}, view: registrytest.With(registrytest.ViewOf(all[:1]...), registry.Unknown, "cls4"),
			}, nil,
		},
		{
			"a third cluster is unknown, and the other one stale", importFacts{
				imp: before, slices: []*discoveryv1.EndpointSlice{slice("cls3", "10.3.0.1")},
				view: registrytest.WithLiveness(registrytest.With(registrytest.ViewOf(all...), registry.Unknown, "cls4"), registry.Stale, "cls3"),
			}, []string{"cls2"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := tt.facts
			f.key, f.cluster, f.clusterSet, f.namespace, f.synced, f.staleRule = webKey, "cls1", "set", true, true, mcs.StaleRule{Policy: mcs.StaleWithdraw}
			f.drains = map[string]mcs.Drain{"cls2": mcs.DrainAll}
			d := decideImport(f)
			var used []string
			for _, e := range d.endpoints {
				if len(d.merged.Backends(e)) > 0 {
					used = append(used, e.Cluster)
				}
			}
			if !slices.Equal(used, tt.used) {
				t.Errorf("in use are %v, want %v", used, tt.used)
			}
			if d.drained.Status != metav1.ConditionTrue {
				t.Errorf("condition %+v", d.drained)
			}
		})
	}
}

// An address and port that two exports have is in use once, as the endpoint of the older one that
// is used. The slices of an unknown cluster lose it, too; those that cannot be written do not.
func TestDecideImport_Addresses(t *testing.T) {
	export := func(cluster string, created int64, addresses ...string) mcs.Export {
		e := exportOf(cluster, 80)
		e.Created, e.Backends[0].Endpoints = time.Unix(created, 0), nil
		for _, a := range addresses {
			address, down := strings.CutPrefix(a, "!")
			e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, mcs.Endpoint{Address: netip.MustParseAddr(address), Ready: !down, Serving: !down})
		}
		return e
	}
	slice := func(cluster string, addresses ...string) *discoveryv1.EndpointSlice {
		s := importedFrom(cluster)[0]
		s.AddressType, s.Ports = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}
		for _, a := range addresses {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
		}
		return s
	}
	imp := func(times string) *mcsv1beta1.ServiceImport {
		imp := importShowing("cls2", "cls3")
		imp.Spec.Ports[0].Port, imp.Annotations = 80, map[string]string{plan.AnnotationExportTimes: times}
		return imp
	}
	local := export("cls1", 2000, "10.1.0.1")
	for name, tt := range map[string]struct {
		facts importFacts
		fixed []string
		// want are the endpoints in use by cluster, with those of reduced slices, and unchanged the
		// clusters whose slices stay exactly as they are.
		want, unchanged, refused string
	}{
		"a younger export has it as not ready": {
			facts: importFacts{view: registrytest.ViewOf(export("cls2", 1000, "10.2.0.1"), export("cls3", 2000, "!10.2.0.1", "10.3.0.1"))},
			want:  "cls2=10.2.0.1 cls3=10.3.0.1", refused: "cls3",
		},
		"one of this cluster, from a younger export": {
			facts: importFacts{local: &local, view: registrytest.ViewOf(export("cls3", 3000, "!10.1.0.1"))}, want: "cls3= cls1=10.1.0.1", refused: "cls3",
		},
		"an older claim counts from when the export appeared": {
			facts: importFacts{imp: imp("cls2=1000"), view: registrytest.ViewOf(export("cls2", 1000, "10.2.0.1"), export("cls3", 500, "!10.2.0.1"))},
			want:  "cls2=10.2.0.1 cls3=", refused: "cls3",
		},
		"the older cluster is stale and replaced": {
			facts: importFacts{view: registrytest.WithLiveness(registrytest.ViewOf(export("cls2", 1000, "10.2.0.1"), export("cls3", 2000, "10.2.0.1")), registry.Stale, "cls2")},
			want:  "cls2= cls3=10.2.0.1",
		},
		"the older cluster is stale and has the last ready endpoint": {
			facts: importFacts{view: registrytest.WithLiveness(registrytest.ViewOf(export("cls2", 1000, "10.2.0.1"), export("cls3", 2000, "!10.2.0.1")), registry.Stale, "cls2")},
			want:  "cls2=10.2.0.1 cls3=", refused: "cls3",
		},
		"the ready one is left out, and a stale cluster has another one": {
			facts: importFacts{view: registrytest.WithLiveness(registrytest.ViewOf(export("cls2", 1000, "!10.2.0.1"), export("cls3", 2000, "10.2.0.1"), export("cls4", 3000, "10.4.0.1")), registry.Stale, "cls4")},
			want:  "cls2=10.2.0.1 cls3= cls4=10.4.0.1", refused: "cls3",
		},
		"slices of a younger, unknown cluster have it": {
			facts: importFacts{
				imp: imp("cls2=1000,cls3=2000"), slices: []*discoveryv1.EndpointSlice{slice("cls3", "10.2.0.1", "10.3.0.1")},
				view: registrytest.With(registrytest.ViewOf(export("cls2", 1000, "10.2.0.1")), registry.Unknown, "cls3"),
			},
			want: "cls2=10.2.0.1 cls3=10.3.0.1", refused: "cls3",
		},
		"slices of an older, unknown cluster have it": {
			facts: importFacts{
				imp: imp("cls2=1000,cls3=500"), slices: []*discoveryv1.EndpointSlice{slice("cls3", "10.2.0.1")},
				view: registrytest.With(registrytest.ViewOf(export("cls2", 1000, "10.2.0.1", "10.2.0.2")), registry.Unknown, "cls3"),
			},
			want: "cls2=10.2.0.2", unchanged: "cls3", refused: "cls2",
		},
		"slices that cannot be written have it": {
			facts: importFacts{
				slices: []*discoveryv1.EndpointSlice{slice("cls3", "10.2.0.1")}, view: registrytest.ViewOf(export("cls2", 1000, "10.2.0.1"), export("cls3", 2000, "10.2.0.1")),
			},
			fixed: []string{"cls3"}, want: "cls2=10.2.0.1", unchanged: "cls3", refused: "cls3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tt.facts
			f.key, f.cluster, f.namespace, f.synced, f.now, f.staleRule = webKey, "cls1", true, true, time.Unix(10_000, 0), mcs.StaleRule{Policy: mcs.StaleWithdraw}
			d := decideImport(f)
			if tt.fixed != nil {
				d = d.withRefused(f, tt.fixed, f.slices)
			}
			var got []string
			for _, e := range d.wanted() {
				var addresses []string
				for _, b := range e.Backends {
					for _, ep := range b.Endpoints {
						addresses = append(addresses, ep.Address.String())
					}
				}
				got = append(got, e.Cluster+"="+strings.Join(addresses, ","))
			}
			if text := strings.Join(got, " "); text != tt.want {
				t.Errorf("in use are %q, want %q", text, tt.want)
			}
			if text := strings.Join(d.unchanged(), ","); text != tt.unchanged {
				t.Errorf("the slices of %q stay as they are, want %q", text, tt.unchanged)
			}
			refused := ""
			for _, r := range d.allRefusals() {
				if r.Reason == policy.ReasonOther {
					refused += r.Cluster
				}
			}
			if isRefused := d.refused != nil && strings.Contains(d.refused.Reason, string(policy.ReasonOther)); refused != tt.refused || isRefused != (refused != "") {
				t.Errorf("refused are endpoints of %q, want %q; condition %+v", refused, tt.refused, d.refused)
			}
		})
	}
}

// The endpoints of other clusters have the names of zones of this cluster: those in existing slices
// have them already, and do not get other ones again.
func TestDecideImport_Zones(t *testing.T) {
	export := func(cluster string, created int64, address string) mcs.Export {
		e := exportOf(cluster, 80)
		e.Created, e.Backends[0].Endpoints[0].Address, e.Backends[0].Endpoints[0].Zone = time.Unix(created, 0), netip.MustParseAddr(address), "a"
		return e
	}
	local := export("cls1", 1000, "10.1.0.1")
	slice := importedFrom("cls3")[0]
	slice.AddressType, slice.Ports = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.2.0.1"}, Zone: new("b")}, {Addresses: []string{"10.3.0.1"}, Zone: new("b")}}
	imp := importShowing("cls1", "cls2", "cls3")
	imp.Spec.Ports[0].Port, imp.Annotations = 80, map[string]string{plan.AnnotationExportTimes: "cls1=1000,cls2=1000,cls3=2000"}
	facts := importFacts{
		key: webKey, cluster: "cls1", namespace: true, synced: true, now: time.Unix(10_000, 0), imp: imp, local: &local, slices: []*discoveryv1.EndpointSlice{slice},
		view: registrytest.With(registrytest.ViewOf(export("cls2", 1000, "10.2.0.1")), registry.Unknown, "cls3"),
		properties: map[string]mcs.Properties{
			"cls1": {mcs.PropertyZones: "a=1,b=2"}, "cls2": {mcs.PropertyZones: "a=2,b=1"}, "cls3": {mcs.PropertyZones: "a=2,b=1"},
		},
	}
	check := func(t *testing.T, want map[string]string) {
		t.Helper()
		got := map[string]string{}
		for _, e := range decideImport(facts).wanted() {
			for _, ep := range e.Backends[0].Endpoints {
				got[ep.Address.String()] += ep.Zone
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	check(t, map[string]string{"10.1.0.1": "a", "10.2.0.1": "b", "10.3.0.1": "b"})

	// A controller that starts may not know the properties yet. Unknown is not empty.
	known := facts.properties
	existing := importedFrom("cls2")[0]
	existing.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.2.0.1"}, Zone: new("b")}}
	facts.imp, facts.slices = nil, []*discoveryv1.EndpointSlice{existing}
	facts.view = registrytest.ViewOf(export("cls2", 1000, "10.2.0.1"), export("cls4", 1000, "10.4.0.1"))
	for name, properties := range map[string]map[string]mcs.Properties{
		"no properties": nil, "not those of the exporter": {"cls1": known["cls1"]},
	} {
		t.Run(name, func(t *testing.T) {
			facts.properties = properties
			check(t, map[string]string{"10.1.0.1": "a", "10.2.0.1": "b", "10.4.0.1": "a"})
		})
	}
	t.Run("the exporter has none any more", func(t *testing.T) {
		facts.properties = map[string]mcs.Properties{"cls1": known["cls1"], "cls2": nil, "cls4": known["cls2"]}
		check(t, map[string]string{"10.1.0.1": "a", "10.2.0.1": "a", "10.4.0.1": "b"})
	})
}

func TestDecideImport_ClusterSelectors(t *testing.T) {
	selectors, err := mcs.PreferSameRegion.Selectors()
	if err != nil {
		t.Fatal(err)
	}
	selecting := func(cluster, address string) mcs.Export {
		e := exportOf(cluster, 80)
		e.ClusterSelectors = selectors
		e.Backends[0].Endpoints[0].Address = netip.MustParseAddr(address)
		return e
	}
	region := func(name string) mcs.Properties { return mcs.Properties{mcs.PropertyRegion: name} }
	local := selecting("cls1", "10.1.0.1")
	known := map[string]mcs.Properties{"cls1": region("eu"), "cls2": region("eu"), "cls3": region("us")}
	before := importShowing("cls1", "cls2")
	before.Spec.Ports[0].Port = 80
	before.Annotations = map[string]string{
		plan.AnnotationSelectorResults: `[{"clusters":["cls9"]},{"clusters":["cls2"]}]`, plan.AnnotationClusterSelectors: string(selectors),
	}
	sliceOf2 := importedFrom("cls2")[0]
	sliceOf2.AddressType, sliceOf2.Ports = discoveryv1.AddressTypeIPv4, []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}
	sliceOf2.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.2.0.1"}}}
	tests := []struct {
		name  string
		facts importFacts
		tiers string
		used  []string
	}{
		{
			"all is known", importFacts{local: &local, properties: known, view: registrytest.ViewOf(selecting("cls2", "10.2.0.1"), selecting("cls3", "10.3.0.1"))},
			`[{"clusters":["cls1"]},{"clusters":["cls1","cls2"]}]`, []string{"cls1"},
		},
		{
			"a cluster that only imports", importFacts{properties: known, view: registrytest.ViewOf(selecting("cls2", "10.2.0.1"), selecting("cls3", "10.3.0.1"))},
			`[{},{"clusters":["cls2"]}]`, []string{"cls2"},
		},
		{
			"the properties are not known", importFacts{imp: before, local: &local, view: registrytest.ViewOf(selecting("cls2", "10.2.0.1"), selecting("cls3", "10.3.0.1"))},
			before.Annotations[plan.AnnotationSelectorResults], []string{"cls2"},
		},
		{
			"the cluster that serves cannot be read", importFacts{
				imp: before, slices: []*discoveryv1.EndpointSlice{sliceOf2}, properties: known, view: registrytest.With(registrytest.ViewOf(selecting("cls3", "10.3.0.1")), registry.Unknown, "cls2"),
			},
			`[{},{"clusters":["cls2"]}]`, nil,
		},
		{
			"the cluster that serves is not among the members", importFacts{
				imp: before, slices: []*discoveryv1.EndpointSlice{sliceOf2}, properties: map[string]mcs.Properties{"cls3": region("us")},
				view: registrytest.With(registrytest.ViewOf(selecting("cls3", "10.3.0.1")), registry.Unseen, "cls2"),
			},
			before.Annotations[plan.AnnotationSelectorResults], nil,
		},
		{
			"a stale cluster is the first", importFacts{
				local: &local, properties: known, staleRule: mcs.StaleRule{Policy: mcs.StaleWithdraw},
				view: registrytest.WithLiveness(registrytest.ViewOf(selecting("cls2", "10.2.0.1"), selecting("cls3", "10.3.0.1")), registry.Stale, "cls1"),
			},
			`[{"clusters":["cls1"]},{"clusters":["cls1","cls2"]}]`, []string{"cls2"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.facts.key, tt.facts.cluster, tt.facts.clusterSet, tt.facts.namespace, tt.facts.synced = webKey, "cls1", "set", true, true
			if tt.facts.local == nil {
				tt.facts.cluster = "cls8"
				if tt.facts.properties != nil {
					tt.facts.properties = maps.Clone(tt.facts.properties)
					tt.facts.properties["cls8"] = region("eu")
				}
			}
			d := decideImport(tt.facts)
			if got := mcs.EncodeTiers(d.tiers); got != tt.tiers {
				t.Errorf("tiers %s, want %s", got, tt.tiers)
			}
			var used []string
			for _, e := range d.endpoints {
				if len(d.merged.Backends(e)) > 0 {
					used = append(used, e.Cluster)
				}
			}
			slices.Sort(used)
			if !slices.Equal(used, tt.used) {
				t.Errorf("in use are %v, want %v", used, tt.used)
			}
		})
	}
}
