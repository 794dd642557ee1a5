package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestClusterSelection connects ten times a second from cls1 to a service that every cluster
// exports with cluster-preference, while the only pod of one cluster after the other becomes
// unready and ready again. With two clusters the preference is the own cluster. With three
// (E2E_CLUSTERS=3), cls3 is in another Region, and the preference is the own Region.
func TestClusterSelection(t *testing.T) {
	all := installedAll(t)
	cls1 := all[0]
	preference := "PreferSameCluster"
	if len(all) > 2 {
		preference = "PreferSameRegion"
		setRegion(t, all[2], "eu-west-1")
	}
	ns := namespace(t, all...)
	for _, c := range all {
		apply(t, c, fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: web, namespace: %s}, spec: {selector: {app: web}, ports: [{port: 80}]}}", ns))
		apply(t, c, servers(c, ns, "web", 1))
		create(t, c, &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: "web", Annotations: map[string]string{mcs.AnnotationClusterPreference: preference},
		}})
		startClient(t, c, ns)
	}
	command := curl("http://" + fqdn(ns, "web"))
	for i, c := range all[:2] {
		eventually(t, started, func() error { return exporters(t.Context(), c, ns, "web", clusterNames()...) })
		eventually(t, started, func() error { return answeredBy(t.Context(), c, ns, command, clusterNames()[i]) })
	}
	ip, err := importIP(t.Context(), cls1, ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	tr := startTraffic(t, networkOf(t, "cls1-node1"), []string{net.JoinHostPort(ip, "80")}, podAddresses(t, ns, "web", all...))
	// One cluster after the other becomes unready, the nearest one first; each is ready again
	// before the next step needs it.
	for i, c := range all[:len(all)-1] {
		next := clusterNames()[i+1]
		unready, imported, log := watchUnready(t, c, ns, "web"), watchImported(t, cls1, ns, "web", next), startAnswerLog(t, networkOf(t, "cls1-node1"), ip)
		setReady(t, c, ns, false)
		at := unready()
		eventually(t, started, func() error { return answeredBy(t.Context(), cls1, ns, command, next) })
		answers, written := log.stop(), imported()
		t.Logf("%s answered first %s after the change of the EndpointSlice of %s, which answered last %s after it; the imported EndpointSlices had changed %s after it; "+
			"%d of %d requests failed", next, firstOf(answers, next, at), c.name, lastOf(answers, c.name, at), written.Sub(at).Round(10*time.Millisecond), failed(answers), len(answers))
	}
	for _, c := range slices.Backward(all[:len(all)-1]) {
		setReady(t, c, ns, true)
		eventually(t, started, func() error { return answeredBy(t.Context(), cls1, ns, command, c.name) })
	}
	if count, failures, _ := tr.stop(); count == 0 || len(failures) > 0 {
		t.Errorf("%d of %d connections failed: %v", len(failures), count, failures)
	} else {
		t.Logf("%d connections, none failed", count)
	}
}

// setRegion sets the Region of a cluster until the test ends.
func setRegion(t *testing.T, c cluster, region string) {
	t.Helper()
	apply(t, c, fmt.Sprintf("{apiVersion: about.k8s.io/v1beta1, kind: ClusterProperty, metadata: {name: %s}, spec: {value: %s}}", mcs.PropertyRegion, region))
	t.Cleanup(func() {
		if _, err := suite.Kubectl(context.Background(), c.name, "delete", "clusterproperty", mcs.PropertyRegion); err != nil {
			t.Error(err)
		}
	})
}

// setReady makes the pods of a cluster ready or unready. They serve in both cases.
func setReady(t *testing.T, c cluster, ns string, ready bool) {
	t.Helper()
	ips := kubectl(t, c, "-n", ns, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}")
	for _, ip := range strings.Fields(ips) {
		if _, err := ask(t.Context(), c, ns, "curl", "-s", "-X", "POST", fmt.Sprintf("http://%s/ready?ok=%t", ip, ready)); err != nil {
			t.Fatal(err)
		}
	}
}
