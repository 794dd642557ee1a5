package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDNSBeside runs docs/dns.md for a CoreDNS that cannot serve the zone: a second CoreDNS serves
// it, and the cluster's own forwards it. The cluster's own is the testbed's, without the option.
func TestDNSBeside(t *testing.T) {
	cls1, cls2 := installed(t)
	t.Cleanup(func() { succeeds(t, "dns enable --context cls2") })
	enablesBeside(t, cls1, cls2, inCorefile)
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
	if testing.Short() {
		t.Skip("CI does not build a second CoreDNS: NIGHTLY=1 does")
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
	enablesBeside(t, cls1, cls2, inCorefile)
}

// TestDNSBesideCustom does the same where CoreDNS imports server blocks from ConfigMap
// coredns-custom, as on AKS: the Corefile does not change, and another server block in that
// ConfigMap stays.
func TestDNSBesideCustom(t *testing.T) {
	if testing.Short() {
		t.Skip("it restarts CoreDNS several times, and CI runs TestDNSBeside: NIGHTLY=1 runs both")
	}
	cls1, cls2 := installed(t)
	says(t, 0, "dns disable --context cls2")
	coreDNSOfAKS(t, cls2)
	enablesBeside(t, cls1, cls2, inCustom)
	if got := kubectl(t, cls2, "-n", "kube-system", "get", "configmap", "coredns-custom", "-o", "jsonpath={.data}"); got != `{"other.server":"`+otherServer+`"}` {
		t.Errorf("ConfigMap coredns-custom after disable has %s", got)
	}
}

// coreDNSOfAKS makes a cluster's CoreDNS read server blocks from ConfigMap coredns-custom, as AKS
// installs it, until the end of the test. The ConfigMap has a server block of another owner.
func coreDNSOfAKS(t *testing.T, c cluster) {
	t.Helper()
	change := func(ctx context.Context, corefile, mount, volume string) error {
		data, err := json.Marshal(map[string]any{"data": map[string]string{"Corefile": corefile}})
		if err != nil {
			return err
		}
		template := `{"spec":{"template":{"spec":{"containers":[{"name":"coredns","volumeMounts":[` + mount + `]}],"volumes":[` + volume + `]}}}}`
		for _, args := range [][]string{
			{"patch", "configmap", "coredns", "-p", string(data)},
			{"patch", "deployment", "coredns", "-p", template},
			{"rollout", "status", "deployment/coredns", "--timeout=90s"},
		} {
			if _, err := suite.Kubectl(ctx, c.name, append([]string{"-n", "kube-system"}, args...)...); err != nil {
				return err
			}
		}
		return nil
	}
	stock := corefile(t, c)
	t.Cleanup(func() {
		if err := change(context.Background(), stock, `{"$patch":"delete","mountPath":"/etc/coredns/custom"}`, `{"$patch":"delete","name":"custom"}`); err != nil {
			t.Error(err)
		}
		if _, err := suite.Kubectl(context.Background(), c.name, "-n", "kube-system", "delete", "configmap", "coredns-custom", "--ignore-not-found"); err != nil {
			t.Error(err)
		}
		succeeds(t, "dns enable --context "+c.name)
	})
	apply(t, c, `{apiVersion: v1, kind: ConfigMap, metadata: {name: coredns-custom, namespace: kube-system}, data: {other.server: "`+otherServer+`"}}`)
	err := change(t.Context(), stock+"import custom/*.server\n", `{"name":"custom","mountPath":"/etc/coredns/custom","readOnly":true}`,
		`{"name":"custom","configMap":{"name":"coredns-custom","optional":true}}`)
	if err != nil {
		t.Fatal(err)
	}
}

// otherServer is a server block of another owner in ConfigMap coredns-custom, quoted.
const otherServer = `other.example:53 {\n    errors\n}\n`

// oldCoreDNS is the image in dist/coredns-old.tar.
const oldCoreDNS = "registry.k8s.io/coredns/coredns:v1.11.4"

// forwarding is a place in which a cluster's own CoreDNS is configured to forward the zone, by what
// kubectl mcs says of it.
type forwarding struct {
	dryRun, enabled string
	keepsCorefile   bool
}

var (
	inCorefile = forwarding{dryRun: "+    forward . SERVICE_IP", enabled: "Edited ConfigMap kube-system/coredns:"}
	inCustom   = forwarding{
		dryRun:  "Would set key clusterset-dns.server of ConfigMap kube-system/coredns-custom",
		enabled: "Edited ConfigMap kube-system/coredns-custom:", keepsCorefile: true,
	}
)

// enablesBeside enables the zone with a second CoreDNS in cls2, uses it, and disables it.
func enablesBeside(t *testing.T, cls1, cls2 cluster, in forwarding) {
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
	says(t, 3, "diagnose web -n "+ns+" --context cls1,cls2", "Failed in cls2 at CoreDNS: clusterset.local is not enabled", "run kubectl mcs dns enable ")
	says(t, 3, "check --context cls2", "× DNS: clusterset.local is not enabled")
	before := corefile(t, cls2)
	says(t, 0, "dns enable --beside --dry-run --context cls2", in.dryRun)
	says(t, 1, "dns enable --beside --image registry.k8s.io/coredns/coredns:v1.99.0 --context cls2", "a node cannot pull the image", "The DNS of the cluster was not changed")
	if diff := cmp.Diff(before, corefile(t, cls2)); diff != "" {
		t.Errorf("Corefile after an image that does not exist (-before +after):\n%s", diff)
	}
	says(t, 0, "dns enable --beside --context cls2", in.enabled, "Done: ", "CoreDNS pods answer for clusterset.local")
	eventually(t, started, resolves)
	if changed := corefile(t, cls2) != before; changed == in.keepsCorefile {
		t.Errorf("enable --beside has changed the Corefile: %t", changed)
	}
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
