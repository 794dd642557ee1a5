package cluster

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// NodeSpec is everything a node does. The host renders it; the node's first process (package node)
// carries it out.
type NodeSpec struct {
	Hostname string `json:"hostname"`
	// Visible are directories of the host that the node needs, even when they lie below one that it
	// hides.
	Visible   []string       `json:"visible"`
	Addresses []netip.Prefix `json:"addresses"`
	Routes    []Route        `json:"routes"`
	// Sysctls are set; all of them belong to the node's network namespace.
	Sysctls map[string]string `json:"sysctls"`
	// Shadowed sysctls belong to the whole machine. The kubelet requires these values, and gets
	// files that contain them.
	Shadowed map[string]string `json:"shadowed"`
	// Files are written before any process starts.
	Files     map[string]string `json:"files"`
	LogDir    string            `json:"logDir"`
	Path      string            `json:"path"` // the PATH of the processes
	Processes []Process         `json:"processes"`
}

// Process is a program the node keeps running: it is started again whenever it ends.
type Process struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
	// Env is added to the node's environment.
	Env []string `json:"env,omitempty"`
	// After lists the prerequisites: the URL of a server that answers 200 (https://…), a socket
	// that accepts connections (unix:///…), or the end of a process that runs once (done:NAME).
	After []string `json:"after,omitempty"`
	// Once is for a process that is done when it has ended well.
	Once bool `json:"once,omitempty"`
}

// Software has the paths of programs and images, and the names of the images that a node needs
// itself.
type Software struct {
	Kubernetes string   // directory of etcd, kube-apiserver, …, kubectl
	Runtime    string   // directory of containerd, its shim, ctr and the CNI plugins
	CoreDNS    string   // the CoreDNS binary
	Archives   []string // OCI archives every node imports
	PauseImage string
}

const (
	runDir = "/run/testbed"
	pkiDir = runDir + "/pki"

	containerdSocket = "unix:///run/containerd/containerd.sock"
)

// CAFile is where a node keeps the certificate authority of its cluster.
const CAFile = pkiDir + "/ca.crt"

// networkSysctls make the node a router between its Pods and the bridge. Duplicate address
// detection would only delay IPv6 addresses, which the plan makes unique.
func networkSysctls(dualStack bool) map[string]string {
	s := map[string]string{"net/ipv4/ip_forward": "1"}
	if dualStack {
		s["net/ipv6/conf/all/forwarding"] = "1"
		s["net/ipv6/conf/default/accept_dad"] = "0"
	}
	return s
}

// kubeletSysctls returns the sysctls that the kubelet would set for the whole machine.
func kubeletSysctls() map[string]string {
	return map[string]string{
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/keys/root_maxbytes": "25000000",
	}
}

// NodeSpec renders the programs and files of the node with the given index (0 is the control
// plane's) of cluster c. Its Pods are in cgroup.
func (p Plan) NodeSpec(c Cluster, index int, pki PKI, sw Software, cgroup, logDir string) (NodeSpec, error) {
	n := c.Nodes[index]
	r := nodeRenderer{plan: p, cluster: c, node: n, index: index, pki: pki, software: sw, cgroup: cgroup}
	files, err := r.files()
	if err != nil {
		return NodeSpec{}, fmt.Errorf("configuring node %s: %w", n.Name, err)
	}
	spec := NodeSpec{
		Hostname:  n.Name,
		Visible:   []string{sw.Kubernetes, sw.Runtime, filepath.Dir(sw.CoreDNS), logDir},
		Addresses: n.Addresses,
		Routes:    p.routes(c, n),
		Sysctls:   networkSysctls(len(n.Addresses) > 1),
		Shadowed:  kubeletSysctls(),
		Files:     files,
		LogDir:    logDir,
		Path:      sw.Runtime + ":" + sw.Kubernetes + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		Processes: r.processes(),
	}
	for _, a := range sw.Archives {
		spec.Visible = append(spec.Visible, filepath.Dir(a))
	}
	return spec, nil
}

type nodeRenderer struct {
	plan     Plan
	cluster  Cluster
	node     Node
	index    int
	pki      PKI
	software Software
	cgroup   string
}

func (r nodeRenderer) files() (map[string]string, error) {
	kubelet := r.pki.Kubelets[r.index]
	files := map[string]string{
		CAFile:                  string(r.pki.CA),
		pkiDir + "/kubelet.crt": string(kubelet.Serving.Cert),
		pkiDir + "/kubelet.key": string(kubelet.Serving.Key),
		runDir + "/resolv.conf": fmt.Sprintf("nameserver %s\n", r.cluster.Nodes[0].IP()),
	}
	users := map[string]PEM{"kubelet": kubelet.Client, "kube-proxy": r.pki.Proxy}
	if r.index == 0 {
		r.controlPlaneFiles(files, users)
	}
	for name, client := range users {
		text, err := Kubeconfig(r.cluster.Access(r.pki, client))
		if err != nil {
			return nil, err
		}
		files[kubeconfigOf(name)] = text
	}
	return files, r.renderFiles(files)
}

func kubeconfigOf(user string) string { return runDir + "/" + user + ".kubeconfig" }

func (r nodeRenderer) controlPlaneFiles(files map[string]string, users map[string]PEM) {
	for name, p := range map[string]PEM{
		"apiserver":          r.pki.APIServer,
		"kubelet-client":     r.pki.KubeletClient,
		"front-proxy-client": r.pki.FrontProxyClient,
	} {
		files[pkiDir+"/"+name+".crt"] = string(p.Cert)
		files[pkiDir+"/"+name+".key"] = string(p.Key)
	}
	files[pkiDir+"/ca.key"] = string(r.pki.CAKey)
	files[pkiDir+"/front-proxy-ca.crt"] = string(r.pki.FrontProxyCA)
	files[pkiDir+"/sa.pub"] = string(r.pki.ServiceAccounts.Cert)
	files[pkiDir+"/sa.key"] = string(r.pki.ServiceAccounts.Key)
	users["kube-controller-manager"] = r.pki.Controllers
	users["kube-scheduler"] = r.pki.Scheduler
}

func (r nodeRenderer) renderFiles(files map[string]string) error {
	data := map[string]any{
		"DNS":         r.cluster.DNSService(),
		"Cgroup":      r.cgroup,
		"Pause":       r.software.PauseImage,
		"PluginDir":   r.software.Runtime,
		"PodNetworks": r.node.PodNetworks,
		"DualStack":   len(r.node.PodNetworks) > 1,
		"Address":     r.node.IP(),
	}
	for path, name := range map[string]string{
		runDir + "/kubelet.yaml":      "kubelet.yaml",
		runDir + "/containerd.toml":   "containerd.toml",
		runDir + "/cni/pods.conflist": "pods.conflist",
		runDir + "/resolver.corefile": "resolver.corefile",
	} {
		text, err := render(name, data)
		if err != nil {
			return err
		}
		files[path] = text
	}
	return nil
}

func (r nodeRenderer) processes() []Process {
	out := r.runtime()
	if r.index == 0 {
		out = append(out, r.controlPlane()...)
	}
	return append(out, r.nodeAgents()...)
}

func (r nodeRenderer) ready() string { return r.cluster.APIServer() + "/readyz" }

func (r nodeRenderer) kubernetes(name string, flags ...string) []string {
	return append([]string{filepath.Join(r.software.Kubernetes, name)}, flags...)
}

// runtime returns the processes that run containerd and import each image once.
func (r nodeRenderer) runtime() []Process {
	out := []Process{{
		Name: "containerd",
		Args: []string{filepath.Join(r.software.Runtime, "containerd"), "--config", runDir + "/containerd.toml"},
	}}
	for _, archive := range r.software.Archives {
		out = append(out, Process{
			Name:  importOf(archive),
			Args:  []string{filepath.Join(r.software.Runtime, "ctr"), "--namespace", "k8s.io", "images", "import", archive},
			After: []string{containerdSocket},
			Once:  true,
		})
	}
	return out
}

func importOf(archive string) string {
	return "import-" + strings.TrimSuffix(filepath.Base(archive), ".tar")
}

// controlPlane returns the additional processes of the first node of a cluster. The controllers
// start when the API server is ready: sooner they would only take its CPU and then back off.
func (r nodeRenderer) controlPlane() []Process {
	const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	return []Process{
		{Name: "etcd", Args: r.kubernetes("etcd",
			"--name="+r.node.Name,
			"--data-dir=/run/testbed/etcd",
			"--unsafe-no-fsync", // its data does not outlive the node anyway
			"--listen-client-urls="+client, "--advertise-client-urls="+client,
			"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer,
			"--initial-cluster="+r.node.Name+"="+peer,
			"--log-level=warn",
		)},
		// A sixth of its CPU was garbage collection, on machines that have few cores and much
		// memory.
		{Name: "kube-apiserver", Env: []string{"GOGC=400"}, Args: r.kubernetes("kube-apiserver", r.apiServerFlags()...)},
		{Name: "kube-controller-manager", After: []string{r.ready()}, Args: r.kubernetes("kube-controller-manager",
			"--kubeconfig="+kubeconfigOf("kube-controller-manager"),
			"--bind-address=127.0.0.1",
			"--leader-elect=false",
			"--use-service-account-credentials",
			"--root-ca-file="+CAFile,
			"--service-account-private-key-file="+pkiDir+"/sa.key",
			"--cluster-signing-cert-file="+CAFile,
			"--cluster-signing-key-file="+pkiDir+"/ca.key",
			"--service-cluster-ip-range="+join(r.cluster.ServiceNetworks),
			// The default of 20 requests a second makes its controllers start 5 s late.
			"--kube-api-qps=100", "--kube-api-burst=200",
			// it creates the default, in the machine's /usr
			"--flex-volume-plugin-dir=/var/lib/kubelet/volume-plugins",
		)},
		{Name: "kube-scheduler", After: []string{r.ready()}, Args: r.kubernetes("kube-scheduler",
			"--kubeconfig="+kubeconfigOf("kube-scheduler"),
			"--bind-address=127.0.0.1",
			"--leader-elect=false",
		)},
		{Name: "resolver", Args: []string{r.software.CoreDNS, "-conf", runDir + "/resolver.corefile"}},
	}
}

func (r nodeRenderer) apiServerFlags() []string {
	return []string{
		"--etcd-servers=http://127.0.0.1:2379",
		"--secure-port=6443",
		"--advertise-address=" + r.node.IP().String(),
		"--service-cluster-ip-range=" + join(r.cluster.ServiceNetworks),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--client-ca-file=" + CAFile,
		"--tls-cert-file=" + pkiDir + "/apiserver.crt",
		"--tls-private-key-file=" + pkiDir + "/apiserver.key",
		"--kubelet-client-certificate=" + pkiDir + "/kubelet-client.crt",
		"--kubelet-client-key=" + pkiDir + "/kubelet-client.key",
		"--kubelet-certificate-authority=" + CAFile,
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + pkiDir + "/sa.pub",
		"--service-account-signing-key-file=" + pkiDir + "/sa.key",
		"--requestheader-client-ca-file=" + pkiDir + "/front-proxy-ca.crt",
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pkiDir + "/front-proxy-client.crt",
		"--proxy-client-key-file=" + pkiDir + "/front-proxy-client.key",
	}
}

// nodeAgents returns the processes of kubelet and kube-proxy. The kubelet starts after the images
// are imported, because it must not pull any.
func (r nodeRenderer) nodeAgents() []Process {
	imported := []string{r.ready()}
	for _, archive := range r.software.Archives {
		imported = append(imported, "done:"+importOf(archive))
	}
	labels := "topology.kubernetes.io/region=" + r.node.Region + ",topology.k8s.aws/zone-id=" + r.node.ZoneID
	return []Process{
		{Name: "kubelet", After: imported, Args: r.kubernetes("kubelet",
			"--config="+runDir+"/kubelet.yaml",
			"--kubeconfig="+kubeconfigOf("kubelet"),
			"--hostname-override="+r.node.Name,
			"--node-ip="+joinAddrs(r.node.Addresses),
			"--node-labels="+labels,
		)},
		{Name: "kube-proxy", After: []string{r.ready()}, Args: r.kubernetes("kube-proxy",
			"--kubeconfig="+kubeconfigOf("kube-proxy"),
			"--hostname-override="+r.node.Name,
			"--proxy-mode="+r.cluster.ProxyMode,
			"--cluster-cidr="+join(r.cluster.PodNetworks),
			"--metrics-bind-address=127.0.0.1:10249",
			// 0 leaves alone what belongs to the whole machine.
			"--conntrack-max-per-core=0",
			"--conntrack-tcp-timeout-established=0",
			"--conntrack-tcp-timeout-close-wait=0",
		)},
	}
}

func join(prefixes []netip.Prefix) string {
	var out []string
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}

func joinAddrs(prefixes []netip.Prefix) string {
	var out []string
	for _, p := range prefixes {
		out = append(out, p.Addr().String())
	}
	return strings.Join(out, ",")
}
