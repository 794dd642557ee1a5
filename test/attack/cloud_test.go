package attack

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

const (
	clusterSet = "set1"
	otherSet   = "set2"
	// victim exports, importer imports, and intruder attacks with its own credentials. newcomer
	// joins later.
	victim, importer, intruder, newcomer = "cls1", "cls2", "cls3", "cls4"
	// admin is the access key of the administrator, outsider that of a user with reader.json.
	admin, outsider = "admin", "reader"
)

// The policies of deploy/iam, by setup.
var (
	shippedPolicies = []string{"cluster.json", "create.json", "instance-view.json"}
	sealedPolicies  = []string{"cluster.json", "instance-view.json"}
)

// cloud is a Cloud Map with IAM, in the virtual time of a testing/synctest bubble.
type cloud struct {
	t        *testing.T
	server   *cloudmaplocal.Server
	keyrings *registrytest.Keyrings
	// joined is the time at which each cluster joined for the first time, which controllers keep
	// over restarts.
	joined map[mcs.Identity]time.Time
	// healthWrites is the number of UpdateInstanceCustomHealthStatus requests.
	healthWrites atomic.Int32
}

// cloudOptions are the options of inCloud.
type cloudOptions struct {
	// policies are those of the members; nil is shippedPolicies.
	policies []string
	// documents are further policies of the members.
	documents []iampolicy.Policy
	// throttled applies AWS's limits.
	throttled bool
	// denyAtOnce refuses requests without rights in Route 53, which otherwise fail in their
	// operation.
	denyAtOnce bool
	// alone runs the test while no other does: it measures the memory of the process.
	alone bool
}

// inCloud runs a test in virtual time with a Cloud Map in which each cluster of both clustersets
// has an access key with policies of deploy/iam. It runs beside the other tests in virtual time,
// when those in real time have ended.
func inCloud(t *testing.T, o cloudOptions, test func(*testing.T, *cloud)) {
	t.Helper()
	if !o.alone {
		t.Parallel()
	}
	if err := warmUp(); err != nil {
		t.Fatal(err)
	}
	if o.policies == nil {
		o.policies = shippedPolicies
	}
	options := cloudmaplocal.Options{Unthrottled: !o.throttled, Behaviors: cloudmaplocal.Behaviors{DenyAtOnce: o.denyAtOnce, ConsistencyDelay: cloudmaplocal.Duration(500 * time.Millisecond)}, AccessKeys: []cloudmaplocal.AccessKey{{ID: admin}}}
	add := func(key string, identity mcs.Identity, files []string) {
		policies, err := cloudmaptest.Policies(os.DirFS("../../deploy/iam"), identity, files...)
		if err != nil {
			t.Fatal(err)
		}
		options.AccessKeys = append(options.AccessKeys, cloudmaplocal.AccessKey{ID: key, User: key, Policies: append(policies, o.documents...)})
	}
	for _, set := range []string{clusterSet, otherSet} {
		for _, id := range []string{victim, importer, intruder, newcomer} {
			add(keyOf(identityIn(set, id)), identityIn(set, id), o.policies)
		}
	}
	add(outsider, mcs.Identity{ClusterSetID: clusterSet}, []string{"reader.json"})
	synctest.Test(t, func(t *testing.T) {
		options.Now = time.Now
		server, err := cloudmaplocal.New(options)
		if err != nil {
			t.Fatal(err)
		}
		test(t, &cloud{t: t, server: server, keyrings: registrytest.NewKeyrings(config.Default().Registry.StaleAfter), joined: map[mcs.Identity]time.Time{}})
	})
}

// newServer returns a Cloud Map of another account, in which every access key may do everything.
func newServer(t *testing.T) *cloudmaplocal.Server {
	t.Helper()
	server, err := cloudmaplocal.New(cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// warmUp makes zstd create its channels: those of one bubble cannot be used in the next one.
var warmUp = sync.OnceValue(func() error {
	data, err := record.Encode([]mcs.Export{registry.Published(webExport(victim, 1))})
	if err == nil {
		_, err = record.Decode(data, victim)
	}
	return err
})

func identityIn(set, id string) mcs.Identity {
	return mcs.Identity{ClusterID: id, ClusterSetID: set, UID: "uid-" + set + "-" + id}
}

// identityOf returns the identity of a cluster of the attacked clusterset.
func identityOf(id string) mcs.Identity { return identityIn(clusterSet, id) }

func keyOf(identity mcs.Identity) string { return identity.ClusterSetID + identity.ClusterID }

// signer returns the signer of a cluster.
func (c *cloud) signer(id string) *trust.Signer { return registrytest.Signer(c.t, identityOf(id)) }

var webKey = cloudmaptest.WebKey(0)

// webExport returns the export of webKey with n endpoints.
func webExport(clusterID string, n int) mcs.Export { return cloudmaptest.WebExport(clusterID, 0, n) }

// Do implements the SDK's HTTPClient: requests reach the server without a network after 10 ms.
func (c *cloud) Do(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(10 * time.Millisecond):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if strings.HasSuffix(r.Header.Get("X-Amz-Target"), ".UpdateInstanceCustomHealthStatus") {
		c.healthWrites.Add(1)
	}
	return cloudmaptest.Serve(c.server, r)
}

// client returns a client with an access key. Its own rate limits are out of the way: an attacker
// keeps none.
func (c *cloud) client(key string) *api.Client {
	c.t.Helper()
	rates := map[string]api.Rate{}
	for operation := range api.DefaultRates() {
		rates[operation] = api.Rate{PerSecond: 10_000, Burst: 10_000}
	}
	return c.clientAt(key, rates)
}

// named returns a client of the administrator with a name, by which a keyring tells registries
// apart.
func (c *cloud) named(name string) *api.Client {
	c.t.Helper()
	return c.newClient(name, admin, nil)
}

func (c *cloud) clientAt(key string, rates map[string]api.Rate) *api.Client {
	c.t.Helper()
	return c.newClient("", key, rates)
}

func (c *cloud) newClient(name, key string, rates map[string]api.Rate) *api.Client {
	c.t.Helper()
	client, err := api.NewClient(c.t.Context(), api.Config{
		Name: name, Region: cloudmaplocal.DefaultRegion, Endpoint: "https://cloudmap.test", HTTPClient: c, Rates: rates,
		Credentials: credentials.NewStaticCredentialsProvider(key, "secret", ""),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return client
}

// attacker returns a client with the intruder's credentials.
func (c *cloud) attacker() *api.Client { c.t.Helper(); return c.client(keyOf(identityOf(intruder))) }

// tag tags a resource with the intruder's credentials.
func (c *cloud) tag(arn string, tags ...types.Tag) error {
	c.t.Helper()
	return c.tagAs(keyOf(identityOf(intruder)), arn, tags...)
}

func (c *cloud) tagAs(key, arn string, tags ...types.Tag) error {
	c.t.Helper()
	_, err := c.sdk(key).TagResource(c.t.Context(), &servicediscovery.TagResourceInput{ResourceARN: &arn, Tags: tags})
	return err
}

// sdk returns AWS's own client with an access key, which repeats nothing.
func (c *cloud) sdk(key string) *servicediscovery.Client {
	return servicediscovery.New(servicediscovery.Options{
		BaseEndpoint: aws.String("https://cloudmap.test"), Region: cloudmaplocal.DefaultRegion, HTTPClient: c, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(key, "secret", ""),
	})
}

// member is a running registry of a cluster.
type member struct {
	*cloudmap.Registry
	t    *testing.T
	stop func(cause error)
}

// configOf returns the configuration of a cluster with the defaults, without the instance view and
// peer notifications.
func (c *cloud) configOf(identity mcs.Identity) cloudmap.Config {
	d := config.Default().Registry
	cfg := cloudmap.Config{
		Identity: identity, Version: "test", Logger: logr.Discard(), Signer: registrytest.Signer(c.t, identity), Keyring: c.keyrings.Of(c.t, identity),
		PollInterval: d.PollInterval, PollIntervalWithNotifications: d.PollIntervalWithNotifications,
		HeartbeatInterval: d.HeartbeatInterval, StaleAfter: d.StaleAfter, InstancesPerNamespace: config.Default().AWS.InstancesPerNamespace,
	}
	if testing.Verbose() {
		cfg.Logger = testr.New(c.t).WithName(identity.ClusterSetID + " " + identity.ClusterID)
	}
	return cfg
}

// join starts a cluster of the attacked clusterset.
func (c *cloud) join(id string, change ...func(*cloudmap.Config)) *member {
	c.t.Helper()
	return c.joinAs(keyOf(identityOf(id)), identityOf(id), change...)
}

// joinAs starts a cluster with an access key.
func (c *cloud) joinAs(key string, identity mcs.Identity, change ...func(*cloudmap.Config)) *member {
	c.t.Helper()
	cfg := c.configOf(identity)
	if cfg.Joined = c.joined[identity]; cfg.Joined.IsZero() {
		c.joined[identity] = time.Now()
	}
	for _, change := range change {
		change(&cfg)
	}
	reg, err := cloudmap.New(c.clientAt(key, nil), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	return run(c.t, reg)
}

// run runs a registry until stop or the end of the test.
func run(t *testing.T, reg *cloudmap.Registry) *member {
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() { done <- reg.Run(ctx, func(mcs.Key) {}); close(done) }()
	m := &member{Registry: reg, t: t, stop: func(cause error) {
		cancel(cause)
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}}
	t.Cleanup(func() { m.stop(nil) })
	return m
}

func (m *member) publish(exp mcs.Export) {
	m.t.Helper()
	if err := m.Publish(m.t.Context(), exp); err != nil {
		m.t.Fatal(err)
	}
}

// view returns the registry's view of key.
func (m *member) view(key mcs.Key, imported ...string) registry.View {
	m.t.Helper()
	view, err := m.Lookup(context.Background(), key, imported...)
	if err != nil && !errors.Is(err, registry.ErrNotSynced) {
		m.t.Fatal(err)
	}
	return view
}

// sees reports whether the registry has this export, with this content.
func (m *member) sees(exp mcs.Export) func() bool {
	return func() bool {
		return slices.ContainsFunc(m.view(exp.Key).Exports(), func(got mcs.Export) bool { return got.Equal(registry.Published(exp)) })
	}
}

// exportOf returns the export of key from a cluster, nil if there is none.
func (m *member) exportOf(clusterID string, key mcs.Key) *mcs.Export {
	for _, exp := range m.view(key).Exports() {
		if exp.Cluster == clusterID {
			return &exp
		}
	}
	return nil
}

func (m *member) isExported(key mcs.Key) func() bool {
	return func() bool { return m.view(key).Local.State == registry.Exported }
}

// problemsOf returns the problems that the registry reports of a cluster.
func (m *member) problemsOf(clusterID string) []string {
	members, _ := m.Members(context.Background())
	for _, other := range members {
		if other.ClusterID == clusterID {
			return other.Problems
		}
	}
	return nil
}

// isRefused reports whether the registry has refused a record of a cluster.
func (m *member) isRefused(clusterID string) func() bool {
	return func() bool { return slices.ContainsFunc(m.problemsOf(clusterID), registry.IsRefused) }
}

// isStale reports whether a cluster is stale.
func (m *member) isStale(clusterID string) bool {
	members, _ := m.Members(context.Background())
	return slices.ContainsFunc(members, func(other registry.Member) bool { return other.ClusterID == clusterID && other.Stale })
}

// until waits for a condition, in virtual time.
func until(t *testing.T, limit time.Duration, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !met(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// always checks a condition four times a second.
func always(t *testing.T, period time.Duration, what string, met func() bool) {
	t.Helper()
	for began := time.Now(); time.Since(began) < period; time.Sleep(250 * time.Millisecond) {
		if !met() {
			t.Fatalf("after %v: not %s", time.Since(began), what)
		}
	}
}

// start starts the victim with the export of webKey, and the importer, which imports it.
func (c *cloud) start() (exporter, reader *member, web mcs.Export) {
	c.t.Helper()
	exporter, reader, web = c.join(victim), c.join(importer), webExport(victim, 2)
	exporter.publish(web)
	until(c.t, time.Minute, "the export is imported", reader.sees(web))
	until(c.t, time.Minute, "the export is confirmed", exporter.isExported(web.Key))
	time.Sleep(20 * time.Second)
	return exporter, reader, web
}

// service returns a service of a clusterset; a test that has none fails.
func (c *cloud) service(set, name string) api.Service {
	c.t.Helper()
	s, ok := c.services(set)[name]
	if !ok {
		c.t.Fatalf("clusterset %s has no service %s", set, name)
	}
	return s
}

func (c *cloud) services(set string) map[string]api.Service {
	c.t.Helper()
	client := c.client(admin)
	namespaces, err := client.ListNamespaces(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	namespace, ok := namespaces[format.ControlNamespace(set)]
	if !ok {
		return nil
	}
	services, err := client.ListServices(c.t.Context(), namespace)
	if err != nil {
		c.t.Fatal(err)
	}
	return services
}

func (c *cloud) members() api.Service {
	c.t.Helper()
	return c.service(clusterSet, format.MembersService)
}

func (c *cloud) catalog(id string) api.Service {
	c.t.Helper()
	return c.service(clusterSet, format.CatalogName(id))
}

// instances returns the instances of a service by ID, as they are.
func (c *cloud) instances(s api.Service) map[string]api.Instance {
	c.t.Helper()
	time.Sleep(time.Second) // the consistency delay
	listed, err := c.client(admin).ListInstances(c.t.Context(), s)
	if err != nil {
		c.t.Fatal(err)
	}
	found := map[string]api.Instance{}
	for _, instance := range listed {
		found[instance.ID] = api.Instance{ID: instance.ID, Attributes: maps.Clone(instance.Attributes)}
	}
	return found
}

// recordOf returns the member record of a cluster.
func (c *cloud) recordOf(id string) format.Member {
	c.t.Helper()
	r, err := format.ParseMember(c.instances(c.members())[id], clusterSet)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// write registers an instance; err must be nil for the attack to take place.
func (c *cloud) write(client *api.Client, s api.Service, instance api.Instance) {
	c.t.Helper()
	if _, err := client.RegisterInstance(c.t.Context(), s.ID, instance); err != nil {
		c.t.Fatalf("writing instance %s of %s: %v", instance.ID, s.Name, err)
	}
}

// wantDenied fails the test unless IAM denied a request.
func wantDenied(t *testing.T, what string, err error) {
	t.Helper()
	if !api.IsDenied(err) {
		t.Errorf("%s: error %v, want AccessDeniedException", what, err)
	}
}

// tag returns a tag.
func tag(key, value string) types.Tag { return types.Tag{Key: &key, Value: &value} }

// seal creates what the stacks of deploy/iam create before clusters without create.json join.
func (c *cloud) seal(clusterIDs ...string) {
	c.t.Helper()
	resources, err := cloudmaptest.Stacks(os.DirFS("../../deploy/iam"), clusterSet, clusterIDs...)
	if err == nil {
		err = cloudmaptest.Create(c.t.Context(), c.sdk(admin), resources)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// writeExports writes exports to the catalog of a cluster, including exports that a controller
// would refuse, and announces them in the cluster's record. Everything is signed by signer.
func (c *cloud) writeExports(client *api.Client, clusterID string, signer *trust.Signer, exports ...mcs.Export) {
	c.t.Helper()
	pages := map[int][]mcs.Export{}
	for _, exp := range exports {
		page := format.PageOf(exp.Key)
		pages[page] = append(pages[page], registry.Published(exp))
	}
	encoded := map[int][]byte{}
	for page, exports := range pages {
		data, err := record.Encode(exports)
		if err != nil {
			c.t.Fatal(err)
		}
		encoded[page] = data
	}
	c.writePages(client, clusterID, signer, encoded)
}

// writePages writes pages to the catalog of a cluster and announces them.
func (c *cloud) writePages(client *api.Client, clusterID string, signer *trust.Signer, pages map[int][]byte) {
	c.t.Helper()
	r, catalog := c.recordOf(clusterID), c.catalog(clusterID)
	r.Generation, r.Heartbeat, r.Farewell = r.Generation+1e6, r.Heartbeat+1e6, false
	for page, data := range pages {
		r.Pages[page] = format.Digest(data)
		identity := mcs.Identity{ClusterSetID: clusterSet, ClusterID: clusterID, UID: r.UID}
		parts, err := format.SplitPage(identity, signer, page, r.Generation, data)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, part := range parts {
			c.write(client, catalog, part)
		}
	}
	signed := r.Instance(signer)
	c.write(client, catalog, format.CopyOf(signed))
	c.write(client, c.members(), signed)
}

// infiltrate has the intruder join as a member, so that the others know its key, and stops its
// controller.
func (c *cloud) infiltrate() {
	c.t.Helper()
	m := c.join(intruder)
	own := webExport(intruder, 1)
	own.Key.Name = "own"
	m.publish(own)
	until(c.t, time.Minute, "the intruder is a member", m.isExported(own.Key))
	time.Sleep(20 * time.Second)
	m.stop(nil)
}

// attack writes exports as the intruder, which has joined.
func (c *cloud) attack(exports ...mcs.Export) {
	c.t.Helper()
	c.writeExports(c.attacker(), intruder, c.signer(intruder), exports...)
}
