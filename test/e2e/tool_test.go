package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// plugin runs one command of the plugin and checks its exit code.
func plugin(ctx context.Context, wantCode int, line string) (string, error) {
	out, err := suite.Output(ctx, "kubectl mcs "+line)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	if err == nil && code != wantCode {
		err = fmt.Errorf("kubectl mcs %s: exit code %d, want %d:\n%s", line, code, wantCode, out)
	}
	return out, err
}

// says runs a command of the plugin until it exits with wantCode and prints all texts, and returns
// the output.
func says(t *testing.T, wantCode int, line string, texts ...string) string {
	t.Helper()
	var out string
	eventually(t, soon, func() (err error) {
		if out, err = plugin(t.Context(), wantCode, line); err != nil {
			return err
		}
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("kubectl mcs %s does not say %q:\n%s", line, text, out)
			}
		}
		return nil
	})
	t.Logf("$ kubectl mcs %s\n%s", line, out)
	return out
}

// restore returns cls2 to the state after installOnce.
func restore() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if suite.Registry == clusterset.CloudMap {
		// The last installation of the test may have left the Secret, which a user creates once.
		if out, err := suite.Output(ctx, "kubectl --context cls2 -n "+system+" delete secret aws-credentials --ignore-not-found"); err != nil {
			return fmt.Errorf("deleting the Secret: %w: %s", err, out)
		}
		return install(ctx, "cls2")
	}
	for _, line := range []string{ // on etcd a cluster's user is created once, and stays
		restorePermissions, "kubectl mcs dns enable --context cls2", "kubectl --context cls2 apply -f samples/clusterproperty-cls2.yaml",
	} {
		if out, err := suite.Output(ctx, line); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

const restorePermissions = "kubectl --context cls2 -n " + system + " apply -f deploy/rbac/bindings.yaml"

// TestCLI runs kubectl mcs as a user does, on a clusterset that works and on one that does not, and
// uninstalls and installs the product. TestDNSBeside, TestTwoClustersWithOneID and
// TestIdentityChanges use it too.
func TestCLI(t *testing.T) {
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, web(ns, "web", 2))
	on := " -n " + ns + " --context "
	both := on + "cls1,cls2"
	t.Cleanup(func() {
		if !t.Failed() {
			return // the last step has installed it again
		}
		if err := restore(); err != nil {
			t.Error(err)
		}
	})

	eventually(t, started, func() error {
		ips, err := podIPs(t.Context(), cls1, ns, "web")
		if err == nil && len(ips) != 2 {
			err = fmt.Errorf("ready are %v", ips)
		}
		return err
	})
	says(t, 3, "diagnose web"+both, "no cluster in the checked contexts exports", "run kubectl mcs export web -n "+ns+" --context cls1")
	says(t, 0, "export web"+on+"cls1", "ServiceExport "+ns+"/web", "exported")
	says(t, 0, "diagnose web"+both, "No step failed: "+ns+"/web works")
	began := time.Now()
	says(t, 0, "check --context cls1,cls2", "√ pod network to cls2", "√ pod network to cls1", "√ clusterset IP", " 0 failed")
	t.Logf("check took %s", time.Since(began).Round(10*time.Millisecond))
	says(t, 0, "get exports"+both, "web")
	says(t, 0, "get imports"+both, "ClusterSetIP")
	says(t, 0, "get clusters --context cls1,cls2", "cls1", "cls2")
	says(t, 0, "describe web"+both, "EXPORTED BY", "IMPORTED IN")
	says(t, 0, "registry get web"+on+"cls2", "cluster: cls1", "address: ")
	says(t, 0, "graph --context cls1,cls2", ns+"/web")
	statusAgrees(t)

	t.Run("a permission is missing", func(t *testing.T) {
		kubectl(t, cls2, "delete", "clusterrolebinding", "cloud-map-mcs-controller-manager")
		says(t, 3, "diagnose web"+both, "Failed in cls2 at permissions:", "kubectl mcs install")
		if out, err := suite.Output(t.Context(), restorePermissions); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		says(t, 0, "diagnose web"+both)
	})
	// cls2 reports its import with a heartbeat, which has come meanwhile.
	kubectl(t, cls1, "-n", ns, "wait", "serviceexport/web", "--for=condition="+mcs.ConditionImported, "--timeout=90s")
	says(t, 0, "describe web"+on+"cls1", "EXPORTED TO   IMPORTED BY", "all           cls2\n")
	t.Run("uninstall and install", func(t *testing.T) {
		if suite.Registry != clusterset.CloudMap {
			t.Skip("the credentials are a Secret on Cloud Map only")
		}
		says(t, 0, "uninstall --dry-run --context cls2", "Deployment cloud-map-mcs-system/cloud-map-mcs-controller-manager is deleted")
		credentials := kubectl(t, cls2, "-n", system, "get", "secret", "aws-credentials", "-o", "jsonpath={.data}")
		args := kubectl(t, cls2, "-n", system, "get", manager, "-o", "jsonpath={.spec.template.spec.containers[0].args[*]}")
		says(t, 0, "uninstall --yes --context cls2", "cls2: uninstalled")
		// it has left the clusterset
		kubectl(t, cls1, "-n", ns, "wait", "serviceexport/web", "--for=condition="+mcs.ConditionImported+"=False", "--timeout=90s")
		for _, kind := range []string{"serviceimports", "endpointslices -l endpointslice.kubernetes.io/managed-by=cloud-map-mcs-controller"} {
			if out := kubectl(t, cls2, append([]string{"get", "-A"}, strings.Fields(kind)...)...); out != "" {
				t.Errorf("%s are left:\n%s", kind, out)
			}
		}
		kubectl(t, cls2, "wait", "namespace/"+system, "--for=delete", "--timeout=90s")
		kubectl(t, cls2, "create", "namespace", system)
		apply(t, cls2, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: aws-credentials, namespace: %s}, data: %s}", system, credentials))
		says(t, 0, "install --context cls2 --env-secret aws-credentials -- "+args, "the controller is available")
		says(t, 0, "dns enable --context cls2")
		says(t, 0, "join --cluster-id cls2 --clusterset-id demo-set --context cls2", "is a member")
		says(t, 0, "diagnose web"+both)
	})
}

// statusAgrees checks that both controllers read two live members.
func statusAgrees(t *testing.T) {
	t.Helper()
	says(t, 0, "status --context cls1,cls2 -o wide", "CALLS OF")
	out := says(t, 0, "status --context cls1,cls2 -o json")
	var statuses []struct {
		Context string
		Status  status.Status
	}
	if err := json.Unmarshal([]byte(out), &statuses); err != nil {
		t.Fatal(err)
	}
	for _, s := range statuses {
		if len(s.Status.Members) != 2 || s.Status.Identity.ClusterID != s.Context || !s.Status.Synced {
			t.Errorf("%s: %+v", s.Context, s.Status)
		}
	}
}
