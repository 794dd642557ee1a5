// Package cluster plans the testbed's clusters: addresses, certificates, configuration and the
// processes of each node. It decides and renders; it touches neither the network nor the machine.
package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Limits of one testbed.
const (
	MaxClusters = 4
	MaxNodes    = 2
)

// Addresses that all clusters share. The host bridge is the network between VPCs: nodes, and
// servers on the host such as cloudmap-local on 172.30.0.1, are reachable from every Pod of every
// cluster.
var (
	hostAddresses = families{netip.MustParsePrefix("172.30.0.1/24"), netip.MustParsePrefix("fd00:172:30::1/64")}
	// The service networks overlap on purpose: in the tutorial they do, and nothing may depend on
	// their being distinct.
	serviceNetworks = families{netip.MustParsePrefix("172.20.0.0/16"), netip.MustParsePrefix("fd00:172:20::/108")}
)

// families holds one thing for IPv4 and, with dual-stack, its counterpart for IPv6.
type families struct{ v4, v6 netip.Prefix }

func (f families) list(dualStack bool) []netip.Prefix {
	if dualStack {
		return []netip.Prefix{f.v4, f.v6}
	}
	return []netip.Prefix{f.v4}
}

// Config has the choices of the user. The lists have an entry for each cluster, in order; an empty
// or missing one is the default.
type Config struct {
	Clusters  int  `json:"clusters"`
	Nodes     int  `json:"nodes"`
	DualStack bool `json:"dualStack"`
	// Kubernetes and CoreDNS are minor versions that the testbed pins, such as 1.31.
	Kubernetes []string `json:"kubernetes,omitempty"`
	CoreDNS    []string `json:"coreDNS,omitempty"`
	// ProxyModes are the modes of kube-proxy.
	ProxyModes []string `json:"proxyModes,omitempty"`
}

// Modes of kube-proxy; the first one is the default.
const (
	ProxyNFTables = "nftables"
	ProxyIPTables = "iptables"
)

// Versions are the minor versions of one cluster's software; an empty one is the default.
type Versions struct{ Kubernetes, CoreDNS string }

// Versions returns the versions of the cluster with an index.
func (c Config) Versions(i int) Versions {
	return Versions{entry(c.Kubernetes, i), entry(c.CoreDNS, i)}
}

func entry(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return ""
}

// Validate returns an error for an invalid choice.
func (c Config) Validate() error {
	if c.Clusters < 1 || c.Clusters > MaxClusters {
		return fmt.Errorf("%d clusters asked for: expected 1 to %d", c.Clusters, MaxClusters)
	}
	if c.Nodes < 1 || c.Nodes > MaxNodes {
		return fmt.Errorf("%d nodes a cluster asked for: expected 1 to %d", c.Nodes, MaxNodes)
	}
	for _, list := range [][]string{c.Kubernetes, c.CoreDNS, c.ProxyModes} {
		if len(list) > c.Clusters {
			return fmt.Errorf("%d entries (%s): expected at most one for each of %d clusters", len(list), strings.Join(list, ","), c.Clusters)
		}
	}
	for _, mode := range c.ProxyModes {
		if mode != "" && mode != ProxyNFTables && mode != ProxyIPTables {
			return fmt.Errorf("mode %q of kube-proxy: expected %s or %s", mode, ProxyNFTables, ProxyIPTables)
		}
	}
	return nil
}

// Equal reports whether two configurations are of the same clusters.
func (c Config) Equal(o Config) bool {
	return c.Clusters == o.Clusters && c.Nodes == o.Nodes && c.DualStack == o.DualStack && slices.Equal(c.Kubernetes, o.Kubernetes) &&
		slices.Equal(c.CoreDNS, o.CoreDNS) && slices.Equal(c.ProxyModes, o.ProxyModes)
}

func (c Config) String() string {
	s := fmt.Sprintf("%d cluster(s) of %d node(s)", c.Clusters, c.Nodes)
	if c.DualStack {
		s += ", dual-stack"
	}
	for _, part := range []struct {
		what string
		list []string
	}{{"Kubernetes", c.Kubernetes}, {"CoreDNS", c.CoreDNS}, {"kube-proxy", c.ProxyModes}} {
		if len(part.list) > 0 {
			s += ", " + part.what + " " + strings.Join(part.list, ",")
		}
	}
	return s
}

// Plan is the whole testbed. Lists of addresses hold IPv4 first and, with dual-stack only, IPv6
// second.
type Plan struct {
	Host     []netip.Prefix // the host's own addresses on the bridge
	Clusters []Cluster
}

// Cluster is one cluster of the plan.
type Cluster struct {
	Name            string // the kubeconfig context: cls1, cls2, …
	PodNetworks     []netip.Prefix
	ServiceNetworks []netip.Prefix
	Versions        Versions
	ProxyMode       string // of kube-proxy
	Nodes           []Node
}

// Node is one node: a network namespace with an address on the bridge and a Pod network of its own.
type Node struct {
	Name        string
	Port        string         // its interface on the bridge
	Zone        string         // topology.kubernetes.io/zone
	ZoneID      string         // topology.k8s.aws/zone-id
	Region      string         // topology.kubernetes.io/region
	Addresses   []netip.Prefix // on the bridge
	PodNetworks []netip.Prefix
}

// Region is the AWS region of all clusters: the tutorial's.
const Region = "ap-southeast-2"

// NewPlan lays the testbed out:
//
//	cluster i (1…4)          Pods 10.(8+2i).0.0/16      fd00:10:(8+2i)::/48
//	node j (1…2)             Pods 10.(8+2i).(j-1).0/24  fd00:10:(8+2i):(j-1)::/64
//	                         node 172.30.0.(10i+j)      fd00:172:30::(10i+j)
//
// The digits of an IPv6 address are chosen to read like those of its IPv4 counterpart.
func NewPlan(cfg Config) Plan {
	plan := Plan{Host: hostAddresses.list(cfg.DualStack)}
	for i := 1; i <= cfg.Clusters; i++ {
		c := Cluster{
			Name:            fmt.Sprintf("cls%d", i),
			PodNetworks:     podNetworks(i).list(cfg.DualStack),
			ServiceNetworks: serviceNetworks.list(cfg.DualStack),
			Versions:        cfg.Versions(i - 1),
			ProxyMode:       cmp.Or(entry(cfg.ProxyModes, i-1), ProxyNFTables),
		}
		for j := 1; j <= cfg.Nodes; j++ {
			c.Nodes = append(c.Nodes, Node{
				Name:        fmt.Sprintf("%s-node%d", c.Name, j),
				Port:        fmt.Sprintf("c%dn%d", i, j),
				Zone:        Region + string(rune('a'+j-1)),
				ZoneID:      fmt.Sprintf("apse2-az%d", j), // as of one AWS account
				Region:      Region,
				Addresses:   nodeAddresses(i, j).list(cfg.DualStack),
				PodNetworks: nodePodNetworks(i, j).list(cfg.DualStack),
			})
		}
		plan.Clusters = append(plan.Clusters, c)
	}
	return plan
}

func podNetworks(i int) families {
	return families{
		netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", 8+2*i)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:10:%d::/48", 8+2*i)),
	}
}

func nodePodNetworks(i, j int) families {
	return families{
		netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", 8+2*i, j-1)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:10:%d:%d::/64", 8+2*i, j-1)),
	}
}

func nodeAddresses(i, j int) families {
	return families{
		netip.MustParsePrefix(fmt.Sprintf("172.30.0.%d/24", 10*i+j)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:172:30::%d/64", 10*i+j)),
	}
}

// IP returns the node's IPv4 address.
func (n Node) IP() netip.Addr { return n.Addresses[0].Addr() }

// APIAddress returns the address of the cluster's API server, on its first node.
func (c Cluster) APIAddress() string { return fmt.Sprintf("%s:6443", c.Nodes[0].IP()) }

// APIServer returns the URL of the cluster's API server.
func (c Cluster) APIServer() string { return "https://" + c.APIAddress() }

// kubernetesServices returns the addresses of the Service default/kubernetes: the first of each
// service network.
func (c Cluster) kubernetesServices() []netip.Addr { return c.service(1) }

// DNSService returns the address of the Service kube-system/kube-dns: the tenth of the IPv4 service
// network, as everywhere.
func (c Cluster) DNSService() netip.Addr { return c.service(10)[0] }

func (c Cluster) service(offset int) []netip.Addr {
	var out []netip.Addr
	for _, network := range c.ServiceNetworks {
		addr := network.Addr()
		for range offset {
			addr = addr.Next()
		}
		out = append(out, addr)
	}
	return out
}

// Route is one entry of a routing table.
type Route struct {
	To  netip.Prefix `json:"to"`
	Via netip.Addr   `json:"via,omitzero"` // zero: directly on the link
	Src netip.Addr   `json:"src,omitzero"` // zero: the kernel's choice
}

// PodRoutes lead to the Pods of every node but except: a routing table as VPC peering gives it,
// with no NAT.
func (p Plan) PodRoutes(except string) []Route {
	var out []Route
	for _, c := range p.Clusters {
		for _, n := range c.Nodes {
			if n.Name == except {
				continue
			}
			for k, network := range n.PodNetworks {
				out = append(out, Route{To: network, Via: n.Addresses[k].Addr()})
			}
		}
	}
	return out
}

// routes returns the node's whole routing table besides its own Pods and the bridge. There is no
// default route. The service networks are "on the link" so that processes of the node itself can
// connect to a cluster IP: the kernel requires a route before kube-proxy's rules replace the
// destination.
func (p Plan) routes(c Cluster, n Node) []Route {
	out := p.PodRoutes(n.Name)
	for k, network := range c.ServiceNetworks {
		out = append(out, Route{To: network, Src: n.Addresses[k].Addr()})
	}
	return out
}
