package e2e

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// nameInterval is the time between two connections while port names change: 100 in a second.
const nameInterval = 10 * time.Millisecond

// nameChange gives the ports of Service web in a cluster other names.
type nameChange struct {
	name, cluster string
	// ports are the Service's, and want those of the imports: each as "name number", or "number"
	// without a name.
	ports, want string
}

// nameChanges are the kinds of changes. The last one leads back to the start: cls1, the older
// export, has one port without a name and no endpoint. cls2 has the endpoints. It takes 10 s, the
// two settle times, until all objects have another name, and a swap 20 s.
var nameChanges = []nameChange{
	{"the younger export gets a second port, so the first one gets a name", "cls2", "http 80, echo 9000", "tcp-80 80, echo 9000"},
	{"named by its owner", "cls1", "http 80", "http 80, echo 9000"},
	{"renamed", "cls1", "web 80", "web 80, echo 9000"},
	{"the second one renamed", "cls1", "web 80, other 9000", "web 80, other 9000"},
	{"swapped", "cls1", "other 80, web 9000", "other 80, web 9000"},
	{"renamed to a name that the other one has", "cls1", "web 80, echo 9000", "web 80, echo 9000"},
	{"unnamed by its owner", "cls1", "80", "tcp-80 80, echo 9000"},
	{"the second port goes, so the first one loses its name", "cls2", "http 80", "80"},
}

// servicePorts returns the ports in a text of nameChange. The number is that of the endpoints too.
func servicePorts(text string) []corev1.ServicePort {
	var out []corev1.ServicePort
	for one := range strings.SplitSeq(text, ", ") {
		name, number, named := strings.Cut(one, " ")
		if !named {
			name, number = "", one
		}
		target := intstr.Parse(number)
		out = append(out, corev1.ServicePort{Name: name, Port: target.IntVal, TargetPort: target, Protocol: corev1.ProtocolTCP})
	}
	return out
}

// TestPortNamesCostNoConnection changes the names of ports while clients connect to the clusterset
// IP in both clusters, 100 times a second to each port. No connection is refused. It is nightly.
// E2E_TESTBED="--dual-stack --nodes 2 --proxy-mode nftables,iptables" runs both modes of
// kube-proxy.
func TestPortNamesCostNoConnection(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 15 minutes and counts connections, which time out on a busy machine: NIGHTLY=1 runs it")
	}
	t.Parallel()
	cls1, cls2 := installed(t)
	all := []cluster{cls1, cls2}
	ns := namespace(t, all...)
	apply(t, cls2, servers(cls2, ns, "web", 2, "--echo-tcp", ":9000"))
	for _, c := range all {
		svc := service(ns, "web")
		svc.Spec.Ports = servicePorts(map[string]string{"cls1": "80", "cls2": "http 80"}[c.name])
		if c.name == "cls2" {
			svc.Spec.Selector = map[string]string{"app": "web"}
		}
		create(t, c, svc)
	}
	still := service(ns, "still")
	still.Spec.Selector = map[string]string{"app": "web"}
	create(t, cls2, still)
	export(t, cls2, ns, "still")
	nextSecond(t, cls2, export(t, cls1, ns, "web"))
	export(t, cls2, ns, "web")
	hasPorts(t, ns, nameChanges[len(nameChanges)-1].want, all...)

	first := connectToPort(t, ns, "80", all...)
	var second []*traffic
	for i := range 50 {
		change := nameChanges[i%len(nameChanges)]
		t.Logf("%s, change %d: %s", time.Now().Format(time.TimeOnly), i+1, change.name)
		if i%len(nameChanges) == len(nameChanges)-1 { // the second port goes
			judgeConnections(t, "9000", second)
			second = nil
		}
		changePorts(t, map[string]cluster{"cls1": cls1, "cls2": cls2}[change.cluster], ns, change.ports)
		hasPorts(t, ns, change.want, all...)
		if second == nil && strings.Contains(change.want, "9000") {
			second = connectToPort(t, ns, "9000", all...)
		}
	}
	judgeConnections(t, "80", first)
	judgeConnections(t, "9000", second)
}

// changePorts gives Service web of a cluster these ports.
func changePorts(t *testing.T, c cluster, ns, ports string) {
	t.Helper()
	change(t, c, service(ns, "web"), func(svc *corev1.Service) { svc.Spec.Ports = servicePorts(ports) })
}

// hasPorts waits until all objects of the imports have exactly these ports.
func hasPorts(t *testing.T, ns, ports string, in ...cluster) {
	t.Helper()
	var want []string
	for _, p := range servicePorts(ports) {
		want = append(want, fmt.Sprintf("%s %d/%s", p.Name, p.Port, p.Protocol))
	}
	sorted := slices.Sorted(slices.Values(want))
	for _, c := range in {
		eventually(t, started, func() error {
			if err := importedPorts(t.Context(), c, ns, "web", want...); err != nil {
				return err
			}
			return slicePorts(t.Context(), c, ns, "web", "cls2", sorted...)
		})
	}
}

// connectToPort connects to a port of web's clusterset IP from the first node of each cluster, once
// it can, until the test ends. For comparison it connects as often to that of Service still.
func connectToPort(t *testing.T, ns, port string, in ...cluster) []*traffic {
	t.Helper()
	var out []*traffic
	for _, c := range in {
		node := networkOf(t, c.name+"-node1")
		web, still := connectable(t, c, node, ns, "web", port), connectable(t, c, node, ns, "still", "80")
		out = append(out, startTrafficEvery(t, nameInterval, node, []string{web}, []string{still}))
	}
	return out
}

// connectable returns the address of a port of an import, once the node can connect to it.
func connectable(t *testing.T, c cluster, node nodeNetwork, ns, name, port string) (address string) {
	t.Helper()
	eventually(t, started, func() error {
		ip, err := importIP(t.Context(), c, ns, name)
		if err != nil {
			return err
		}
		address = net.JoinHostPort(ip, port)
		conn, err := node.dial(t.Context(), "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return address
}

// judgeConnections stops the connections to a port in each cluster, and reports those that failed.
// Names that do not fit let connections be refused: kube-proxy rejects them, or the pod does, on a
// port where it does not listen. A busy machine lets single ones time out, also those to Service
// still.
func judgeConnections(t *testing.T, port string, all []*traffic) {
	t.Helper()
	for i, tr := range all {
		tr.stop()
		timeouts := 0
		for _, f := range tr.failures {
			if timeout, ok := errors.AsType[net.Error](f.err); ok && timeout.Timeout() {
				timeouts++
				continue
			}
			t.Errorf("cls%d, port %s, at %s: %v", i+1, port, f.at.Format(time.TimeOnly), f.err)
		}
		t.Logf("cls%d, port %s: of %d connections %d were refused and %d timed out; of as many to Service still %d failed",
			i+1, port, tr.count, len(tr.failures)-timeouts, timeouts, len(tr.direct))
		if excess := timeouts - len(tr.direct); excess > tr.count/1000 {
			t.Errorf("cls%d, port %s: %d connections more than to Service still timed out, want at most 0.1 %%", i+1, port, excess)
		}
	}
}
