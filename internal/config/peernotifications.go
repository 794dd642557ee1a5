package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
)

// PeerNotifications are the datagrams by which clusters tell one another that the registry has something new.
type PeerNotifications struct {
	Enabled bool
	// Bind is what to listen on. Advertise is where the other clusters reach it; "" is the pod's IP with Bind's port.
	Bind, Advertise string
}

// podIPVariable is the environment variable that deploy/manager sets to the pod's IP.
const podIPVariable = "POD_IP"

// ErrNoPeerNotificationAddress means that the other clusters cannot be told where to send peer notifications.
var ErrNoPeerNotificationAddress = errors.New("the address for peer notifications is not known: outside of a pod (environment variable " + podIPVariable +
	") it is set with --peer-notification-advertise-address")

func (h *PeerNotifications) bind(flags *pflag.FlagSet) {
	flags.BoolVar(&h.Enabled, "peer-notifications", h.Enabled,
		"tell the other clusters of changes, and listen to them, over UDP between the controllers' pods: news arrive sooner, and the registry is polled less often")
	flags.StringVar(&h.Bind, "peer-notification-bind-address", h.Bind,
		"address and UDP port to listen on for peer notifications")
	flags.StringVar(&h.Advertise, "peer-notification-advertise-address", h.Advertise,
		"IP address and UDP port at which the other clusters' controllers reach this one (default: the pod's IP, from POD_IP, and the port of --peer-notification-bind-address)")
}

func (h *PeerNotifications) validate() error {
	_, bindErr := h.port()
	var advertiseErr error
	if h.Advertise != "" {
		_, advertiseErr = peernotify.ParseAddress(h.Advertise)
	}
	return errors.Join(invalid("peer-notification-bind-address", h.Bind, bindErr), invalid("peer-notification-advertise-address", h.Advertise, advertiseErr))
}

// port is the one that is listened on.
func (h *PeerNotifications) port() (uint16, error) {
	_, text, err := net.SplitHostPort(h.Bind)
	if err != nil {
		return 0, errors.New("must be an address and a port, such as :8479")
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, errors.New("the port must be a number from 1 to 65535: the other clusters are told of it")
	}
	return uint16(port), nil
}

// Address is where the other clusters reach this one. The error wraps ErrNoPeerNotificationAddress where nothing says so.
func (h *PeerNotifications) Address(getenv func(string) string) (netip.AddrPort, error) {
	if h.Advertise != "" {
		return peernotify.ParseAddress(h.Advertise)
	}
	podIP := getenv(podIPVariable)
	if podIP == "" {
		return netip.AddrPort{}, ErrNoPeerNotificationAddress
	}
	port, err := h.port()
	if err != nil {
		return netip.AddrPort{}, err
	}
	address, err := peernotify.ParseAddress(net.JoinHostPort(podIP, strconv.Itoa(int(port))))
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("environment variable %s=%s: %w", podIPVariable, podIP, err)
	}
	return address, nil
}
