package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// headlessExport is a headless Service with its endpoints in one cluster.
type headlessExport struct {
	ports    []corev1.ServicePort
	selector string // the label app of its pods, "" for slices made by hand
	notReady bool   // publishNotReadyAddresses
	slices   []*discoveryv1.EndpointSlice
	legacy   string // the subsets of a legacy Endpoints object, which Kubernetes mirrors to slices
}

// headlessShape is a headless service of the clusterset with the names that clients may ask for.
type headlessShape struct {
	name  string
	by    map[string]headlessExport // by cluster
	ports []string                  // such as _http._tcp
	// host names of endpoints, also of those that only one cluster has
	hosts []string
	ready int // its ready endpoints
}

// headlessShapes returns the shapes of Services and slices, whose endpoints all must have the names
// that they have in their own clusters.
func headlessShapes() []headlessShape {
	port := func(name string, number int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: number}
	}
	slice := func(ports []corev1.ServicePort, of ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return endpoints("", "", "", ports, of...)
	}
	byHand := func(service, inSlice []corev1.ServicePort, of ...discoveryv1.Endpoint) headlessExport {
		return headlessExport{ports: service, slices: []*discoveryv1.EndpointSlice{slice(inSlice, of...)}}
	}
	list := func(ports ...corev1.ServicePort) []corev1.ServicePort { return ports }
	in1, in2 := endpoint("10.10.250.1", "a"), endpoint("10.12.250.1", "a")
	gone := endpoint("10.10.250.9", "gone")
	gone.Conditions.Ready = new(false)
	udp := port("", 53)
	udp.Protocol = corev1.ProtocolUDP
	allPorts := slice(list(port("any", 1)), in1)
	allPorts.Ports[0].Port = nil
	web := []string{"_http._tcp"}
	return []headlessShape{
		{"slice-named", map[string]headlessExport{"cls1": byHand(list(port("", 80)), list(port("http", 80)), in1)}, web, []string{"a"}, 1},
		{"other-port", map[string]headlessExport{
			"cls1": byHand(list(port("http", 80)), list(port("http", 80)), in1), "cls2": byHand(list(port("http", 8080)), list(port("http", 80)), in2),
		}, web, []string{"a"}, 2},
		{"oldest-changes", map[string]headlessExport{
			"cls1": byHand(list(port("http", 80)), list(port("http", 80)), in1), "cls2": byHand(list(port("http", 80)), list(port("http", 80)), in2),
		}, web, []string{"a"}, 2},
		{"other-names", map[string]headlessExport{
			"cls1": byHand(list(port("http", 80)), list(port("http", 80)), in1), "cls2": byHand(list(port("web", 8081)), list(port("web", 9090)), in2),
		}, []string{"_http._tcp", "_web._tcp"}, []string{"a"}, 2},
		{"other-protocol", map[string]headlessExport{
			"cls1": byHand(list(port("", 53)), list(port("", 53)), in1), "cls2": byHand(list(udp), list(udp), in2),
		}, nil, []string{"a"}, 2},
		{"no-ports", map[string]headlessExport{"cls1": byHand(nil, nil, in1), "cls2": byHand(list(port("http", 80)), list(port("http", 80)), in2)}, web, []string{"a"}, 2},
		{"no-service-ports", map[string]headlessExport{
			"cls1": byHand(nil, list(port("http", 80)), in1), "cls2": byHand(nil, list(port("http", 8080)), in2),
		}, web, []string{"a"}, 2},
		{"no-slice-ports", map[string]headlessExport{"cls1": byHand(list(port("http", 80)), nil, in1)}, web, []string{"a"}, 1},
		{"all-ports", map[string]headlessExport{"cls1": {ports: list(port("http", 80)), slices: []*discoveryv1.EndpointSlice{allPorts}}}, []string{"_any._tcp"}, []string{"a"}, 1},
		{"several-slices", map[string]headlessExport{"cls1": {ports: list(port("http", 80)), slices: []*discoveryv1.EndpointSlice{
			slice(list(port("http", 8080)), in1, endpoint("10.10.250.2", "")),
			slice(list(port("http", 9090), port("peer", 7000)), endpoint("10.10.250.3", "b"), gone),
			slice(list(port("other", 1)), endpoint("10.10.250.4", "c")),
		}}}, []string{"_http._tcp", "_peer._tcp", "_other._tcp"}, []string{"a", "b", "c", "gone", "10-10-250-2"}, 4},
		{"two-families", map[string]headlessExport{"cls1": {ports: list(port("http", 80)), slices: []*discoveryv1.EndpointSlice{
			slice(list(port("http", 80)), in1, endpoint("10.10.250.2", "a"), endpoint("10.10.250.2", "b")),
			slice(list(port("http", 80)), endpoint("fd00:10:10::fa01", "a"), endpoint("fd00:10:10::fa01", "b")),
		}}}, web, []string{"a", "b"}, 5},
		{"mirrored", map[string]headlessExport{"cls1": {ports: list(port("http", 80)), legacy: `
- {addresses: [{ip: 10.10.250.1, hostname: a}], notReadyAddresses: [{ip: 10.10.250.2, hostname: gone}], ports: [{name: http, port: 8080}]}
- {addresses: [{ip: 10.10.250.3, hostname: b}], ports: [{name: peer, port: 7000}]}`}}, []string{"_http._tcp", "_peer._tcp"}, []string{"a", "b", "gone"}, 2},
		{"selector", map[string]headlessExport{
			"cls1": {ports: list(port("http", 80)), selector: "web"}, "cls2": {ports: list(port("http", 8080)), selector: "web"},
		}, web, nil, 2},
		{"not-ready", map[string]headlessExport{"cls1": {ports: list(port("http", 80)), selector: "down", notReady: true}}, web, nil, 1},
		{"hosts", map[string]headlessExport{"cls1": {selector: "hosts"}, "cls2": {selector: "hosts"}}, nil, []string{"hosts-0", "hosts-1"}, 4},
	}
}

// hostStatefulSet returns a StatefulSet whose pods share the address of one node.
func hostStatefulSet(ns, name, node string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  serviceName: %[2]s
  podManagementPolicy: Parallel
  replicas: 2
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      hostNetwork: true
      nodeName: %[3]s
      terminationGracePeriodSeconds: 1
      containers: [{name: sleep, image: "nicolaka/netshoot:v0.15", imagePullPolicy: IfNotPresent, command: [sleep, infinity]}]
`, ns, name, node)
}

// shapesInCI are the shapes that run with -short: one minute instead of three.
var shapesInCI = []string{"slice-named", "other-port", "oldest-changes", "several-slices", "hosts"}

// TestHeadlessShapes: the names of a headless service in the clusterset are those in cluster.local
// of the exporting clusters, for every shape of Services and slices: the service, its SRV records,
// and each host name, with ready endpoints only.
func TestHeadlessShapes(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	all := []cluster{cls1, cls2}
	ns := namespace(t, all...)
	for _, c := range all {
		var nodes corev1.NodeList
		if err := c.List(t.Context(), &nodes); err != nil {
			t.Fatal(err)
		}
		apply(t, c, servers(c, ns, "web", 1)+"---"+hostStatefulSet(ns, "hosts", nodes.Items[0].Name)+"---"+clientPod(ns))
	}
	// No process listens on port 9, so the pod never becomes ready.
	apply(t, cls1, strings.Replace(servers(cls1, ns, "down", 1), "path: /ready, port: web", "path: /ready, port: 9", 1))
	shapes := headlessShapes()
	if testing.Short() {
		shapes = slices.DeleteFunc(shapes, func(s headlessShape) bool { return !slices.Contains(shapesInCI, s.name) })
	}
	for _, c := range all { // cls1 is the older exporter of all
		for _, s := range shapes {
			if e, ok := s.by[c.name]; ok {
				e.create(t, c, ns, s.name)
			}
		}
		if c.name == "cls1" {
			nextSecond(t, cls2, export(t, cls1, ns, "last"))
		}
		kubectl(t, c, "-n", ns, "wait", "pod/client", "--for=condition=Ready", "--timeout=90s")
	}
	// Asked too early, CoreDNS would remember that there is no such name.
	imports := func() error {
		var failures []error
		for _, c := range all {
			for _, s := range shapes {
				got, err := imported(t.Context(), c, ns, s.name, "", true)
				if err == nil && len(got) != s.ready {
					err = fmt.Errorf("%s has imported %v of %s as ready, want %d", c.name, got, s.name, s.ready)
				}
				failures = append(failures, err)
			}
		}
		return errors.Join(failures...)
	}
	eventually(t, started, imports)
	eventually(t, soon, func() error { return sameNames(t.Context(), ns, shapes, all) })

	// The oldest export changes its port, which is a conflict and changes no names.
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "oldest-changes"}}
	change(t, cls1, svc, func(svc *corev1.Service) { svc.Spec.Ports[0].Port = 8081 })
	for _, c := range all {
		eventually(t, soon, func() error {
			return condition(t.Context(), c, ns, svc.Name, "Conflict", metav1.ConditionTrue, "PortConflict", "http 8081/TCP from cluster cls1")
		})
		eventually(t, soon, func() error {
			imp, err := serviceImport(t.Context(), c, ns, svc.Name)
			if err == nil && (len(imp.Spec.Ports) != 1 || imp.Spec.Ports[0].Port != 8081) {
				err = fmt.Errorf("%s: the import has ports %v, want 8081", c.name, imp.Spec.Ports)
			}
			return err
		})
	}
	always(t, quiet, imports)
	eventually(t, soon, func() error { return sameNames(t.Context(), ns, shapes, all) })
}

// create creates the Service, its endpoints and its export.
func (e headlessExport) create(t *testing.T, c cluster, ns, name string) {
	t.Helper()
	svc := service(ns, name)
	svc.Spec.ClusterIP, svc.Spec.Ports, svc.Spec.PublishNotReadyAddresses = corev1.ClusterIPNone, e.ports, e.notReady
	if e.selector != "" {
		svc.Spec.Selector = map[string]string{"app": e.selector}
	}
	create(t, c, svc)
	for i, s := range e.slices {
		s = s.DeepCopy()
		s.Namespace, s.Name, s.Labels = ns, fmt.Sprint(name, "-", i), map[string]string{discoveryv1.LabelServiceName: name}
		create(t, c, s)
	}
	if e.legacy != "" {
		apply(t, c, fmt.Sprintf("apiVersion: v1\nkind: Endpoints\nmetadata: {name: %s, namespace: %s}\nsubsets:%s\n", name, ns, e.legacy))
	}
	export(t, c, ns, name)
}

// sameNames checks that in each cluster the names of the shapes in the clusterset are answered as
// the exporting clusters answer those in cluster.local.
func sameNames(ctx context.Context, ns string, shapes []headlessShape, all []cluster) error {
	want := map[string][]string{}
	for _, c := range all {
		questions := map[string]string{} // in cluster.local, to those in the clusterset
		for _, s := range shapes {
			if _, ok := s.by[c.name]; ok {
				s.addQuestions(questions, ns, c.name)
			}
		}
		local, err := recordsOf(ctx, c, ns, slices.Sorted(maps.Keys(questions)))
		if err != nil {
			return err
		}
		for question, data := range local {
			for i, d := range data {
				data[i] = inClusterSet(d, ns, c.name)
			}
			of := questions[question]
			want[of] = slices.Sorted(slices.Values(append(want[of], data...)))
		}
	}
	for _, s := range shapes {
		if len(want[fqdn(ns, s.name)+" A"]) == 0 {
			return fmt.Errorf("%s has no address in cluster.local", s.name)
		}
	}
	var failures []error
	for _, c := range all {
		got, err := recordsOf(ctx, c, ns, slices.Sorted(maps.Keys(want)))
		if d := cmp.Diff(want, got); err == nil && d != "" {
			err = fmt.Errorf("in %s the clusterset has other records than cluster.local of the exporters (-want +got):\n%s", c.name, d)
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// addQuestions adds the questions about a shape to an exporting cluster, with those to the
// clusterset.
func (s headlessShape) addQuestions(questions map[string]string, ns, cluster string) {
	local := s.name + "." + ns + ".svc.cluster.local."
	for _, kind := range []string{" A", " AAAA"} {
		questions[local+kind] = fqdn(ns, s.name) + kind
		for _, host := range s.hosts {
			questions[host+"."+local+kind] = fqdn(ns, s.name, host, cluster) + kind
		}
	}
	for _, port := range s.ports {
		questions[port+"."+local+" SRV"] = fqdn(ns, s.name, port) + " SRV"
	}
}

// inClusterSet returns the data of a record in cluster.local of a cluster as in the clusterset: the
// target "80 a.db.NS.svc.cluster.local." of a SRV record gets the cluster's name.
func inClusterSet(data, ns, cluster string) string {
	endpoint, isTarget := strings.CutSuffix(data, "."+ns+".svc.cluster.local.")
	if !isTarget {
		return data
	}
	host, service, _ := strings.Cut(endpoint, ".")
	return host + "." + cluster + "." + service + "." + ns + ".svc.clusterset.local."
}

// recordsOf asks "name kind" questions in the client pod of a cluster. It returns the data of the
// records, sorted: of a SRV record its port and target.
func recordsOf(ctx context.Context, c cluster, ns string, questions []string) (map[string][]string, error) {
	out, err := ask(ctx, c, ns, append([]string{"sh", "-c", `for q in "$@"; do echo "? $q"; dig +noall +answer $q || exit; done`, "sh"}, questions...)...)
	if err != nil {
		return nil, err
	}
	records, question := map[string][]string{}, ""
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 3 && fields[0] == "?":
			question = fields[1] + " " + fields[2]
			records[question] = nil
		case len(fields) == 5 && fields[2] == "IN":
			records[question] = append(records[question], fields[4])
		case len(fields) == 8 && fields[3] == "SRV":
			records[question] = append(records[question], fields[6]+" "+fields[7])
		}
	}
	for _, data := range records {
		slices.Sort(data)
	}
	return records, nil
}
