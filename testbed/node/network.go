package node

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
)

// uplink is the name of the interface that the host has put into the node's namespace.
const uplink = "eth0"

func configureNetwork(spec cluster.NodeSpec) error {
	if err := linkUp("lo"); err != nil {
		return err
	}
	link, err := netlink.LinkByName(uplink)
	if err != nil {
		return fmt.Errorf("finding %s: %w", uplink, err)
	}
	for _, a := range spec.Addresses {
		// The plan makes addresses unique; detecting duplicates would only make IPv6 late.
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet(a), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("adding address %s: %w", a, err)
		}
	}
	if err := linkUp(uplink); err != nil {
		return err
	}
	for _, r := range spec.Routes {
		route := netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(r.To), Gw: r.Via.AsSlice(), Src: r.Src.AsSlice()}
		if err := netlink.RouteAdd(&route); err != nil {
			return fmt.Errorf("adding the route to %s: %w", r.To, err)
		}
	}
	return nil
}

func linkUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing %s up: %w", name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
