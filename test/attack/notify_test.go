package attack

import (
	"math"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
)

// socket is the UDP socket of a controller: datagrams that it sends are recorded, and the attacker sends to it.
type socket struct {
	net.PacketConn
	received chan []byte
	closed   chan struct{}
	mu       sync.Mutex
	sent     map[netip.AddrPort]int
}

func newSocket() *socket {
	return &socket{received: make(chan []byte, 100), closed: make(chan struct{}), sent: map[netip.AddrPort]int{}}
}

// ReadFrom implements net.PacketConn.
func (s *socket) ReadFrom(p []byte) (int, net.Addr, error) {
	select {
	case datagram := <-s.received:
		return copy(p, datagram), nil, nil
	case <-s.closed:
		return 0, nil, net.ErrClosed
	}
}

// WriteTo implements net.PacketConn.
func (s *socket) WriteTo(p []byte, to net.Addr) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[to.(*net.UDPAddr).AddrPort()]++
	return len(p), nil
}

// Close implements net.PacketConn.
func (s *socket) Close() error { close(s.closed); return nil }

// sentTo returns the number of datagrams that were sent to an address.
func (s *socket) sentTo(to netip.AddrPort) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[to]
}

// notifying makes a cluster send and receive peer notifications.
func notifying(s *socket, address string) func(*cloudmap.Config) {
	return func(cfg *cloudmap.Config) {
		cfg.PeerNotifications = &peernotify.Config{
			Address: netip.MustParseAddrPort(address), Listen: func() (net.PacketConn, error) { return s, nil },
			Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		}
	}
}

func TestAttack_ReflectedNotifications(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		udp := newSocket()
		c.join(victim, notifying(udp, "10.1.0.1:8479"))
		c.infiltrate()
		keys, err := peernotify.NewKeys(make([]byte, peernotify.SecretSize))
		if err != nil {
			t.Fatal(err)
		}
		contact := func(address string) {
			r := c.recordOf(intruder)
			r.Heartbeat += 10_000
			instance := r.Instance(c.signer(intruder))
			instance.Attributes[format.AttrNotify] = address + " " + keys.Public()
			c.write(c.attacker(), c.members(), format.Sign(instance, c.signer(intruder)))
			time.Sleep(30 * time.Second)
		}
		for _, address := range []string{"169.254.169.254:80", "127.0.0.1:6443", "224.0.0.1:53", "[fd00:ec2::254]:80", "192.0.2.1:53", "8.8.8.8:53"} {
			contact(address)
			if n := udp.sentTo(netip.MustParseAddrPort(address)); n > 0 {
				t.Errorf("%d datagrams were sent to %s", n, address)
			}
		}
		// Control: an address of the pod networks gets them.
		contact("10.3.0.1:8479")
		if n := udp.sentTo(netip.MustParseAddrPort("10.3.0.1:8479")); n == 0 || n > 100 {
			t.Errorf("%d datagrams were sent to a pod in half a minute", n)
		}
	})
}

func TestAttack_ForgedNotifications(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		udp := newSocket()
		reader := c.join(importer, notifying(udp, "10.2.0.1:8479"))
		exporter, web := c.join(victim, notifying(newSocket(), "10.1.0.1:8479")), webExport(victim, 2)
		exporter.publish(web)
		until(t, time.Minute, "the export is imported", reader.sees(web))
		time.Sleep(30 * time.Second)
		target, sender := c.recordOf(importer).Contact.Key, c.signer(victim)
		outside, err := peernotify.NewKeys(make([]byte, peernotify.SecretSize))
		if err != nil {
			t.Fatal(err)
		}
		rightful, err := peernotify.NewKeys(sender.Secret("peer notifications"))
		if err != nil {
			t.Fatal(err)
		}
		readsIn := func(datagrams ...func() []byte) int {
			before := c.server.Requests()["DiscoverInstances"]
			for range 10_000 {
				for _, datagram := range datagrams {
					select {
					case udp.received <- datagram():
					default:
					}
				}
				time.Sleep(time.Millisecond)
			}
			return c.server.Requests()["DiscoverInstances"] - before
		}
		sequence := time.Now().UnixNano()
		message := func(keys *peernotify.Keys, from string, ahead time.Duration) func() []byte {
			return func() []byte {
				sequence++
				return keys.Encode(peernotify.Message{ClusterSet: clusterSet, From: from, Generation: time.Now().UnixMilli() + sequence%1000, Sequence: sequence + int64(ahead)}, target)
			}
		}
		idle := readsIn()
		garbage := func() []byte { return []byte("mcs-notify/2 set1 cls1 x 1 1 x") }
		last := func() []byte {
			return outside.Encode(peernotify.Message{ClusterSet: clusterSet, From: victim, Generation: math.MaxInt64, Sequence: math.MaxInt64}, target)
		}
		forged := readsIn(message(outside, victim, 0), message(outside, "cls99", time.Hour), garbage, last)
		// A sender that is not known makes the registry be read once a second, with a burst of five.
		if forged > idle+2*(10+5) {
			t.Errorf("%d reads in 10 s with forged notifications, %d without", forged, idle)
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "a change is imported", reader.sees(changed))
		// Control: notifications of the victim itself are read, also after those that were to mute it.
		time.Sleep(30 * time.Second)
		sequence = time.Now().UnixNano()
		if heard := readsIn(message(rightful, victim, 0)); heard < idle+5 {
			t.Errorf("%d reads in 10 s with notifications of a member, %d without: they are not heard", heard, idle)
		}
	})
}

func TestAttack_ReplayedNotifications(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		udp := newSocket()
		reader := c.join(importer, notifying(udp, "10.2.0.1:8479"))
		exporter, web := c.join(victim, notifying(newSocket(), "10.1.0.1:8479")), webExport(victim, 2)
		exporter.publish(web)
		until(t, time.Minute, "the export is imported", reader.sees(web))
		time.Sleep(30 * time.Second)
		rightful, err := peernotify.NewKeys(c.signer(victim).Secret("peer notifications"))
		if err != nil {
			t.Fatal(err)
		}
		target, sequence := c.recordOf(importer).Contact.Key, time.Now().UnixNano()
		next := func() []byte {
			sequence++
			return rightful.Encode(peernotify.Message{ClusterSet: clusterSet, From: victim, Generation: time.Now().UnixMilli(), Sequence: sequence}, target)
		}
		var recorded [][]byte // what the attacker has seen pass
		for range 100 {
			recorded = append(recorded, next())
		}
		readsIn := func(datagram func(i int) []byte) int {
			before := c.server.Requests()["DiscoverInstances"]
			for i := range 10_000 {
				if data := datagram(i); data != nil {
					select {
					case udp.received <- data:
					default:
					}
				}
				time.Sleep(time.Millisecond)
			}
			return c.server.Requests()["DiscoverInstances"] - before
		}
		idle := readsIn(func(int) []byte { return nil })
		// Control: the same datagrams count when they arrive for the first time and in order.
		if heard := readsIn(func(i int) []byte {
			if i%100 == 0 {
				return recorded[i/100]
			}
			return nil
		}); heard < idle+5 {
			t.Errorf("%d reads in 10 s with notifications of a member, %d without: they are not heard", heard, idle)
		}
		if n := readsIn(func(i int) []byte { return recorded[len(recorded)-1-i*7%len(recorded)] }); n > idle+2 {
			t.Errorf("%d reads in 10 s with replayed notifications in another order, %d without", n, idle)
		}
		if heard := readsIn(func(i int) []byte {
			if i%100 == 0 {
				return next()
			}
			return recorded[i%len(recorded)]
		}); heard < idle+5 {
			t.Errorf("%d reads in 10 s with notifications of a member between the replayed ones, %d without: they are not heard", heard, idle)
		}
	})
}
