package e2e

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"
)

// TestDrain walks through the upgrade of a cluster: cls1 is drained, its servers go and come back, and it is undrained. A client in cls2 connects all the
// time: no connection fails, and none reaches cls1 while it is drained. A service that only cls1 serves stays usable until its servers go.
func TestDrain(t *testing.T) {
	cls1, cls2 := installed(t)
	ns, command, ip := exportWebAndAlone(t, cls1, cls2)
	tr := startTraffic(t, networkOf(t, "cls2-node1"), []string{net.JoinHostPort(ip, "80")}, podAddresses(t, ns, "web", cls2))
	t.Cleanup(func() { _, _ = plugin(context.Background(), 0, "undrain --context cls1") })

	began := time.Now()
	says(t, 0, "drain --context cls1 --importers cls2", "cls1: the cluster is drained by 100%", ns+"/alone", "cls2: has followed")
	t.Logf("cls2 had no endpoint of cls1 after %s, with the start of the plugin", time.Since(began).Round(time.Millisecond))
	always(t, quiet, func() error { return answeredBy(t.Context(), cls2, ns, command, "cls2") })
	if out, err := ask(t.Context(), cls2, ns, "sh", "-c", curl("http://"+fqdn(ns, "alone"))); err != nil {
		t.Errorf("the last endpoints do not answer: %v: %s", err, out)
	}
	says(t, 0, "get clusters --context cls2", "drained")
	says(t, 0, fmt.Sprintf("diagnose web -n %s --context cls1,cls2", ns), "cls1 (endpoints not used)")

	// The upgrade.
	kubectl(t, cls1, "-n", ns, "scale", "deployment/cls1-web", "--replicas=0")
	kubectl(t, cls1, "-n", ns, "wait", "pod", "-l", "app=web", "--for=delete", "--timeout=90s")
	kubectl(t, cls1, "-n", system, "rollout", "restart", manager)
	kubectl(t, cls1, "-n", ns, "scale", "deployment/cls1-web", "--replicas=1")
	kubectl(t, cls1, "-n", ns, "rollout", "status", "deployment/cls1-web", "--timeout=90s")
	kubectl(t, cls1, "-n", system, "rollout", "status", manager, "--timeout=90s")
	if err := answeredBy(t.Context(), cls2, ns, command, "cls2"); err != nil {
		t.Error(err)
	}

	says(t, 0, "undrain --context cls1", "cls1: the cluster is not drained")
	eventually(t, started, func() error { return answeredBy(t.Context(), cls2, ns, command, "cls1", "cls2") })
	count, failures, _ := tr.stop()
	t.Logf("%d connections, %d failed", count, len(failures))
	for _, f := range failures {
		t.Errorf("a connection failed: %v", f)
	}
	if now, err := importIP(t.Context(), cls2, ns, "web"); err != nil || now != ip {
		t.Errorf("the clusterset IP is %q (%v), want still %q", now, err, ip)
	}
}
