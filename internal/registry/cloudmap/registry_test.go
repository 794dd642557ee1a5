package cloudmap

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

const patience = 10 * time.Second

// running starts a registry with short intervals.
func running(t *testing.T, c *cloud, identity mcs.Identity) (reg *Registry, stop func(error)) {
	t.Helper()
	reg = c.registry(t, fast(identity))
	return reg, start(t, reg)
}

func TestNewRefuses(t *testing.T) {
	for name, identity := range map[string]mcs.Identity{
		"cluster ID":    {ClusterID: "Not_A_Label", ClusterSetID: "set1", UID: "uid"},
		"clusterset ID": {ClusterID: "cls1", ClusterSetID: "a.b", UID: "uid"},
		"UID":           {ClusterID: "cls1", ClusterSetID: "set1"},
	} {
		if _, err := New(nil, defaultConfig(identity)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a bad %s: error %v, want one that names it", name, err)
		}
	}
	for name, unset := range map[string]func(*Config){
		"PollInterval":                  func(cfg *Config) { cfg.PollInterval = 0 },
		"PollIntervalWithNotifications": func(cfg *Config) { cfg.PollIntervalWithNotifications = 0 },
		"HeartbeatInterval":             func(cfg *Config) { cfg.HeartbeatInterval = 0 },
		"StaleAfter":                    func(cfg *Config) { cfg.StaleAfter = 0 },
		"InstancesPerNamespace":         func(cfg *Config) { cfg.InstancesPerNamespace = 0 },
	} {
		cfg := defaultConfig(cls1)
		unset(&cfg)
		if _, err := New(nil, cfg); err == nil || !strings.Contains(err.Error(), name+" must be set") {
			t.Errorf("without %s: error %v, want one that names it", name, err)
		}
	}
}

// TestDiedBeforeAnnouncing is a controller that ended between the write of a page and that of its
// record.
func TestDiedBeforeAnnouncing(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, stop := running(t, c, cls1)
	publish(t, a, webExport("cls1", 0, 1))
	within(t, patience, "the export is confirmed", isExported(t, a, webKey(0)))
	stop(nil)
	last := c.instances(t, "mcs.set1", format.MembersService)["cls1"]
	generation, err := strconv.ParseInt(last[format.AttrGeneration], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	newest := webExport("cls1", 0, 2)
	data, err := record.Encode([]mcs.Export{registry.Published(newest)})
	if err != nil {
		t.Fatal(err)
	}
	parts, err := format.SplitPage(cls1, signerOf(cls1.UID), format.PageOf(newest.Key), generation+1, data)
	if err != nil {
		t.Fatal(err)
	}
	c.put(t, "mcs.set1", "catalog.cls1", parts[0])

	b, _ := running(t, c, cls2)
	again, _ := running(t, c, cls1)
	within(t, patience, "the page that was not announced counts", sees(t, b, newest))
	within(t, patience, "it is confirmed", isExported(t, again, webKey(0)))
}

// TestLeftoverParts are parts of a page that is no longer announced.
func TestLeftoverParts(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	_, stop := running(t, c, cls1)
	// Without a record, parts count as the pages of a process whose record is lost, and stay for a
	// minute.
	within(t, patience, "cls1 is a member", func() bool { return len(c.instances(t, "mcs.set1", format.MembersService)) == 1 })
	stop(nil)
	parts, err := format.SplitPage(cls1, signerOf(cls1.UID), 5, 1, noise(9000))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range parts {
		c.put(t, "mcs.set1", "catalog.cls1", part)
	}
	foreign := api.Instance{ID: "another-writer", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1"}}
	c.put(t, "mcs.set1", "catalog.cls1", foreign)
	running(t, c, cls1)
	within(t, patience, "the parts are gone", func() bool {
		left := c.instances(t, "mcs.set1", "catalog.cls1")
		return len(left) == 2 && left["another-writer"] != nil && left[format.CopyID] != nil
	})
}

// TestTwinsStartAtOnce has two clusters with one ID that find no cluster there: one stays, the
// other gets.
func TestTwinsStartAtOnce(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	twin := cls1
	twin.UID = "uid-of-the-twin"
	// Sealed, as by default: the watcher may read a record of the loser first, whose key it pins.
	// The catalog proves the winner's once that key is silent.
	in, err := c.client.CreateNamespace(t.Context(), "mcs.set1", cls1, api.PartControl)
	if err != nil {
		t.Fatal(err)
	}
	catalog, err := c.client.CreateService(t.Context(), in, format.CatalogName("cls1"), cls1, api.PartCatalog)
	if err != nil {
		t.Fatal(err)
	}
	sealCatalog(t, c.sdk("admin"), catalog, "cls1")
	watching := fast(cls2)
	watching.StaleAfter = time.Second
	watcher := c.registry(t, watching)
	start(t, watcher)
	regs := map[string]*Registry{}
	stops := map[string]func(error){}
	for i, identity := range []mcs.Identity{cls1, twin} {
		cfg := fast(identity)
		cfg.StaleAfter = time.Second
		reg := c.registry(t, cfg)
		publish(t, reg, webExport("cls1", i, 1))
		regs[identity.UID] = reg
		stops[identity.UID] = start(t, reg)
	}
	exported := func(uid string, i int) bool { return look(t, regs[uid], webKey(i)).Local.State == registry.Exported }
	reported := func(uid string, i int) bool {
		var duplicate *registry.DuplicateIDError
		return errors.As(look(t, regs[uid], webKey(i)).Local.Err, &duplicate)
	}
	winner, loser, lost := "", "", 0
	within(t, patience, "one exports and the other gets", func() bool {
		switch {
		case exported(cls1.UID, 0) && reported(twin.UID, 1):
			winner, loser, lost = cls1.UID, twin.UID, 1
		case exported(twin.UID, 1) && reported(cls1.UID, 0):
			winner, loser, lost = twin.UID, cls1.UID, 0
		}
		return winner != ""
	})
	within(t, patience, "the winner's export is seen", sees(t, watcher, webExport("cls1", 1-lost, 1)))
	within(t, patience, "the loser's is not", func() bool { return len(look(t, watcher, webKey(lost)).Exports()) == 0 })

	// The winner stops without leaving: when it is stale the other takes over. It signs no existing
	// record, and its own records count, because the catalog proves its key.
	stops[winner](nil)
	within(t, patience, "the other takes over", func() bool { return exported(loser, lost) })
	within(t, patience, "its export is seen", sees(t, watcher, webExport("cls1", lost, 1)))
	within(t, patience, "the export of the dead twin ends", func() bool { return len(look(t, watcher, webKey(1-lost)).Exports()) == 0 })
}

// TestWriteIsLost is a write that AWS accepts and does not carry out.
func TestWriteIsLost(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, _ := running(t, c, cls1)
	publish(t, a, webExport("cls1", 0, 1))
	within(t, patience, "the export is confirmed", isExported(t, a, webKey(0)))
	c.lost.Store(1)
	publish(t, a, webExport("cls1", 0, 2))
	within(t, patience, "the write is lost", func() bool { return c.lost.Load() <= 0 })
	if state := look(t, a, webKey(0)).Local.State; state != registry.Pending {
		t.Errorf("the publication is %v though its write was lost, want Pending", state)
	}
	within(t, patience, "it is written again", isExported(t, a, webKey(0)))
}

func TestWritesAreDenied(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, _ := running(t, c, cls1)
	b, _ := running(t, c, cls2)
	publish(t, a, webExport("cls1", 0, 1))
	within(t, patience, "the export is seen", sees(t, b, webExport("cls1", 0, 1)))
	c.denied.Store(true)
	publish(t, b, webExport("cls2", 0, 1))
	within(t, patience, "the user gets what to do", func() bool {
		own := look(t, b, webKey(0)).Local
		return own.State == registry.Pending && own.Err != nil && strings.Contains(own.Err.Error(), "servicediscovery:RegisterInstance")
	})
	if !sees(t, b, webExport("cls1", 0, 1))() {
		t.Error("an import went away because writes are denied")
	}
	c.denied.Store(false)
	within(t, patience, "the export is seen", sees(t, a, webExport("cls2", 0, 1)))
}

// TestNamespaceVanishes deletes everything under the controllers.
func TestNamespaceVanishes(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, _ := viewing(t, c, cls1)
	b, _ := running(t, c, cls2)
	publish(t, a, webExport("cls1", 0, 1))
	within(t, patience, "the export is seen", sees(t, b, webExport("cls1", 0, 1)))
	within(t, patience, "the instance is there", func() bool { return len(c.instances(t, "demo", "web-0")) == 1 })

	fresh, err := cloudmaplocal.New(cloudmaplocal.Options{Unthrottled: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = fresh.Close() })
	c.replace(fresh)
	publish(t, a, webExport("cls1", 1, 1))
	within(t, patience, "the next export is seen", sees(t, b, webExport("cls1", 1, 1)))
	if !sees(t, b, webExport("cls1", 0, 1))() {
		t.Error("an import went away because the registry lost everything")
	}
	late, _ := running(t, c, mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: "uid-3"})
	within(t, patience, "everything is there again", sees(t, late, webExport("cls1", 0, 1)))
	within(t, patience, "the instance is there again", func() bool { return len(c.instances(t, "demo", "web-0")) == 1 })
}

func TestTooLarge(t *testing.T) {
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	a, _ := running(t, c, cls1)
	fat := webExport("cls1", 0, 1)
	fat.Annotations = map[string]string{"example.com/fat": strings.Repeat("x", record.MaxExportBytes)}
	var invalid *registry.InvalidExportError
	if err := a.Publish(t.Context(), fat); !errors.As(err, &invalid) {
		t.Errorf("error %v, want an InvalidExportError", err)
	}
}
