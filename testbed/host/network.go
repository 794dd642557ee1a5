package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
)

// HostLink is the host's only interface to the testbed.
const HostLink = "cmmcs0"

// SwitchName is the name of the file that keeps the bridge's network namespace, in the testbed's
// state directory.
const SwitchName = "testbed-switch"

// nodeLink is the name of the interface in a node (package node configures it).
const nodeLink = "eth0"

// CreateNetwork creates the network of the nodes, and the host's address and routes in it:
//
//	host            switch (own network namespace)        node cls1-node1
//	cmmcs0 -------- host  --[ bridge ]--  c1n1 ---------- eth0 (172.30.0.11)
//
// The bridge has a network namespace of its own, kept by a file, because on machines where Docker
// (or anything else) has loaded br_netfilter the packets crossing a bridge of the host are subject
// to the host's firewall, which drops them.
func CreateNetwork(switchFile string, addresses []netip.Prefix, routes []cluster.Route) error {
	ns, err := newNamespace(switchFile)
	if err != nil {
		return fmt.Errorf("creating the network namespace of the bridge: %w", err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("entering the network namespace of the bridge: %w", err)
	}
	defer inside.Close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}
	if err := inside.LinkAdd(bridge); err != nil {
		return fmt.Errorf("creating the bridge: %w", err)
	}
	if err := inside.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("bringing the bridge up: %w", err)
	}
	host := netlink.NewVeth(netlink.LinkAttrs{Name: HostLink})
	host.PeerName, host.PeerNamespace = "host", netlink.NsFd(ns)
	if err := netlink.LinkAdd(host); err != nil {
		return fmt.Errorf("creating interface %s: %w", HostLink, err)
	}
	if err := plugIn(inside, "host"); err != nil {
		return err
	}
	return configureHost(addresses, routes)
}

func configureHost(addresses []netip.Prefix, routes []cluster.Route) error {
	link, err := netlink.LinkByName(HostLink)
	if err != nil {
		return fmt.Errorf("finding interface %s: %w", HostLink, err)
	}
	for _, a := range addresses {
		net := &net.IPNet{IP: a.Addr().AsSlice(), Mask: net.CIDRMask(a.Bits(), a.Addr().BitLen())}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: net, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("adding address %s to %s: %w", a, HostLink, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing %s up: %w", HostLink, err)
	}
	for _, r := range routes {
		to := &net.IPNet{IP: r.To.Addr().AsSlice(), Mask: net.CIDRMask(r.To.Bits(), r.To.Addr().BitLen())}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Gw: r.Via.AsSlice()}); err != nil {
			return fmt.Errorf("adding the route to %s (is that network in use on this machine?): %w", r.To, err)
		}
	}
	return nil
}

// ConnectNode gives the network namespace of process pid an interface that is plugged into the
// bridge as port.
func ConnectNode(switchFile, port string, pid int) error {
	ns, err := netns.GetFromPath(switchFile)
	if err != nil {
		return fmt.Errorf("opening the network namespace of the bridge: %w", err)
	}
	defer ns.Close()
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("entering the network namespace of the bridge: %w", err)
	}
	defer inside.Close()
	link := netlink.NewVeth(netlink.LinkAttrs{Name: port})
	link.PeerName, link.PeerNamespace = nodeLink, netlink.NsPid(pid)
	if err := inside.LinkAdd(link); err != nil {
		return fmt.Errorf("connecting port %s: %w", port, err)
	}
	return plugIn(inside, port)
}

func plugIn(inside *netlink.Handle, port string) error {
	bridge, err := inside.LinkByName("bridge")
	if err != nil {
		return fmt.Errorf("finding the bridge: %w", err)
	}
	link, err := inside.LinkByName(port)
	if err != nil {
		return fmt.Errorf("finding port %s: %w", port, err)
	}
	if err := inside.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("plugging %s into the bridge: %w", port, err)
	}
	if err := inside.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing port %s up: %w", port, err)
	}
	return nil
}

// removeNetwork removes the network of CreateNetwork, also if it is incomplete.
func removeNetwork(switchFile string) error {
	if link, err := netlink.LinkByName(HostLink); err == nil {
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("deleting interface %s: %w", HostLink, err)
		}
	}
	err := unix.Unmount(switchFile, unix.MNT_DETACH)
	// not mounted, not there
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmounting %s: %w", switchFile, err)
	}
	return nil
}

// SwitchFiles lists the switch files that are in use on this machine: one for each testbed, so one
// at most.
func SwitchFiles() ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	return namespaceMounts(string(text), SwitchName), nil
}

// namespaceMounts reads from the text of /proc/self/mountinfo where namespaces are mounted on files
// of the given name.
func namespaceMounts(mountinfo, name string) []string {
	var out []string
	for line := range strings.Lines(mountinfo) {
		mount, super, _ := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		if len(fields) > 4 && strings.HasPrefix(super, "nsfs ") && filepath.Base(fields[4]) == name {
			out = append(out, fields[4])
		}
	}
	return out
}

// newNamespace creates a network namespace that lives for as long as it is mounted on file.
func newNamespace(file string) (netns.NsHandle, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return netns.None(), err
	}
	if err := os.WriteFile(file, nil, 0o444); err != nil {
		return netns.None(), err
	}
	// A namespace is a thread's: this one goes to the new one and comes back.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		return netns.None(), err
	}
	defer own.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return netns.None(), err
	}
	err = errors.Join(unix.Mount("/proc/thread-self/ns/net", file, "", unix.MS_BIND, ""), netns.Set(own))
	if err != nil {
		return netns.None(), err
	}
	return netns.GetFromPath(file)
}

// waitGone polls until gone returns true: the kernel cleans up within milliseconds.
func waitGone(what string, limit time.Duration, gone func() (bool, error)) error {
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		ok, err := gone()
		if ok || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s still there after %s", what, limit)
		}
	}
}
