package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
)

// PeerNotifications configures the datagrams by which controllers notify each other of new content
// in the registry.
type PeerNotifications struct {
	Enabled bool
	// Bind is the address to listen on. Advertise is the address at which the other clusters reach
	// it; "" is the pod's IP with Bind's port.
	Bind, Advertise string
	// Networks are the networks that notifications are sent to; empty is no restriction.
	Networks Prefixes
}

// Prefixes is a flag with networks in CIDR notation, separated by commas.
type Prefixes []netip.Prefix

// String implements pflag.Value.
func (p *Prefixes) String() string {
	var texts []string
	for _, prefix := range *p {
		texts = append(texts, prefix.String())
	}
	return strings.Join(texts, ",")
}

// Set implements pflag.Value.
func (p *Prefixes) Set(text string) error {
	*p = nil
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(part)
		if err != nil {
			return fmt.Errorf("%q is not a network in CIDR notation, such as 10.10.0.0/16 or 2001:db8::/56", part)
		}
		*p = append(*p, prefix.Masked())
	}
	return nil
}

// Type implements pflag.Value.
func (*Prefixes) Type() string { return "cidrs" }

// podIPVariable is the environment variable with the pod's IP, set by deploy/manager.
const podIPVariable = "POD_IP"

// ErrNoPeerNotificationAddress means that there is no address to publish to the other clusters.
var ErrNoPeerNotificationAddress = errors.New("the address for peer notifications is unknown: set --peer-notification-advertise-address, or run in a pod with the environment variable " +
	podIPVariable)

func (p *PeerNotifications) bind(common, advanced *pflag.FlagSet) {
	common.BoolVar(&p.Enabled, "peer-notifications", p.Enabled,
		"Notify the controllers of the other clusters of changes over UDP, and poll the registry less often.")
	advanced.StringVar(&p.Bind, "peer-notification-bind-address", p.Bind,
		"Address and UDP port to listen on for peer notifications.")
	advanced.StringVar(&p.Advertise, "peer-notification-advertise-address", p.Advertise,
		"IP address and UDP port for the other clusters (default: POD_IP and the port of --peer-notification-bind-address).")
	advanced.Var(&p.Networks, "peer-notification-networks",
		"Pod networks to which notifications are sent, in CIDR notation, separated by commas (default: any).")
}

func (p *PeerNotifications) validate() error {
	_, bindErr := p.port()
	var advertiseErr error
	if p.Advertise != "" {
		_, advertiseErr = peernotify.ParseAddress(p.Advertise)
	}
	return errors.Join(invalid("peer-notification-bind-address", p.Bind, bindErr), invalid("peer-notification-advertise-address", p.Advertise, advertiseErr))
}

// port returns the port to listen on.
func (p *PeerNotifications) port() (uint16, error) {
	_, text, err := net.SplitHostPort(p.Bind)
	if err != nil {
		return 0, errors.New("must be an address and a port, such as :8479")
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, errors.New("the port must be a number from 1 to 65535: it is published to the other clusters")
	}
	return uint16(port), nil
}

// Address returns the address at which the other clusters reach this one, or
// ErrNoPeerNotificationAddress.
func (p *PeerNotifications) Address(getenv func(string) string) (netip.AddrPort, error) {
	if p.Advertise != "" {
		return peernotify.ParseAddress(p.Advertise)
	}
	podIP := getenv(podIPVariable)
	if podIP == "" {
		return netip.AddrPort{}, ErrNoPeerNotificationAddress
	}
	port, err := p.port()
	if err != nil {
		return netip.AddrPort{}, err
	}
	address, err := peernotify.ParseAddress(net.JoinHostPort(podIP, strconv.Itoa(int(port))))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("environment variable %s=%s: %w", podIPVariable, podIP, err)
	}
	return address, nil
}
