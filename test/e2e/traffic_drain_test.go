package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// TestDrain walks through the upgrade of a cluster: cls1 is drained, its servers go and come back,
// and it is undrained. Clients in the other clusters connect all the time: no connection fails, and
// none reaches cls1 while it is drained. A service that only cls1 serves stays usable until its
// servers go.
func TestDrain(t *testing.T) {
	all := installedAll(t)
	cls1, cls2, others := all[0], all[1], all[1:]
	ns, command, ip := exportWebAndAlone(t, all...)
	names := clusterNames()
	tr := startTraffic(t, networkOf(t, "cls2-node1"), []string{net.JoinHostPort(ip, "80")}, podAddresses(t, ns, "web", cls2))
	t.Cleanup(func() { _, _ = plugin(context.Background(), 0, "undrain --context cls1") })

	logs := map[string]*answerLog{}
	for _, c := range others {
		ip, err := importIP(t.Context(), c, ns, "web")
		if err != nil {
			t.Fatal(err)
		}
		logs[c.name] = startAnswerLog(t, networkOf(t, c.name+"-node1"), ip)
	}
	began := time.Now()
	texts := []string{"cls1: the cluster is drained by 100%", ns + "/alone"}
	for _, c := range others {
		texts = append(texts, c.name+": does not use the drained endpoints")
	}
	says(t, 0, "drain --context cls1 --importers "+strings.Join(names[1:], ","), texts...)
	t.Logf("no other cluster had an endpoint of cls1 after %s, with the start of the plugin", round(time.Since(began)))
	noneReaches := func() error {
		for _, c := range others {
			if err := notAnsweredBy(t.Context(), c, ns, command, "cls1"); err != nil {
				return err
			}
		}
		return nil
	}
	eventually(t, soon, noneReaches) // kube-proxy follows the EndpointSlices within a second
	always(t, quiet, noneReaches)
	for name, log := range logs {
		answers := log.stop()
		t.Logf("%s: the last request that cls1 answered began %s after the start of the plugin; %d of %d requests failed", name,
			lastOf(answers, "cls1", began), failed(answers), len(answers))
	}
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
	if err := notAnsweredBy(t.Context(), cls2, ns, command, "cls1"); err != nil {
		t.Error(err)
	}

	says(t, 0, "undrain --context cls1", "cls1: the cluster is not drained")
	eventually(t, started, func() error { return answeredBy(t.Context(), cls2, ns, command, names...) })
	count, failures, _ := tr.stop()
	t.Logf("%d connections, %d failed", count, len(failures))
	for _, f := range failures {
		t.Errorf("a connection failed: %v", f)
	}
	if now, err := importIP(t.Context(), cls2, ns, "web"); err != nil || now != ip {
		t.Errorf("the clusterset IP is %q (%v), want still %q", now, err, ip)
	}
}
