package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// onlyCRDVersion returns the only version of the MCS API that a cluster serves, or "" if it serves
// all. E2E_CRDS has an entry for each cluster, in order: E2E_CRDS=v1alpha1,all.
func onlyCRDVersion(c string) string {
	entries := strings.Split(os.Getenv("E2E_CRDS"), ",")
	if i := slices.Index(clusterNames(), c); i >= 0 && i < len(entries) && entries[i] != "all" {
		return entries[i]
	}
	return ""
}

// restrictCRDs makes a cluster serve only one version of the MCS API, if E2E_CRDS names one, and
// restarts the controller, which uses the version that it found at its start.
func restrictCRDs(ctx context.Context, c string) error {
	only := onlyCRDVersion(c)
	if only == "" {
		return nil
	}
	for _, crd := range []string{"serviceexports", "serviceimports"} {
		for i, version := range []string{"v1alpha1", "v1beta1"} {
			patch := fmt.Sprintf(`[{"op":"test","path":"/spec/versions/%[1]d/name","value":%[2]q},{"op":"replace","path":"/spec/versions/%[1]d/served","value":%[3]t}]`,
				i, version, version == only)
			if _, err := suite.Kubectl(ctx, c, "patch", "crd", crd+".multicluster.x-k8s.io", "--type=json", "-p", patch); err != nil {
				return err
			}
		}
	}
	err := clusterset.Eventually(ctx, soon, func() error {
		versions, err := servedVersions(ctx, c)
		if err == nil && !slices.Equal(versions, []string{only}) {
			err = fmt.Errorf("%s serves %v of the MCS API, want %s", c, versions, only)
		}
		return err
	})
	if err != nil {
		return err
	}
	return runLines(ctx, c, []string{"kubectl --context CLS -n cloud-map-mcs-system rollout restart " + manager})
}

// servedVersions returns the versions of the MCS API that a cluster serves, sorted.
func servedVersions(ctx context.Context, c string) ([]string, error) {
	text, err := suite.Kubectl(ctx, c, "get", "--raw", "/apis/multicluster.x-k8s.io")
	if err != nil {
		return nil, err
	}
	var group struct {
		Versions []struct {
			Version string `json:"version"`
		} `json:"versions"`
	}
	if err := json.Unmarshal([]byte(text), &group); err != nil {
		return nil, err
	}
	var out []string
	for _, v := range group.Versions {
		out = append(out, v.Version)
	}
	slices.Sort(out)
	return out, nil
}

// enableDNS returns the command line that enables the names of the clusterset in a cluster. CoreDNS
// reads ServiceImports as v1alpha1, so without that version the command must refuse.
func enableDNS(c string) string {
	const enable = "kubectl mcs dns enable --context CLS"
	if onlyCRDVersion(c) != "v1beta1" {
		return enable
	}
	return "! out=$(" + enable + " 2>&1) && grep -F 'v1alpha1 is not served' <<<\"$out\""
}

// running is the software that a cluster runs, as it reports itself. test/matrix reads it.
type running struct {
	Kubernetes string   `json:"kubernetes"`
	CoreDNS    string   `json:"coreDNS"`
	ProxyMode  string   `json:"proxyMode"`
	CRDs       []string `json:"crds"`
}

var corednsBuild = regexp.MustCompile(`coredns_build_info\{[^}]*version="([^"]+)"`)

// TestVersions reads the versions that all clusters run and writes them to the file of
// E2E_VERSIONS.
func TestVersions(t *testing.T) {
	var all []running
	for _, c := range installedAll(t) {
		var one running
		var server struct {
			GitVersion string `json:"gitVersion"`
		}
		if err := json.Unmarshal([]byte(kubectl(t, c, "get", "--raw", "/version")), &server); err != nil {
			t.Fatal(err)
		}
		one.Kubernetes = strings.TrimPrefix(server.GitVersion, "v")
		eventually(t, soon, func() error {
			metrics, err := suite.Kubectl(t.Context(), c.name, "get", "--raw", "/api/v1/namespaces/kube-system/services/kube-dns:metrics/proxy/metrics")
			if err != nil {
				return err
			}
			m := corednsBuild.FindStringSubmatch(metrics)
			if m == nil {
				return errors.New("CoreDNS reports no version")
			}
			one.CoreDNS = m[1]
			return nil
		})
		var err error
		if one.ProxyMode, err = suite.Stdout(t.Context(), "", "testbed", "exec", c.name+"-node1", "--", "curl", "-s", "http://127.0.0.1:10249/proxyMode"); err != nil {
			t.Fatal(err)
		}
		if one.CRDs, err = servedVersions(t.Context(), c.name); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s runs %+v", c.name, one)
		all = append(all, one)
	}
	path := os.Getenv("E2E_VERSIONS")
	if path == "" {
		return
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Clean(path), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestClusterSetIPConnects connects to the clusterset IP from each cluster, without DNS: every pod
// of both clusters answers.
func TestClusterSetIPConnects(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	for _, c := range []cluster{cls1, cls2} {
		apply(t, c, web(ns, "web", 1))
		apply(t, c, clientPod(ns))
		export(t, c, ns, "web")
	}
	for _, c := range []cluster{cls1, cls2} {
		kubectl(t, c, "-n", ns, "wait", "pod/client", "--for=condition=Ready", "--timeout=90s")
		for _, from := range []cluster{cls1, cls2} {
			eventually(t, started, func() error { return sameEndpoints(t.Context(), from, c, ns, "web", 1) })
		}
		ip, err := importIP(t.Context(), c, ns, "web")
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range []cluster{cls1, cls2} {
			pods, err := podIPs(t.Context(), from, ns, "web")
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, soon, func() error {
				out, err := ask(t.Context(), c, ns, "curl", "-s", "-m", "2", "http://"+ip)
				if err == nil && !strings.Contains(out, "Server address: "+pods[0]+":") {
					err = fmt.Errorf("in %s %s answered %q, want the pod of %s, %s", c.name, ip, out, from.name, pods[0])
				}
				return err
			})
		}
	}
}
