package fleet

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// cloud is AWS Cloud Map with the members of a clusterset.
type cloud struct {
	options Options
	server  *cloudmaplocal.Server
	// meter is the server as the importer reaches it.
	meter *meter
	http  *httptest.Server
	// direct reaches the server without a network and without the limits of one controller.
	direct *api.Client
	// socket sends the notifications of the members that are not whole, and is the address of all
	// of them.
	socket net.PacketConn
	down   atomic.Bool
	// writes are the RegisterInstance of all members.
	writes atomic.Int64

	whole []*wholeMember
	light []*lightMember

	mu sync.Mutex
	// listeners are the contacts of the members that receive notifications.
	listeners []peernotify.Contact
	members   api.Service
}

// openCloud starts the server with AWS's limits and a consistency delay like AWS's. Writes are not
// limited: the members of the fleet publish in seconds here, and the report compares their later
// rate with what AWS accepts. The quota of instances in a namespace is raised as docs/operations.md
// says.
func openCloud(ctx context.Context, options Options) (*cloud, error) {
	unlimited := cloudmaplocal.Limit{PerSecond: 1e6, Burst: 1e6}
	server, err := cloudmaplocal.New(cloudmaplocal.Options{
		Behaviors: cloudmaplocal.ReadsLate(consistencyDelay), InstancesPerNamespace: 100_000,
		Limits: map[string]cloudmaplocal.Limit{"RegisterInstance": unlimited, "CreateService": unlimited},
	})
	if err != nil {
		return nil, err
	}
	c := &cloud{options: options, server: server}
	c.meter = &meter{server: server, down: &c.down}
	c.http = httptest.NewServer(c.meter)
	if c.socket, err = peernotify.ListenUDP("127.0.0.1:0"); err != nil {
		return nil, err
	}
	fast := api.Rate{PerSecond: 1e6, Burst: 1e6}
	c.direct, err = api.NewClient(ctx, api.Config{
		Region: region, Endpoint: "http://127.0.0.1", HTTPClient: &inProcess{c}, Credentials: credentials.NewStaticCredentialsProvider("AKIDFLEET", "fleet", ""),
		Rates: map[string]api.Rate{"RegisterInstance": fast, "CreateService": fast},
	})
	return c, err
}

const (
	region = "us-east-1"
	// consistencyDelay is about that of AWS.
	consistencyDelay = 500 * time.Millisecond
	// readsPerSecond is AWS's quota of DiscoverInstances, writesPerSecond is known to be accepted
	// (docs/cost.md), of an account and Region.
	readsPerSecond, writesPerSecond = 1000., 50
)

// inProcess is the network of the members.
type inProcess struct{ cloud *cloud }

func (p *inProcess) Do(r *http.Request) (*http.Response, error) {
	if p.cloud.down.Load() {
		return nil, io.ErrUnexpectedEOF
	}
	if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".RegisterInstance") {
		p.cloud.writes.Add(1)
	}
	return cloudmaptest.Serve(p.cloud.server, r)
}

// meter counts the requests and the bytes of the answers of one client.
type meter struct {
	server http.Handler
	down   *atomic.Bool

	mu sync.Mutex
	traffic
	// share is the client's share of the reads, a second; 0 is no limit. asked is how many it asks
	// for, an average, and askedAt the time of the last one.
	share, asked float64
	askedAt      time.Time
}

// admits reports whether a request is admitted while all clusters ask for as much as this one: of
// more than the quota, a random part is.
func (m *meter) admits(operation string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.share == 0 || operation != "DiscoverInstances" {
		return true
	}
	const averaged = 5. // seconds
	now := time.Now()
	m.asked = m.asked*math.Exp(-now.Sub(m.askedAt).Seconds()/averaged) + 1/averaged
	m.askedAt = now
	return mathrand.Float64()*m.asked < m.share
}

// traffic is what a client has asked.
type traffic struct {
	calls   map[string]int
	refused int
	bytes   int64
}

func (t traffic) total() (n int) {
	for _, count := range t.calls {
		n += count
	}
	return n
}

// since returns the traffic after before.
func (t traffic) since(before traffic) traffic {
	calls := map[string]int{}
	for operation, n := range t.calls {
		if n -= before.calls[operation]; n > 0 {
			calls[operation] = n
		}
	}
	return traffic{calls: calls, refused: t.refused - before.refused, bytes: t.bytes - before.bytes}
}

func (m *meter) read() traffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	return traffic{calls: maps.Clone(m.calls), refused: m.refused, bytes: m.bytes}
}

// ServeHTTP implements http.Handler.
func (m *meter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	answer := &measured{ResponseWriter: w}
	switch {
	case m.down.Load():
		answer.WriteHeader(http.StatusServiceUnavailable)
	case !m.admits(operation):
		answer.Header().Set("X-Amzn-Errortype", "RequestLimitExceeded") // as AWS
		answer.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(answer, `{"__type":"RequestLimitExceeded","message":"The request rate exceeds the share of this cluster."}`)
	default:
		m.server.ServeHTTP(answer, r)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls == nil {
		m.calls = map[string]int{}
	}
	m.calls[operation]++
	m.bytes += answer.bytes
	if answer.status == http.StatusTooManyRequests {
		m.refused++
	}
}

type measured struct {
	http.ResponseWriter
	bytes  int64
	status int
}

func (m *measured) Write(p []byte) (int, error) {
	n, err := m.ResponseWriter.Write(p)
	m.bytes += int64(n)
	return n, err
}

func (m *measured) WriteHeader(status int) {
	m.status = status
	m.ResponseWriter.WriteHeader(status)
}

// start makes the members join and publish, and keeps them alive until ctx ends.
func (c *cloud) start(ctx context.Context, running *errgroup.Group) error {
	for i := range c.options.whole() {
		m, err := c.join(ctx, i, map[int]int{}, running)
		if err != nil {
			return err
		}
		c.whole = append(c.whole, m)
	}
	place, err := c.place(ctx)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(4)
	for i := c.options.whole(); i < c.options.members(); i++ {
		m, err := newLightMember(c, i)
		if err != nil {
			return err
		}
		c.light = append(c.light, m)
		group.Go(func() error { return m.publish(ctx, place) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, m := range c.whole {
		if err := awaitExported(ctx, m, i); err != nil {
			return err
		}
	}
	running.Go(func() error { c.beat(ctx); return nil })
	running.Go(func() error { c.notify(ctx); return nil })
	return nil
}

// wholeMember is a registry as a controller has it.
type wholeMember struct {
	*cloudmap.Registry
	versions map[int]int // by number of the service
	stop     func()      // ends it without leaving
}

// join starts a whole member that exports versions of its services.
func (c *cloud) join(ctx context.Context, number int, versions map[int]int, running *errgroup.Group) (*wholeMember, error) {
	client, err := api.NewClient(ctx, api.Config{
		Region: region, Endpoint: "http://127.0.0.1", HTTPClient: &inProcess{c}, Credentials: credentials.NewStaticCredentialsProvider("AKIDFLEET", "fleet", ""),
	})
	if err != nil {
		return nil, err
	}
	defaults := config.Default()
	keyring, err := trust.Load(ctx, trust.Config{ClusterSetID: clusterSet, StaleAfter: defaults.Registry.StaleAfter, Logger: logr.Discard()})
	if err != nil {
		return nil, err
	}
	signer, err := signerOf(number)
	if err != nil {
		return nil, err
	}
	conn, err := peernotify.ListenUDP("127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	member, err := cloudmap.New(client, cloudmap.Config{
		Signer: signer, Keyring: keyring, Identity: identityOf(number), Version: "fleet", Logger: logr.Discard(),
		PollInterval: defaults.Registry.PollInterval, PollIntervalWithNotifications: defaults.Registry.PollIntervalWithNotifications,
		HeartbeatInterval: c.options.heartbeat(), StaleAfter: defaults.Registry.StaleAfter, InstancesPerNamespace: defaults.AWS.InstancesPerNamespace,
		// it imports nothing
		Wanted: func(string) bool { return false }, UsedNamespaces: func() ([]string, bool) { return nil, true },
		PeerNotifications: &peernotify.Config{
			Listen: func() (net.PacketConn, error) { return conn, nil }, Address: addressOf(conn),
		},
	})
	if err != nil {
		return nil, err
	}
	keys, err := peernotify.NewKeys(signer.Secret("peer notifications"))
	if err != nil {
		return nil, err
	}
	c.listen(peernotify.Contact{Address: addressOf(conn), Key: keys.Public()})
	member.SetImports(mcs.NewImportReport(nil, nil))
	m := &wholeMember{Registry: member, versions: versions, stop: runUntilStopped(ctx, running, member)}
	for i := range ServicesPerCluster {
		if err := member.Publish(ctx, export(number, i, versions[i])); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// runUntilStopped runs a registry until the returned function is called, which waits for its end.
func runUntilStopped(ctx context.Context, running *errgroup.Group, member registry.Registry) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	running.Go(func() error {
		defer close(ended)
		return member.Run(ctx, func(mcs.Key) {})
	})
	return func() { cancel(); <-ended }
}

// awaitExported waits until the registry shows every export of a member.
func awaitExported(ctx context.Context, member registry.Registry, number int) error {
	for i := 0; i < ServicesPerCluster; {
		view, err := member.Lookup(ctx, keyOf(number, i))
		if err == nil && view.Local.State == registry.Exported {
			i++
		} else if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func addressOf(conn net.PacketConn) netip.AddrPort {
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// signerOf returns the signer of member c.
func signerOf(c int) (*trust.Signer, error) {
	seed := sha256.Sum256(fmt.Append(nil, "member ", c))
	return trust.NewSigner(seed[:ed25519.SeedSize], nil)
}

// listen adds a receiver of notifications.
func (c *cloud) listen(contact peernotify.Contact) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, known := range c.listeners {
		if known == contact {
			return
		}
	}
	c.listeners = append(c.listeners, contact)
}

func (c *cloud) receivers() []peernotify.Contact {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listeners
}

// place waits until the whole members have created the control namespace and its service members.
func (c *cloud) place(ctx context.Context) (api.Namespace, error) {
	for {
		place, found, err := c.find(ctx)
		if found || err != nil && !api.IsThrottled(err) {
			return place, err
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return place, err
		}
	}
}

// find searches the control namespace and its service members.
func (c *cloud) find(ctx context.Context) (place api.Namespace, found bool, err error) {
	namespaces, err := c.direct.ListNamespaces(ctx)
	if err != nil {
		return place, false, err
	}
	if place, found = namespaces[format.ControlNamespace(clusterSet)]; !found {
		return place, false, nil
	}
	services, err := c.direct.ListServices(ctx, place)
	c.members, found = services[format.MembersService]
	return place, found, err
}

// lightMember writes what the controller of a cluster would write, by its encoders, and reads
// nothing.
type lightMember struct {
	cloud   *cloud
	number  int
	signer  *trust.Signer
	keys    *peernotify.Keys
	catalog api.Service

	mu       sync.Mutex
	record   format.Member
	notified int64       // the generation that the others are notified of
	versions map[int]int // by number of the service
}

func newLightMember(c *cloud, number int) (*lightMember, error) {
	signer, err := signerOf(number)
	if err != nil {
		return nil, err
	}
	keys, err := peernotify.NewKeys(signer.Secret("peer notifications"))
	if err != nil {
		return nil, err
	}
	now, identity := time.Now(), identityOf(number)
	return &lightMember{cloud: c, number: number, signer: signer, keys: keys, notified: now.UnixMilli(), versions: map[int]int{}, record: format.Member{
		ClusterID: identity.ClusterID, ClusterSetID: identity.ClusterSetID, UID: identity.UID, Version: "fleet", Joined: now,
		Generation: now.UnixMilli(), Heartbeat: now.UnixMilli(), Key: signer.Key(), Process: format.NewProcess(now, rand.Text()),
		Contact: peernotify.Contact{Address: addressOf(c.socket), Key: keys.Public()},
	}}, nil
}

// publish writes the catalog and the record.
func (m *lightMember) publish(ctx context.Context, place api.Namespace) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	if m.catalog, err = m.cloud.direct.CreateService(ctx, place, format.CatalogName(m.record.ClusterID), identityOf(m.number), "catalog"); err != nil {
		return err
	}
	for page := range format.PageCount {
		if err := m.writePage(ctx, page); err != nil {
			return err
		}
	}
	if err := m.register(ctx, m.catalog, format.CopyOf(m.record.Instance(m.signer))); err != nil {
		return err
	}
	return m.register(ctx, m.cloud.members, m.record.Instance(m.signer))
}

// writePage writes a page with the current versions of its exports.
func (m *lightMember) writePage(ctx context.Context, page int) error {
	exports := map[mcs.Key]mcs.Export{}
	for i := range ServicesPerCluster {
		if key := keyOf(m.number, i); format.PageOf(key) == page {
			exports[key] = export(m.number, i, m.versions[i])
		}
	}
	if len(exports) == 0 {
		return nil
	}
	w, err := state.EncodePage(identityOf(m.number), m.signer, page, m.record.Generation, exports)
	if err != nil {
		return err
	}
	for _, part := range w.Instances {
		if err := m.register(ctx, m.catalog, part); err != nil {
			return err
		}
		m.record.Pages[page], m.record.Namespaces[page] = part.Attributes[format.AttrDigest], format.NamespacesOf(exports)
	}
	return nil
}

func (m *lightMember) register(ctx context.Context, service api.Service, instance api.Instance) error {
	_, err := m.cloud.direct.RegisterInstance(ctx, service.ID, instance)
	return err
}

// beat writes a heartbeat.
func (m *lightMember) beat(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.record.Heartbeat = m.record.NextHeartbeat(time.Now())
	return m.register(ctx, m.cloud.members, m.record.Instance(m.signer))
}

// restart writes the record of another process.
func (m *lightMember) restart(ctx context.Context) error {
	m.mu.Lock()
	m.record.Process = format.NewProcess(time.Now(), rand.Text())
	m.record.Generation = max(m.record.Generation+1, time.Now().UnixMilli())
	m.notified = m.record.Generation
	m.mu.Unlock()
	return m.beat(ctx)
}

// change writes a version of a service, and notifies the importer if it imports the service, as it
// reports.
func (m *lightMember) change(ctx context.Context, i, version int) error {
	m.mu.Lock()
	m.versions[i] = version
	m.record.Generation = max(m.record.Generation+1, time.Now().UnixMilli())
	if isImported(m.number, i) {
		m.notified = m.record.Generation
	}
	err := m.writePage(ctx, format.PageOf(keyOf(m.number, i)))
	m.mu.Unlock()
	if err == nil {
		err = m.beat(ctx)
	}
	if err == nil {
		m.notify(m.cloud.receivers())
	}
	return err
}

func (m *lightMember) notify(receivers []peernotify.Contact) {
	m.mu.Lock()
	message := peernotify.Message{ClusterSet: clusterSet, From: m.record.ClusterID, Generation: m.notified, Sequence: time.Now().UnixNano()}
	m.mu.Unlock()
	for _, to := range receivers {
		// as unreliable as the controller's
		_, _ = m.cloud.socket.WriteTo(m.keys.Encode(message, to.Key), net.UDPAddrFromAddrPort(to.Address))
	}
}

// beat writes the heartbeats of the light members.
func (c *cloud) beat(ctx context.Context) {
	// the next one follows
	evenly(ctx, c.light, c.options.heartbeat(), func(m *lightMember) { _ = m.beat(ctx) })
}

// restart restarts all members. The light ones write their records at the rate that AWS is known to
// accept; they have nothing to read.
func (c *cloud) restart(ctx context.Context, running *errgroup.Group, _ []int) error {
	for i, m := range c.whole {
		m.stop()
		var err error
		if c.whole[i], err = c.join(ctx, i, m.versions, running); err != nil {
			return err
		}
	}
	for _, m := range c.light {
		if err := m.restart(ctx); err != nil {
			return err
		}
		if err := pause(ctx, time.Second/writesPerSecond); err != nil {
			return err
		}
	}
	for i, m := range c.whole {
		if err := awaitExported(ctx, m, i); err != nil {
			return err
		}
	}
	return nil
}

// shareReads gives the importer an equal share of the account's reads. The other clusters read as
// much, and nothing decides who is first.
func (c *cloud) shareReads(isShared bool) {
	c.meter.mu.Lock()
	defer c.meter.mu.Unlock()
	c.meter.share = 0
	if isShared {
		c.meter.share = readsPerSecond / float64(c.options.Clusters)
	}
}

// notify sends the notifications of the light members.
func (c *cloud) notify(ctx context.Context) {
	evenly(ctx, c.light, peernotify.SendInterval, func(m *lightMember) { m.notify(c.receivers()) })
}

// change publishes a version of a service of a member.
func (c *cloud) change(ctx context.Context, member, i, version int) error {
	if member < len(c.whole) {
		c.whole[member].versions[i] = version
		return c.whole[member].Publish(ctx, export(member, i, version))
	}
	return c.light[member-len(c.whole)].change(ctx, i, version)
}

// heard makes the members send notifications to the importer once its record shows where it
// listens.
func (c *cloud) heard(ctx context.Context, id string) error {
	for {
		found, _, err := c.direct.DiscoverInstances(ctx, format.ControlNamespace(clusterSet), format.MembersService, nil)
		if err != nil {
			return err
		}
		for _, instance := range found {
			if instance.ID != id {
				continue
			}
			if record, err := format.ParseMember(instance, clusterSet); err == nil && record.Contact.Address.IsValid() {
				c.listen(record.Contact)
				return nil
			}
		}
		if err := pause(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
}

// arguments are those of the importing controller.
func (c *cloud) arguments() []string {
	return []string{"--aws-region=" + region, "--aws-endpoint=" + c.http.URL, "--instance-view=false", "--heartbeat-interval=" + c.options.heartbeat().String(), "--aws-instances-per-namespace=100000"}
}

func (c *cloud) traffic() traffic { return c.meter.read() }

func (c *cloud) written() int64 { return c.writes.Load() }

// outage makes every request fail, or work again.
func (c *cloud) outage(down bool) { c.down.Store(down) }

func (c *cloud) close() {
	c.http.Close()
	_ = c.socket.Close()
	_ = c.server.Close()
}
