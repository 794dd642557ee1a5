package cloudmap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// network carries datagrams between the addresses of one test.
type network struct {
	mu    sync.Mutex
	conns map[netip.AddrPort]*conn
	next  uint16
	// blocked are the addresses that no datagram reaches. seen has copies of the datagrams that
	// were sent to each address.
	blocked map[netip.AddrPort]bool
	seen    map[netip.AddrPort][][]byte
	// losesRecords is set if datagrams larger than notifications get lost.
	losesRecords bool
	// seed and share are those of the dice by which datagrams get lost.
	seed  uint64
	share float64
}

func newNetwork() *network {
	return &network{conns: map[netip.AddrPort]*conn{}, blocked: map[netip.AddrPort]bool{}, seen: map[netip.AddrPort][][]byte{}}
}

// config returns the configuration of a new pod.
func (n *network) config() *peernotify.Config {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next++
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n.next >> 8), byte(n.next)}), 8479)
	return &peernotify.Config{Address: address, Listen: func() (net.PacketConn, error) { return n.listen(address) }}
}

func (n *network) listen(address netip.AddrPort) (net.PacketConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns[address] != nil {
		return nil, fmt.Errorf("%s is in use", address)
	}
	c := &conn{net: n, address: address, queue: make(chan packet, 100), closed: make(chan struct{})}
	n.conns[address] = c
	return c, nil
}

func (n *network) block(configs ...*peernotify.Config) {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.blocked)
	for _, w := range configs {
		n.blocked[w.Address] = true
	}
}

// lose loses a share of all datagrams, by dice of their receiver and time.
func (n *network) lose(seed uint64, share float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seed, n.share = seed, share
}

// lost reports whether a datagram gets lost. The caller holds n.mu.
func (n *network) lost(to netip.AddrPort) bool {
	host := to.Addr().As4()
	return rand.New(rand.NewPCG(n.seed+uint64(host[2])<<8+uint64(host[3]), uint64(time.Now().UnixNano()))).Float64() < n.share
}

// sent are copies of the datagrams that were sent to w.
func (n *network) sent(w *peernotify.Config) [][]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.seen[w.Address])
}

// packet is a datagram that arrives.
type packet struct {
	from netip.AddrPort
	data []byte
}

// send sends a datagram from nowhere.
func (n *network) send(to netip.AddrPort, datagram []byte) {
	n.sendFrom(netip.AddrPort{}, to, datagram)
}

// sendFrom sends a datagram; one that has nowhere to go is lost.
func (n *network) sendFrom(from, to netip.AddrPort, datagram []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen[to] = append(n.seen[to], slices.Clone(datagram))
	c := n.conns[to]
	if c == nil || n.blocked[to] || n.lost(to) || n.losesRecords && len(datagram) > peernotify.MaxSize {
		return
	}
	select {
	case c.queue <- packet{from, slices.Clone(datagram)}:
	default:
	}
}

// conn is a socket of a network. What a test does not need is not there.
type conn struct {
	net.PacketConn
	net     *network
	address netip.AddrPort
	queue   chan packet
	closed  chan struct{}
}

func (c *conn) ReadFrom(p []byte) (int, net.Addr, error) {
	select {
	case arrived := <-c.queue:
		return copy(p, arrived.data), net.UDPAddrFromAddrPort(arrived.from), nil
	case <-c.closed:
		return 0, nil, net.ErrClosed
	}
}

func (c *conn) WriteTo(p []byte, to net.Addr) (int, error) {
	c.net.sendFrom(c.address, to.(*net.UDPAddr).AddrPort(), p)
	return len(p), nil
}

func (c *conn) Close() error {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	delete(c.net.conns, c.address)
	close(c.closed)
	return nil
}

// TestContractWithPeerNotifications polls so seldom that only peer notifications bring changes
// in time. Reads are late, as they are.
func TestContractWithPeerNotifications(t *testing.T) {
	if testing.Short() {
		t.Skip("CI runs TestContract and TestContractUnderIAM: NIGHTLY=1 runs this one too")
	}
	registrytest.Run(t, func(t *testing.T) registrytest.Backend {
		udp := newNetwork()
		b := backend(startCloud(t, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}), func(identity mcs.Identity) Config {
			cfg := fast(identity)
			cfg.PeerNotifications, cfg.PollIntervalWithNotifications = udp.config(), 10*time.Second
			cfg.PeerNotifications.SendInterval = 50 * time.Millisecond
			cfg.times.Confirm, cfg.times.Settle = 3*time.Second, time.Second
			return cfg
		})
		b.Timeout = time.Minute
		return b
	})
}

// account is a local Cloud Map within the process, for tests in virtual time.
type account struct {
	server *cloudmaplocal.Server
	delay  time.Duration
	udp    *network
	// latency is the time that each request takes.
	latency time.Duration
	// ids are the stored resource IDs, by cluster ID.
	ids stores

	mu sync.Mutex
	// reads are the DiscoverInstances of a service, by cluster and service.
	reads map[[2]string]int
}

// virtually runs a test in virtual time, with the intervals that users have: what it measures is
// waiting, not computing.
func virtually(t *testing.T, options cloudmaplocal.Options, test func(t *testing.T, a *account)) {
	t.Helper()
	inBubble(t, func(t *testing.T) {
		options.Now = time.Now
		server, err := cloudmaplocal.New(options)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		})
		test(t, &account{server: server, delay: time.Duration(options.Behaviors.ConsistencyDelay), udp: newNetwork(), latency: 20 * time.Millisecond, reads: map[[2]string]int{}})
	})
}

// clientOf is the account as a cluster reaches it.
type clientOf struct {
	*account
	cluster string
}

// Do counts the reads of each service, and answers a request.
func (c clientOf) Do(request *http.Request) (*http.Response, error) {
	if strings.HasSuffix(request.Header.Get("X-Amz-Target"), ".DiscoverInstances") {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
		var in struct{ ServiceName string }
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.reads[[2]string{c.cluster, in.ServiceName}]++
		c.mu.Unlock()
	}
	return c.account.Do(request)
}

// readsOf returns how often a cluster has read a service.
func (a *account) readsOf(cluster, service string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reads[[2]string{cluster, service}]
}

// Do answers a request.
func (a *account) Do(request *http.Request) (*http.Response, error) {
	select {
	case <-request.Context().Done():
		return nil, request.Context().Err()
	case <-time.After(a.latency):
	}
	answer := httptest.NewRecorder()
	a.server.ServeHTTP(answer, request)
	return answer.Result(), nil
}

// standard is a cluster as users configure it.
func (a *account) standard(i int) Config {
	cfg := defaultConfig(mcs.Identity{ClusterID: fmt.Sprint("cls", i), ClusterSetID: "set1", UID: fmt.Sprint("uid-", i)})
	cfg.PeerNotifications, cfg.ResourceIDs = a.udp.config(), a.ids.of(fmt.Sprint("cls", i))
	cfg.Keyring = keyring(cfg.Identity, cfg.StaleAfter, a.ids.pinsOf(fmt.Sprint("cls", i)))
	return cfg
}

func (a *account) registry(t *testing.T, cfg Config) *Registry {
	t.Helper()
	client, err := api.NewClient(t.Context(), api.Config{Region: "us-east-1", Endpoint: "https://cloudmap.test", HTTPClient: clientOf{a, cfg.Identity.ClusterID}})
	if err != nil {
		t.Fatal(err)
	}
	reg, err := New(client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// start starts clusters 1 to n and waits until they know one another and nothing is going on.
func (a *account) start(t *testing.T, n int, edit func(*Config)) []*Registry {
	t.Helper()
	var regs []*Registry
	for i := range n {
		cfg := a.standard(i + 1)
		if edit != nil {
			edit(&cfg)
		}
		regs = append(regs, a.registry(t, cfg))
		start(t, regs[i])
	}
	for _, reg := range regs {
		await(t, time.Minute, "every cluster sees every other", func() bool { return len(membersOf(reg)) == n })
	}
	time.Sleep(15 * time.Second)
	return regs
}

func (a *account) requests(operations ...string) int {
	total := 0
	for operation, count := range a.server.Requests() {
		if len(operations) == 0 || slices.Contains(operations, operation) {
			total += int(count)
		}
	}
	return total
}

// await waits for a condition in virtual time and returns how long it took.
func await(t *testing.T, patience time.Duration, what string, met func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !met() {
		if time.Since(began) > patience {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(began)
}

// change publishes a change of service i of a cluster, and returns how long all the others take to
// see it.
func change(t *testing.T, regs []*Registry, from, service, endpoints int) time.Duration {
	t.Helper()
	exp := webExport(regs[from].cfg.Identity.ClusterID, service, endpoints)
	publish(t, regs[from], exp)
	return await(t, 30*time.Second, "the change is seen", func() bool {
		for i, reg := range regs {
			if i != from && !sees(t, reg, exp)() {
				return false
			}
		}
		return true
	})
}

// TestPropagation measures the time from Publish to the other cluster's Look, at 20 ms for each
// request to AWS.
func TestPropagation(t *testing.T) {
	tests := []struct {
		name          string
		delay         time.Duration
		notifications bool
		recordsLost   bool
		want          time.Duration // of the last of 100 changes
	}{
		{"records, no delay", 0, true, false, 100 * time.Millisecond},
		{"records, reads are late", 500 * time.Millisecond, true, false, 100 * time.Millisecond},
		{"notifications, no delay", 0, true, true, 200 * time.Millisecond},
		{"notifications, reads are late", 500 * time.Millisecond, true, true, 800 * time.Millisecond},
		{"blocked, no delay", 0, false, true, 1250 * time.Millisecond},
		{"blocked, reads are late", 500 * time.Millisecond, false, true, 1750 * time.Millisecond},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			virtually(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(tc.delay)}, func(t *testing.T, a *account) {
				regs := a.start(t, 2, nil)
				time.Sleep(time.Minute) // both have read two records since they started
				a.udp.losesRecords = tc.recordsLost
				if !tc.notifications {
					a.udp.block(regs[0].cfg.PeerNotifications, regs[1].cfg.PeerNotifications)
					time.Sleep(10 * time.Second)
				}
				var took []time.Duration
				for i := range 100 {
					took = append(took, change(t, regs, 0, i%10, 1+i/10))
					time.Sleep(time.Duration(i) * 37 * time.Millisecond % (2 * time.Second))
				}
				slices.Sort(took)
				t.Logf("p50 %v, p90 %v, last %v", took[50], took[90], took[99])
				if took[99] > tc.want {
					t.Errorf("a change was seen only after %v, want within %v", took[99], tc.want)
				}
			})
		})
	}
}

// TestPropagation_AtOnce: eight services change at the same time, each some half a second after its
// change was seen. The other cluster reads none of the records that it was sent, and no change
// waits for the pace of its namespace.
func TestPropagation_AtOnce(t *testing.T) {
	const services, changes = 8, 60
	virtually(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}, func(t *testing.T, a *account) {
		regs := a.start(t, 2, nil)
		time.Sleep(time.Minute) // both have read two records since they started
		took := make([]time.Duration, services*changes)
		var all sync.WaitGroup
		for service := range services {
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(service))) //nolint:gosec // a small number
				for i := range changes {
					took[service*changes+i] = change(t, regs, 0, service, 1+i%20)
					time.Sleep(time.Duration(random.Int64N(int64(time.Second))))
				}
			})
		}
		all.Wait()
		slices.Sort(took)
		p50, p99 := took[len(took)/2], took[len(took)*99/100]
		t.Logf("p50 %v, p99 %v, last %v", p50, p99, took[len(took)-1])
		if p50 > 60*time.Millisecond || p99 > 100*time.Millisecond {
			t.Errorf("half of the changes were seen after %v, and 99 of 100 after %v, want 60 and 100 ms", p50, p99)
		}
	})
}

// TestRollingUpdate replaces 100 of the 5,000 pods of a Service in each second, and measures how
// late the other cluster sees that. A write of such a page is three requests, so the pace of a
// namespace admits three of them a second after its burst.
func TestRollingUpdate(t *testing.T) {
	const (
		pods, step = 5_000, 5
		every      = 50 * time.Millisecond
		glance     = 20 * time.Millisecond
	)
	steps := pods / step
	if testing.Short() {
		steps = 300
	}
	virtually(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}, func(t *testing.T, a *account) {
		regs := a.start(t, 2, nil)
		random := rand.New(rand.NewPCG(1, 1))
		exp := webExport("cls1", 0, pods)
		endpoints := exp.Backends[0].Endpoints
		for i, address := range random.Perm(1 << 16)[:pods] {
			endpoints[i].Address = netip.AddrFrom4([4]byte{10, 10, byte(address >> 8), byte(address)})
			endpoints[i].Node = fmt.Sprintf("ip-10-10-%d-%d.eu-west-1.compute.internal", random.IntN(2), random.IntN(50))
		}
		replaced := random.Perm(1 << 16)
		// published are the times at which versions of the export were published.
		var published []time.Time
		publishNext := func() {
			exp.Annotations = map[string]string{"version": strconv.Itoa(len(published))}
			publish(t, regs[0], exp.Canonical())
			published = append(published, time.Now())
		}
		publishNext()
		time.Sleep(time.Minute)
		before := a.server.Requests()["RegisterInstance"]
		var late []time.Duration
		for len(published) <= steps || late[len(late)-1] > 0 {
			time.Sleep(glance)
			if time.Since(published[len(published)-1]) >= every && len(published) <= steps {
				exp = exp.Canonical() // the old addresses come first
				for i := range step {
					next := replaced[len(published)*step+i]
					exp.Backends[0].Endpoints[i].Address = netip.AddrFrom4([4]byte{10, 20, byte(next >> 8), byte(next)})
				}
				publishNext()
			}
			seen := -1
			for _, got := range look(t, regs[1], exp.Key).Exports() {
				seen, _ = strconv.Atoi(got.Annotations["version"])
			}
			late = append(late, 0)
			if seen < len(published)-1 {
				late[len(late)-1] = time.Since(published[seen+1])
			}
		}
		slices.Sort(late)
		writes := a.server.Requests()["RegisterInstance"] - before
		p50, p99, last := late[len(late)/2], late[len(late)*99/100], late[len(late)-1]
		t.Logf("late by p50 %v, p99 %v, at most %v; %d requests for %d changes", p50, p99, last, writes, len(published))
		if last > time.Second {
			t.Errorf("the other cluster is late by %v, want at most a second", last)
		}
	})
}

// TestCallsPerMinute counts the requests of a cluster while nothing changes.
func TestCallsPerMinute(t *testing.T) {
	for name, tc := range map[string]struct {
		edit  func(*Config)
		block bool
		// least and most are the requests a minute.
		least, most float64
	}{
		"notifications":         {nil, false, 5, 6},
		"port blocked":          {nil, true, 60, 75},
		"without notifications": {func(cfg *Config) { cfg.PeerNotifications = nil }, false, 60, 75},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}, func(t *testing.T, a *account) {
				const clusters, minutes = 3, 10
				regs := a.start(t, clusters, tc.edit)
				for i, reg := range regs {
					for service := range 20 {
						publish(t, reg, webExport(reg.cfg.Identity.ClusterID, 20*i+service, 10))
					}
				}
				if tc.block {
					a.udp.block(regs[0].cfg.PeerNotifications, regs[1].cfg.PeerNotifications, regs[2].cfg.PeerNotifications)
				}
				time.Sleep(time.Minute)
				before := a.requests()
				time.Sleep(minutes * time.Minute)
				perMinute := float64(a.requests()-before) / clusters / minutes
				t.Logf("%.1f requests a minute and cluster: %v in all", perMinute, a.server.Requests())
				if perMinute < tc.least || perMinute > tc.most {
					t.Errorf("%.1f requests a minute and cluster, want %.0f to %.0f", perMinute, tc.least, tc.most)
				}
			})
		})
	}
}

// TestCallsPerChange counts the requests that a change of one service makes: two writes at its
// exporter, and two reads there, of the members and the page, which confirm them. The others have
// received record and page; one that has not reads both.
func TestCallsPerChange(t *testing.T) {
	for name, recordsLost := range map[string]bool{"records arrive": false, "records get lost": true} {
		t.Run(name, func(t *testing.T) { testCallsPerChange(t, recordsLost) })
	}
}

func testCallsPerChange(t *testing.T, recordsLost bool) {
	virtually(t, cloudmaplocal.Options{}, func(t *testing.T, a *account) {
		const clusters = 4
		a.udp.losesRecords = recordsLost
		want := 2
		if recordsLost {
			want = 2 * clusters
		}
		regs := a.start(t, clusters, func(cfg *Config) {
			cfg.HeartbeatInterval, cfg.PollIntervalWithNotifications, cfg.StaleAfter, cfg.times = time.Hour, time.Hour, 4*time.Hour, defaultTimes()
			cfg.times.Audit = time.Hour
		})
		change(t, regs, 0, 0, 1) // the others have read two records since they started
		for i := range 20 {
			change(t, regs, 0, i, 5)
			time.Sleep(10 * time.Second)
			writes, reads := a.requests("RegisterInstance"), a.requests("DiscoverInstances")
			change(t, regs, 0, i, 6)
			time.Sleep(10 * time.Second)
			if got := a.requests("RegisterInstance") - writes; got != 2 {
				t.Errorf("one change made %d writes, want 2: the page and the record", got)
			}
			if got := a.requests("DiscoverInstances") - reads; got > want {
				t.Errorf("one change made %d reads at %d clusters, want at most %d", got, clusters, want)
			}
		}
	})
}

// TestCallsOfOtherNamespaces counts the reads that changes of services cause at a cluster that uses
// another namespace: none of the pages, and none besides its polls while it reports that it imports
// nothing of them. When it uses the namespace, it sees all within a poll.
func TestCallsOfOtherNamespaces(t *testing.T) {
	virtually(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}, func(t *testing.T, a *account) {
		var uses atomic.Bool
		regs := a.start(t, 2, func(cfg *Config) {
			if cfg.Identity.ClusterID == "cls2" {
				cfg.Wanted = func(namespace string) bool { return namespace == "other" || uses.Load() }
				cfg.UsedNamespaces = func() ([]string, bool) {
					if uses.Load() {
						return []string{"other", "demo"}, true
					}
					return []string{"other"}, true
				}
			}
		})
		regs[1].SetImports(mcs.NewImportReport(nil, nil))
		const services = 20
		for i := range services {
			publish(t, regs[0], webExport("cls1", i, 1))
		}
		// the exports are not new any more, and their pages were read once
		time.Sleep(2 * regs[0].cfg.StaleAfter)
		catalog, members := a.readsOf("cls2", format.CatalogName("cls1")), a.readsOf("cls2", format.MembersService)
		for i := range services {
			publish(t, regs[0], webExport("cls1", i, 2))
			time.Sleep(10 * time.Second)
		}
		if got := a.readsOf("cls2", format.CatalogName("cls1")) - catalog; got > 0 {
			t.Errorf("%d changes made %d reads of pages", services, got)
		}
		polls := int(services * 10 * time.Second / regs[0].cfg.PollIntervalWithNotifications)
		if got := a.readsOf("cls2", format.MembersService) - members; got > polls+2 || got < polls/2 {
			t.Errorf("%d changes made %d reads of the members, want the %d polls", services, got, polls)
		}
		if view, err := regs[1].Lookup(t.Context(), webKey(0)); err != nil || len(view.In(registry.Unknown, registry.Ignored)) == 0 {
			t.Errorf("the view of a service in another namespace is %+v, %v; want an unknown or ignored cluster", view, err)
		}
		uses.Store(true)
		for i := range services {
			await(t, 10*time.Second, "the cluster sees the services of a namespace that it uses now", sees(t, regs[1], webExport("cls1", i, 2)))
		}
	})
}

// pollInterval is how often a registry polls.
func pollInterval(reg *Registry) time.Duration {
	reg.peers.mu.Lock()
	defer reg.peers.mu.Unlock()
	return reg.peers.schedule.PollInterval(time.Now())
}

// TestPeerNotificationsLost drops notifications in several ways: the fast poll takes over each
// time, and ends again.
func TestPeerNotificationsLost(t *testing.T) {
	virtually(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}, func(t *testing.T, a *account) {
		regs := a.start(t, 3, nil)
		want := func(what string, interval time.Duration, who ...*Registry) {
			t.Helper()
			for _, reg := range who {
				await(t, 10*time.Second+settings.PollIntervalWithNotifications, what, func() bool { return pollInterval(reg) == interval })
			}
		}
		want("all hear one another", settings.PollIntervalWithNotifications, regs...)

		a.udp.block(regs[2].cfg.PeerNotifications)
		want("cls3 hears no cluster", settings.PollInterval, regs[2])
		want("the others hear all", settings.PollIntervalWithNotifications, regs[:2]...)
		if took := change(t, regs, 0, 1, 3); took > 1750*time.Millisecond {
			t.Errorf("with one port blocked a change took %v", took)
		}
		a.udp.block()
		want("cls3 hears again", settings.PollIntervalWithNotifications, regs...)

		// A member that sends no notifications is always silent.
		plain := a.standard(4)
		plain.PeerNotifications = nil
		stop := start(t, a.registry(t, plain))
		want("one member sends no notifications", settings.PollInterval, regs...)
		stop(registry.ErrLeave)
		want("it has left", settings.PollIntervalWithNotifications, regs...)
	})
}

// TestPeerNotificationsAfterRestart restarts a cluster's controller as a pod with another address
// and token.
func TestPeerNotificationsAfterRestart(t *testing.T) {
	virtually(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}, func(t *testing.T, a *account) {
		first, second := a.standard(1), a.standard(2)
		one := a.registry(t, first)
		stop := start(t, one)
		two := a.registry(t, second)
		start(t, two)
		regs := []*Registry{one, two}
		await(t, time.Minute, "both have joined", func() bool { return len(membersOf(one)) == 2 && len(membersOf(two)) == 2 })
		time.Sleep(15 * time.Second)
		change(t, regs, 0, 1, 3)
		old := first.PeerNotifications
		stop(nil)
		await(t, 20*time.Second, "cls1 is missed", func() bool { return pollInterval(two) == settings.PollInterval })
		first.PeerNotifications = a.udp.config()
		regs[0] = a.registry(t, first)
		start(t, regs[0])
		for _, reg := range regs {
			await(t, 30*time.Second, "both hear one another again", func() bool { return pollInterval(reg) == settings.PollIntervalWithNotifications })
		}
		sent := len(a.udp.sent(old))
		time.Sleep(20 * time.Second)
		if got := len(a.udp.sent(old)); got != sent {
			t.Errorf("%d notifications were sent to the old address", got-sent)
		}
		for from := range regs {
			if took := change(t, regs, from, 1, 4); took > 800*time.Millisecond {
				t.Errorf("a change of %s took %v", regs[from].cfg.Identity.ClusterID, took)
			}
		}
	})
}

// TestPeerNotificationsOfNewMember has a cluster join while the others poll seldom: its
// notifications announce it.
func TestPeerNotificationsOfNewMember(t *testing.T) {
	virtually(t, cloudmaplocal.Options{Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}, func(t *testing.T, a *account) {
		regs := a.start(t, 2, func(cfg *Config) { cfg.PollIntervalWithNotifications, cfg.StaleAfter = time.Hour, 4*time.Hour })
		third := a.registry(t, a.standard(3))
		start(t, third)
		await(t, 30*time.Second, "cls3 sees the others", func() bool { return len(membersOf(third)) == 3 })
		for _, reg := range regs {
			await(t, 5*time.Second, "the others see cls3", func() bool { return len(membersOf(reg)) == 3 })
		}
	})
}

// TestPeerNotificationsForged sends a reader what an attacker can: nothing happens but a bounded
// number of reads.
func TestPeerNotificationsForged(t *testing.T) {
	virtually(t, cloudmaplocal.Options{}, func(t *testing.T, a *account) {
		regs := a.start(t, 3, nil)
		victim := regs[0].cfg.PeerNotifications
		readsPerMinute := func(datagram func(i int64) []byte) int {
			before := a.requests("DiscoverInstances")
			for i := range int64(60_000) {
				a.udp.send(victim.Address, datagram(i))
				time.Sleep(time.Millisecond)
			}
			return a.requests("DiscoverInstances") - before
		}
		idle := readsPerMinute(func(int64) []byte { return nil })
		// attacker is a reader of the registry, member the keys of cls2.
		attacker, err := peernotify.NewKeys(make([]byte, peernotify.SecretSize))
		if err != nil {
			t.Fatal(err)
		}
		member := regs[1].cfg.PeerNotifications.Keys
		notificationOf := func(keys *peernotify.Keys, from string, generation, sequence int64) []byte {
			return keys.Encode(peernotify.Message{ClusterSet: "set1", From: from, Generation: generation, Sequence: sequence}, victim.Keys.Public())
		}
		copies := a.udp.sent(victim)
		future := time.Now().UnixMilli() * 2
		// The rate limit of each of three clusters is ten reads a second, with a burst of 40.
		const limit = 60*10 + 40
		// One message of an unknown sender is verified a second, with a burst of 5.
		const unknown = 60 + 5
		tests := map[string]struct {
			datagram func(i int64) []byte
			most     int
		}{
			"without a key of the registry": {func(i int64) []byte {
				return attacker.Encode(peernotify.Message{ClusterSet: "set1", From: "cls2", Generation: future + i, Sequence: future + i}, attacker.Public())
			}, idle},
			"copies":                              {func(i int64) []byte { return copies[int(i)%len(copies)] }, idle},
			"from no cluster":                     {func(i int64) []byte { return notificationOf(attacker, fmt.Sprint("x", i%50), future+i, i) }, idle + unknown},
			"in another's name":                   {func(i int64) []byte { return notificationOf(attacker, "cls2", future+i, time.Now().UnixNano()+i) }, idle + unknown},
			"by a member":                         {func(i int64) []byte { return notificationOf(member, "cls2", future+i, time.Now().UnixNano()+i) }, idle + limit},
			"with the last sequence":              {func(int64) []byte { return notificationOf(attacker, "cls3", future, math.MaxInt64) }, idle + unknown},
			"by a member, with the last sequence": {func(int64) []byte { return notificationOf(member, "cls2", future, math.MaxInt64) }, idle},
		}
		for name, tc := range tests {
			got := readsPerMinute(tc.datagram)
			t.Logf("%s: %d reads a minute of three clusters, %d without", name, got, idle)
			if got > tc.most+6 {
				t.Errorf("%s: %d reads a minute, want at most %d", name, got, tc.most)
			}
			if took := change(t, regs, 2, 1, 1+len(name)); took > 1250*time.Millisecond {
				t.Errorf("%s: afterwards a change of another member took %v", name, took)
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestPeerNotificationsNeverComplete announces a generation that is never written: the reads end.
func TestPeerNotificationsNeverComplete(t *testing.T) {
	virtually(t, cloudmaplocal.Options{}, func(t *testing.T, a *account) {
		regs := a.start(t, 2, nil)
		before := a.requests("DiscoverInstances")
		victim, member := regs[0].cfg.PeerNotifications, regs[1].cfg.PeerNotifications
		a.udp.send(victim.Address, member.Keys.Encode(
			peernotify.Message{ClusterSet: "set1", From: "cls2", Generation: 1 << 62, Sequence: time.Now().UnixNano() + 1}, victim.Keys.Public()))
		time.Sleep(10 * time.Second)
		// A heartbeat of either cluster in these 10 s makes both read once more.
		const afterNotification, polls, afterHeartbeats = 7, 2 * 2, 2 * 2
		if got := a.requests("DiscoverInstances") - before; got > afterNotification+polls+afterHeartbeats {
			t.Errorf("%d reads in 10 s, want the %d after a notification, the polls and those after heartbeats", got, afterNotification)
		}
		if interval := pollInterval(regs[0]); interval != settings.PollIntervalWithNotifications {
			t.Errorf("polls every %v afterwards", interval)
		}
	})
}
