package attack

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// hostile returns an export of the intruder with a name.
func hostile(name string, edit func(*mcs.Export)) mcs.Export {
	exp := webExport(intruder, 1)
	exp.Key.Name = name
	edit(&exp)
	return exp
}

// exported waits until the reader has the intruder's export of key, and returns it.
func (m *member) exported(key mcs.Key) mcs.Export {
	m.t.Helper()
	until(m.t, time.Minute, key.String()+" of the intruder is imported", func() bool { return m.exportOf(intruder, key) != nil })
	return *m.exportOf(intruder, key)
}

func TestAttack_SensitiveAddresses(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		_, reader, _ := c.start()
		c.infiltrate()
		const harmless = "10.99.0.1"
		c.attack(hostile("addresses", func(e *mcs.Export) {
			e.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
			endpoints := &e.Backends[0].Endpoints
			*endpoints = nil
			for _, address := range []string{
				harmless, "169.254.169.254", "127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "100.100.100.200", "168.63.129.16", "192.0.0.192",
				"::1", "fe80::1", "ff02::1", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe",
				"2002:a9fe:a9fe::1", "::ffff:169.254.169.254", "::169.254.169.254", "::ffff:0:169.254.169.254", "2001::a9fe:a9fe",
				"fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:a9fe:a9fe::1", "fd00:100::100:200", "fec0::1", "192.88.99.1",
			} {
				*endpoints = append(*endpoints, mcs.Endpoint{Address: netip.MustParseAddr(address), Ready: true, Serving: true})
			}
		}))
		exp := reader.exported(mcs.Key{Namespace: "demo", Name: "addresses"})
		if list := exp.Backends[0].Endpoints; len(list) != 1 || list[0].Address.String() != harmless {
			t.Errorf("imported are %v, want %s only", list, harmless)
		}
	})
}

func TestAttack_KeysOfOtherTools(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		_, reader, _ := c.start()
		c.infiltrate()
		keys := map[string]string{"example.com/harmless": "x"}
		for _, key := range []string{
			"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "argocd.argoproj.io/instance", "argocd.argoproj.io/sync-options",
			"kustomize.toolkit.fluxcd.io/name", "meta.helm.sh/release-name", "helm.sh/resource-policy", "applyset.kubernetes.io/part-of",
			"multicluster.k8s.aws/export-times", "kubectl.kubernetes.io/last-applied-configuration", "kapp.k14s.io/app", "cleanup.kyverno.io/ttl",
			"service.kubernetes.io/headless", "external-dns.alpha.kubernetes.io/hostname", "janitor/ttl",
		} {
			keys[key] = "x"
		}
		c.attack(hostile("labels", func(e *mcs.Export) { e.Labels, e.Annotations = keys, keys }))
		exp := reader.exported(mcs.Key{Namespace: "demo", Name: "labels"})
		for _, got := range []map[string]string{exp.Labels, exp.Annotations} {
			if len(got) != 1 || got["example.com/harmless"] != "x" {
				t.Errorf("imported are the keys %v, want the harmless one only", got)
			}
		}
	})
}

func TestAttack_ImpossibleTimes(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		_, reader, web := c.start()
		c.infiltrate()
		times := map[string]time.Time{
			"year-1": time.Unix(1, 0), "year-1970": time.Unix(0, 0), "year-2019": time.Date(2019, 12, 31, 0, 0, 0, 0, time.UTC),
			"year-10000": time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), "latest": time.Unix(1<<62, 0), "valid": time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC),
		}
		var exports []mcs.Export
		for name, created := range times {
			exports = append(exports, hostile(name, func(e *mcs.Export) { e.Created, e.Changed = created, created }))
		}
		c.attack(exports...)
		for name := range times {
			exp := reader.exported(mcs.Key{Namespace: "demo", Name: name})
			if isKept := !exp.Created.IsZero(); isKept != (name == "valid") {
				t.Errorf("%s is imported with creation time %v", name, exp.Created)
			}
		}
		if !reader.sees(web)() {
			t.Error("the export of the victim is not imported")
		}
	})
}

func TestAttack_DecompressionBomb(t *testing.T) {
	inCloud(t, cloudOptions{alone: true}, func(t *testing.T, c *cloud) {
		exporter, reader, _ := c.start()
		c.infiltrate()
		encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		const size = 512 << 20
		bomb := encoder.EncodeAll(make([]byte, size), []byte{record.Major, record.Minor})
		if len(bomb) > 100<<10 {
			t.Fatalf("the bomb has %d bytes", len(bomb))
		}
		pages := map[int][]byte{}
		for page := range 8 {
			pages[page] = bomb
		}
		changed := webExport(victim, 3)
		peak := registrytest.HeapPeak(func() {
			c.writePages(c.attacker(), intruder, c.signer(intruder), pages)
			until(t, time.Minute, "the bomb is reported", func() bool {
				return strings.Contains(strings.Join(reader.problemsOf(intruder), "\n"), "decompressing")
			})
			exporter.publish(changed)
			until(t, time.Minute, "a change of the victim is imported", reader.sees(changed))
		})
		if peak > 128<<20 {
			t.Errorf("the heap grew by %d MiB, want far less than the %d MiB of each of 8 pages", peak>>20, size>>20)
		}
	})
}

// withBudgets gives a cluster the default budgets.
func withBudgets(ledger *budget.Ledger) func(*cloudmap.Config) {
	return func(cfg *cloudmap.Config) { cfg.Ledger = ledger }
}

// overBudget has the intruder write exports that exceed a budget. A cluster with budgets keeps the
// exports of others and reports the intruder; one without budgets, as a control, imports
// everything.
func overBudget(t *testing.T, kind budget.Kind, exports []mcs.Export) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, open, web := c.start()
		c.infiltrate()
		ledger := budget.NewLedger(config.Default().Budgets.Limits)
		bounded := c.join(newcomer, withBudgets(ledger))
		until(t, time.Minute, "the export of the victim is imported", bounded.sees(web))
		c.attack(exports...)
		until(t, 5*time.Minute, "the intruder is over its budget", func() bool { return slices.ContainsFunc(bounded.problemsOf(intruder), registry.IsOverBudget) })
		limits := config.Default().Budgets.Limits
		if used := ledger.Usage().Member[kind]; used > limits.Member[kind] {
			t.Errorf("%d %s are used, want at most %d", used, kind, limits.Member[kind])
		}
		changed := webExport(victim, 3)
		exporter.publish(changed)
		until(t, time.Minute, "a change of the victim is imported", bounded.sees(changed))
		missing := func(m *member) (n int) {
			for _, exp := range exports {
				if m.exportOf(intruder, exp.Key) == nil {
					n++
				}
			}
			return n
		}
		if missing(bounded) == 0 {
			t.Error("all exports of the intruder are imported")
		}
		until(t, 5*time.Minute, "a cluster without budgets imports them all", func() bool { return missing(open) == 0 })
	})
}

func TestAttack_PortsTimesEndpoints(t *testing.T) {
	overBudget(t, budget.PortEndpoints, []mcs.Export{wide(mcs.Key{Namespace: "demo", Name: "wide"}, intruder, 500, 1000)})
}

func TestAttack_ThousandsOfExports(t *testing.T) {
	var exports []mcs.Export
	for i := range config.Default().Budgets.Member[budget.Exports] + 500 {
		exports = append(exports, hostile(fmt.Sprint("svc-", i), func(*mcs.Export) {}))
	}
	overBudget(t, budget.Exports, exports)
}

func TestAttack_ExportsOfUnwantedNamespaces(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		c.join(victim)
		ledger := budget.NewLedger(config.Default().Budgets.Limits)
		isWanted := func(namespace string) bool { return namespace == "demo" }
		reader := c.join(importer, withBudgets(ledger), func(cfg *cloudmap.Config) { cfg.Wanted = isWanted })
		time.Sleep(20 * time.Second)
		c.infiltrate()
		until(t, time.Minute, "the intruder is a member", func() bool { return ledger.Usage().Total[budget.Exports] == 1 })
		exports := []mcs.Export{hostile("wanted", func(*mcs.Export) {})}
		for i := range 500 {
			exports = append(exports, hostile(fmt.Sprint("svc-", i), func(e *mcs.Export) { e.Key.Namespace = fmt.Sprint("elsewhere-", i) }))
		}
		c.attack(exports...)
		reader.exported(exports[0].Key)
		until(t, time.Minute, "only wanted exports cost anything", func() bool { return ledger.Usage().Total[budget.Exports] <= 2 })
		view := reader.view(exports[1].Key)
		if len(view.Exports()) > 0 || view.Clusters[intruder].State != registry.Ignored {
			t.Errorf("the view of an unwanted export is %+v, want it ignored", view)
		}
	})
}

func TestAttack_PageOfForeignNames(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		_, reader, web := c.start()
		c.infiltrate()
		// Its own page may name any service, and any page; the export stays its own.
		impostor := webExport(intruder, 1)
		impostor.Cluster = victim
		data, err := record.Encode([]mcs.Export{registry.Published(impostor)})
		if err != nil {
			t.Fatal(err)
		}
		right := format.PageOf(impostor.Key)
		c.writePages(c.attacker(), intruder, c.signer(intruder), map[int][]byte{right: data, (right + 1) % format.PageCount: data})
		got := reader.exported(impostor.Key)
		if got.Cluster != intruder || !reader.sees(web)() {
			t.Errorf("imported as an export of %s, that of the victim: %t", got.Cluster, reader.sees(web)())
		}
		if n := len(reader.view(impostor.Key).Exports()); n != 2 {
			t.Errorf("%d exports of the service, want one of each cluster", n)
		}
	})
}

// wide returns an export with ports times endpoints.
func wide(key mcs.Key, cluster string, ports int32, endpoints int) mcs.Export {
	e := webExport(cluster, 1)
	e.Key = key
	e.Ports, e.Backends[0].Ports, e.Backends[0].Endpoints = nil, nil, nil
	for i := range ports {
		name := fmt.Sprint("p", i)
		e.Ports = append(e.Ports, mcs.Port{Name: name, Protocol: corev1.ProtocolTCP, Port: 1000 + i})
		e.Backends[0].Ports = append(e.Backends[0].Ports, mcs.BackendPort{Name: name, Protocol: corev1.ProtocolTCP, Port: 1000 + i})
	}
	for i := range endpoints {
		address := netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
		e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, mcs.Endpoint{Address: address, Ready: true, Serving: true})
	}
	return e
}

// fill publishes exports that use up all port-endpoints of a member, the large ones first and small
// ones for each gap. It returns the last one.
func (m *member) fill(cluster string, namespace func(i int) string) (last mcs.Export) {
	n := 0
	add := func(count int, ports int32, endpoints int) {
		for range count {
			last = wide(mcs.Key{Namespace: namespace(n), Name: fmt.Sprint(cluster, "-", n)}, cluster, ports, endpoints)
			m.publish(last)
			n++
		}
		time.Sleep(10 * time.Second)
	}
	add(10, 500, 20) // with fewer endpoints, the budget of ports would be used up first
	add(10, 50, 20)
	add(10, 5, 20)
	add(10, 1, 10)
	add(20, 1, 1)
	return last
}

func TestAttack_BudgetOfTheCluster(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, open, web := c.start()
		bounded := c.join(newcomer, withBudgets(budget.NewLedger(config.Default().Budgets.Limits)))
		until(t, time.Minute, "the export of the neighbour is imported", bounded.sees(web))
		last := exporter.fill(victim, func(int) string { return "tenant" })
		until(t, 5*time.Minute, "a cluster without budgets imports what the tenant exports", open.sees(last))
		until(t, time.Minute, "the tenant is over its share", func() bool { return slices.ContainsFunc(bounded.problemsOf(victim), registry.IsOverBudget) })
		changed := webExport(victim, 30)
		exporter.publish(changed)
		until(t, time.Minute, "the neighbour's Service grows", bounded.sees(changed))
		another := webExport(victim, 5)
		another.Key.Namespace = "third"
		exporter.publish(another)
		until(t, time.Minute, "a third namespace begins to export", bounded.sees(another))
	})
}

func TestAttack_TotalBudget(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, open, web := c.start()
		ledger := budget.NewLedger(config.Default().Budgets.Limits)
		bounded := c.join(newcomer, withBudgets(ledger))
		until(t, time.Minute, "the export of the victim is imported", bounded.sees(web))
		limits := config.Default().Budgets.Limits
		var last mcs.Export
		for i := range 1 + limits.Total[budget.PortEndpoints]/limits.Member[budget.PortEndpoints] {
			id := fmt.Sprint("cls", 10+i)
			last = c.joinAs(admin, identityOf(id)).fill(id, func(i int) string { return fmt.Sprint("ns-", i%10) })
		}
		until(t, 5*time.Minute, "a cluster without budgets imports what they export", open.sees(last))
		isOver := func(m registry.Member) bool {
			return slices.ContainsFunc(m.Problems, func(p string) bool {
				return registry.IsOverBudget(p) && strings.Contains(p, "for all clusters (--budget-scale)")
			})
		}
		until(t, 5*time.Minute, "a member is over the budget of all", func() bool {
			members, err := bounded.Members(t.Context())
			return err == nil && slices.ContainsFunc(members, isOver)
		})
		for kind, used := range ledger.Usage().Total {
			if used > limits.Total[kind] {
				t.Errorf("%d %s are used, want at most %d", used, budget.Kind(kind), limits.Total[kind])
			}
		}
		changed := webExport(victim, 30)
		exporter.publish(changed)
		until(t, time.Minute, "the victim's Service grows", bounded.sees(changed))
		another := webExport(victim, 5)
		another.Key.Name = "another"
		exporter.publish(another)
		until(t, time.Minute, "a new export of the victim is imported", bounded.sees(another))
	})
}

func TestAttack_InventedClusters(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		exporter, open, web := c.start()
		limits := config.Default().Budgets.Limits
		limits.Member[budget.Exports], limits.Total[budget.Exports] = 40, 160
		ledger := budget.NewLedger(limits)
		bounded := c.join(newcomer, withBudgets(ledger))
		until(t, time.Minute, "the export of the victim is imported", bounded.sees(web))
		time.Sleep(20 * time.Second)
		var last mcs.Export
		for i := range 60 {
			id := fmt.Sprint("cls", 100+i)
			var exports []mcs.Export
			for j := range 4 {
				last = webExport(id, 1)
				last.Key = mcs.Key{Namespace: fmt.Sprint("ns-", j), Name: id}
				exports = append(exports, last)
			}
			c.invent(id, exports...)
		}
		until(t, 5*time.Minute, "a cluster without budgets imports what they export", open.sees(last))
		until(t, 5*time.Minute, "they are over the budget of all", func() bool { return ledger.Usage().Excess > 60 && ledger.Usage().Total[budget.Exports] > 140 })
		for n := range 4 {
			another := webExport(victim, 1)
			another.Key.Name = fmt.Sprint("another-", n)
			exporter.publish(another)
			until(t, time.Minute, "a new export of the victim is imported", bounded.sees(another))
		}
	})
}

func TestAttack_NamesInUnicode(t *testing.T) {
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		_, reader, web := c.start()
		c.infiltrate()
		// turns the direction of text
		const override = "\u202e"
		// the first has a Cyrillic letter
		names := []string{"wеb", "web" + override, "web\u200b", "WEB", "web/../web", "web\n", strings.Repeat("a", 4096), ""}
		var exports []mcs.Export
		for _, name := range names {
			exports = append(exports, hostile(name, func(*mcs.Export) {}), hostile("harmless", func(e *mcs.Export) { e.Key.Namespace = name }))
		}
		keys := map[string]string{"team": "x", strings.Repeat("k", 4096): "x", "example.com/" + override: "x", "tеam": "x", "a/b/c": "x"}
		values := map[string]string{"long": strings.Repeat("v", 4096), "override": override, "control": "\x1b[2J", "valid": "v"}
		exports = append(exports, hostile("keys", func(e *mcs.Export) { e.Labels, e.Annotations = keys, keys }), hostile("values", func(e *mcs.Export) { e.Labels = values }))
		c.attack(exports...)
		// control: the rest of these exports
		for name, want := range map[string]map[string]string{"keys": {"team": "x"}, "values": {"valid": "v"}} {
			exp := reader.exported(mcs.Key{Namespace: "demo", Name: name})
			if !maps.Equal(exp.Labels, want) {
				t.Errorf("%s: labels %q are imported, want %v", name, exp.Labels, want)
			}
			if name == "keys" && !maps.Equal(exp.Annotations, want) {
				t.Errorf("annotations %q are imported, want %v", exp.Annotations, want)
			}
		}
		for _, exp := range exports[:2*len(names)] {
			if reader.exportOf(intruder, exp.Key) != nil {
				t.Errorf("%q is imported", exp.Key.String())
			}
		}
		if !reader.sees(web)() {
			t.Error("the export of the victim is not imported")
		}
	})
}

func TestAttack_ClaimedProperties(t *testing.T) {
	const region = "eu-central-1"
	preferred, err := mcs.PreferSameRegion.Selectors()
	if err != nil {
		t.Fatal(err)
	}
	inCloud(t, cloudOptions{}, func(t *testing.T, c *cloud) {
		_, reader, web := c.start()
		c.infiltrate()
		claim := func(properties string) mcs.Properties {
			r := c.recordOf(intruder)
			r.Heartbeat += 10_000
			instance := r.Instance(c.signer(intruder))
			instance.Attributes[format.AttrProperties] = properties
			c.write(c.attacker(), c.members(), format.Sign(instance, c.signer(intruder)))
			time.Sleep(30 * time.Second)
			members, _ := reader.Members(t.Context())
			for _, m := range members {
				if m.ClusterID == intruder {
					return m.Properties
				}
			}
			t.Fatal("the intruder is not a member")
			return nil
		}
		for what, properties := range map[string]string{
			"ID of the importer":  `{"cluster.clusterset.k8s.io":"` + importer + `","region.topology.k8s.io":"` + region + `"}`,
			"another clusterset":  `{"clusterset.k8s.io":"other"}`,
			"1,001 bytes":         `{"region.topology.k8s.io":"` + strings.Repeat("x", 1001-len(`{"region.topology.k8s.io":""}`)) + `"}`,
			"two values":          `{"region.topology.k8s.io":"a","region.topology.k8s.io":"` + region + `"}`,
			"a name that is none": `{"region.topology.k8s.io\u202e":"` + region + `"}`,
		} {
			if got := claim(properties); len(got) > 0 {
				t.Errorf("%s: the properties %v count", what, got)
			}
		}
		// Control: a Region counts, because each cluster claims its own Region.
		got := claim(`{"region.topology.k8s.io":"` + region + `"}`)
		tiers := preferred.Tiers(mcs.Properties{mcs.PropertyRegion: region}.OfCluster(importer, clusterSet), map[string]mcs.Properties{
			victim: mcs.Properties{}.OfCluster(victim, clusterSet), intruder: got.OfCluster(intruder, clusterSet),
		})
		if len(tiers) != 2 || len(tiers[0].Clusters) > 0 || !slices.Equal(tiers[1].Clusters, []string{intruder}) {
			t.Errorf("the importer prefers %+v, want the intruder by its Region only", tiers)
		}
		one := strings.Trim(string(preferred), "[]")
		tooMany := "[" + strings.Repeat(one+",", 8) + one + "]" // 18 selectors
		c.attack(hostile("selectors", func(e *mcs.Export) { e.ClusterSelectors = mcs.ClusterSelectors(tooMany) }), hostile("preferring", func(e *mcs.Export) { e.ClusterSelectors = preferred }))
		for name, want := range map[string]mcs.ClusterSelectors{"selectors": "", "preferring": preferred} {
			if exp := reader.exported(mcs.Key{Namespace: "demo", Name: name}); exp.ClusterSelectors != want {
				t.Errorf("%s is imported with the selectors %s", name, exp.ClusterSelectors)
			}
		}
		if !reader.sees(web)() {
			t.Error("the export of the victim is not imported")
		}
	})
}
