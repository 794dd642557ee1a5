package attack

import (
	"bytes"
	"math"
	"net"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// socket is the UDP socket of a controller: datagrams that it sends are recorded, and the attacker
// sends to it, from an address.
type socket struct {
	net.PacketConn
	received chan []byte
	from     netip.AddrPort
	closed   chan struct{}
	mu       sync.Mutex
	sent     map[netip.AddrPort]int
	// records are the numbers of datagrams among those that were sent that are larger than
	// notifications.
	records map[netip.AddrPort]int
	// asked has the last question that was sent to each address, nil without one.
	asked map[netip.AddrPort][]byte
}

func newSocket() *socket {
	return &socket{received: make(chan []byte, 100), closed: make(chan struct{}), sent: map[netip.AddrPort]int{}, records: map[netip.AddrPort]int{}, asked: map[netip.AddrPort][]byte{}}
}

// ReadFrom implements net.PacketConn.
func (s *socket) ReadFrom(p []byte) (int, net.Addr, error) {
	select {
	case datagram := <-s.received:
		return copy(p, datagram), net.UDPAddrFromAddrPort(s.from), nil
	case <-s.closed:
		return 0, nil, net.ErrClosed
	}
}

// WriteTo implements net.PacketConn.
func (s *socket) WriteTo(p []byte, to net.Addr) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	address := to.(*net.UDPAddr).AddrPort()
	s.sent[address]++
	if len(p) > peernotify.MaxSize {
		s.records[address]++
	}
	if bytes.HasPrefix(p, []byte("mcs-ask/")) {
		s.asked[address] = bytes.Clone(p)
	}
	return len(p), nil
}

// nonceTo returns the nonce of the last question that was sent to an address, "" without one.
func (s *socket) nonceTo(to netip.AddrPort) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	words := strings.Split(string(s.asked[to]), " ")
	if len(words) != 6 {
		return ""
	}
	return words[4]
}

// Close implements net.PacketConn.
func (s *socket) Close() error { close(s.closed); return nil }

// sentTo returns the number of datagrams that were sent to an address.
func (s *socket) sentTo(to netip.AddrPort) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent[to]
}

// recordsTo returns the number of datagrams with records that were sent to an address.
func (s *socket) recordsTo(to netip.AddrPort) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[to]
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

// startNotifying is start with peer notifications. The attacker sends to udp, the socket of the
// importer.
func (c *cloud) startNotifying() (udp *socket, exporter, reader *member, web mcs.Export) {
	c.t.Helper()
	udp, web = newSocket(), webExport(victim, 2)
	reader = c.join(importer, notifying(udp, "10.2.0.1:8479"))
	exporter = c.join(victim, notifying(newSocket(), "10.1.0.1:8479"))
	exporter.publish(web)
	until(c.t, time.Minute, "the export is imported", reader.sees(web))
	time.Sleep(30 * time.Second)
	return udp, exporter, reader, web
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
		udp, exporter, reader, _ := c.startNotifying()
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
		// Notifications of unknown senders cause one read of the registry a second, with a burst of
		// five.
		if forged > idle+2*(10+5) {
			t.Errorf("%d reads in 10 s with forged notifications, %d without", forged, idle)
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "a change is imported", reader.sees(changed))
		// Control: notifications of the victim itself cause reads, also after the forged ones with
		// the last sequence.
		time.Sleep(30 * time.Second)
		sequence = time.Now().UnixNano()
		if n := readsIn(message(rightful, victim, 0)); n < idle+5 {
			t.Errorf("%d reads in 10 s with notifications of a member, %d without: they are ignored", n, idle)
		}
	})
}

func TestAttack_ReplayedNotifications(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		udp, _, _, _ := c.startNotifying()
		rightful, err := peernotify.NewKeys(c.signer(victim).Secret("peer notifications"))
		if err != nil {
			t.Fatal(err)
		}
		target, sequence := c.recordOf(importer).Contact.Key, time.Now().UnixNano()
		next := func() []byte {
			sequence++
			return rightful.Encode(peernotify.Message{ClusterSet: clusterSet, From: victim, Generation: time.Now().UnixMilli(), Sequence: sequence}, target)
		}
		var recorded [][]byte // the datagrams that the attacker has recorded
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
		if n := readsIn(func(i int) []byte {
			if i%100 == 0 {
				return recorded[i/100]
			}
			return nil
		}); n < idle+5 {
			t.Errorf("%d reads in 10 s with notifications of a member, %d without: they are ignored", n, idle)
		}
		if n := readsIn(func(i int) []byte { return recorded[len(recorded)-1-i*7%len(recorded)] }); n > idle+2 {
			t.Errorf("%d reads in 10 s with replayed notifications in another order, %d without", n, idle)
		}
		if n := readsIn(func(i int) []byte {
			if i%100 == 0 {
				return next()
			}
			return recorded[i%len(recorded)]
		}); n < idle+5 {
			t.Errorf("%d reads in 10 s with notifications of a member between the replayed ones, %d without: they are ignored", n, idle)
		}
	})
}

// TestCostOfDatagrams runs the program of the controller on Cloud Map while DATAGRAMS datagrams a
// second arrive, and prints the CPU time that they cost: of the process in user and kernel mode,
// for each kind of datagram. It takes some minutes, so that it runs only if DATAGRAMS is set;
// CONTROLLER is the path of the program. docs/operations-measurements.md has the results.
func TestCostOfDatagrams(t *testing.T) {
	perSecond := int(registrytest.Setting(t, "DATAGRAMS", 0))
	if perSecond == 0 {
		t.Skip("measures for minutes: set DATAGRAMS and CONTROLLER")
	}
	apiservertest.NeedAssets(t)
	k, err := controllertest.StartKubernetes("v1beta1", nil, append(controllertest.MCSCRDs(), controllertest.AboutCRDs()...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Env.Stop() })
	server := newServer(t)
	endpoint := httptest.NewServer(server)
	t.Cleanup(endpoint.Close)
	target := testprocess.FreeAddress(t)
	p := startProgram(t, k, "--aws-region=us-east-1", "--aws-endpoint="+endpoint.URL, "--aws-insecure", "--peer-notification-bind-address="+target,
		"--peer-notification-advertise-address="+target)
	c := &cloud{t: t, server: server, keyrings: registrytest.NewKeyrings(config.Default().Registry.StaleAfter), joined: map[mcs.Identity]time.Time{}}
	own := newSocket() // its own notifications are not needed
	exporter := c.joinAs(keyOf(identityOf(victim)), identityOf(victim), notifying(own, "127.0.0.9:8479"))
	exporter.publish(webExport(victim, 2))
	until(t, time.Minute, "the program is a member", func() bool {
		return slices.ContainsFunc(c.listMembers(exporter), func(m registry.Member) bool { return m.ClusterID == importer })
	})
	time.Sleep(20 * time.Second) // its start
	outside, err := peernotify.NewKeys(make([]byte, peernotify.SecretSize))
	if err != nil {
		t.Fatal(err)
	}
	rightful, err := peernotify.NewKeys(c.signer(victim).Secret("peer notifications"))
	if err != nil {
		t.Fatal(err)
	}
	receiver := c.recordOf(importer).Contact.Key
	message := func(from string, keys *peernotify.Keys) func() []byte {
		datagram := keys.Encode(peernotify.Message{ClusterSet: clusterSet, From: from, Generation: 1, Sequence: time.Now().UnixNano()}, receiver)
		return func() []byte { return datagram }
	}
	forged := message(victim, rightful)()
	forged[len(forged)-1] ^= 1
	idle := p.cpuDuring(t, func() { time.Sleep(20 * time.Second) })
	t.Logf("idle: %.2f %% of a core", 100*idle)
	for kind, datagram := range map[string]func() []byte{
		"garbage": func() []byte { return make([]byte, 200) }, "unknown cluster": message("cls99", outside), "replayed": message(victim, rightful),
		"forged for a member": func() []byte { return forged },
	} {
		sent := 0
		cost := p.cpuDuring(t, func() { sent = flood(t, target, perSecond, 20*time.Second, datagram) }) - idle
		t.Logf("%s: %d datagrams a second cost %.2f %% of a core", kind, sent/20, 100*cost)
		if cost > 0.05 {
			t.Errorf("%s: %d datagrams a second cost %.2f %% of a core, want less than 5 %%", kind, sent/20, 100*cost)
		}
	}
}

// listMembers returns the members that a cluster knows, none while it has not read the registry.
func (c *cloud) listMembers(m *member) []registry.Member {
	members, _ := m.Members(c.t.Context())
	return members
}

// flood sends datagrams to an address at a rate, and returns how many it sent.
func flood(t *testing.T, to string, perSecond int, period time.Duration, datagram func() []byte) (sent int) {
	t.Helper()
	conn, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for began := time.Now(); time.Since(began) < period; time.Sleep(200 * time.Microsecond) {
		for due := int(time.Since(began).Seconds() * float64(perSecond)); sent < due; sent++ {
			_, _ = conn.Write(datagram()) // a refused datagram is one too
		}
	}
	return sent
}

// cpuDuring returns the CPU time, in user and kernel mode, that the process uses in each second of
// a period.
func (p *process) cpuDuring(t *testing.T, period func()) float64 {
	t.Helper()
	used := func() float64 {
		proc, err := procfs.NewProc(p.pid)
		if err != nil {
			t.Fatal(err)
		}
		stat, err := proc.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return stat.CPUTime()
	}
	before, began := used(), time.Now()
	period()
	return (used() - before) / time.Since(began).Seconds()
}
