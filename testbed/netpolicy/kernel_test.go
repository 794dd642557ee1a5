package netpolicy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// connectTimeout is the time after which a connection counts as dropped. Those that are allowed
// take less than a millisecond; on a loaded machine a longer one makes only the test longer.
const connectTimeout = 2 * time.Second

// TestRulesOnKernel applies rules to a network namespace that routes between others, as a node does
// between its Pods, and connects. It needs root and changes nothing outside of its namespaces:
//
//	TESTBED_E2E=1 go test -C testbed ./netpolicy
func TestRulesOnKernel(t *testing.T) {
	if os.Getenv("TESTBED_E2E") == "" {
		t.Skip("set TESTBED_E2E=1 to create network namespaces")
	}
	n := newNode(t)
	for name, ips := range map[string][]string{
		"web": {"10.10.0.2", "fd00::2"}, "friend": {"10.10.0.3", "fd00::3"}, "outsider": {"10.10.0.4", "fd00::4"}, "remote": {"10.12.0.2", "fd00:12::2"},
	} {
		n.connect(t, name, ips)
	}
	for _, name := range []string{"web", "friend", "remote"} {
		for _, port := range []int{80, 81} {
			n.listen(t, name, port)
		}
	}
	n.listen(t, "", 6443) // the API server, on the node
	state := State{Pods: []*corev1.Pod{
		newPod("shop", "web", "n1", 80, "10.10.0.2", "fd00::2"), newPod("shop", "friend", "n1", 80, "10.10.0.3", "fd00::3"), newPod("blog", "outsider", "n1", 80, "10.10.0.4", "fd00::4"),
	}, Namespaces: []*corev1.Namespace{newNamespace("shop"), newNamespace("blog")}}
	const policy = `
podSelector: {matchLabels: {app: web}}
policyTypes: [Ingress, Egress]
ingress:
  - from: [{podSelector: {}}]
    ports: [{port: http}]
  - from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.10.0.0/16]}}, {ipBlock: {cidr: "fd00:12::/32"}}]
    ports: [{port: 81}, {port: 80, protocol: UDP}]
egress:
  - to: [{podSelector: {}}]
  - ports: [{port: 6443, endPort: 6444}]
`
	allowed := map[string]bool{ // whether the policy allows it
		"tcp friend web 80": true, "tcp friend web 81": false, "udp friend web 80": false,
		"tcp outsider web 80": false, "tcp outsider web 81": false,
		"tcp remote web 81": true, "tcp remote web 80": false, "udp remote web 80": true, "udp remote web 81": false,
		"tcp node web 80": true, "tcp node web 81": true, // the kubelet's probes
		"tcp web friend 80": true, "tcp web remote 80": false, "tcp web node 6443": true, "tcp web web 81": true,
		// no policy is about them
		"tcp outsider friend 80": true, "tcp remote friend 81": true, "tcp outsider node 6443": true,
	}
	check := func(enforced bool) {
		t.Helper()
		var all sync.WaitGroup
		for attempt, ok := range allowed {
			fields := strings.Fields(attempt)
			for _, family := range []string{"4", "6"} {
				all.Go(func() {
					want := ok || !enforced
					err := n.dial(fields[0]+family, fields[1], fields[2], fields[3])
					for range 4 { // a loaded machine delays packets
						if want && err != nil {
							err = n.dial(fields[0]+family, fields[1], fields[2], fields[3])
						}
					}
					if (err == nil) != want {
						t.Errorf("enforced %t: %s over IPv%s: %v, want success %t", enforced, attempt, family, err, want)
					}
				})
			}
		}
		all.Wait()
	}
	check(false)
	none, err := state.Ruleset("n1") // tracks connections, as the rules of kube-proxy do
	if err != nil {
		t.Fatal(err)
	}
	n.nft(t, none)
	check(false)
	open, err := n.open("tcp4", "remote", "web", "80") // not allowed, but established before
	if err != nil {
		t.Fatal(err)
	}
	state.Policies = []*networkingv1.NetworkPolicy{newPolicy(t, "p", policy)}
	ruleset, err := state.Ruleset("n1")
	if err != nil {
		t.Fatal(err)
	}
	n.nft(t, ruleset)
	check(true)
	if err := echo(open); err != nil {
		t.Errorf("an established connection: %v", err)
	}
	n.nft(t, Remove)
	check(false)
}

// gateways are the addresses of the node on the link to each Pod.
var gateways = []netip.Addr{netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")}

// node is a network namespace that routes between those of Pods.
type node struct {
	ns    netns.NsHandle
	pods  map[string]netns.NsHandle
	addrs map[string][]netip.Addr
}

// newNode creates a node. The namespaces end with the test, since nothing but its handles holds
// them.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{ns: newNetwork(t), pods: map[string]netns.NsHandle{}, addrs: map[string][]netip.Addr{}}
	n.addrs["node"] = []netip.Addr{netip.MustParseAddr("172.30.0.11"), netip.MustParseAddr("fd00:172::11")}
	inside(t, n.ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		errs := []error{netlink.LinkSetUp(lo)}
		for _, ip := range n.addrs["node"] {
			errs = append(errs, netlink.AddrAdd(lo, &netlink.Addr{IPNet: host(ip)}))
		}
		for _, family := range []string{"4/ip_forward", "6/conf/all/forwarding"} {
			errs = append(errs, os.WriteFile("/proc/sys/net/ipv"+family, []byte("1"), 0))
		}
		return errors.Join(errs...)
	})
	return n
}

func newNetwork(t *testing.T) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	ns, err := netns.New()
	if err == nil {
		// an address that is checked for duplicates is of no use for a second
		for _, links := range []string{"all", "default"} {
			err = errors.Join(err, os.WriteFile("/proc/sys/net/ipv6/conf/"+links+"/accept_dad", []byte("0"), 0))
		}
		err = errors.Join(err, netns.Set(own))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// within calls do in a network namespace.
func within(ns netns.NsHandle, do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		return err
	}
	defer own.Close()
	if err := netns.Set(ns); err != nil {
		return err
	}
	err = do()
	return errors.Join(err, netns.Set(own))
}

func inside(t *testing.T, ns netns.NsHandle, do func() error) {
	t.Helper()
	if err := within(ns, do); err != nil {
		t.Fatal(err)
	}
}

func host(ip netip.Addr) *net.IPNet {
	return &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}
}

// connect creates a Pod with a link to the node, as the CNI plugin ptp does.
func (n *node) connect(t *testing.T, name string, ips []string) {
	t.Helper()
	pod := newNetwork(t)
	n.pods[name] = pod
	for _, ip := range ips {
		n.addrs[name] = append(n.addrs[name], netip.MustParseAddr(ip))
	}
	inside(t, n.ns, func() error {
		link := netlink.NewVeth(netlink.LinkAttrs{Name: name})
		link.PeerName, link.PeerNamespace = "eth0", netlink.NsFd(pod)
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		errs := []error{netlink.LinkSetUp(link)}
		for _, ip := range gateways {
			errs = append(errs, netlink.AddrAdd(link, &netlink.Addr{IPNet: host(ip), Flags: unix.IFA_F_NODAD}))
		}
		for _, ip := range n.addrs[name] {
			errs = append(errs, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: host(ip), Scope: netlink.SCOPE_LINK}))
		}
		return errors.Join(errs...)
	})
	inside(t, pod, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		errs := []error{netlink.LinkSetUp(lo)}
		for _, ip := range n.addrs[name] {
			errs = append(errs, netlink.AddrAdd(link, &netlink.Addr{IPNet: host(ip), Flags: unix.IFA_F_NODAD}))
		}
		errs = append(errs, netlink.LinkSetUp(link))
		for i, gateway := range gateways {
			everywhere := []string{"0.0.0.0/0", "::/0"}[i]
			_, dst, _ := net.ParseCIDR(everywhere)
			errs = append(errs, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: host(gateway), Scope: netlink.SCOPE_LINK}),
				netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: gateway.AsSlice()}))
		}
		return errors.Join(errs...)
	})
}

func (n *node) network(name string) netns.NsHandle {
	if ns, ok := n.pods[name]; ok {
		return ns
	}
	return n.ns
}

// listen echoes what arrives at a port of a Pod, or of the node, over TCP and UDP.
func (n *node) listen(t *testing.T, name string, port int) {
	t.Helper()
	inside(t, n.network(name), func() error {
		address := net.JoinHostPort("::", strconv.Itoa(port))
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		packets, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = errors.Join(listener.Close(), packets.Close()) })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					_, _ = io.Copy(conn, conn)
				}()
			}
		}()
		go func() {
			buffer := make([]byte, 64)
			for {
				size, from, err := packets.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = packets.WriteTo(buffer[:size], from)
			}
		}()
		return nil
	})
}

// open connects from a Pod or the node to another.
func (n *node) open(network, from, to, port string) (conn net.Conn, err error) {
	address := n.addrs[to][0]
	if strings.HasSuffix(network, "6") {
		address = n.addrs[to][1]
	}
	err = within(n.network(from), func() error {
		conn, err = (&net.Dialer{Timeout: connectTimeout}).Dial(network, net.JoinHostPort(address.String(), port))
		return err
	})
	return conn, err
}

func (n *node) dial(network, from, to, port string) error {
	conn, err := n.open(network, from, to, port)
	if err != nil {
		return err
	}
	defer conn.Close()
	return echo(conn)
}

func echo(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(connectTimeout)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 1))
	return err
}

func (n *node) nft(t *testing.T, script string) {
	t.Helper()
	inside(t, n.ns, func() error {
		// a child has the namespace of the thread that starts it
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = bytes.NewBufferString(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			return errors.Join(err, errors.New(string(out)))
		}
		return nil
	})
}
