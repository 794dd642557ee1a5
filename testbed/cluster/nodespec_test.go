package cluster

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

func testSpec(t *testing.T, cfg Config, node int) NodeSpec {
	t.Helper()
	plan := NewPlan(cfg)
	c := plan.Clusters[len(plan.Clusters)-1]
	pki, err := NewPKI(c, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	sw := Software{
		Kubernetes: "/cache/kubernetes", Runtime: "/cache/containerd", CoreDNS: "/cache/coredns/coredns",
		Archives: []string{"/cache/images/pause-1.tar", "/cache/images/client-2.tar"}, PauseImage: "example.org/pause:1",
	}
	spec, err := plan.NodeSpec(c, node, pki, sw, "/tb/n", "/run/tb/log/n")
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func process(t *testing.T, spec NodeSpec, name string) Process {
	t.Helper()
	i := slices.IndexFunc(spec.Processes, func(p Process) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("node runs no %s", name)
	}
	return spec.Processes[i]
}

func TestNodeSpecProcesses(t *testing.T) {
	names := func(spec NodeSpec) string {
		var out []string
		for _, p := range spec.Processes {
			out = append(out, p.Name)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	cfg := Config{Clusters: 2, Nodes: 2}
	const agents = "containerd etcd import-client-2 import-pause-1 kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubelet resolver"
	if got := names(testSpec(t, cfg, 0)); got != agents {
		t.Errorf("the first node runs %s", got)
	}
	second := testSpec(t, cfg, 1)
	if got := names(second); got != "containerd import-client-2 import-pause-1 kube-proxy kubelet" {
		t.Errorf("the second node runs %s", got)
	}
	kubelet := process(t, second, "kubelet")
	for _, want := range []string{"https://172.30.0.21:6443/readyz", "done:import-pause-1", "done:import-client-2"} {
		if !slices.Contains(kubelet.After, want) {
			t.Errorf("kubelet does not wait for %s: %v", want, kubelet.After)
		}
	}
	if !slices.Contains(kubelet.Args, "--node-labels=topology.kubernetes.io/region=ap-southeast-2,topology.k8s.aws/zone-id=apse2-az2") {
		t.Errorf("kubelet is started with %v", kubelet.Args)
	}
}

// TestNodeSpecWaitsForWhatExists: a process that waits for one that is not started would wait
// forever.
func TestNodeSpecWaitsForWhatExists(t *testing.T) {
	for node := range 2 {
		spec := testSpec(t, Config{Clusters: 1, Nodes: 2}, node)
		for _, p := range spec.Processes {
			for _, after := range p.After {
				if name, ok := strings.CutPrefix(after, "done:"); ok && !process(t, spec, name).Once {
					t.Errorf("%s waits for the end of %s, which does not end", p.Name, name)
				}
			}
		}
	}
}

func TestNodeSpecFlagsNameFilesThatExist(t *testing.T) {
	for node := range 2 {
		spec := testSpec(t, Config{Clusters: 1, Nodes: 2, DualStack: true}, node)
		for _, p := range spec.Processes {
			for _, arg := range p.Args {
				_, value, _ := strings.Cut(arg, "=")
				for _, path := range []string{arg, value} {
					written := strings.HasPrefix(path, runDir) && !strings.HasSuffix(path, "/etcd")
					if _, ok := spec.Files[path]; written && !ok {
						t.Errorf("%s refers to %s, which no file of the node provides", p.Name, path)
					}
				}
			}
		}
	}
}

func TestNodeSpecKeepsTheControlPlaneSecretsToItself(t *testing.T) {
	spec := testSpec(t, Config{Clusters: 1, Nodes: 2}, 1)
	for path := range spec.Files {
		if strings.HasSuffix(path, "/ca.key") || strings.HasSuffix(path, "/sa.key") || strings.Contains(path, "controller-manager") {
			t.Errorf("the second node has %s", path)
		}
	}
}

func TestNodeSpecDualStack(t *testing.T) {
	spec := testSpec(t, Config{Clusters: 2, Nodes: 1, DualStack: true}, 0)
	for name, want := range map[string]string{
		"kube-apiserver": "--service-cluster-ip-range=172.20.0.0/16,fd00:172:20::/108",
		"kube-proxy":     "--cluster-cidr=10.12.0.0/16,fd00:10:12::/48",
		"kubelet":        "--node-ip=172.30.0.21,fd00:172:30::21",
	} {
		if p := process(t, spec, name); !slices.Contains(p.Args, want) {
			t.Errorf("%s lacks %s: %v", name, want, p.Args)
		}
	}
	var pods struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct{ Subnet string }
				Routes []struct{ Dst string }
			}
		}
	}
	if err := yaml.Unmarshal([]byte(spec.Files[runDir+"/cni/pods.conflist"]), &pods); err != nil {
		t.Fatal(err)
	}
	ipam := pods.Plugins[0].IPAM
	if len(ipam.Ranges) != 2 || ipam.Ranges[0][0].Subnet != "10.12.0.0/24" || ipam.Ranges[1][0].Subnet != "fd00:10:12::/64" || len(ipam.Routes) != 2 {
		t.Errorf("Pod addresses are %+v", ipam)
	}
}

func TestKubeletConfig(t *testing.T) {
	spec := testSpec(t, Config{Clusters: 1, Nodes: 1}, 0)
	var got struct {
		Kind       string
		ClusterDNS []string
		CgroupRoot string
	}
	if err := yaml.Unmarshal([]byte(spec.Files[runDir+"/kubelet.yaml"]), &got); err != nil {
		t.Fatal(err)
	}
	if got.Kind != "KubeletConfiguration" || len(got.ClusterDNS) != 1 || got.ClusterDNS[0] != "172.20.0.10" || got.CgroupRoot != "/tb/n" {
		t.Errorf("kubelet is configured with %+v", got)
	}
}

func TestKubeconfig(t *testing.T) {
	text, err := Kubeconfig(
		Access{Context: "cls1", Server: "https://a", CA: []byte("ca"), Client: PEM{Cert: []byte("c"), Key: []byte("k")}},
		Access{Context: "cls2", Server: "https://b"},
	)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		CurrentContext string `json:"current-context"`
		Clusters       []struct {
			Name    string
			Cluster struct {
				Server string
				CA     string `json:"certificate-authority-data"`
			}
		}
		Contexts []struct {
			Name    string
			Context struct{ Cluster, User string }
		}
	}
	if err := yaml.UnmarshalStrict([]byte(text), &struct{}{}); err == nil {
		t.Error("the kubeconfig is empty")
	}
	if err := yaml.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	ca, err := base64.StdEncoding.DecodeString(got.Clusters[0].Cluster.CA)
	if err != nil {
		t.Fatal(err)
	}
	if got.CurrentContext != "cls1" || got.Clusters[1].Cluster.Server != "https://b" || string(ca) != "ca" || got.Contexts[1].Context.Cluster != "cls2" {
		t.Errorf("kubeconfig is %+v", got)
	}
}

func TestCoreDNS_HasNoClustersetZone(t *testing.T) {
	text, err := NewPlan(Config{Clusters: 1, Nodes: 1}).Clusters[0].CoreDNS("example.org/coredns:1")
	if err != nil {
		t.Fatal(err)
	}
	// Users enable clusterset.local with kubectl mcs dns enable, so the testbed must not enable it.
	for _, unwanted := range []string{"clusterset", "multicluster", "serviceimports"} {
		if strings.Contains(text, unwanted) {
			t.Errorf("CoreDNS already has %s", unwanted)
		}
	}
	for i, doc := range strings.Split(text, "\n---\n") {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil || object.Kind == "" || object.Metadata.Name == "" {
			t.Errorf("document %d is %+v: %v", i, object, err)
		}
	}
}
