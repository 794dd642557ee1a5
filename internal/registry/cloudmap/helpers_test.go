package cloudmap

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"go.uber.org/goleak"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	trust.SetVerifier(verifyOnce())
	goleak.VerifyTestMain(m)
}

// verifyOnce returns ed25519.Verify with a cache. Tests with a hundred clusters verify each
// heartbeat a hundred times, which would take most of their time.
func verifyOnce() func(key ed25519.PublicKey, message, signature []byte) bool {
	var mu sync.Mutex
	known := map[[sha256.Size]byte]bool{}
	return func(key ed25519.PublicKey, message, signature []byte) bool {
		id := sha256.Sum256(slices.Concat(key, signature, message))
		mu.Lock()
		defer mu.Unlock()
		valid, ok := known[id]
		if !ok {
			if len(known) > 100_000 {
				clear(known)
			}
			valid = ed25519.Verify(key, message, signature)
			known[id] = valid
		}
		return valid
	}
}

// bulky is an export that needs some 14 instances, with n endpoints more than others. Its endpoints
// have random host names.
func bulky(i, n int) mcs.Export {
	exp := webExport("cls1", i, 1000+n)
	names := hex.EncodeToString(noise(31 * (1000 + n)))
	for j := range exp.Backends[0].Endpoints {
		exp.Backends[0].Endpoints[j].Hostname = names[62*j : 62*(j+1)]
	}
	return exp.Canonical()
}

// memoryIDs is a ResourceIDStore for several processes of one cluster.
type memoryIDs struct {
	mu  sync.Mutex
	ids ResourceIDs
	err error
}

func (m *memoryIDs) LoadResourceIDs(context.Context) (ResourceIDs, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ids, m.err
}

func (m *memoryIDs) SaveResourceIDs(_ context.Context, ids ResourceIDs) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.ids = ids
	}
	return m.err
}

// setError makes loading and saving fail, unless err is nil.
func (m *memoryIDs) setError(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// stores have the state that clusters keep across restarts.
type stores struct {
	mu    sync.Mutex
	byKey map[string]*memoryIDs
	pins  map[string]*memoryPins
}

// pinsOf returns the store of a cluster's keyring.
func (s *stores) pinsOf(key string) *memoryPins {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pins == nil {
		s.pins = map[string]*memoryPins{}
	}
	if s.pins[key] == nil {
		s.pins[key] = &memoryPins{}
	}
	return s.pins[key]
}

// copyTo copies the stored state of one cluster to another.
func (s *stores) copyTo(from, to string) {
	pins, _ := s.pinsOf(from).LoadPins(context.Background())
	_ = s.pinsOf(to).SavePins(context.Background(), pins)
	ended, _ := s.pinsOf(from).LoadEnd(context.Background())
	_ = s.pinsOf(to).SaveEnd(context.Background(), ended)
	ids, _ := s.of(from).LoadResourceIDs(context.Background())
	_ = s.of(to).SaveResourceIDs(context.Background(), ids)
}

// sharePins makes two identities of one cluster use the same store.
func (s *stores) sharePins(a, b string) {
	pins := s.pinsOf(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins[b] = pins
}

func (s *stores) of(key string) *memoryIDs {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil {
		s.byKey = map[string]*memoryIDs{}
	}
	if s.byKey[key] == nil {
		s.byKey[key] = &memoryIDs{}
	}
	return s.byKey[key]
}

// signerOf returns the signer of the cluster with a UID.
func signerOf(uid string) *trust.Signer { return newSigner(seedOf(uid), nil) }

// rotatedSignerOf returns the signer of the cluster with a UID after its key was rotated.
func rotatedSignerOf(uid string) *trust.Signer { return newSigner(seedOf("rotated "+uid), seedOf(uid)) }

// seedOf returns the first key of the cluster with a UID.
func seedOf(uid string) []byte {
	seed := make([]byte, ed25519.SeedSize)
	copy(seed, uid)
	return seed
}

func newSigner(seed, previous []byte) *trust.Signer {
	signer, err := trust.NewSigner(seed, previous)
	if err != nil {
		panic(err)
	}
	return signer
}

// memoryPins is a trust.Store for several processes of one cluster.
type memoryPins struct {
	mu   sync.Mutex
	pins map[string]trust.Pin
	// ended is the saved end of the last process.
	ended time.Time
	// saves is the number of saves.
	saves int
}

func (m *memoryPins) LoadEnd(context.Context) (time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended, nil
}

func (m *memoryPins) SaveEnd(_ context.Context, ended time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saves++
	m.ended = ended
	return nil
}

func (m *memoryPins) LoadPins(context.Context) (map[string]trust.Pin, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.pins), nil
}

func (m *memoryPins) SavePins(_ context.Context, pins map[string]trust.Pin) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.save(pins)
	return nil
}

// save saves pins. The caller holds m.mu.
func (m *memoryPins) save(pins map[string]trust.Pin) {
	m.saves++
	if m.pins == nil {
		m.pins = map[string]trust.Pin{}
	}
	for id, pin := range pins {
		pin.Last = maps.Clone(pin.Last)
		m.pins[id] = pin
	}
}

// keyring returns the keyring of a process with these pins.
func keyring(identity mcs.Identity, staleAfter time.Duration, pins trust.Store) *trust.Keyring {
	k, err := trust.Load(context.Background(), trust.Config{
		ClusterSetID: identity.ClusterSetID, StaleAfter: staleAfter, Store: pins, Logger: logr.Discard(),
	})
	if err != nil {
		panic(err)
	}
	return k
}

// runSaving runs a registry and saves the pins of its keyring, if it has one.
func runSaving(ctx context.Context, reg registry.Registry, notify func(mcs.Key)) error {
	run := func() error { return reg.Run(ctx, notify) }
	if r, ok := reg.(*Registry); ok {
		return r.cfg.Keyring.Run(ctx, run)
	}
	return run()
}

// cloud is a local Cloud Map and ways to look into it.
type cloud struct {
	server atomic.Pointer[cloudmaplocal.Server]
	url    string
	delay  time.Duration
	rates  map[string]api.Rate
	// client is for looking into it, apart from the clients of the registries.
	client *api.Client
	// broken makes every request fail, denied those that write. lost is how many more writes of
	// pages are answered with success and not carried out. pageWrites counts the writes of pages.
	broken, denied   atomic.Bool
	lost, pageWrites atomic.Int64
	// fault, if set, may answer a request before the server does.
	fault atomic.Pointer[func(w http.ResponseWriter, r *http.Request) (answered bool)]
	// ids are the stored resource IDs, by the clusters' UIDs.
	ids stores
	// keyOf, if set, is the access key that a cluster's registry has.
	keyOf func(mcs.Identity) string
}

// ServeHTTP stands before the server.
func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c.broken.Load() {
		http.Error(w, "broken", http.StatusServiceUnavailable)
		return
	}
	if fault := c.fault.Load(); fault != nil && (*fault)(w, r) {
		return
	}
	if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".RegisterInstance") && c.register(w, r) {
		return
	}
	c.server.Load().ServeHTTP(w, r)
}

// register looks at a write before the server does, and reports whether it has answered it.
func (c *cloud) register(w http.ResponseWriter, r *http.Request) (answered bool) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return true
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if c.denied.Load() {
		w.Header().Set("X-Amzn-Errortype", "AccessDeniedException")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"__type":"AccessDeniedException","message":"not allowed"}`)
		return true
	}
	if !bytes.Contains(body, []byte(`"InstanceId":"page-`)) {
		return false
	}
	c.pageWrites.Add(1)
	if c.lost.Add(-1) < 0 {
		return false
	}
	fmt.Fprint(w, `{"OperationId":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-aaaaaaaa"}`)
	return true
}

// startCloud runs a local Cloud Map until the test ends.
func startCloud(t *testing.T, options cloudmaplocal.Options) *cloud {
	t.Helper()
	server, err := cloudmaplocal.New(options)
	if err != nil {
		t.Fatal(err)
	}
	b := options.Behaviors
	c := &cloud{delay: time.Duration(b.OperationDelay + b.ConsistencyDelay + b.ConsistencySpread)}
	c.server.Store(server)
	listener := httptest.NewServer(c)
	t.Cleanup(func() {
		listener.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	c.url = listener.URL
	if options.Unthrottled {
		// Without AWS's limits there is no need for ours either: tests are about what is done, not
		// how fast.
		c.rates = unlimitedRates()
	}
	c.client = c.newClient(t)
	return c
}

// unlimitedRates are rates that no test reaches.
func unlimitedRates() map[string]api.Rate {
	rates := map[string]api.Rate{}
	for operation := range api.DefaultRates() {
		rates[operation] = api.Rate{PerSecond: 10_000, Burst: 10_000}
	}
	return rates
}

func (c *cloud) newClient(t *testing.T) *api.Client {
	t.Helper()
	return c.clientFor(t, api.Config{})
}

// clientFor makes a client as cfg says, in us-east-1 if it does not say where.
func (c *cloud) clientFor(t *testing.T, cfg api.Config) *api.Client {
	t.Helper()
	cfg.Region, cfg.Endpoint, cfg.Rates = cmp.Or(cfg.Region, "us-east-1"), c.url, c.rates
	client, err := api.NewClient(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// withKey is a client's configuration with an access key.
func withKey(id string) api.Config {
	return api.Config{Credentials: credentials.NewStaticCredentialsProvider(id, "secret", "")}
}

// sdk is AWS's own client with an access key.
func (c *cloud) sdk(key string) *servicediscovery.Client {
	return servicediscovery.New(servicediscovery.Options{
		BaseEndpoint: aws.String(c.url), Region: "us-east-1", Credentials: credentials.NewStaticCredentialsProvider(key, "secret", ""),
	})
}

// sealCatalog sets the tag catalog-of of a cluster's catalog.
func sealCatalog(t *testing.T, sdk *servicediscovery.Client, catalog api.Service, clusterID string) {
	t.Helper()
	if _, err := sdk.TagResource(t.Context(), &servicediscovery.TagResourceInput{
		ResourceARN: &catalog.ARN, Tags: []types.Tag{{Key: aws.String(api.TagCatalogOf), Value: &clusterID}}}); err != nil {
		t.Fatal(err)
	}
}

// fast are intervals for tests that have no second to lose.
func fast(identity mcs.Identity) Config {
	standard := defaultTimes()
	standard.Quiet, standard.AtMost = 5*time.Millisecond, 25*time.Millisecond
	standard.Confirm = 300 * time.Millisecond
	standard.Audit, standard.Settle = 100*time.Millisecond, 100*time.Millisecond
	standard.missing = 20 * time.Millisecond
	standard.instanceResync, standard.instanceList = 50*time.Millisecond, 50*time.Millisecond
	standard.Retry, standard.MaxRetry = 20*time.Millisecond, 200*time.Millisecond
	cfg := defaultConfig(identity)
	cfg.PollInterval, cfg.HeartbeatInterval, cfg.StaleAfter = 20*time.Millisecond, 200*time.Millisecond, time.Minute
	cfg.PollIntervalWithNotifications = 100 * time.Millisecond
	cfg.times = standard
	return cfg
}

// settings are the default settings.
var settings = config.Default().Registry

// defaultConfig returns the configuration of a cluster with the default settings, without the
// instance view and peer notifications.
func defaultConfig(identity mcs.Identity) Config {
	return Config{
		Identity: identity, Version: "test", Logger: logr.Discard(), times: defaultTimes(), Signer: signerOf(identity.UID),
		Keyring:      keyring(identity, settings.StaleAfter, nil),
		PollInterval: settings.PollInterval, PollIntervalWithNotifications: settings.PollIntervalWithNotifications,
		HeartbeatInterval: settings.HeartbeatInterval, StaleAfter: settings.StaleAfter,
		InstancesPerNamespace: config.Default().AWS.InstancesPerNamespace,
	}
}

func (c *cloud) registry(t *testing.T, cfg Config) *Registry {
	t.Helper()
	var client api.Config
	if c.keyOf != nil {
		client = withKey(c.keyOf(cfg.Identity))
	}
	return c.registryOf(t, c.clientFor(t, client), cfg)
}

func (c *cloud) registryOf(t *testing.T, client *api.Client, cfg Config) *Registry {
	t.Helper()
	if testing.Verbose() {
		cfg.Logger = testr.New(t).WithName(cfg.Identity.ClusterID)
	}
	process := cfg.Identity.UID + cfg.Identity.ClusterSetID
	if cfg.ResourceIDs == nil {
		cfg.ResourceIDs = c.ids.of(process)
	}
	cfg.Keyring = keyring(cfg.Identity, cfg.StaleAfter, c.ids.pinsOf(process))
	reg, err := New(client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// start runs a registry until the returned function is called with a cause, or the test ends.
func start(t *testing.T, reg registry.Registry) (stop func(cause error)) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- runSaving(ctx, reg, func(mcs.Key) {}) }()
	stopped := false
	stop = func(cause error) {
		cancel(cause)
		if stopped {
			return
		}
		stopped = true
		if err := withoutProtected(<-done); err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(func() { stop(nil) })
	return stop
}

// within waits for a condition.
func within(t *testing.T, patience time.Duration, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !met(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// instances are those of a service, by ID; nil when there is no such namespace or service.
func (c *cloud) instances(t *testing.T, namespaceName, serviceName string) map[string]map[string]string {
	t.Helper()
	s, ok := c.service(t, namespaceName, serviceName)
	if !ok {
		return nil
	}
	listed := unthrottled(t, func() ([]api.Instance, error) { return c.client.ListInstances(t.Context(), s) })
	found := map[string]map[string]string{}
	for _, instance := range listed {
		found[instance.ID] = instance.Attributes
	}
	return found
}

func (c *cloud) service(t *testing.T, namespaceName, serviceName string) (api.Service, bool) {
	t.Helper()
	in, ok := unthrottled(t, func() (map[string]api.Namespace, error) { return c.client.ListNamespaces(t.Context()) })[namespaceName]
	if !ok {
		return api.Service{}, false
	}
	s, ok := unthrottled(t, func() (map[string]api.Service, error) { return c.client.ListServices(t.Context(), in) })[serviceName]
	return s, ok
}

// unthrottled repeats a request until it is let through.
func unthrottled[T any](t *testing.T, request func() (T, error)) T {
	t.Helper()
	var result T
	within(t, time.Minute, "a request that is not throttled", func() bool {
		var err error
		if result, err = request(); err != nil && !api.IsThrottled(err) && !api.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil || api.IsNotFound(err)
	})
	return result
}

// replace puts another server in the place of the one that ran.
func (c *cloud) replace(server *cloudmaplocal.Server) { c.server.Store(server) }

// settle waits until reads show everything that was written before.
func (c *cloud) settle() { time.Sleep(c.delay) }

// put writes an instance as another writer would.
func (c *cloud) put(t *testing.T, namespaceName, serviceName string, instance api.Instance) {
	t.Helper()
	s, ok := c.service(t, namespaceName, serviceName)
	if !ok {
		t.Fatalf("there is no service %s in namespace %s", serviceName, namespaceName)
	}
	if _, err := c.client.RegisterInstance(t.Context(), s.ID, instance); err != nil {
		t.Fatal(err)
	}
}

// drop removes an instance as another writer would.
func (c *cloud) drop(t *testing.T, namespaceName, serviceName, id string) {
	t.Helper()
	s, ok := c.service(t, namespaceName, serviceName)
	if !ok {
		t.Fatalf("there is no service %s in namespace %s", serviceName, namespaceName)
	}
	if err := c.client.DeregisterInstance(t.Context(), s.ID, id); err != nil {
		t.Fatal(err)
	}
}

// dropPage removes every part of the page that key belongs to.
func (c *cloud) dropPage(t *testing.T, clusterSetID, clusterID string, key mcs.Key) {
	t.Helper()
	for id := range c.instances(t, format.ControlNamespace(clusterSetID), format.CatalogName(clusterID)) {
		if page, _, ok := format.ParsePartID(id); ok && page == format.PageOf(key) {
			c.drop(t, format.ControlNamespace(clusterSetID), format.CatalogName(clusterID), id)
		}
	}
}

// spoil replaces the page that key belongs to with garbage, announced as a page should be.
func (c *cloud) spoil(t *testing.T, clusterSetID, clusterID string, key mcs.Key) func(mcs.Key) bool {
	t.Helper()
	control := format.ControlNamespace(clusterSetID)
	page := format.PageOf(key)
	c.settle()
	defer c.settle()
	garbage := []byte{1, 0, 'g', 'a', 'r', 'b', 'a', 'g', 'e'}
	attrs := c.instances(t, control, format.MembersService)[clusterID]
	generation, err := strconv.ParseInt(attrs[format.AttrGeneration], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	identity := mcs.Identity{ClusterID: clusterID, ClusterSetID: clusterSetID, UID: attrs[format.AttrUID]}
	signer := signerOf(identity.UID)
	parts, err := format.SplitPage(identity, signer, page, generation+1, garbage)
	if err != nil {
		t.Fatal(err)
	}
	c.put(t, control, format.CatalogName(clusterID), parts[0])
	announced, err := format.ParseMember(api.Instance{ID: clusterID, Attributes: attrs}, clusterSetID)
	if err != nil {
		t.Fatal(err)
	}
	announced.Generation++
	announced.Pages[page] = format.Digest(garbage)
	c.put(t, control, format.MembersService, announced.Instance(signer))
	return func(k mcs.Key) bool { return format.PageOf(k) == page }
}

// empty reports whether nothing of a cluster is left.
func (c *cloud) empty(t *testing.T, clusterSetID, clusterID string) bool {
	t.Helper()
	control := format.ControlNamespace(clusterSetID)
	pages := c.instances(t, control, format.CatalogName(clusterID))
	for id := range pages {
		if _, _, ok := format.ParsePartID(id); ok {
			return false
		}
	}
	return true
}

// requests are the requests so far that are of one of the operations, or all without any.
func (c *cloud) requests(operations ...string) int {
	counts := c.server.Load().Requests()
	total := 0
	for operation := range maps.Keys(counts) {
		if len(operations) == 0 || strings.Contains(" "+strings.Join(operations, " ")+" ", " "+operation+" ") {
			total += int(counts[operation])
		}
	}
	return total
}

// withoutProtected returns the error of Run, nil if the cluster has left and only resources stay
// that it may not delete.
func withoutProtected(err error) error {
	var left *registry.LeftoversError
	if errors.As(err, &left) && !slices.ContainsFunc(left.Left, func(l registry.Leftover) bool { return !l.IsProtected }) {
		return nil
	}
	return err
}
