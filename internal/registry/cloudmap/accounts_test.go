package cloudmap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
)

const (
	ownerAccount    = "111122223333"
	consumerAccount = "444455556666"
	roleOfOwner     = "arn:aws:iam::111122223333:role/mcs"
)

// twoAccounts has the keys of both, OWNER and CONSUMER, and the owner's role that the consumer may
// assume.
func twoAccounts() cloudmaplocal.Options {
	return cloudmaplocal.Options{
		Unthrottled: true,
		AccessKeys: []cloudmaplocal.AccessKey{
			{ID: "AKIDTEST", Secret: "secret", Account: consumerAccount},
			{ID: "OWNER", Secret: "secret", Account: ownerAccount},
		},
		Roles: []cloudmaplocal.Role{{ARN: roleOfOwner, Trust: []string{consumerAccount}, ExternalID: "from-consumer"}},
	}
}

func asOwner() api.Config {
	return withKey("OWNER")
}

func testExport(clusterID, name string) mcs.Export {
	exp := webExport(clusterID, 0, 2)
	exp.Key.Name = name
	return exp
}

func testIdentity(clusterID string) mcs.Identity {
	return mcs.Identity{ClusterID: clusterID, ClusterSetID: "set1", UID: "uid-of-" + clusterID}
}

// exporters are the clusters that a registry shows to export a key, with a question mark if that is
// not all or not known.
func exporters(reg registry.Registry, key mcs.Key) string {
	view, err := reg.Lookup(context.Background(), key)
	if err != nil {
		return "not synced"
	}
	var ids []string
	for _, exp := range view.Exports() {
		ids = append(ids, exp.Cluster)
	}
	if view.Incomplete || len(view.In(registry.Unknown)) > 0 {
		ids = append(ids, "?")
	}
	return strings.Join(ids, " ")
}

func awaitExporters(t *testing.T, reg registry.Registry, key mcs.Key, want string) {
	t.Helper()
	within(t, 20*time.Second, fmt.Sprintf("%s is exported by %q", key, want), func() bool { return exporters(reg, key) == want })
}

func mustPublish(t *testing.T, reg registry.Registry, exp mcs.Export) {
	t.Helper()
	if err := reg.Publish(t.Context(), exp); err != nil {
		t.Fatal(err)
	}
}

func TestAssumedRole(t *testing.T) {
	c := startCloud(t, twoAccounts())
	t.Setenv("AWS_ENDPOINT_URL_STS", c.url)
	exp := testExport("cls1", "web")
	client := c.clientFor(t, api.Config{Role: api.Role{ARN: roleOfOwner, ExternalID: "from-consumer", SessionName: "cls1"}})
	reg := c.registryOf(t, client, fast(testIdentity("cls1")))
	mustPublish(t, reg, exp)
	start(t, reg)
	within(t, 20*time.Second, "the export is in the registry", isExported(t, reg, exp.Key))
	for account, cfg := range map[string]api.Config{ownerAccount: asOwner(), consumerAccount: {}} {
		namespaces, err := c.clientFor(t, cfg).ListNamespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, there := namespaces["mcs.set1"]; there != (account == ownerAccount) {
			t.Errorf("account %s has the namespaces %v", account, namespaces)
		}
	}
}

func TestRoleThatCannotBeAssumed(t *testing.T) {
	c := startCloud(t, twoAccounts())
	t.Setenv("AWS_ENDPOINT_URL_STS", c.url)
	client := c.clientFor(t, api.Config{Role: api.Role{ARN: roleOfOwner, ExternalID: "a guess"}})
	_, err := client.ListNamespaces(t.Context())
	if !api.IsDenied(err) {
		t.Errorf("error = %v, want one that is denied", err)
	}
	if want := "check that the role in --aws-role-arn or role-arn trusts"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that says %q", err, want)
	}
}

// sharedCloud has namespaces of the owner that the consumer may use.
func sharedCloud(t *testing.T, options cloudmaplocal.Options, clusterSetIDs ...string) *cloud {
	t.Helper()
	for _, id := range clusterSetIDs {
		options.Shares = append(options.Shares, cloudmaplocal.Share{Owner: ownerAccount, Namespace: format.ControlNamespace(id), With: []string{consumerAccount}})
	}
	c := startCloud(t, options)
	c.client = c.clientFor(t, asOwner())
	for _, id := range clusterSetIDs {
		if _, err := c.client.CreateNamespace(t.Context(), format.ControlNamespace(id), mcs.Identity{ClusterSetID: id, ClusterID: "admin"}, api.PartControl); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// underSharedPolicy gives the consumer no more rights than shared.json.
func underSharedPolicy(t *testing.T, options cloudmaplocal.Options) cloudmaplocal.Options {
	t.Helper()
	options.AccessKeys[0].Policies = nil
	for _, set := range []string{"set1", "set2"} {
		raw, err := os.ReadFile("../../../deploy/iam/shared.json")
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("<clusterset>", set, "<region>", cloudmaplocal.DefaultRegion, "<account>", consumerAccount, "<owner>", ownerAccount).Replace(string(raw))
		var policy iampolicy.Policy
		if err := json.Unmarshal([]byte(text), &policy); err != nil {
			t.Fatal(err)
		}
		options.AccessKeys[0].Policies = append(options.AccessKeys[0].Policies, policy)
	}
	return options
}

// TestSharedPolicySuffices: two clusters of a consumer join, export, import and leave under
// shared.json, in a share that allows no tags, without a denied request.
func TestSharedPolicySuffices(t *testing.T) {
	c := sharedCloud(t, underSharedPolicy(t, twoAccounts()), "set1")
	one := c.registryOf(t, c.clientFor(t, api.Config{NamespaceOwner: ownerAccount}), fast(testIdentity("cls1")))
	other := c.registryOf(t, c.clientFor(t, api.Config{NamespaceOwner: ownerAccount}), fast(testIdentity("cls2")))
	web := testExport("cls1", "web")
	mustPublish(t, one, web)
	leaveOne, leaveOther := start(t, one), start(t, other)
	awaitExporters(t, other, web.Key, "cls1")
	leaveOne(registry.ErrLeave)
	awaitExporters(t, other, web.Key, "")
	leaveOther(registry.ErrLeave)
	if denied := c.denials(t); len(denied) > 0 {
		t.Errorf("denied: %v", denied)
	}
	for _, name := range []string{format.MembersService, format.CatalogName("cls1"), format.CatalogName("cls2")} {
		if _, there := c.service(t, "mcs.set1", name); there {
			t.Errorf("service %s is left", name)
		}
	}
}

// TestContractInASharedNamespace: for a cluster whose account is not the namespace's, all is the
// same.
func TestContractInASharedNamespace(t *testing.T) {
	if testing.Short() {
		t.Skip("CI runs TestContract and TestContractUnderIAM: NIGHTLY=1 runs this one too")
	}
	registrytest.Run(t, func(t *testing.T) registrytest.Backend {
		c := sharedCloud(t, underSharedPolicy(t, twoAccounts()), "set1", "set2")
		return backendOf(c, fast, func(t *testing.T, cfg Config) *Registry {
			return c.registryOf(t, c.clientFor(t, api.Config{NamespaceOwner: ownerAccount}), cfg)
		})
	})
}

func TestSharedNamespace(t *testing.T) {
	c := sharedCloud(t, twoAccounts(), "set1")
	ownerSide := c.registryOf(t, c.client, fast(testIdentity("cls1")))
	cfg := fast(testIdentity("cls2"))
	cfg.InstanceView = true
	consumerSide := c.registryOf(t, c.clientFor(t, api.Config{NamespaceOwner: ownerAccount}), cfg)
	of1, of2 := testExport("cls1", "web"), testExport("cls2", "db")
	mustPublish(t, ownerSide, of1)
	mustPublish(t, consumerSide, of2)
	start(t, ownerSide)
	leave := start(t, consumerSide)
	awaitExporters(t, consumerSide, of1.Key, "cls1")
	awaitExporters(t, ownerSide, of2.Key, "cls2")
	own := c.clientFor(t, api.Config{})
	within(t, 20*time.Second, "the instance view is in the cluster's own account", func() bool {
		namespaces, err := own.ListNamespaces(t.Context())
		_, there := namespaces["demo"]
		return err == nil && there
	})

	leave(registry.ErrLeave)
	awaitExporters(t, ownerSide, of2.Key, "")
	if _, there := c.service(t, "mcs.set1", format.CatalogName("cls2")); there {
		t.Error("the catalog of the cluster that left is still in the shared namespace")
	}
	if _, there := c.service(t, "mcs.set1", format.MembersService); !there {
		t.Error("service members is gone from the shared namespace, though the other cluster stays")
	}
}

// TestLeavingASharedNamespaceLast: what is the owner's stays, and that is no failure.
func TestLeavingASharedNamespaceLast(t *testing.T) {
	c := sharedCloud(t, twoAccounts(), "set1")
	ownerSide := c.registryOf(t, c.client, fast(testIdentity("cls1")))
	consumerSide := c.registryOf(t, c.clientFor(t, api.Config{NamespaceOwner: ownerAccount}), fast(testIdentity("cls2")))
	ofOwner, ofConsumer := testExport("cls1", "web"), testExport("cls2", "db")
	mustPublish(t, ownerSide, ofOwner)
	mustPublish(t, consumerSide, ofConsumer)
	leaveOwner := start(t, ownerSide)
	within(t, 20*time.Second, "the owner's cluster exports", isExported(t, ownerSide, ofOwner.Key))
	leaveConsumer := start(t, consumerSide)
	within(t, 20*time.Second, "the consumer's cluster exports", isExported(t, consumerSide, ofConsumer.Key))
	leaveOwner(registry.ErrLeave)
	leaveConsumer(registry.ErrLeave)
	if left := c.instances(t, "mcs.set1", format.MembersService); len(left) != 0 {
		t.Errorf("records are left: %v", left)
	}
	if _, there := c.service(t, "mcs.set1", format.CatalogName("cls2")); there {
		t.Error("the consumer's catalog is left")
	}
	namespaces, err := c.client.ListNamespaces(t.Context())
	if _, there := namespaces["mcs.set1"]; err != nil || !there {
		t.Errorf("the owner's namespace is gone: %v, %v", namespaces, err)
	}
}

// TestReadOnlyCost: to read one more registry costs one request per poll, whatever is in it.
func TestReadOnlyCost(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	writer := c.registry(t, fast(testIdentity("cls1")))
	for i := range 100 {
		mustPublish(t, writer, webExport("cls1", i, 2))
	}
	stop := start(t, writer)
	within(t, 20*time.Second, "the last export is confirmed", isExported(t, writer, webKey(99)))
	stop(nil)
	reader := c.readerOf(t, "us-east-1", "cls2")
	start(t, reader)
	for i := range 100 {
		awaitExporters(t, reader, webKey(i), "cls1")
	}
	// before all: one more may come in between, and must not look like another kind
	discovers := c.requests("DiscoverInstances")
	all := c.requests()
	within(t, 20*time.Second, "20 more polls", func() bool { return c.requests("DiscoverInstances") >= discovers+20 })
	if others := c.requests() - all - (c.requests("DiscoverInstances") - discovers); others > 0 {
		t.Errorf("%d requests were others than DiscoverInstances", others)
	}
}

func TestNamespaceThatIsNotShared(t *testing.T) {
	c := startCloud(t, twoAccounts())
	reg := c.registryOf(t, c.clientFor(t, api.Config{NamespaceOwner: ownerAccount}), fast(testIdentity("cls1")))
	start(t, reg)
	const want = "account 111122223333 shares no namespace mcs.set1 with this account: create it there"
	within(t, 20*time.Second, "an error that says what to do", func() bool {
		_, err := reg.Members(t.Context())
		return errors.Is(err, registry.ErrNotSynced) && strings.Contains(err.Error(), want)
	})
}

// readerOf is a registry in a Region that is only imported from.
func (c *cloud) readerOf(t *testing.T, region, clusterID string) *Registry {
	t.Helper()
	cfg := fast(testIdentity(clusterID))
	cfg.ReadOnly, cfg.InstanceView = true, true
	return c.registryOf(t, c.clientFor(t, api.Config{Region: region}), cfg)
}

func TestReadOnly(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	reader := c.readerOf(t, "us-east-1", "cls2")
	start(t, reader)
	web := testExport("cls1", "web")
	awaitExporters(t, reader, web.Key, "") // where there is no namespace, there is no export
	if members, err := reader.Members(t.Context()); err != nil || len(members) != 0 {
		t.Errorf("members %v, %v, want none", members, err)
	}
	if err := reader.Publish(t.Context(), testExport("cls2", "db")); !errors.Is(err, registry.ErrReadOnly) {
		t.Errorf("Publish: %v, want ErrReadOnly", err)
	}
	if err := reader.Withdraw(t.Context(), web.Key); !errors.Is(err, registry.ErrReadOnly) {
		t.Errorf("Withdraw: %v, want ErrReadOnly", err)
	}
	if n := c.requests("CreateHttpNamespace", "CreateService", "RegisterInstance"); n != 0 {
		t.Errorf("the reader has written %d times", n)
	}
	writer := c.registry(t, fast(testIdentity("cls1")))
	mustPublish(t, writer, web)
	stop := start(t, writer)
	awaitExporters(t, reader, web.Key, "cls1")
	view, err := reader.Lookup(t.Context(), web.Key)
	if err != nil || view.Local.State != registry.Absent {
		t.Errorf("own publication %v, %v, want Absent", view.Local, err)
	}
	stop(registry.ErrLeave)
	awaitExporters(t, reader, web.Key, "")
	within(t, 20*time.Second, "no cluster is a member", func() bool {
		members, err := reader.Members(t.Context())
		return err == nil && len(members) == 0
	})
}

// TestReadOnlyLeavesNothing: to leave a registry that was only read is nothing, whatever is there
// under the same identity.
func TestReadOnlyLeavesNothing(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	web := testExport("cls1", "web")
	writer := c.registry(t, fast(testIdentity("cls1")))
	mustPublish(t, writer, web)
	stop := start(t, writer)
	observer := c.readerOf(t, "us-east-1", "cls2")
	start(t, observer)
	awaitExporters(t, observer, web.Key, "cls1")
	stop(nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(registry.ErrLeave)
	if err := c.readerOf(t, "us-east-1", "cls1").Run(ctx, func(mcs.Key) {}); err != nil {
		t.Error(err)
	}
	if c.empty(t, "set1", "cls1") {
		t.Error("a reader removed what the cluster has there")
	}
}

// TestReadOnly_KeepsExportsWithoutNamespace: a namespace that vanishes is no evidence, however long
// it is gone, and a reader that restarts does not remove anything either.
func TestReadOnly_KeepsExportsWithoutNamespace(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	web := testExport("cls1", "web")
	writer := c.registry(t, fast(testIdentity("cls1")))
	mustPublish(t, writer, web)
	stop := start(t, writer)
	cfg := fast(testIdentity("cls2"))
	cfg.ReadOnly = true
	reader := c.registry(t, cfg)
	start(t, reader)
	awaitExporters(t, reader, web.Key, "cls1")
	stop(nil)
	empty, err := cloudmaplocal.New(cloudmaplocal.Options{Unthrottled: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = empty.Close() }()
	c.replace(empty)
	within(t, 20*time.Second, "it has searched for the namespace", func() bool { return c.requests("ListNamespaces") > 10 })
	awaitExporters(t, reader, web.Key, "cls1")
	restarted := c.registry(t, cfg)
	start(t, restarted)
	within(t, 20*time.Second, "the restarted reader says that it has seen nothing of cls1", func() bool {
		view, err := restarted.Lookup(t.Context(), web.Key, "cls1")
		return err == nil && slices.Equal(view.In(registry.Unseen), []string{"cls1"})
	})
	if n := c.requests("CreateHttpNamespace", "CreateService", "RegisterInstance"); n != 0 {
		t.Errorf("the reader has written %d times", n)
	}
}

// oneOf makes one registry of the cluster's own Region and another one.
func (c *cloud) oneOf(t *testing.T, clusterID, own, other string) *union.Registry {
	t.Helper()
	identity := testIdentity(clusterID)
	first := c.registryOf(t, c.clientFor(t, api.Config{Region: own}), fast(identity))
	return union.New(union.Config{Identity: identity, Logger: logr.Discard(), Handover: 4 * time.Second},
		union.Source{Name: own, Registry: first}, union.Source{Name: other, Registry: c.readerOf(t, other, clusterID)})
}

const (
	dublin    = "eu-west-1"
	frankfurt = "eu-central-1"
)

// TestTwoRegions: each cluster exports to its own Region and imports from both.
func TestTwoRegions(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, b := c.oneOf(t, "cls1", dublin, frankfurt), c.oneOf(t, "cls2", frankfurt, dublin)
	start(t, a)
	start(t, b)
	of1, of2 := testExport("cls1", "web"), testExport("cls2", "web")
	mustPublish(t, a, of1)
	mustPublish(t, b, of2)
	awaitExporters(t, a, of1.Key, "cls2")
	awaitExporters(t, b, of1.Key, "cls1")
	for name, reg := range map[string]registry.Registry{"cls1": a, "cls2": b} {
		within(t, 20*time.Second, name+" sees both members", func() bool {
			members, err := reg.Members(t.Context())
			return err == nil && len(members) == 2 && len(members[0].Problems)+len(members[1].Problems) == 0
		})
	}
}

// TestMovingToAnotherRegion: a cluster that exported to one Region goes on in another. A cluster
// that imports from both never misses it, sees it once, and in the end what it left does not count.
func TestMovingToAnotherRegion(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	before := c.oneOf(t, "cls1", dublin, frankfurt)
	kept, withdrawn := testExport("cls1", "kept"), testExport("cls1", "withdrawn")
	mustPublish(t, before, kept)
	mustPublish(t, before, withdrawn)
	stop := start(t, before)
	importer := c.oneOf(t, "cls2", dublin, frankfurt)
	start(t, importer)
	awaitExporters(t, importer, kept.Key, "cls1")
	awaitExporters(t, importer, withdrawn.Key, "cls1")
	missed := watchExporters(t, importer, kept.Key, "cls1")

	stop(nil)
	moved := time.Now()
	after := c.oneOf(t, "cls1", frankfurt, dublin)
	start(t, after)
	awaitExporters(t, after, kept.Key, "") // its own leftovers are nothing to import
	// The importer meets it in Frankfurt before it has said there what it exports.
	within(t, 20*time.Second, "the importer sees it in Frankfurt", func() bool {
		members, err := importer.Members(t.Context())
		return err == nil && members[0].Joined.After(moved)
	})
	mustPublish(t, after, kept)
	awaitExporters(t, importer, withdrawn.Key, "") // after the handover
	awaitExporters(t, importer, kept.Key, "cls1")
	if states := missed(); len(states) > 0 {
		t.Errorf("while the cluster moved, its export was seen as %q", states)
	}

	// A cluster that starts now does not keep what is left in Dublin. It may see that first: the
	// key of cls1 is new to it in both Regions.
	late := c.oneOf(t, "cls3", frankfurt, dublin)
	start(t, late)
	awaitExporters(t, late, kept.Key, "cls1")
	awaitExporters(t, late, withdrawn.Key, "")
}

// watchExporters looks at a key until it is asked what it was besides want.
func watchExporters(t *testing.T, reg registry.Registry, key mcs.Key, want string) (stop func() []string) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []string)
	go func() {
		var others []string
		for ctx.Err() == nil {
			if got := exporters(reg, key); got != want && !slices.Contains(others, got) {
				others = append(others, got)
			}
			time.Sleep(time.Millisecond)
		}
		done <- others
	}()
	return func() []string { cancel(); return <-done }
}
