package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/host"
)

// Status describes a testbed; its JSON form is for scripts and tests and only ever gains fields.
type Status struct {
	Up         bool            `json:"up"` // all nodes run
	HostIP     string          `json:"hostIP,omitempty"`
	Kubeconfig string          `json:"kubeconfig,omitempty"`
	Config     *cluster.Config `json:"config,omitempty"`
	Clusters   []ClusterStatus `json:"clusters"`
}

// ClusterStatus describes one cluster.
type ClusterStatus struct {
	Name         string       `json:"name"`
	Server       string       `json:"server"`
	Kubeconfig   string       `json:"kubeconfig"`
	Ready        bool         `json:"ready"` // reported by its API server
	PodCIDRs     []string     `json:"podCIDRs"`
	ServiceCIDRs []string     `json:"serviceCIDRs"`
	Nodes        []NodeStatus `json:"nodes"`
}

// NodeStatus describes one node.
type NodeStatus struct {
	Name    string   `json:"name"`
	IPs     []string `json:"ips"`
	Zone    string   `json:"zone"`
	PID     int      `json:"pid"` // its first process, as the host sees it
	Running bool     `json:"running"`
	Logs    string   `json:"logs"`
}

// Status returns the state of the testbed. It is no error if it is not up.
func (t *Testbed) Status(ctx context.Context) (Status, error) {
	s, err := t.loadState()
	if errors.Is(err, ErrNotUp) {
		return Status{Clusters: []ClusterStatus{}}, nil
	}
	if err != nil {
		return Status{}, err
	}
	plan := cluster.NewPlan(s.Config)
	out := Status{Up: len(s.dead()) == 0, HostIP: plan.Host[0].Addr().String(), Kubeconfig: t.Kubeconfig(), Config: &s.Config}
	for _, c := range plan.Clusters {
		err := t.kubectl(s, c.Name).ready(ctx)
		one := ClusterStatus{
			Name: c.Name, Server: c.APIServer(), Kubeconfig: t.kubeconfig(c.Name), Ready: err == nil,
			PodCIDRs: texts(c.PodNetworks), ServiceCIDRs: texts(c.ServiceNetworks),
		}
		for _, n := range c.Nodes {
			process := s.Processes[n.Name]
			node := NodeStatus{Name: n.Name, Zone: n.Zone, PID: process.PID, Running: process.Alive(), Logs: t.logDir(n.Name)}
			for _, a := range n.Addresses {
				node.IPs = append(node.IPs, a.Addr().String())
			}
			one.Nodes = append(one.Nodes, node)
		}
		out.Clusters = append(out.Clusters, one)
	}
	return out, nil
}

func texts[T fmt.Stringer](values []T) []string {
	var out []string
	for _, v := range values {
		out = append(out, v.String())
	}
	return out
}

func (t *Testbed) kubectl(s state, cluster string) kubectl {
	return kubectl{program: filepath.Join(s.Kubernetes, "kubectl"), kubeconfig: t.kubeconfig(cluster)}
}

// Kubectl returns the path of kubectl as the running testbed has it.
func (t *Testbed) Kubectl() (string, error) {
	s, err := t.loadState()
	if err != nil {
		return "", err
	}
	return filepath.Join(s.Kubernetes, "kubectl"), nil
}

// LoadImage imports OCI archives into every node of the named cluster, or of all clusters if the
// name is empty. Pods that start afterwards use them.
func (t *Testbed) LoadImage(ctx context.Context, only string, archives ...string) error {
	s, err := t.loadState()
	if err != nil {
		return err
	}
	nodes, err := s.nodes(only)
	if err != nil {
		return err
	}
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() {
			for _, archive := range archives {
				errs[i] = errors.Join(errs[i], s.importImage(ctx, node, archive))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	t.logf("loaded %s into %s", strings.Join(archives, ", "), strings.Join(nodes, ", "))
	return nil
}

// nodes lists the names of the nodes of one cluster, or of all.
func (s state) nodes(only string) ([]string, error) {
	var out, known []string
	for _, c := range cluster.NewPlan(s.Config).Clusters {
		known = append(known, c.Name)
		if only != "" && c.Name != only {
			continue
		}
		for _, n := range c.Nodes {
			out = append(out, n.Name)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("there is no cluster %s: there are %s", only, strings.Join(known, ", "))
	}
	return out, nil
}

// importImage reaches the node's containerd through its file system, which /proc shows.
func (s state) importImage(ctx context.Context, node, archive string) error {
	root := filepath.Join("/proc", strconv.Itoa(s.Processes[node].PID), "root")
	if _, err := os.Stat(archive); err != nil {
		return fmt.Errorf("loading an image: %w", err)
	}
	args := []string{"--address", filepath.Join(root, "run/containerd/containerd.sock"), "--namespace", "k8s.io", "images", "import", archive}
	if err := runProgram(ctx, "", filepath.Join(s.Runtime, "ctr"), args...); err != nil {
		return fmt.Errorf("loading %s into %s: %w", archive, node, err)
	}
	return nil
}

// AddProcess adds a process of the host and its future children to the testbed: Down ends them.
func (t *Testbed) AddProcess(pid int) error {
	if _, err := t.loadState(); err != nil {
		return err
	}
	return host.JoinCgroup(host.HostCgroup, pid)
}

// NodeCommand returns the command line that runs args inside a node, in all of its namespaces.
func (t *Testbed) NodeCommand(node string, args ...string) ([]string, error) {
	s, err := t.loadState()
	if err != nil {
		return nil, err
	}
	process, ok := s.Processes[node]
	if !ok || !process.Alive() {
		nodes, _ := s.nodes("")
		return nil, fmt.Errorf("node %s does not run: there are %s", node, strings.Join(nodes, ", "))
	}
	enter := []string{"nsenter", "--target", strconv.Itoa(process.PID), "--mount", "--uts", "--ipc", "--net", "--pid", "--"}
	return append(enter, args...), nil
}
