package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDNSBeside runs docs/dns.md for a CoreDNS that cannot serve the zone: a second CoreDNS serves it, and the cluster's own forwards it. The cluster's
// own is the testbed's, without the option.
func TestDNSBeside(t *testing.T) {
	cls1, cls2 := installed(t)
	t.Cleanup(func() { succeeds(t, "dns enable --context cls2") })
	enablesBeside(t, cls1, cls2)
}

// succeeds runs a command of the plugin when a test ends.
func succeeds(t *testing.T, line string) {
	t.Helper()
	if _, err := plugin(context.Background(), 0, line); err != nil {
		t.Error(err)
	}
}

// TestDNSBesideOldest does the same with the CoreDNS of EKS 1.30 to 1.32.
func TestDNSBesideOldest(t *testing.T) {
	if !runsAll() {
		t.Skip("CI does not build a second CoreDNS: E2E_ALL=1 does")
	}
	cls1, cls2 := installed(t)
	command(t, cls2, "testbed load-image dist/coredns-old.tar --cluster CLS")
	setImage := func(ctx context.Context, image string) error {
		for _, args := range []string{"set image deployment/coredns coredns=" + image, "rollout status deployment/coredns --timeout=90s"} {
			if out, err := suite.Kubectl(ctx, cls2.name, append([]string{"-n", "kube-system"}, strings.Fields(args)...)...); err != nil {
				return fmt.Errorf("%s: %w: %s", args, err, out)
			}
		}
		return nil
	}
	stock := kubectl(t, cls2, "-n", "kube-system", "get", "deployment", "coredns", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	t.Cleanup(func() {
		if err := setImage(context.Background(), stock); err != nil {
			t.Error(err)
		}
		succeeds(t, "dns enable --context cls2")
	})
	says(t, 0, "dns disable --context cls2") // 1.11.4 rejects the option
	if err := setImage(t.Context(), oldCoreDNS); err != nil {
		t.Fatal(err)
	}
	says(t, 1, "dns enable --context cls2", "1.11.4 is too old", "kubectl mcs dns enable --beside --context cls2")
	says(t, 3, "check --context cls2", "× DNS: clusterset.local is not enabled", "kubectl mcs dns enable --beside --context cls2")
	enablesBeside(t, cls1, cls2)
}

// oldCoreDNS is the image in dist/coredns-old.tar.
const oldCoreDNS = "registry.k8s.io/coredns/coredns:v1.11.4"

// enablesBeside enables the zone with a second CoreDNS in cls2, uses it, and disables it.
func enablesBeside(t *testing.T, cls1, cls2 cluster) {
	t.Helper()
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, web(ns, "web", 1))
	export(t, cls1, ns, "web")
	startClient(t, cls2, ns)
	var ip string
	eventually(t, started, func() (err error) { ip, err = importIP(t.Context(), cls2, ns, "web"); return err })
	resolves := func() error { return finds(t.Context(), cls2, ns, fqdn(ns, "web"), "A", ip) }
	t.Cleanup(func() { succeeds(t, "dns disable --context cls2") })
	says(t, 0, "dns disable --context cls2")
	before := corefile(t, cls2)
	says(t, 0, "dns enable --beside --dry-run --context cls2", "+    forward . SERVICE_IP")
	says(t, 1, "dns enable --beside --image registry.k8s.io/coredns/coredns:v1.99.0 --context cls2", "a node cannot pull the image", "The DNS of the cluster was not changed")
	if diff := cmp.Diff(before, corefile(t, cls2)); diff != "" {
		t.Errorf("Corefile after an image that does not exist (-before +after):\n%s", diff)
	}
	says(t, 0, "dns enable --beside --context cls2", "Done: ", "CoreDNS pods answer for clusterset.local")
	eventually(t, started, resolves)
	says(t, 0, "dns enable --beside --context cls2", "clusterset.local is already enabled")
	says(t, 0, "dns status --context cls2", "clusterset.local: enabled", "forwards clusterset.local to Service kube-system/clusterset-dns")
	says(t, 0, "check --context cls1,cls2", "√ DNS, forwarding", "√ DNS, answers of clusterset-dns")
	says(t, 0, "diagnose web -n "+ns+" --context cls1,cls2", "No step failed")
	says(t, 1, "dns enable --context cls2", "a CoreDNS beside the cluster's own serves it")

	// Its pods change, and the address to which the cluster's CoreDNS forwards stays.
	kubectl(t, cls2, "-n", "kube-system", "rollout", "restart", "deployment/clusterset-dns")
	kubectl(t, cls2, "-n", "kube-system", "rollout", "status", "deployment/clusterset-dns", "--timeout=90s")
	eventually(t, soon, resolves)

	says(t, 0, "dns disable --context cls2", "Deleted Deployment")
	if diff := cmp.Diff(before, corefile(t, cls2)); diff != "" {
		t.Errorf("Corefile after enable and disable (-before +after):\n%s", diff)
	}
	if left := kubectl(t, cls2, "get", "deployments,services,configmaps,serviceaccounts,clusterroles,clusterrolebindings", "-A", "-o", "name",
		"-l", "app.kubernetes.io/name=clusterset-dns"); left != "" {
		t.Errorf("after disable are left:\n%s", left)
	}
	says(t, 3, "dns status --context cls2", "clusterset.local: disabled")
}

func corefile(t *testing.T, c cluster) string {
	t.Helper()
	return kubectl(t, c, "-n", "kube-system", "get", "configmap", "coredns", "-o", "jsonpath={.data.Corefile}")
}
