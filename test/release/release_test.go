// Package release publishes dist/release in a registry of its own, verifies it and installs it on
// real clusters:
//
//	make release-test
package release

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

const (
	// registry listens on the testbed's host. The nodes use it instead of ghcr.io, so the published
	// files are installed as they are.
	registry   = "172.30.0.1:5000"
	repository = registry + "/cloud-map-mcs"
	system     = "cloud-map-mcs-system"
	files      = "dist/release/"
)

// A shell runs command lines in the repository.
type shell struct {
	t   *testing.T
	set *clusterset.Set
	// env is set before each command line.
	env string
}

// run runs a command line, which must succeed, and returns its output.
func (s *shell) run(line string) string {
	s.t.Helper()
	out, err := s.set.Output(s.t.Context(), s.env+line)
	if err != nil {
		s.t.Fatalf("$ %s\n%v\n%s", line, err, out)
	}
	s.t.Logf("$ %s\n%s", line, out)
	return out
}

// each runs a command line for both clusters, CLS being the cluster.
func (s *shell) each(line string) {
	s.t.Helper()
	for _, cluster := range []string{"cls1", "cls2"} {
		s.run(strings.ReplaceAll(line, "CLS", cluster))
	}
}

// fails runs a command line, which must fail, and returns its output.
func (s *shell) fails(line string) string {
	s.t.Helper()
	out, err := s.set.Output(s.t.Context(), s.env+line)
	if err == nil {
		s.t.Fatalf("$ %s\nsucceeded, and must fail:\n%s", line, out)
	}
	s.t.Logf("$ %s\n%s", line, out)
	return out
}

func TestRelease(t *testing.T) {
	version := os.Getenv("VERSION")
	if os.Getenv("E2E") == "" || version == "" {
		t.Skip("runs with make release-test")
	}
	set, err := clusterset.Up(t.Context(), clusterset.Options{Clusters: 2, Registry: clusterset.CloudMap, NoImage: true, Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if t.Failed() {
			set.Diagnose(ctx, t.Output())
		}
		if os.Getenv("KEEP") == "" {
			set.Down(ctx)
		}
	})
	keys := t.TempDir()
	// cloudmap-local is a proxy for the AWS CLI only
	s := &shell{t: t, set: set, env: "export COSIGN_PASSWORD=; unset HTTP_PROXY; "}
	startRegistry(t, set)
	s.run("cosign generate-key-pair --output-key-prefix " + keys + "/cosign")
	s.run("go run ./hack/release sign -key " + keys + "/cosign.key")
	s.run("go run ./hack/release publish -version " + version + " -to " + repository + " -insecure -key " + keys + "/cosign.key")

	verify(s, keys+"/cosign.pub")
	bin := pluginOfKrew(t, set.Root)
	s.env += "export PATH=" + bin + ":$PATH; "
	ownImage(s, version)
	digest := controllerDigest(t, set.Root)
	released := "ghcr.io/cloud-map-mcs/cloud-map-mcs-controller@" + digest
	// The nodes cannot reach ghcr.io, as if the release did not exist.
	if got := s.fails("kubectl mcs install --context cls1"); !strings.Contains(got, "cannot pull the image") {
		t.Errorf("the plugin does not report that the nodes cannot pull the image: %s", got)
	}
	uninstall(s)
	mirror(s, "ghcr.io")
	installWithPlugin(s, "", released)
	install(s, version, digest)
	if got := s.run("kubectl mcs version"); !strings.Contains(got, version) {
		t.Errorf("the plugin is %s, want %s", got, version)
	}
	if got := s.run("kubectl mcs install --dry-run"); !strings.Contains(got, released) {
		t.Errorf("the plugin does not install the image %s", digest)
	}
	if got, want := s.run("kubectl mcs install --help"), "/blob/"+version+"/docs/"; !strings.Contains(got, want) {
		t.Errorf("the plugin does not name the pages of its version, %s: %s", want, got)
	}
	exportAndImport(s)
}

// startRegistry starts a registry, which `testbed down` ends.
func startRegistry(t *testing.T, set *clusterset.Set) {
	t.Helper()
	cmd := exec.Command(filepath.Join(set.Root, "bin/testbed"), "run", "--", filepath.Join(set.Root, "bin/crane"), "registry", "serve", "--address", registry)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	err := clusterset.Eventually(t.Context(), 30*time.Second, func() error {
		resp, err := http.Get("http://" + registry + "/v2/")
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
	if err != nil {
		t.Fatalf("waiting for the registry: %v", err)
	}
}

// verify runs the commands of docs/install.md with the public key, and one on a file that was
// changed.
func verify(s *shell, key string) {
	s.t.Helper()
	const blob = "cosign verify-blob --insecure-ignore-tlog --bundle " + files + "checksums.txt.sigstore.json --key "
	s.run("cd " + files + " && sha256sum --check --ignore-missing --quiet checksums.txt")
	s.run(blob + key + " " + files + "checksums.txt")
	s.run("sed s/0/1/ " + files + "checksums.txt > " + filepath.Dir(key) + "/changed.txt")
	s.fails(blob + key + " " + filepath.Dir(key) + "/changed.txt")

	const flags = " --insecure-ignore-tlog --allow-http-registry --key "
	for line := range strings.Lines(s.run("cat " + files + "images.txt")) {
		ref := strings.Replace(strings.TrimSpace(line), "ghcr.io", registry, 1)
		s.run("cosign verify" + flags + key + " " + ref)
		s.run("cosign verify-attestation --type slsaprovenance1" + flags + key + " " + ref + " > /dev/null")
		for _, arch := range describedArchitectures(s, ref) {
			one := "$(crane digest --insecure --full-ref --platform linux/" + arch + " " + ref + ")"
			s.run("cosign verify-attestation --type spdxjson" + flags + key + " " + one + " > /dev/null")
		}
	}
	chart := repository + "/charts/cloud-map-mcs-controller"
	s.run("cosign verify" + flags + key + " " + chart + "@$(crane digest --insecure " + chart + ":" + strings.TrimPrefix(os.Getenv("VERSION"), "v") + ")")
}

// describedArchitectures returns the architectures for which the release has an SBOM of an image:
// both, or those of a rehearsal.
func describedArchitectures(s *shell, ref string) []string {
	s.t.Helper()
	name, _, _ := strings.Cut(ref[strings.LastIndex(ref, "/")+1:], ":")
	begin := filepath.Join(s.set.Root, files, name+"_"+os.Getenv("VERSION")+"_image_linux_")
	const end = ".spdx.json"
	sboms, err := filepath.Glob(begin + "*" + end)
	if err != nil || len(sboms) == 0 {
		s.t.Fatalf("%s has no SBOM %s*%s: %v", ref, begin, end, err)
	}
	for i := range sboms {
		sboms[i] = strings.TrimSuffix(strings.TrimPrefix(sboms[i], begin), end)
	}
	return sboms
}

// pluginOfKrew installs the plugin as krew does, from the archive that the manifest names, and
// returns its folder.
func pluginOfKrew(t *testing.T, root string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, files, "mcs.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		Spec struct {
			Platforms []struct {
				Selector struct{ MatchLabels map[string]string }
				URI      string
				SHA256   string
				Bin      string
			}
		}
	}
	if err := yaml.Unmarshal(text, &manifest); err != nil {
		t.Fatal(err)
	}
	for _, p := range manifest.Spec.Platforms {
		if p.Selector.MatchLabels["os"] != "linux" || p.Selector.MatchLabels["arch"] != runtime.GOARCH {
			continue
		}
		path := filepath.Join(root, files, p.URI[strings.LastIndex(p.URI, "/")+1:])
		archive, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(archive); hex.EncodeToString(sum[:]) != p.SHA256 {
			t.Fatalf("%s does not have the checksum of the manifest, %s", path, p.SHA256)
		}
		bin := t.TempDir()
		if out, err := exec.Command("tar", "-xzf", path, "-C", bin, p.Bin, "LICENSE").CombinedOutput(); err != nil {
			t.Fatalf("unpacking %s: %v: %s", path, err, out)
		}
		return bin
	}
	t.Fatal("the manifest has no archive for this machine")
	return ""
}

// controllerDigest returns the digest of the controller's image.
func controllerDigest(t *testing.T, root string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, files, "images.txt"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	_, digest, _ := strings.Cut(line, "@")
	return digest
}

// ownImage builds an image and pushes it to the registry as docs/install.md says, and installs it.
// crane does not need TLS for addresses of private networks.
func ownImage(s *shell, version string) {
	s.t.Helper()
	image := registry + "/mcs:" + version
	s.run("make push IMAGE=" + image + " VERSION=" + version + " PLATFORMS=linux/" + runtime.GOARCH)
	mirror(s, registry)
	installWithPlugin(s, "--image="+image, image)
}

// installWithPlugin installs cls1 with the plugin, and removes the installation. Its pods have the
// image.
func installWithPlugin(s *shell, flags, image string) {
	s.t.Helper()
	s.run("kubectl --context cls1 apply -f deploy/manager/namespace.yaml")
	s.run("kubectl --context cls1 -n " + system + " create secret generic aws-credentials --from-env-file=bin/aws/cls1.env")
	s.run("kubectl mcs install --context cls1 " + flags + " --env-secret aws-credentials -- --aws-region=ap-southeast-2 --aws-endpoint=" + clusterset.Endpoint + " --aws-insecure")
	if got := s.run(images("cls1")); !strings.Contains(got, image) {
		s.t.Errorf("the pods run %s, want %s", got, image)
	}
	uninstall(s)
}

// uninstall removes everything from cls1.
func uninstall(s *shell) {
	s.t.Helper()
	s.run("kubectl mcs uninstall --yes --crds --context cls1")
	s.run("kubectl --context cls1 wait namespace/" + system + " --for=delete --timeout=90s")
}

// mirror makes the nodes pull the images of a host from the registry, which has no TLS.
func mirror(s *shell, host string) {
	s.t.Helper()
	dir := "/run/testbed/registries/" + host
	s.each("testbed exec CLS-node1 -- sh -c 'mkdir -p " + dir + " && echo \"[host.\\\"http://" + registry + "\\\"]\" > " + dir + "/hosts.toml'")
}

// images is a command line that prints the images of the controller's pods.
func images(cluster string) string {
	return "kubectl --context " + cluster + " -n " + system + " get pods -o jsonpath='{.items[*].spec.containers[*].image}'"
}

// install installs cls1 from the manifests for kubectl and cls2 from the chart in the registry.
// Both have cloudmap-local instead of AWS.
func install(s *shell, version, digest string) {
	s.t.Helper()
	s.each("kubectl --context CLS apply -f deploy/manager/namespace.yaml")
	s.each("kubectl --context CLS -n " + system + " create secret generic aws-credentials --from-env-file=bin/aws/CLS.env")

	s.run("kubectl --context cls1 apply -f " + files + "crds.yaml -f " + files + "install-cloudmap.yaml")
	s.run("kubectl --context cls1 apply --dry-run=server -f " + files + "install-etcd.yaml")
	s.run("kubectl --context cls1 -n " + system + ` patch deployment cloud-map-mcs-controller-manager --type=json -p '[
 {"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--aws-region=ap-southeast-2"},
 {"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--aws-endpoint=` + clusterset.Endpoint + `"},
 {"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--aws-insecure"},
 {"op":"add","path":"/spec/template/spec/containers/0/envFrom","value":[{"secretRef":{"name":"aws-credentials"}}]}]'`)
	s.run("helm --kube-context cls2 -n " + system + " install cloud-map-mcs-controller oci://" + repository + "/charts/cloud-map-mcs-controller" +
		" --plain-http --create-namespace --wait --timeout 120s --version " + strings.TrimPrefix(version, "v") + " --set clusterId=cls2,clusterSetId=" + clusterset.ClusterSetID +
		" --set aws.region=ap-southeast-2,aws.endpoint=" + clusterset.Endpoint + ",aws.insecure=true,aws.credentialsSecret=aws-credentials")
	s.each("kubectl --context CLS -n " + system + " rollout status deployment/cloud-map-mcs-controller-manager --timeout=120s")
	for _, cluster := range []string{"cls1", "cls2"} {
		got := s.run(images(cluster))
		for image := range strings.FieldsSeq(got) {
			if image != "ghcr.io/cloud-map-mcs/cloud-map-mcs-controller@"+digest && image != "ghcr.io/cloud-map-mcs/cloud-map-mcs-controller:"+version+"@"+digest {
				s.t.Errorf("%s runs %s, want the image %s", cluster, image, digest)
			}
		}
	}
}

// exportAndImport uses a Service of cls1 in cls2.
func exportAndImport(s *shell) {
	s.t.Helper()
	s.each("kubectl mcs dns enable --context CLS")
	s.run("kubectl mcs join --context cls1 --cluster-id=cls1 --clusterset-id=" + clusterset.ClusterSetID)
	s.each("kubectl --context CLS create namespace demo")
	s.run("kubectl --context cls1 apply -f samples/nginx-deployment.yaml -f samples/nginx-service.yaml")
	s.run("kubectl --context cls1 -n demo rollout status deployment/nginx-demo --timeout=90s")
	s.run("kubectl mcs export nginx-hello -n demo --context cls1")
	s.run("kubectl --context cls2 apply -f samples/client-hello.yaml")
	s.run("kubectl --context cls2 -n demo wait pod/client-hello --for=condition=Ready --timeout=90s")
	got := s.run("kubectl --context cls2 -n demo exec client-hello -- curl -s --retry 60 --retry-delay 1 --retry-all-errors nginx-hello.demo.svc.clusterset.local")
	if !strings.Contains(got, "Server address: 10.10.") { // the pod network of cls1
		s.t.Errorf("the answer does not come from cls1: %s", got)
	}
}
