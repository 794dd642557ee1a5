package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// topologyNodes are the nodes of both clusters. All node1 are in zone ap-southeast-2a, all node2 in
// ap-southeast-2b.
var topologyNodes = []string{"cls1-node1", "cls1-node2", "cls2-node1", "cls2-node2"}

// topology is Service web with one server on each node, exported by both clusters, and a client on
// each node.
type topology struct {
	ns       string
	clusters []cluster
}

// TestTopology sends requests from every node of two clusters to one Service with servers on every
// node, and checks which servers answer. The steps share the servers.
func TestTopology(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	s := topology{namespace(t, cls1, cls2), []cluster{cls1, cls2}}
	for _, c := range s.clusters {
		apply(t, c, fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: web, namespace: %s}, spec: {selector: {app: web}, ports: [{port: 80}]}}", s.ns))
		export(t, c, s.ns, "web")
	}
	for _, node := range topologyNodes {
		apply(t, s.at(node), serverAndClientOn(s.ns, node))
	}
	for _, c := range s.clusters {
		kubectl(t, c, "-n", s.ns, "wait", "pods", "--all", "--for=condition=Ready", "--timeout=90s")
	}
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, s.ns, "web", 2) })
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls2, cls1, s.ns, "web", 2) })

	t.Run("NoPolicy", func(t *testing.T) {
		if testing.Short() {
			t.Skip("each step takes a minute: CI runs those with a policy, NIGHTLY=1 all")
		}
		s.policy(t, "", "")
		for _, from := range topologyNodes {
			s.reaches(t, from, topologyNodes...)
		}
	})
	t.Run("PreferSameZone", func(t *testing.T) {
		// PreferClose is the older name of the same: two clusters that use one name each agree.
		names := [][2]string{{"PreferClose", "PreferSameZone"}, {"PreferSameZone", "PreferSameZone"}}
		if testing.Short() {
			names = names[:1]
		}
		for _, names := range names {
			s.policy(t, names[0], names[1])
			for _, from := range topologyNodes {
				s.reaches(t, from, "cls1-"+from[len("cls1-"):], "cls2-"+from[len("cls1-"):])
			}
		}
	})
	t.Run("PreferSameZoneOfAnotherAccount", func(t *testing.T) {
		if testing.Short() {
			t.Skip("TestZones checks the same slices: NIGHTLY=1 runs both")
		}
		// As in two AWS accounts: the zones of cls2 have each other's names.
		apply(t, cls2, "{apiVersion: about.k8s.io/v1beta1, kind: ClusterProperty, metadata: {name: "+mcs.PropertyZones+
			"}, spec: {value: 'ap-southeast-2a=apse2-az2,ap-southeast-2b=apse2-az1'}}")
		defer kubectl(t, cls2, "delete", "clusterproperty", mcs.PropertyZones)
		s.policy(t, "PreferSameZone", "PreferSameZone")
		s.reaches(t, "cls1-node1", "cls1-node1", "cls2-node2")
		s.reaches(t, "cls2-node1", "cls1-node2", "cls2-node1")
	})
	t.Run("PreferSameZoneWithoutServersThere", func(t *testing.T) {
		if testing.Short() {
			t.Skip("PreferSameNode has the same fallback: NIGHTLY=1 runs both")
		}
		s.policy(t, "PreferSameZone", "PreferSameZone")
		defer s.servers(t, 1, "cls1-node1", "cls2-node1")
		s.servers(t, 0, "cls1-node1")
		s.reaches(t, "cls1-node1", "cls2-node1")
		s.servers(t, 0, "cls2-node1")
		s.reaches(t, "cls1-node1", "cls1-node2", "cls2-node2")
		s.reaches(t, "cls2-node1", "cls1-node2", "cls2-node2")
	})
	t.Run("PreferSameNode", func(t *testing.T) {
		s.policy(t, "PreferSameNode", "PreferSameNode")
		for _, from := range topologyNodes {
			s.reaches(t, from, from)
		}
		defer s.servers(t, 1, "cls1-node1", "cls2-node1")
		s.servers(t, 0, "cls1-node1") // then the zone, in which there is the other cluster's
		s.reaches(t, "cls1-node1", "cls2-node1")
		s.reaches(t, "cls1-node2", "cls1-node2")
		s.servers(t, 0, "cls2-node1") // then anywhere
		s.reaches(t, "cls1-node1", "cls1-node2", "cls2-node2")
	})
	t.Run("InternalTrafficPolicyLocal", func(t *testing.T) {
		s.policy(t, "", "")
		s.internalPolicy(t, corev1.ServiceInternalTrafficPolicyLocal)
		defer s.internalPolicy(t, corev1.ServiceInternalTrafficPolicyCluster)
		for _, from := range topologyNodes {
			s.reaches(t, from, from)
		}
		defer s.servers(t, 1, "cls1-node1")
		s.servers(t, 0, "cls1-node1")
		s.reaches(t, "cls1-node1", noServer)
		s.reaches(t, "cls1-node2", "cls1-node2")
	})
	// It comes last, as it ends the export of cls2.
	t.Run("PreferSameNodeWhereAllIsImported", func(t *testing.T) {
		s.policy(t, "PreferSameNode", "PreferSameNode")
		remove(t, cls2, &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "web"}})
		s.reaches(t, "cls2-node1", "cls1-node1")
		s.reaches(t, "cls2-node2", "cls1-node2")
	})
}

// at returns the cluster of a node.
func (s topology) at(node string) cluster { return s.clusters[node[len("cls")]-'1'] }

// serverAndClientOn returns a server of Service web and a client on a node. The server has the
// node's name, so that its answers show it.
func serverAndClientOn(ns, node string) string {
	return fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[2]s, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: web, on: %[2]s}}
  template:
    metadata: {labels: {app: web, on: %[2]s}}
    spec:
      nodeSelector: {kubernetes.io/hostname: %[2]s}
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: nginxdemos/hello:plain-text
        imagePullPolicy: IfNotPresent
        readinessProbe: {httpGet: {path: /ready, port: 80}, periodSeconds: 1, failureThreshold: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: client-%[2]s, namespace: %[1]s}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: "nicolaka/netshoot:v0.15", imagePullPolicy: IfNotPresent, command: [sleep, infinity]}]
`, ns, node)
}

// policy sets the Service's trafficDistribution in cls1 and cls2, "" for none, and waits until both
// have imported cls1's, with the older export.
func (s topology) policy(t *testing.T, cls1, cls2 string) {
	t.Helper()
	for i, distribution := range []string{cls1, cls2} {
		value := "null"
		if distribution != "" {
			value = fmt.Sprintf("%q", distribution)
		}
		kubectl(t, s.clusters[i], "-n", s.ns, "patch", "service", "web", "-p", fmt.Sprintf(`{"spec":{"trafficDistribution":%s}}`, value))
	}
	for _, c := range s.clusters {
		eventually(t, soon, func() error {
			var imp mcsv1beta1.ServiceImport
			err := c.Get(t.Context(), client.ObjectKey{Namespace: s.ns, Name: "web"}, &imp)
			if got := ptr.Deref(imp.Spec.TrafficDistribution, ""); err == nil && got != cls1 {
				err = fmt.Errorf("%s: the import's trafficDistribution is %q, want %q", c.name, got, cls1)
			}
			return err
		})
		eventually(t, soon, func() error {
			return condition(t.Context(), c, s.ns, "web", "Conflict", "False", "NoConflicts", "")
		})
	}
}

// internalPolicy sets the Service's internalTrafficPolicy in both clusters.
func (s topology) internalPolicy(t *testing.T, policy corev1.ServiceInternalTrafficPolicy) {
	t.Helper()
	for _, c := range s.clusters {
		kubectl(t, c, "-n", s.ns, "patch", "service", "web", "-p", fmt.Sprintf(`{"spec":{"internalTrafficPolicy":%q}}`, policy))
	}
}

// servers scales the servers on nodes to n each.
func (s topology) servers(t *testing.T, n int, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		kubectl(t, s.at(node), "-n", s.ns, "scale", "deployment/"+node, fmt.Sprintf("--replicas=%d", n))
		kubectl(t, s.at(node), "-n", s.ns, "rollout", "status", "deployment/"+node, "--timeout=90s")
	}
}

// noServer is the answer of no server: its connection is refused or times out.
const noServer = "no server"

// reaches checks that servers on exactly these nodes respond to a client on a node.
func (s topology) reaches(t *testing.T, from string, want ...string) {
	t.Helper()
	start := time.Now()
	eventually(t, soon, func() error {
		got, err := s.answers(t.Context(), from)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("a client on %s is answered by servers on %v, want %v", from, got, want)
		}
		return err
	})
	t.Logf("a client on %s is answered by servers on %v after %.1f s", from, want, time.Since(start).Seconds())
}

// answers returns the nodes whose servers respond to a client, sorted. It sends 20 requests, each
// in a connection of its own: the probability that only two respond although all four could is
// 2^-20. The probability that one of four is missed is 4 * (3/4)^20 = 1 %; then reaches retries.
// It gives up at the first failure. One process sends all, after one lookup of the whole name: 20
// processes that try the search domains would keep a busy machine from what the test waits for.
func (s topology) answers(ctx context.Context, from string) ([]string, error) {
	// 7 is curl's number for a refused connection, 28 for one that leads nowhere
	const failed = "Failed: "
	script := fmt.Sprintf(`curl -s -m 10 --fail-early -H 'Connection: close' 'http://web.%s.svc.clusterset.local./?[1-20]' || echo "%s$?"`, s.ns, failed)
	out, err := suite.Kubectl(ctx, s.at(from).name, "-n", s.ns, "exec", "client-"+from, "--", "sh", "-c", script)
	if err != nil {
		return nil, err
	}
	var got []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch name, ok := strings.CutPrefix(line, "Server name: "); {
		case ok:
			got = append(got, name[:len("cls1-node1")])
		case line == failed+"7", line == failed+"28":
			got = append(got, noServer)
		case strings.HasPrefix(line, failed):
			return nil, fmt.Errorf("curl on %s ended with status %s", from, line[len(failed):])
		}
	}
	slices.Sort(got)
	return slices.Compact(got), nil
}
