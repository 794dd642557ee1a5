package cloudmap

import (
	"context"
	"errors"
	"maps"
	"slices"
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
)

// deleteAll removes every instance of services of mcs.set1, and with them the services and the
// namespace if all is set. Clusters that are alive may write in between: then it begins again.
func (v *otherWriter) deleteAll(all bool, services ...string) {
	t := v.simulation.t
	t.Helper()
	admin, _ := v.simulation.clientAt("admin", unlimitedRates())
	const attempts = 20
	for attempt := range attempts {
		err := deleteAllOnce(t.Context(), admin, all, services)
		if err == nil {
			return
		}
		if !api.IsInUse(err) || attempt == attempts-1 {
			t.Fatal(err)
		}
	}
}

func deleteAllOnce(ctx context.Context, admin *api.Client, all bool, services []string) error {
	namespaces, err := admin.ListNamespaces(ctx)
	if err != nil {
		return err
	}
	found, err := admin.ListServices(ctx, namespaces["mcs.set1"])
	if err != nil {
		return err
	}
	for name, s := range found {
		if !all && !slices.Contains(services, name) {
			continue
		}
		listed, err := admin.ListInstances(ctx, s)
		if err != nil {
			return err
		}
		for _, instance := range listed {
			if err := admin.DeregisterInstance(ctx, s.ID, instance.ID); err != nil {
				return err
			}
		}
		if !all {
			continue
		}
		if err := admin.DeleteService(ctx, s); err != nil {
			return err
		}
	}
	if !all {
		return nil
	}
	return admin.DeleteNamespace(ctx, namespaces["mcs.set1"])
}

// forge writes a record with cls1's ID as cls2 could, after change.
func (v *otherWriter) forge(change func(*format.Member)) {
	t := v.simulation.t
	t.Helper()
	admin, members := v.service(format.MembersService)
	records, err := admin.ListInstances(t.Context(), members)
	if err != nil {
		t.Fatal(err)
	}
	record, err := format.ParseMember(records[slices.IndexFunc(records, func(i api.Instance) bool { return i.ID == "cls1" })], "set1")
	if err != nil {
		t.Fatal(err)
	}
	change(&record)
	if _, err := admin.RegisterInstance(t.Context(), members.ID, record.Instance(signerOf(cls2.UID))); err != nil {
		t.Fatal(err)
	}
}

// openOptions returns the options of a Cloud Map in which each access key may do everything.
func openOptions(*testing.T) cloudmaplocal.Options {
	return cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond), Now: time.Now}
}

// guardedOptions returns the options of a Cloud Map in which each cluster has the policies of
// deploy/iam, with conditions on tags: a resource that does not exist is denied and not missing.
func guardedOptions(t *testing.T) cloudmaplocal.Options {
	options := openOptions(t)
	options.AccessKeys = []cloudmaplocal.AccessKey{{ID: "admin"}}
	for _, id := range []string{"cls1", "cls2", "cls3"} {
		policies := policyOf(t, mcs.Identity{ClusterID: id, ClusterSetID: "set1"}, viewPolicies)
		options.AccessKeys = append(options.AccessKeys, cloudmaplocal.AccessKey{ID: id, User: id, Policies: policies})
	}
	return options
}

// survival is a fault that ended imports once.
type survival struct {
	fault func(v *otherWriter, options cloudmaplocal.Options)
	// patience is the time limit until the registry has everything again.
	patience time.Duration
	// onlyWithoutIAM is set if the fault is not one that depends on IAM.
	onlyWithoutIAM bool
}

// TestSurvival does what ended imports once: the imports of the other cluster stay all the while,
// also when that cluster restarts, and everything is in the registry again by itself.
func TestSurvival(t *testing.T) {
	deleteAll := func(all bool, services ...string) func(*otherWriter, cloudmaplocal.Options) {
		return func(v *otherWriter, _ cloudmaplocal.Options) { v.deleteAll(all, services...) }
	}
	forge := func(change func(*format.Member)) func(*otherWriter, cloudmaplocal.Options) {
		return func(v *otherWriter, _ cloudmaplocal.Options) { v.forge(change) }
	}
	empty := func(v *otherWriter, options cloudmaplocal.Options) {
		server, err := cloudmaplocal.New(options)
		if err != nil {
			v.simulation.t.Fatal(err)
		}
		v.simulation.setServer(server)
	}
	tests := map[string]survival{
		"record deleted": {
			fault: func(v *otherWriter, _ cloudmaplocal.Options) { v.drop(format.MembersService, "cls1") }, patience: 20 * time.Second,
		},
		"all records deleted":      {fault: deleteAll(false, format.MembersService), patience: 20 * time.Second},
		"pages deleted":            {fault: deleteAll(false, "catalog.cls1"), patience: 3 * time.Minute},
		"record and pages deleted": {fault: deleteAll(false, format.MembersService, "catalog.cls1"), patience: 3 * time.Minute},
		"namespace deleted":        {fault: deleteAll(true), patience: time.Minute},
		"registry restarted empty": {fault: empty, patience: time.Minute},
		"forged record, no pages": {fault: forge(func(r *format.Member) {
			r.Pages, r.Generation, r.Heartbeat = format.Digests{}, r.Generation+1e6, r.Heartbeat+1e6
		}), patience: 20 * time.Second, onlyWithoutIAM: true},
		"forged farewell": {fault: forge(func(r *format.Member) {
			r.Pages, r.Farewell, r.Heartbeat = format.Digests{}, true, r.Heartbeat+1e6
		}), patience: 20 * time.Second, onlyWithoutIAM: true},
		"forged record, same pages": {fault: forge(func(r *format.Member) { r.UID = cls2.UID }), patience: 20 * time.Second, onlyWithoutIAM: true},
	}
	for name, tt := range tests {
		for suffix, options := range map[string]func(*testing.T) cloudmaplocal.Options{"": openOptions, ", under the shipped IAM policies": guardedOptions} {
			if tt.onlyWithoutIAM && suffix != "" {
				continue
			}
			t.Run(name+suffix, func(t *testing.T) {
				inBubble(t, func(t *testing.T) { tt.run(t, options(t), false) })
			})
			t.Run(name+suffix+", and the importer restarts", func(t *testing.T) {
				inBubble(t, func(t *testing.T) { tt.run(t, options(t), true) })
			})
		}
	}
}

// run exports, lets the fault happen, and with restarts the importer restart meanwhile.
func (s survival) run(t *testing.T, options cloudmaplocal.Options, restarts bool) {
	w := newSimulation(t, 0, options)
	v := &otherWriter{simulation: w}
	exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
	var exports []mcs.Export
	for i := range 20 {
		exports = append(exports, webExport("cls1", i, 1))
		publish(t, exporter.Registry, exports[i])
	}
	all := func() bool {
		return !slices.ContainsFunc(exports, func(exp mcs.Export) bool { return !sees(t, importer.Registry, exp)() })
	}
	w.until(time.Minute, "all exports are known", all)
	w.until(time.Minute, "all are exported", func() bool { return isExported(t, exporter.Registry, exports[19].Key)() })
	time.Sleep(20 * time.Second)
	if restarts {
		importer.kill()
	}
	s.fault(v, options)
	if restarts {
		importer = w.begin(cls2, nil)
	}
	for began := time.Now(); time.Since(began) < s.patience; time.Sleep(250 * time.Millisecond) {
		for _, exp := range exports {
			view, err := importer.Lookup(t.Context(), exp.Key, "cls1")
			if errors.Is(err, registry.ErrNotSynced) {
				continue
			}
			if known := exportOf(view, "cls1") != nil || view.Clusters["cls1"].State == registry.Unknown || view.Clusters["cls1"].State == registry.Unseen; !known || len(view.WithLiveness(registry.Stale)) > 0 {
				t.Fatalf("after %v %s is known: %v, stale: %v", time.Since(began), exp.Key, known, view.WithLiveness(registry.Stale))
			}
		}
	}
	if !all() {
		t.Errorf("after %v not all exports are known", s.patience)
	}
	// A cluster that joins now knows everything.
	third := w.begin(mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: "uid-3"}, nil)
	importer = third
	w.until(time.Minute, "a cluster that joins knows all exports", all)
	w.until(time.Minute, "the exporter has all confirmed", isExported(t, exporter.Registry, exports[0].Key))
	changed := webExport("cls1", 0, 2)
	publish(t, exporter.Registry, changed)
	w.until(10*time.Second, "a change is propagated", sees(t, third.Registry, changed))
}

// TestSurvival_ReportsDeletedPages: an export is not exported while an audit has shown that another
// user has deleted its page. Before the audit the report says when the last one was.
func TestSurvival_ReportsDeletedPages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, openOptions(t))
		v := &otherWriter{simulation: w}
		key := webKey(1)
		var mu sync.Mutex
		// the first notification with each state since the pages were deleted
		notified := map[registry.PublishState]time.Time{}
		exporter := w.begin(cls1, func(p *process, k mcs.Key) {
			if k != key {
				return
			}
			view, ok := viewOf(t, p.Registry, key)
			mu.Lock()
			defer mu.Unlock()
			if _, isKnown := notified[view.Local.State]; ok && !isKnown {
				notified[view.Local.State] = time.Now()
			}
		})
		publish(t, exporter.Registry, webExport("cls1", 1, 1))
		w.until(time.Minute, "it is exported", isExported(t, exporter.Registry, key))
		time.Sleep(3 * time.Minute)
		local := func() registry.PublishStatus {
			view, _ := viewOf(t, exporter.Registry, key)
			return view.Local
		}
		audited := exporter.Report().Audited
		if age := time.Since(audited); age > defaultTimes().Audit+2*settings.PollInterval {
			t.Errorf("the last audit was %v ago", age)
		}
		v.deleteAll(false, "catalog.cls1")
		mu.Lock()
		clear(notified)
		mu.Unlock()
		w.until(defaultTimes().Audit+10*time.Second, "an audit shows it", func() bool { return local().State == registry.Pending })
		if now := exporter.Report().Audited; !now.After(audited) {
			t.Errorf("the last audit was at %v, and at %v before", now, audited)
		}
		if err := local().Err; err == nil || !strings.Contains(err.Error(), "another client has deleted") {
			t.Errorf("the reason is %v", err)
		}
		w.until(time.Minute, "it is exported again", func() bool { return local().State == registry.Exported && local().Err == nil })
		mu.Lock()
		defer mu.Unlock()
		if pending, exported := notified[registry.Pending], notified[registry.Exported]; pending.IsZero() || !exported.After(pending) {
			t.Errorf("notified as pending at %v, as exported at %v", pending, exported)
		}
	})
}

// TestSurvival_PagesReturnForNewProcess: pages that another writer removed matter to a process that
// starts. Their cluster writes them again when it sees that process, long before its next audit.
func TestSurvival_PagesReturnForNewProcess(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
		for range 5 {
			time.Sleep(20 * time.Second) // at other times since the last audit
			importer.kill()
			v.deleteAll(false, "catalog.cls1")
			importer = w.begin(cls2, nil)
			w.until(40*time.Second, "the new process knows the export", sees(t, importer.Registry, exp))
		}
	})
}

// TestSurvival_RecordKeptOverwritten: another member overwrites the record of cls1 again and again.
// The copy in the catalog keeps cls1 alive, and changes arrive by it.
func TestSurvival_RecordKeptOverwritten(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
		admin, members := v.service(format.MembersService)
		forged := format.Member{ClusterID: "cls1", ClusterSetID: "set1", UID: cls1.UID, Joined: time.Now(), Heartbeat: time.Now().Add(time.Hour).UnixMilli()}
		before := w.count()["RegisterInstance"] + w.count()["RegisterInstance members"]
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			forged.Heartbeat++
			if _, err := admin.RegisterInstance(v.simulation.t.Context(), members.ID, forged.Instance(signerOf(cls2.UID))); err != nil {
				t.Fatal(err)
			}
			view, _ := viewOf(t, importer.Registry, exp.Key)
			if len(view.Exports()) != 1 || len(view.WithLiveness(registry.Stale)) > 0 {
				t.Fatalf("after %v: %d exports, stale %v", time.Since(began), len(view.Exports()), view.WithLiveness(registry.Stale))
			}
			time.Sleep(200 * time.Millisecond)
		}
		writes := w.count()["RegisterInstance"] + w.count()["RegisterInstance members"] - before - 3000
		if writes > 10*60 {
			t.Errorf("the cluster wrote %d times in ten minutes", writes)
		}
		changed := webExport("cls1", 0, 2)
		publish(t, exporter.Registry, changed)
		for began := time.Now(); !sees(t, importer.Registry, changed)(); time.Sleep(200 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatal("a change is not propagated within a minute")
			}
			forged.Heartbeat++
			if _, err := admin.RegisterInstance(v.simulation.t.Context(), members.ID, forged.Instance(signerOf(cls2.UID))); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestSurvival_ForgedRecordIsReported: a forged record that its victim replaces before another
// cluster reads it is reported by the victim.
func TestSurvival_ForgedRecordIsReported(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		victim := w.begin(cls1, nil)
		publish(t, victim.Registry, webExport("cls1", 0, 1))
		w.until(time.Minute, "it is exported", isExported(t, victim.Registry, webKey(0)))
		time.Sleep(time.Minute)
		problem := func() string {
			for _, m := range membersOf(victim.Registry) {
				if i := slices.IndexFunc(m.Problems, registry.IsRefused); m.ClusterID == "cls1" && i >= 0 {
					return m.Problems[i]
				}
			}
			return ""
		}
		for _, forge := range []func(){
			func() { v.forge(func(r *format.Member) { r.Pages, r.Heartbeat = format.Digests{}, r.Heartbeat+1e6 }) },
			func() {
				admin, members := v.service(format.MembersService)
				unsigned := map[string]string{format.AttrClusterID: "cls1"}
				if _, err := admin.RegisterInstance(t.Context(), members.ID, api.Instance{ID: "cls1", Attributes: unsigned}); err != nil {
					t.Fatal(err)
				}
			},
		} {
			if text := problem(); text != "" {
				t.Errorf("before: %s", text)
			}
			forge()
			time.Sleep(30 * time.Second)
			if text := problem(); !strings.Contains(text, "s ago") {
				t.Errorf("after 30 s the problem is %q, want the refused record with its age", text)
			}
			time.Sleep(2 * time.Hour)
		}
		if text := problem(); text != "" {
			t.Errorf("after two hours: %s", text)
		}
		victim.kill()
	})
}

// TestSurvival_ForgedRecordOfNewCluster: a member keeps a forged record under the ID of a cluster
// that is not there yet. The catalog does not show its key, so the cluster joins, and is imported.
// A cluster that is there by its catalog keeps its ID.
func TestSurvival_ForgedRecordOfNewCluster(t *testing.T) {
	for name, isThere := range map[string]bool{"forged": false, "a cluster that is there": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
				v := &otherWriter{simulation: w}
				importer := w.begin(cls2, nil)
				time.Sleep(time.Minute)
				admin, members := v.service(format.MembersService)
				forged := format.Member{
					ClusterID: "cls1", ClusterSetID: "set1", UID: "uid-forged", Process: "1-forged", Joined: time.Now().Add(-time.Hour), Heartbeat: time.Now().UnixMilli(),
				}
				if isThere {
					other := cls1
					other.UID = "uid-other"
					w.beginAs("cls1other", other, nil)
					time.Sleep(time.Minute)
				}
				forge := func() {
					forged.Heartbeat += 10_000
					if _, err := admin.RegisterInstance(v.simulation.t.Context(), members.ID, forged.Instance(signerOf(forged.UID))); err != nil {
						t.Fatal(err)
					}
				}
				forge()
				exporter := w.begin(cls1, nil)
				exp := webExport("cls1", 0, 1)
				publish(t, exporter.Registry, exp)
				isImported := func() bool { return sees(t, importer.Registry, exp)() }
				for began := time.Now(); time.Since(began) < 20*time.Minute && !isImported(); time.Sleep(10 * time.Second) {
					if !isThere {
						forge()
					}
				}
				if got := isImported(); got == isThere {
					t.Errorf("imported: %t, want %t", got, !isThere)
				}
				for range 30 {
					forge()
					time.Sleep(10 * time.Second)
					if got := isImported(); got == isThere {
						t.Fatalf("later imported: %t, want %t", got, !isThere)
					}
				}
			})
		})
	}
}

// TestSurvival_DeadCluster: the record of a dead cluster is deleted. A cluster that restarts knows
// the exports of which there are pages.
func TestSurvival_DeadCluster(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
		exporter.kill()
		v.drop(format.MembersService, "cls1")
		time.Sleep(5 * time.Minute)
		if view, _ := viewOf(t, importer.Registry, exp.Key); len(view.Exports()) != 1 || !slices.Equal(view.WithLiveness(registry.Stale), []string{"cls1"}) {
			t.Errorf("%d exports, stale %v; want the export of a stale cluster", len(view.Exports()), view.WithLiveness(registry.Stale))
		}
		importer.kill()
		importer = w.begin(cls2, nil)
		for range 600 {
			time.Sleep(time.Second)
			view, err := importer.Lookup(t.Context(), exp.Key, "cls1")
			if err == nil && len(view.Exports()) == 0 && len(view.In(registry.Unknown, registry.Unseen)) == 0 {
				t.Fatal("the restarted cluster takes the export for withdrawn")
			}
		}
		importer.Forget("cls1")
		w.until(10*time.Second, "it is saved that the cluster is forgotten", func() bool {
			view, err := importer.Lookup(t.Context(), exp.Key, "cls1")
			return err == nil && len(view.In(registry.Exports, registry.Unknown, registry.Unseen)) == 0
		})
	})
}

// startBehind starts a cluster whose clock was set back, so that it continues after the heartbeats
// that it has saved, and another one that imports from it. A clone continues five minutes later.
func startBehind(w *simulation, first mcs.Export) (exporter, importer *process, began func(*Config)) {
	w.t.Helper()
	joined := time.Now()
	began = func(cfg *Config) { cfg.Joined = joined }
	ahead := w.begin(cls1, nil, func(cfg *Config) { cfg.wall = func() time.Time { return time.Now().Add(time.Hour) } })
	importer = w.begin(cls2, nil)
	publish(w.t, ahead.Registry, first)
	w.until(time.Minute, "the export is known", sees(w.t, importer.Registry, first))
	ahead.kill()
	exporter = w.begin(cls1, nil, began)
	publish(w.t, exporter.Registry, first)
	w.until(time.Minute, "the export is confirmed", isExported(w.t, exporter.Registry, first.Key))
	time.Sleep(20 * time.Second)
	w.ids.copyTo("cls1", "cls1clone")
	return exporter, importer, began
}

// unreadable makes Cloud Map fail for the reads of an access key.
func unreadable(key string) cloudmaplocal.FaultRule {
	return cloudmaplocal.FaultRule{AccessKey: key, Kind: cloudmaplocal.FaultError, Code: "InternalFailure", Operations: []string{"DiscoverInstances"}}
}

// TestSurvival_CloneThatEnds: a clone of a cluster whose clock is behind writes one record and ends
// before the cluster can read it. The cluster finds the copy of that record when it can read again,
// and its records count before it is stale.
func TestSurvival_CloneThatEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		first, second := webExport("cls1", 0, 1), webExport("cls1", 0, 2)
		exporter, importer, began := startBehind(w, first)
		w.plan(1, unreadable("cls1"))
		var wrote atomic.Bool
		w.setWrote(func(r request) {
			if r.cluster == "cls1clone" && r.names(format.AttrHeartbeat) {
				wrote.Store(true)
			}
		})
		clone := w.beginAs("cls1clone", cls1, nil, began)
		publish(t, clone.Registry, first)
		w.until(time.Minute, "the clone writes a record", wrote.Load)
		time.Sleep(2 * time.Second) // the importer reads it
		clone.kill()
		publish(t, exporter.Registry, second)
		time.Sleep(20 * time.Second) // the cluster writes its own record again
		w.plan(1)
		w.until(time.Minute, "a change of the cluster is known", sees(t, importer.Registry, second))
		for range 600 {
			time.Sleep(time.Second)
			if view := look(t, importer.Registry, first.Key); len(view.WithLiveness(registry.Stale)) > 0 {
				t.Fatalf("stale are %v", view.WithLiveness(registry.Stale))
			}
		}
	})
}

// TestSurvival_CloneOfBlindCluster: a cluster whose clock is behind cannot read, and goes on
// writing records that are earlier than those of a clone, which wants one export less. While the
// clone reads such records it withdraws nothing, and when the cluster can read again the clone
// gives way.
func TestSurvival_CloneOfBlindCluster(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		first, second := webExport("cls1", 0, 1), webExport("cls1", 0, 2)
		exporter, importer, began := startBehind(w, first)
		w.plan(1, unreadable("cls1"))
		clone := w.create("cls1clone", cls1, began)
		own := webExport("cls1", 8, 1)
		publish(t, clone.Registry, own)
		clone.run(nil)
		for range 300 {
			time.Sleep(time.Second)
			view := look(t, importer.Registry, first.Key)
			if exportOf(view, "cls1") == nil || len(view.WithLiveness(registry.Stale)) > 0 {
				t.Fatalf("the export of the cluster is %s, stale are %v", describe(exportOf(view, "cls1")), view.WithLiveness(registry.Stale))
			}
		}
		w.plan(1)
		publish(t, exporter.Registry, second)
		w.until(2*time.Minute, "a change of the cluster is known", sees(t, importer.Registry, second))
		var duplicate *registry.DuplicateIDError
		w.until(2*time.Minute, "the clone reports a duplicate", func() bool { return errors.As(look(t, clone.Registry, own.Key).Local.Err, &duplicate) })
	})
}

// TestSurvival_Clone: a second process with the same key and identity, as after the restore of a
// control plane. The one that started later stops, and the exports of the first one stay.
func TestSurvival_Clone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		original, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, original.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
		time.Sleep(time.Minute)
		clone := w.beginAs("cls1clone", cls1, nil, func(cfg *Config) { cfg.Joined = time.Now().Add(-time.Hour) })
		withdraw(t, clone.Registry, exp.Key)
		own := webExport("cls1", 8, 1)
		publish(t, clone.Registry, own)
		for range 300 {
			time.Sleep(time.Second)
			if !sees(t, importer.Registry, exp)() {
				t.Fatal("the clone has withdrawn an export of the original")
			}
		}
		var duplicate *registry.DuplicateIDError
		if local := look(t, clone.Registry, own.Key).Local; !errors.As(local.Err, &duplicate) {
			t.Errorf("the clone's export is %v, %v; want a duplicate", local.State, local.Err)
		}
		changed := webExport("cls1", 0, 2)
		publish(t, original.Registry, changed)
		w.until(time.Minute, "the original goes on", sees(t, importer.Registry, changed))
		w.until(time.Minute, "the original has it confirmed", isExported(t, original.Registry, exp.Key))
	})
}

// TestSurvival_ReturningOwner: a cluster took the ID of a dead one, which returns, and gives way.
func TestSurvival_ReturningOwner(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		owner, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		joined := time.Now()
		exp := webExport("cls1", 0, 1)
		publish(t, owner.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
		other := cls1
		other.UID = "uid-other"
		second := w.beginAs("cls1second", other, nil)
		theirs := webExport("cls1", 8, 1)
		publish(t, second.Registry, theirs)
		time.Sleep(time.Minute)
		w.seal("cls1")
		owner.kill()
		time.Sleep(settings.StaleAfter - 20*time.Second)
		if isExported(t, second.Registry, theirs.Key)() {
			t.Error("the second cluster took the ID before the first one was stale")
		}
		w.until(5*time.Minute, "the second cluster takes the ID", isExported(t, second.Registry, theirs.Key))
		w.until(5*time.Minute, "its export is known", sees(t, importer.Registry, theirs))
		owner = w.begin(cls1, nil, func(cfg *Config) { cfg.Joined = joined })
		publish(t, owner.Registry, exp)
		withdraw(t, owner.Registry, theirs.Key)
		w.until(5*time.Minute, "the owner has its ID back", isExported(t, owner.Registry, exp.Key))
		w.until(5*time.Minute, "the second cluster reports a duplicate", func() bool {
			var duplicate *registry.DuplicateIDError
			return errors.As(look(t, second.Registry, theirs.Key).Local.Err, &duplicate)
		})
		w.until(5*time.Minute, "the owner's export is known", func() bool {
			return sees(t, importer.Registry, exp)() && !sees(t, importer.Registry, theirs)()
		})
	})
}

// TestSurvival_SecondClusterUnsealed: a second cluster takes the ID of one that has died, in a
// catalog that any member can write. The other clusters keep the exports of the first one until an
// administrator says that the second one's key counts.
func TestSurvival_SecondClusterUnsealed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		owner, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, owner.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
		time.Sleep(time.Minute)
		owner.kill()
		other := cls1
		other.UID = "uid-other"
		second := w.beginAs("cls1second", other, nil)
		theirs := webExport("cls1", 8, 1)
		publish(t, second.Registry, theirs)
		w.until(10*time.Minute, "the second cluster takes the ID", isExported(t, second.Registry, theirs.Key))
		for range 10 * 60 {
			time.Sleep(time.Second)
			if !sees(t, importer.Registry, exp)() || sees(t, importer.Registry, theirs)() {
				t.Fatal("the exports are not those of the first cluster")
			}
		}
		for name, reg := range map[string]*Registry{"importer": importer.Registry, "second cluster": second.Registry} {
			members, err := reg.Members(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if i := slices.IndexFunc(members, func(m registry.Member) bool { return m.ClusterID == "cls1" }); i < 0 || !slices.ContainsFunc(members[i].Problems, func(p string) bool {
				return registry.IsRefused(p) && strings.Contains(p, "kubectl mcs trust cls1")
			}) {
				t.Errorf("the %s reports %+v, want a refused record of cls1 with the remedy", name, members)
			}
		}
		if err := importer.cfg.Keyring.Trust("cls1", signerOf("uid-other").Key()); err != nil {
			t.Fatal(err)
		}
		w.until(time.Minute, "the second cluster's export is known", func() bool {
			return sees(t, importer.Registry, theirs)() && !sees(t, importer.Registry, exp)()
		})
	})
}

// TestSurvival_ForgedFarewellOfClusterThatCannotWrite: another member forges a farewell of a
// cluster that cannot read and write, in both places, and a cluster that starts finds the ID free.
// The other clusters use no export of it, also when the cluster can write again, and keep those of
// the cluster.
func TestSurvival_ForgedFarewellOfClusterThatCannotWrite(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		v := &otherWriter{simulation: w}
		owner, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, owner.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
		time.Sleep(time.Minute)
		w.plan(1, cloudmaplocal.FaultRule{AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "AccessDeniedException"})
		v.forge(func(r *format.Member) {
			r.Pages, r.Farewell = format.Digests{}, true
			admin, catalog := v.service(format.CatalogName("cls1"))
			if _, err := admin.RegisterInstance(t.Context(), catalog.ID, format.CopyOf(r.Instance(signerOf(cls2.UID)))); err != nil {
				t.Fatal(err)
			}
		})
		time.Sleep(2 * time.Second) // the second cluster must not read the owner's record before
		other := cls1
		other.UID = "uid-other"
		second := w.beginAs("cls1second", other, nil)
		theirs := webExport("cls1", 8, 1)
		publish(t, second.Registry, theirs)
		w.until(time.Minute, "the second cluster takes the ID", isExported(t, second.Registry, theirs.Key))
		for second := range 6 * 60 {
			if second == 60 {
				w.plan(1)
			}
			time.Sleep(time.Second)
			if !sees(t, importer.Registry, exp)() || sees(t, importer.Registry, theirs)() {
				t.Fatal("the exports are not those of the owner")
			}
		}
	})
}

// TestSurvival_ForgedFarewellBesideSecondCluster: a second cluster waits for the ID of one that
// cannot write, and another member forges a farewell of that one, or deletes its record. The second
// cluster knows who had the ID: it takes the ID when that one is stale, and gives it back when that
// one can write again.
func TestSurvival_ForgedFarewellBesideSecondCluster(t *testing.T) {
	farewell := func(r *format.Member) { r.Pages, r.Farewell = format.Digests{}, true }
	for name, replace := range map[string]func(v *otherWriter){
		"farewell": func(v *otherWriter) { v.forge(farewell) },
		"record, then farewell": func(v *otherWriter) {
			v.forge(func(*format.Member) {})
			time.Sleep(10 * time.Second)
			v.forge(farewell)
		},
		"no record": func(v *otherWriter) { v.drop(format.MembersService, "cls1") },
		"no record, then farewell": func(v *otherWriter) {
			var forged format.Member
			v.forge(func(r *format.Member) { forged = *r })
			v.drop(format.MembersService, "cls1")
			time.Sleep(10 * time.Second)
			farewell(&forged)
			admin, members := v.service(format.MembersService)
			if _, err := admin.RegisterInstance(v.simulation.t.Context(), members.ID, forged.Instance(signerOf(cls2.UID))); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
				v := &otherWriter{simulation: w}
				owner, importer := w.begin(cls1, nil), w.begin(cls2, nil)
				exp := webExport("cls1", 0, 1)
				publish(t, owner.Registry, exp)
				w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
				other := cls1
				other.UID = "uid-other"
				second := w.beginAs("cls1second", other, nil)
				theirs := webExport("cls1", 8, 1)
				publish(t, second.Registry, theirs)
				time.Sleep(time.Minute)
				w.plan(1, cloudmaplocal.FaultRule{AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "AccessDeniedException"})
				silent := time.Now()
				replace(v)
				w.until(10*time.Minute, "the second cluster takes the ID", isExported(t, second.Registry, theirs.Key))
				if took := time.Since(silent); took < settings.StaleAfter-settings.HeartbeatInterval {
					t.Errorf("the second cluster took the ID after %v", took)
				}
				time.Sleep(time.Minute)
				w.plan(1)
				w.until(5*time.Minute, "the second cluster reports a duplicate", func() bool {
					var duplicate *registry.DuplicateIDError
					return errors.As(look(t, second.Registry, theirs.Key).Local.Err, &duplicate)
				})
				changed := webExport("cls1", 0, 2)
				publish(t, owner.Registry, changed)
				w.until(time.Minute, "a change of the owner is confirmed", isExported(t, owner.Registry, changed.Key))
				w.until(5*time.Minute, "it is known", sees(t, importer.Registry, changed))
			})
		})
	}
}

// TestSurvival_WritesDenied: a cluster whose record is deleted and may not be written goes on to
// import.
func TestSurvival_WritesDenied(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
		w.plan(1, cloudmaplocal.FaultRule{AccessKey: "cls2", Operations: []string{"RegisterInstance"}, Kind: cloudmaplocal.FaultError, Code: "AccessDeniedException"})
		v.drop(format.MembersService, "cls2")
		before := w.count()
		changed := webExport("cls1", 0, 2)
		publish(t, exporter.Registry, changed)
		w.until(10*time.Second, "a change is imported", sees(t, importer.Registry, changed))
		time.Sleep(10 * time.Minute)
		after := w.count()
		maps.DeleteFunc(after, func(operation string, n int) bool { return n-before[operation] <= 20*10 })
		for _, frequent := range []string{"DiscoverInstances", "cls1", "cls2", "RegisterInstance members"} {
			delete(after, frequent)
		}
		if len(after) > 0 {
			t.Errorf("more than 20 requests a minute: %v", after)
		}
	})
}

// TestNotFoundOnce: one answer that something does not exist makes no cluster list namespaces.
func TestNotFoundOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		a, b := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, a.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, b.Registry, exp))
		time.Sleep(5 * time.Minute)
		before := w.count()["ListNamespaces"]
		for _, code := range []string{"NamespaceNotFound", "ServiceNotFound", "AccessDeniedException"} {
			w.plan(1, cloudmaplocal.FaultRule{AccessKey: "cls*", Operations: []string{"DiscoverInstances", "RegisterInstance"}, Kind: cloudmaplocal.FaultError, Code: code})
			time.Sleep(10 * time.Second)
			w.plan(1)
			time.Sleep(time.Minute)
		}
		if n := w.count()["ListNamespaces"] - before; n > 0 {
			t.Errorf("%d lists of namespaces, want none", n)
		}
		if !sees(t, b.Registry, exp)() {
			t.Error("the export is not known any more")
		}
	})
}

// TestReturnToPreviousID: a cluster that was renamed twice returns to an ID that it had before,
// while the registry is empty. Its keyring has the other ID as that of a live cluster, so it does
// not take the exports under that ID for ended.
func TestReturnToPreviousID(t *testing.T) {
	for name, test := range map[string]struct {
		empty time.Duration
		want  []registry.ClusterState
	}{
		"reads may show what was deleted":                  {want: []registry.ClusterState{registry.Exports, registry.Unseen, registry.Unknown}},
		"reads, which are up to 500 ms late, show nothing": {empty: time.Second, want: []registry.ClusterState{registry.Unseen, registry.Unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, openOptions(t))
				w.begin(cls2, nil)
				renamed := cls1
				renamed.ClusterID = "cls1b"
				// a controller has one, whatever its cluster ID is
				ring := keyring(cls1, defaultConfig(cls1).StaleAfter, w.ids.pinsOf("cls1"))
				join := func(identity mcs.Identity) *process {
					l := w.begin(identity, nil, func(cfg *Config) { cfg.Keyring = ring })
					publish(t, l.Registry, webExport(identity.ClusterID, 0, 1))
					w.until(time.Minute, identity.ClusterID+" exports", func() bool { return look(t, l.Registry, webKey(0)).Local.State == registry.Exported })
					return l
				}
				present := join(cls1)
				for _, next := range []mcs.Identity{renamed, cls1, renamed} {
					process := join(next)
					w.until(time.Minute, "the previous identity sees the next one", func() bool {
						return exportOf(look(t, present.Registry, webKey(0)), next.ClusterID) != nil
					})
					if err := present.end(registry.ErrLeave); err != nil {
						t.Fatal(err)
					}
					present = process
				}
				present.kill()
				(&otherWriter{simulation: w}).deleteAll(true)
				time.Sleep(test.empty)
				again := join(cls1)
				for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
					if view, _ := viewOf(t, again.Registry, webKey(0), "cls1b"); !slices.Contains(view.In(test.want...), "cls1b") {
						t.Fatalf("the view is %+v, want the other identity in one of %v", view, test.want)
					}
				}
			})
		})
	}
}

// TestSurvival_CloneThatReadsNoRecord: the first reads of a clone lack the record of the cluster
// that it is a clone of, so it finds pages that no record announces. It withdraws none of their
// exports before it has read the record.
func TestSurvival_CloneThatReadsNoRecord(t *testing.T) {
	for name, hasJoined := range map[string]bool{"restored": true, "restored from a backup of before it joined": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var joined time.Time
				if hasJoined {
					joined = time.Now()
				}
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
				exp, own := webExport("cls1", 0, 1), webExport("cls1", 8, 1)
				original, importer := w.begin(cls1, nil), w.begin(cls2, nil)
				publish(t, original.Registry, exp)
				w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
				time.Sleep(time.Minute)
				hidden := time.Now().Add(10 * time.Second)
				w.setIntercept(func(r request) (code, body string, ok bool) {
					isHidden := r.cluster == "cls1clone" && r.operation == "DiscoverInstances" && r.names(format.MembersService) && time.Now().Before(hidden)
					return "", `{"Instances":[],"InstancesRevision":1}`, isHidden
				})
				w.ids.copyTo("cls1", "cls1clone")
				clone := w.create("cls1clone", cls1, func(cfg *Config) { cfg.Joined = joined })
				publish(t, clone.Registry, own)
				clone.run(nil)
				var duplicate *registry.DuplicateIDError
				w.until(2*time.Minute, "the clone reports a duplicate", func() bool {
					view := look(t, importer.Registry, exp.Key)
					if exportOf(view, "cls1") == nil && view.Clusters["cls1"].State != registry.Unknown {
						t.Fatalf("the clone has withdrawn an export of the original: %+v", view)
					}
					return errors.As(look(t, clone.Registry, own.Key).Local.Err, &duplicate)
				})
			})
		})
	}
}
