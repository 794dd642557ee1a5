package cloudmap

import (
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// sealsOf returns the seals that a registry shows, by cluster; nil before its first read.
func sealsOf(t *testing.T, reg *Registry) map[string]registry.Seal {
	t.Helper()
	members, err := reg.Members(t.Context())
	if err != nil {
		return nil
	}
	seals := map[string]registry.Seal{}
	for _, m := range members {
		seals[m.ClusterID] = m.Seal
	}
	return seals
}

// TestSealIsShown: each cluster shows which catalogs are sealed soon after it has joined, also when
// nothing else is wrong, and at most ten minutes after an administrator has sealed them. It makes
// six requests an hour for it while one is not sealed, and none in the hours after that.
func TestSealIsShown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		seldom := func(cfg *Config) {
			cfg.PollInterval, cfg.PollIntervalWithNotifications = 10*time.Second, 10*time.Second
		} // virtual hours cost CPU time
		a, b := w.begin(cls1, nil, seldom), w.begin(cls2, nil, seldom)
		shown := func(cls1, cls2 registry.Seal) func() bool {
			return func() bool {
				for _, reg := range []*Registry{a.Registry, b.Registry} {
					if seals := sealsOf(t, reg); seals["cls1"] != cls1 || seals["cls2"] != cls2 {
						return false
					}
				}
				return true
			}
		}
		during := func(what string, tags int) {
			before := w.count()
			time.Sleep(time.Hour)
			after := w.count()
			for operation, want := range map[string]int{"ListTagsForResource": tags, "ListServices": 0, "ListNamespaces": 0} {
				if n := after[operation] - before[operation]; n < want-2 || n > want+2 {
					t.Errorf("%d requests %s of two clusters in an hour while %s, want %d", n, operation, what, want)
				}
			}
		}
		w.until(time.Minute, "both are shown as not sealed", shown(registry.Unsealed, registry.Unsealed))
		during("they are not sealed", 12)
		w.seal("cls1")
		w.seal("cls2")
		w.until(11*time.Minute, "both are shown as sealed", shown(registry.Sealed, registry.Sealed))
		during("both are sealed", 0)
		a.kill()
		b.kill()
	})
}

// TestCatalogFinder_RemembersFailures: a list of the services that fails is not repeated by each
// search, and neither is one that does not have the catalog.
func TestCatalogFinder_RemembersFailures(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		a := w.begin(cls1, nil)
		w.until(time.Minute, "it is a member", func() bool { return joined(a.Registry) })
		a.kill()
		client, _ := w.client("admin")
		namespaces, err := client.ListNamespaces(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		finder := &catalogFinder{components: &components{client: client}}
		lists := func(name string, searches int, want bool) int {
			before := w.count()["ListServices"]
			for range searches {
				s, err := finder.find(t.Context(), namespaces[format.ControlNamespace("set1")], name, time.Hour, time.Minute)
				if found := err == nil && s.Name == name; found != want {
					t.Errorf("found %t, error %v, want %t", found, err, want)
				}
				time.Sleep(time.Second)
			}
			return w.count()["ListServices"] - before
		}
		catalog := format.CatalogName("cls1")
		w.setIntercept(func(r request) (code, body string, ok bool) {
			return "AccessDeniedException", "", r.operation == "ListServices"
		})
		if n := lists(catalog, 120, false); n > 2 {
			t.Errorf("%d lists in two minutes in which they fail, want 2", n)
		}
		w.setIntercept(nil)
		time.Sleep(time.Minute)
		if n := lists(catalog, 120, true); n != 1 {
			t.Errorf("%d lists in two minutes for a catalog that exists, want 1", n)
		}
		if n := lists(format.CatalogName("cls9"), 120, false); n > 2 {
			t.Errorf("%d lists in two minutes for a catalog that does not exist, want 2", n)
		}
		finder.forget(catalog)
		time.Sleep(time.Minute)
		if n := lists(catalog, 2, true); n != 1 {
			t.Errorf("%d lists for a catalog whose ARN did not exist, want 1", n)
		}
	})
}
