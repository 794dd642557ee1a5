package cloudmap

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/state"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// TestRestart_AfterRecordsWereDeleted starts a controller after another writer deleted what its
// previous process had in Cloud Map, with a clock that is behind. What another cluster has seen
// stays until the new process publishes or withdraws it; nothing older comes back.
func TestRestart_AfterRecordsWereDeleted(t *testing.T) {
	first, second := webExport("cls1", 0, 1), webExport("cls1", 0, 2)
	// of another page: a cluster that has nothing in Cloud Map has left
	other := webExport("cls1", 8, 1)
	page := format.PartID(format.PageOf(first.Key), 0)
	tests := map[string]struct {
		// withdrawn is set if the previous process withdraws the export before it ends; otherWriter
		// are the actions of another writer after that.
		withdrawn   bool
		otherWriter func(v *otherWriter)
		// claiming runs when the next process has written its first record, before it has read it.
		claiming func(v *otherWriter)
		wants    *mcs.Export
		// sees is all that the other cluster may see, in this order.
		sees []string
	}{
		"record and page deleted": {
			otherWriter: func(v *otherWriter) { v.drop(format.MembersService, "cls1"); v.drop(format.CatalogName("cls1"), page) },
			wants:       &second, sees: []string{"1", "2"},
		},
		"record deleted and another export wanted": {
			otherWriter: func(v *otherWriter) { v.drop(format.MembersService, "cls1") },
			wants:       &second, sees: []string{"1", "2"},
		},
		"record deleted and the same export wanted": {
			otherWriter: func(v *otherWriter) { v.drop(format.MembersService, "cls1") },
			wants:       &first, sees: []string{"1"},
		},
		"record deleted and nothing wanted": {
			otherWriter: func(v *otherWriter) { v.drop(format.MembersService, "cls1") },
			sees:        []string{"1", "none"},
		},
		"record deleted and half a page there": {
			otherWriter: func(v *otherWriter) {
				v.drop(format.MembersService, "cls1")
				v.put(format.CatalogName("cls1"), page, func(attrs map[string]string) { attrs[format.AttrParts] = "2" })
			},
			wants: &second, sees: []string{"1", "2"},
		},
		"record deleted and a withdrawn page is back": {
			withdrawn: true,
			otherWriter: func(v *otherWriter) {
				v.drop(format.MembersService, "cls1")
				v.put(format.CatalogName("cls1"), page, nil)
			},
			wants: &second, sees: []string{"none", "2"},
		},
		"record deleted and a withdrawn page is back, and stays withdrawn": {
			withdrawn: true,
			otherWriter: func(v *otherWriter) {
				v.drop(format.MembersService, "cls1")
				v.put(format.CatalogName("cls1"), page, nil)
			},
			// a process that started earlier may export it, and the members may not show its record
			sees: []string{"none", "unknown", "none"},
		},
		"page deleted, and the record while the ID is claimed": {
			otherWriter: func(v *otherWriter) { v.drop(format.CatalogName("cls1"), page) },
			claiming:    func(v *otherWriter) { v.drop(format.MembersService, "cls1") },
			wants:       &second, sees: []string{"1", "2"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
				v := &otherWriter{simulation: w}
				exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
				publish(t, exporter.Registry, first)
				publish(t, exporter.Registry, other)
				w.until(time.Minute, "both are known", func() bool {
					return sees(t, importer.Registry, first)() && sees(t, importer.Registry, other)()
				})
				v.remember()
				if tt.withdrawn {
					withdraw(t, exporter.Registry, first.Key)
					w.until(time.Minute, "the export is withdrawn", func() bool { return v.seen(importer, first.Key) == "none" })
					time.Sleep(20 * time.Second) // until it is trimmed
				}
				exporter.kill()
				tt.otherWriter(v)

				var wrote atomic.Bool
				w.setWrote(func(r request) {
					if r.cluster == "cls1" && r.names(format.AttrHeartbeat) && !wrote.Swap(true) && tt.claiming != nil {
						w.plan(1, cloudmaplocal.FaultRule{AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "InternalFailure"})
					}
				})
				next := w.begin(cls1, nil, func(cfg *Config) { cfg.wall = func() time.Time { return time.Now().Add(-time.Hour) } })
				publish(t, next.Registry, other)
				if tt.wants != nil {
					publish(t, next.Registry, *tt.wants)
				}
				read := false
				var saw []string
				for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(20 * time.Millisecond) {
					if tt.claiming != nil && wrote.Load() && !read {
						tt.claiming(v)
						time.Sleep(2 * time.Second) // until every answer shows it
						w.plan(1)
						read = true
					}
					if now := v.seen(importer, first.Key); len(saw) == 0 || saw[len(saw)-1] != now {
						saw = append(saw, now)
					}
				}
				if !slices.Equal(saw, tt.sees) {
					t.Errorf("the other cluster saw %v, want %v", saw, tt.sees)
				}
				if tt.wants != nil && !isExported(t, next.Registry, first.Key)() {
					t.Errorf("the export is %v", look(t, next.Registry, first.Key).Local)
				}
				next.kill()
				importer.kill()
			})
		})
	}
}

// TestReturnWithClockBehind: a cluster leaves, another writer removes its farewell, and the next
// process has a clock that is two hours behind. Its records must be later than the farewell
// nevertheless: the other clusters have read it and take earlier records for replays.
func TestReturnWithClockBehind(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		clock := func(ahead time.Duration) func(*Config) {
			return func(cfg *Config) { cfg.wall = func() time.Time { return time.Now().Add(ahead) } }
		}
		exporter, importer := w.begin(cls1, nil, clock(time.Hour)), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "the export is known", sees(t, importer.Registry, exp))
		if err := exporter.end(registry.ErrLeave); err != nil {
			t.Fatal(err)
		}
		w.until(time.Minute, "the export is gone", func() bool { return v.seen(importer, exp.Key) == "none" })
		v.drop(format.MembersService, "cls1")

		returned := w.begin(cls1, nil, clock(-time.Hour))
		publish(t, returned.Registry, exp)
		w.until(time.Minute, "the export is known again", sees(t, importer.Registry, exp))
		importer.kill()
		importer = w.begin(cls2, nil)
		w.until(time.Minute, "the export is known after a restart", sees(t, importer.Registry, exp))
	})
}

// TestReplayedPageOfPreviousProcess: a process starts with a clock that is an hour behind, after
// another user deleted all records of the previous one. Its pages must be later than those of the
// previous process nevertheless: one that another user writes again counts as a replay.
func TestReplayedPageOfPreviousProcess(t *testing.T) {
	first, second := webExport("cls1", 0, 1), webExport("cls1", 0, 2)
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		publish(t, exporter.Registry, first)
		w.until(time.Minute, "the export is known", sees(t, importer.Registry, first))
		v.remember()
		exporter.kill()
		page := format.PartID(format.PageOf(first.Key), 0)
		v.drop(format.MembersService, "cls1")
		v.drop(format.CatalogName("cls1"), page)
		v.drop(format.CatalogName("cls1"), format.CopyID)
		next := w.begin(cls1, nil, func(cfg *Config) { cfg.wall = func() time.Time { return time.Now().Add(-time.Hour) } })
		publish(t, next.Registry, second)
		w.until(2*time.Minute, "the next export is known", sees(t, importer.Registry, second))
		v.put(format.CatalogName("cls1"), page, nil)
		importer.kill()
		importer = w.begin(cls2, nil)
		for began := time.Now(); time.Since(began) < 3*time.Minute; time.Sleep(100 * time.Millisecond) {
			if v.seen(importer, first.Key) == "1" {
				t.Fatalf("after %v the other cluster sees the export of the previous process", time.Since(began))
			}
		}
		if !sees(t, importer.Registry, second)() {
			t.Error("the other cluster does not see the export")
		}
	})
}

// TestRestartWithUnreadablePage: a process starts, wants one export less, and the page cannot be
// read. It withdraws nothing while another process may hold the ID: what it cannot read may be what
// that one exports.
func TestRestartWithUnreadablePage(t *testing.T) {
	kept, ended := webExport("cls1", 0, 1), webExport("cls1", 0, 1)
	for n := 0; ended.Key == kept.Key || format.PageOf(ended.Key) != format.PageOf(kept.Key); n++ {
		ended.Key.Name = fmt.Sprint("ended-", n)
	}
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		joined := time.Now()
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		publish(t, exporter.Registry, kept)
		publish(t, exporter.Registry, ended)
		w.until(time.Minute, "both are known", func() bool { return sees(t, importer.Registry, kept)() && sees(t, importer.Registry, ended)() })
		v.remember()
		exporter.kill()
		page := format.PartID(format.PageOf(kept.Key), 0)
		v.put(format.CatalogName("cls1"), page, func(attrs map[string]string) { attrs[format.AttrParts] = "2" })
		next := w.begin(cls1, nil, func(cfg *Config) { cfg.Joined = joined })
		publish(t, next.Registry, kept)
		began, young := time.Now(), settings.HeartbeatInterval*5/4
		w.until(time.Minute, "the export ends", func() bool { return v.seen(importer, ended.Key) == "none" })
		if took := time.Since(began); took < young {
			t.Errorf("the export ends after %v, want %v at least", took, young)
		}
		w.until(time.Minute, "the other one is confirmed", isExported(t, next.Registry, kept.Key))
	})
}

// TestFarewellWhileClockIsBehind: a process goes on ahead of its clock, as the clock was set back,
// and another user deletes its record. The farewell of the next process, whose clock is between the
// saved and the used heartbeat, must be later than the records that the other clusters have read.
func TestFarewellWhileClockIsBehind(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		joined := time.Now()
		clock := func(ahead time.Duration) func(*Config) {
			return func(cfg *Config) {
				cfg.Joined, cfg.wall = joined, func() time.Time { return time.Now().Add(ahead) }
			}
		}
		first, importer := w.begin(cls1, nil, clock(10*time.Minute)), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, first.Registry, exp)
		w.until(time.Minute, "the export is known", sees(t, importer.Registry, exp))
		first.kill()
		second := w.begin(cls1, nil, clock(0))
		publish(t, second.Registry, exp)
		w.until(time.Minute, "the export is confirmed", isExported(t, second.Registry, exp.Key))
		time.Sleep(4 * time.Minute)
		second.kill()
		v.drop(format.MembersService, "cls1")
		v.drop(format.CatalogName("cls1"), format.CopyID)
		third := w.begin(cls1, nil, clock(13*time.Minute))
		if err := third.end(registry.ErrLeave); err != nil {
			t.Fatal(err)
		}
		w.until(time.Minute, "the export is gone", func() bool { return v.seen(importer, exp.Key) == "none" })
	})
}

func withdraw(t *testing.T, reg *Registry, key mcs.Key) {
	t.Helper()
	if err := reg.Withdraw(t.Context(), key); err != nil {
		t.Fatal(err)
	}
}

// otherWriter changes the records of cls1, as an administrator may.
type otherWriter struct {
	simulation *simulation
	// pages are the instances of its catalog as they were.
	pages []api.Instance
}

func (v *otherWriter) service(name string) (*api.Client, api.Service) {
	t := v.simulation.t
	admin, _ := v.simulation.client("admin")
	namespaces, err := admin.ListNamespaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	services, err := admin.ListServices(t.Context(), namespaces["mcs.set1"])
	if err != nil {
		t.Fatal(err)
	}
	return admin, services[name]
}

func (v *otherWriter) remember() {
	admin, s := v.service(format.CatalogName("cls1"))
	pages, err := admin.ListInstances(v.simulation.t.Context(), s)
	if err != nil || len(pages) == 0 {
		v.simulation.t.Fatalf("%d instances of pages, %v", len(pages), err)
	}
	v.pages = pages
}

func (v *otherWriter) drop(in, id string) {
	admin, s := v.service(in)
	if err := admin.DeregisterInstance(v.simulation.t.Context(), s.ID, id); err != nil {
		v.simulation.t.Fatal(err)
	}
}

// put puts an instance back as it was, but for change.
func (v *otherWriter) put(in, id string, change func(map[string]string)) {
	admin, s := v.service(in)
	i := slices.IndexFunc(v.pages, func(p api.Instance) bool { return p.ID == id })
	attrs := maps.Clone(v.pages[i].Attributes)
	if change != nil {
		change(attrs)
	}
	if _, err := admin.RegisterInstance(v.simulation.t.Context(), s.ID, api.Instance{ID: id, Attributes: attrs}); err != nil {
		v.simulation.t.Fatal(err)
	}
}

// seen is how many endpoints of an export a cluster sees, "none" without the export.
func (v *otherWriter) seen(l *process, key mcs.Key) string {
	view, ok := viewOf(v.simulation.t, l.Registry, key)
	if !ok || len(view.In(registry.Unknown)) > 0 {
		return "unknown"
	}
	if exp := exportOf(view, "cls1"); exp != nil {
		return string(rune('0' + exp.EndpointCount()))
	}
	return "none"
}

// TestReader_RecordMissingBriefly removes a record and a catalog for less time than reads may be
// late.
func TestReader_RecordMissingBriefly(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		v := &otherWriter{simulation: w}
		exp := webExport("cls1", 0, 1)
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
		exporter.kill()
		v.remember()
		admin, members := v.service(format.MembersService)
		records, err := admin.ListInstances(t.Context(), members)
		if err != nil {
			t.Fatal(err)
		}
		record := records[slices.IndexFunc(records, func(i api.Instance) bool { return i.ID == "cls1" })]

		page := format.PartID(format.PageOf(exp.Key), 0)
		v.drop(format.MembersService, "cls1")
		v.drop(format.CatalogName("cls1"), page)
		before := w.count()["DiscoverInstances"]
		time.Sleep(1500 * time.Millisecond)
		if w.count()["DiscoverInstances"] < before+2 {
			t.Fatal("the other cluster has not read members and catalog meanwhile")
		}
		if seen := v.seen(importer, exp.Key); seen != "1" {
			t.Errorf("the other cluster sees %q, want what it was", seen)
		}
		v.put(format.CatalogName("cls1"), page, nil)
		if _, err := admin.RegisterInstance(t.Context(), members.ID, record); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if seen := v.seen(importer, exp.Key); seen != "1" {
			t.Errorf("the other cluster sees %q later, want what it was", seen)
		}
		importer.kill()
	})
}

// TestLeavingComesLast checks that the last record of a cluster that leaves is later than its
// pages, also after the clock was set back. Otherwise the next process adopts pages that could not
// be removed.
func TestLeavingComesLast(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		var offset atomic.Int64
		offset.Store(int64(time.Hour))
		leaver := w.begin(cls1, nil, func(cfg *Config) { cfg.wall = func() time.Time { return time.Now().Add(time.Duration(offset.Load())) } })
		ahead := time.Now().Add(time.Hour).UnixMilli()
		exp := webExport("cls1", 0, 1)
		publish(t, leaver.Registry, exp)
		w.until(time.Minute, "it is exported", isExported(t, leaver.Registry, exp.Key))
		offset.Store(0) // the clock is set back
		generations := regexp.MustCompile(`"GENERATION":"(\d+)"`)
		var last int64
		w.setWrote(func(r request) {
			if r.operation == "RegisterInstance" && r.names(format.AttrHeartbeat) {
				last, _ = strconv.ParseInt(string(generations.FindSubmatch(r.body)[1]), 10, 64)
			}
		})
		if err := leaver.end(registry.ErrLeave); err != nil {
			t.Fatal(err)
		}
		if last <= ahead {
			t.Errorf("the last record is of generation %d, pages of %d", last, ahead)
		}
	})
}

// TestRestartWithoutRecords has a controller start while Cloud Map does not have what its previous
// process wrote last. Neither what is missing nor what is older counts until it is written.
func TestRestartWithoutRecords(t *testing.T) {
	tests := map[string]func(v *otherWriter, earlier []api.Instance){
		"everything deleted": func(v *otherWriter, _ []api.Instance) { v.deleteAll(true) },
		"an earlier record is back": func(v *otherWriter, earlier []api.Instance) {
			admin, members := v.service(format.MembersService)
			for _, record := range earlier {
				if _, err := admin.RegisterInstance(v.simulation.t.Context(), members.ID, record); err != nil {
					v.simulation.t.Fatal(err)
				}
			}
		},
		"an earlier record and page are back": func(v *otherWriter, earlier []api.Instance) {
			admin, members := v.service(format.MembersService)
			for _, record := range earlier {
				if _, err := admin.RegisterInstance(v.simulation.t.Context(), members.ID, record); err != nil {
					v.simulation.t.Fatal(err)
				}
			}
			v.put(format.CatalogName("cls1"), v.pages[slices.IndexFunc(v.pages, func(i api.Instance) bool { return i.ID != format.CopyID })].ID, nil)
		},
	}
	for name, fault := range tests {
		for _, restarts := range []bool{false, true} {
			if restarts {
				name += ", and the importer restarts"
			}
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
					v := &otherWriter{simulation: w}
					joined := time.Now()
					exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
					first, later := webExport("cls1", 0, 1), webExport("cls1", 8, 1)
					publish(t, exporter.Registry, first)
					w.until(time.Minute, "the first export is confirmed", isExported(t, exporter.Registry, first.Key))
					v.remember()
					admin, members := v.service(format.MembersService)
					earlier, err := admin.ListInstances(t.Context(), members)
					if err != nil {
						t.Fatal(err)
					}
					earlier = slices.DeleteFunc(earlier, func(i api.Instance) bool { return i.ID != "cls1" })
					first = webExport("cls1", 0, 2)
					publish(t, exporter.Registry, first)
					publish(t, exporter.Registry, later)
					both := func() bool { return sees(t, importer.Registry, first)() && sees(t, importer.Registry, later)() }
					w.until(time.Minute, "both are known", both)
					time.Sleep(20 * time.Second)
					exporter.kill()
					fault(v, earlier)
					exporter = w.begin(cls1, nil, func(cfg *Config) { cfg.Joined = joined })
					publish(t, exporter.Registry, first)
					publish(t, exporter.Registry, later)
					for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(250 * time.Millisecond) {
						if restarts && time.Since(began) == 10*time.Second {
							importer.kill()
							importer = w.begin(cls2, nil)
						}
						for _, exp := range []mcs.Export{first, later} {
							view, ok := viewOf(t, importer.Registry, exp.Key, "cls1")
							isOpen := !ok || view.Clusters["cls1"].State == registry.Unknown || view.Clusters["cls1"].State == registry.Unseen
							if !isOpen && !sees(t, importer.Registry, exp)() {
								t.Fatalf("after %v %s is %s", time.Since(began), exp.Key, v.seen(importer, exp.Key))
							}
						}
					}
					if !both() {
						t.Error("the exports are not known after two minutes")
					}
				})
			})
		}
	}
}

// TestRestart_BackupWhileClaiming: a cluster left and comes back. When its new process has claimed
// the ID, and has not read its record yet, another user restores a backup from before the farewell.
// The process must not announce the pages of the backup: they have earlier versions of its exports.
func TestRestart_BackupWhileClaiming(t *testing.T) {
	restored := map[string]func(instance string) bool{
		"everything":          func(string) bool { return true },
		"all but the record":  func(instance string) bool { return instance != "cls1" },
		"the pages":           func(instance string) bool { return instance != "cls1" && instance != format.CopyID },
		"all but the copy":    func(instance string) bool { return instance != format.CopyID },
		"the record, no page": func(instance string) bool { return instance == "cls1" },
	}
	for name, isRestored := range restored {
		for _, wiped := range []bool{false, true} {
			if wiped {
				name += ", after all was deleted"
			}
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
					v := &otherWriter{simulation: w}
					exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
					earlier := webExport("cls1", 0, 1)
					publish(t, exporter.Registry, earlier)
					w.until(time.Minute, "the export is known", sees(t, importer.Registry, earlier))
					backup := map[string][]api.Instance{}
					for _, in := range []string{format.MembersService, format.CatalogName("cls1")} {
						admin, service := v.service(in)
						listed, err := admin.ListInstances(t.Context(), service)
						if err != nil {
							t.Fatal(err)
						}
						backup[in] = slices.DeleteFunc(listed, func(i api.Instance) bool { return i.ID == "cls2" || !isRestored(i.ID) })
					}
					later := webExport("cls1", 0, 2)
					publish(t, exporter.Registry, later)
					w.until(time.Minute, "the later version is known", sees(t, importer.Registry, later))
					if err := exporter.end(registry.ErrLeave); err != nil {
						t.Fatal(err)
					}
					w.until(time.Minute, "the export is gone", func() bool { return v.seen(importer, earlier.Key) == "none" })
					if wiped {
						v.deleteAll(true)
						time.Sleep(5 * time.Second)
					}

					var wrote atomic.Bool
					w.setWrote(func(r request) {
						if r.cluster == "cls1" && r.names(format.AttrHeartbeat) && !wrote.Swap(true) {
							w.plan(1, cloudmaplocal.FaultRule{AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "InternalFailure"})
						}
					})
					returned := w.begin(cls1, nil)
					publish(t, returned.Registry, later)
					w.until(time.Minute, "the ID is claimed", wrote.Load)
					for in, instances := range backup {
						admin, service := v.service(in)
						for _, instance := range instances {
							if _, err := admin.RegisterInstance(t.Context(), service.ID, instance); err != nil {
								t.Fatal(err)
							}
						}
					}
					time.Sleep(2 * time.Second) // until every read shows it
					w.plan(1)
					for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(20 * time.Millisecond) {
						if sees(t, importer.Registry, earlier)() {
							t.Fatalf("after %v the other cluster sees the version of the backup", time.Since(began))
						}
					}
					if !sees(t, importer.Registry, later)() {
						t.Error("the other cluster does not see the export")
					}
				})
			})
		}
	}
}

// TestRestart_BackupBeforePagesAreRead: a controller starts after its page was deleted, and loses
// Cloud Map for two minutes once it has its ID. Meanwhile another user
// writes an earlier page again. The process must not announce that one when it reads it.
func TestRestart_BackupBeforePagesAreRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		v := &otherWriter{simulation: w}
		joined := time.Now()
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		earlier, later := webExport("cls1", 0, 1), webExport("cls1", 0, 2)
		publish(t, exporter.Registry, earlier)
		w.until(time.Minute, "the export is known", sees(t, importer.Registry, earlier))
		v.remember()
		publish(t, exporter.Registry, later)
		w.until(time.Minute, "the later version is known", sees(t, importer.Registry, later))
		exporter.kill()
		page := format.PartID(format.PageOf(earlier.Key), 0)
		v.drop(format.CatalogName("cls1"), page)

		// Its pages can be neither read nor written from the start on.
		unreachable := cloudmaplocal.FaultRule{AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "InternalFailure", Instance: "page-*"}
		w.plan(1, unreachable)
		next := w.begin(cls1, nil, func(cfg *Config) { cfg.Joined = joined })
		publish(t, next.Registry, later)
		w.until(time.Minute, "the ID is claimed", func() bool { return next.state.Claim() == state.Held })
		w.plan(1, cloudmaplocal.FaultRule{AccessKey: "cls1", Kind: cloudmaplocal.FaultError, Code: "InternalFailure"})
		v.put(format.CatalogName("cls1"), page, nil)
		time.Sleep(2 * time.Minute)
		w.plan(1, unreachable)
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
			if sees(t, importer.Registry, earlier)() {
				t.Fatalf("after %v the other cluster sees the earlier version", time.Since(began))
			}
		}
		w.plan(1)
		w.until(time.Minute, "the export is confirmed", isExported(t, next.Registry, later.Key))
		if !sees(t, importer.Registry, later)() {
			t.Error("the other cluster does not see the later version")
		}
	})
}

// TestRestart_CloneWithoutPages: another user deletes the pages of a cluster, whose next process
// can write its record but not the pages. A clone that starts then, with no exports, must not
// announce that there are none: the pages that are announced as not written are those of a cluster
// that is running.
func TestRestart_CloneWithoutPages(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		v := &otherWriter{simulation: w}
		joined := time.Now()
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "the export is known", sees(t, importer.Registry, exp))
		exporter.kill()
		v.drop(format.CatalogName("cls1"), format.PartID(format.PageOf(exp.Key), 0))

		w.plan(1, cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: "InternalFailure", Instance: "page-*"})
		restarted := func(cfg *Config) { cfg.Joined = joined }
		next := w.begin(cls1, nil, restarted)
		publish(t, next.Registry, exp)
		w.until(time.Minute, "the ID is claimed", func() bool { return next.state.Claim() == state.Held })
		time.Sleep(30 * time.Second)
		w.ids.copyTo("cls1", "cls1clone")
		w.beginAs("cls1clone", cls1, nil, restarted)
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
			if !sees(t, importer.Registry, exp)() {
				t.Fatalf("after %v the other cluster does not see the export", time.Since(began))
			}
		}
	})
}

// TestRestart_CloneAfterBackup: another user writes an earlier page of a cluster again, which lacks
// an export, and before the cluster has found that, a clone starts that does not have the export
// either. The clone must not announce the page that it finds: the record of the cluster had
// announced another one.
func TestRestart_CloneAfterBackup(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		v := &otherWriter{simulation: w}
		joined := time.Now()
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		first, second := webExport("cls1", 0, 1), webExport("cls1", 1, 1)
		for i := 2; format.PageOf(second.Key) != format.PageOf(first.Key); i++ {
			second = webExport("cls1", i, 1)
		}
		publish(t, exporter.Registry, first)
		w.until(time.Minute, "the export is known", sees(t, importer.Registry, first))
		v.remember()
		publish(t, exporter.Registry, second)
		w.until(time.Minute, "both exports are known", sees(t, importer.Registry, second))
		time.Sleep(time.Minute) // longer than reads are late
		v.put(format.CatalogName("cls1"), format.PartID(format.PageOf(first.Key), 0), nil)

		w.ids.copyTo("cls1", "cls1clone")
		clone := w.beginAs("cls1clone", cls1, nil, func(cfg *Config) {
			cfg.Joined = joined
			// its records are later
			cfg.wall = func() time.Time { return time.Now().Add(time.Minute) }
		})
		publish(t, clone.Registry, first)
		for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(20 * time.Millisecond) {
			if !sees(t, importer.Registry, second)() {
				t.Fatalf("after %v the other cluster does not see the export", time.Since(began))
			}
		}
	})
}

// TestRestartWithForgedRecord has a controller start when another member has replaced its record
// and a page. The page does not become its own.
func TestRestartWithForgedRecord(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		v := &otherWriter{simulation: w}
		joined := time.Now()
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "it is known", sees(t, importer.Registry, exp))
		exporter.kill()
		forged := webExport("cls1", 0, 3)
		data, err := record.Encode([]mcs.Export{forged})
		if err != nil {
			t.Fatal(err)
		}
		page, generation := format.PageOf(exp.Key), time.Now().Add(time.Hour).UnixMilli()
		parts, err := format.SplitPage(cls1, signerOf(cls2.UID), page, generation, data)
		if err != nil {
			t.Fatal(err)
		}
		admin, catalog := v.service(format.CatalogName("cls1"))
		if _, err := admin.RegisterInstance(t.Context(), catalog.ID, parts[0]); err != nil {
			t.Fatal(err)
		}
		v.forge(func(r *format.Member) {
			r.Pages[page], r.Generation, r.Heartbeat = format.Digest(data), generation, generation
		})
		exporter = w.begin(cls1, nil, func(cfg *Config) { cfg.Joined = joined })
		publish(t, exporter.Registry, exp)
		for began := time.Now(); time.Since(began) < 3*time.Minute; time.Sleep(250 * time.Millisecond) {
			if seen := v.seen(importer, exp.Key); seen != "1" {
				t.Fatalf("after %v the other cluster sees %s, want the export of the cluster itself", time.Since(began), seen)
			}
		}
	})
}

// TestRestart_FollowsAtOnce: a controller that has ended, as with each rollout, has saved all that
// it had read. The next process imports what has changed meanwhile from the first records that it
// reads. After one that was killed it asks each cluster for its last record, since the first one
// may be that of a backup, and waits for a second one where no answer comes.
func TestRestart_FollowsAtOnce(t *testing.T) {
	end := func(p *process) { _ = p.end(nil) }
	for name, tt := range map[string]struct {
		end       func(*process)
		isReached bool
		within    time.Duration
		waits     bool

		wantRecords int
	}{
		"after an end":                  {end, false, 2 * time.Second, false, 3},
		"after a crash":                 {(*process).kill, false, time.Minute, true, 3},
		"after a crash, with an answer": {(*process).kill, true, 2 * time.Second, false, 2},
		"after an end, with an answer":  {end, true, 2 * time.Second, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w, udp := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)}), newNetwork()
				begin := func(identity mcs.Identity) *process {
					p := w.create(identity.ClusterID, identity, func(cfg *Config) {
						if tt.isReached {
							cfg.PeerNotifications = udp.config()
						}
					})
					p.run(nil)
					return p
				}
				exporter, importer := begin(cls1), begin(cls2)
				first, second := webExport("cls1", 0, 1), webExport("cls1", 0, 2)
				publish(t, exporter.Registry, first)
				w.until(time.Minute, "the export is known", sees(t, importer.Registry, first))
				time.Sleep(time.Minute)
				tt.end(importer)
				publish(t, exporter.Registry, second)
				time.Sleep(5 * time.Second)
				records := w.count()["RegisterInstance members"]
				importer, began := begin(cls2), time.Now()
				w.until(tt.within, "the change is imported", sees(t, importer.Registry, second))
				took := time.Since(began)
				t.Logf("the change is imported after %v", took)
				if waited := took > 2*time.Second; waited != tt.waits {
					t.Errorf("the change is imported after %v", took)
				}
				time.Sleep(5 * time.Second)
				// Those of the process, and one of the exporter for a process that has not asked.
				if n := w.count()["RegisterInstance members"] - records; n != tt.wantRecords {
					t.Errorf("%d records were written, want %d", n, tt.wantRecords)
				}
			})
		})
	}
}

// TestRestart_PageBesideCopy: another member has replaced the record of a cluster that has just
// joined. A cluster imports from its pages, which are later than the copy of the record in its
// catalog, and restarts as with a rollout. The next process reads the same copy, and ends nothing.
func TestRestart_PageBesideCopy(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w, exporter, exp := exporting(t)
		(&otherWriter{simulation: w}).forge(func(r *format.Member) { r.Heartbeat++ })
		w.until(10*time.Second, "the ID is given up", func() bool { return exporter.state.Claim() == state.Observing })
		importer := w.begin(cls2, nil)
		w.until(time.Minute, "it is imported", sees(t, importer.Registry, exp))
		if err := importer.end(nil); err != nil {
			t.Fatal(err)
		}
		importer = w.begin(cls2, nil)
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(5 * time.Millisecond) {
			view, ok := viewOf(t, importer.Registry, exp.Key, "cls1")
			if ok && !slices.Contains(slices.Concat(view.MayExport(), view.In(registry.Exports)), "cls1") {
				t.Fatalf("after %v the view is %+v: the import has ended", time.Since(began), view)
			}
		}
		exporter.kill()
		importer.kill()
	})
}

// TestRestart_AnnouncesAtOnce: a controller takes over pages that are as it wants them. Its second
// record announces them, and does not wait for a heartbeat: until then, clusters that start know
// none of its exports.
func TestRestart_AnnouncesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.ReadsLate(500 * time.Millisecond)})
		exporter := w.begin(cls1, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "it is exported", isExported(t, exporter.Registry, exp.Key))
		time.Sleep(time.Minute)
		_ = exporter.end(nil)

		var records atomic.Int32
		w.setWrote(func(r request) {
			if r.cluster == "cls1" && r.names(format.AttrHeartbeat) && !r.names(format.CopyID) {
				records.Add(1)
			}
		})
		next := w.begin(cls1, nil)
		time.Sleep(time.Second)
		publish(t, next.Registry, exp)
		w.until(time.Minute, "its first record is written", func() bool { return records.Load() > 0 })
		time.Sleep(time.Second) // until every answer shows it
		importer := w.begin(cls2, nil)
		w.until(3*time.Second, "a cluster that starts knows the export", sees(t, importer.Registry, exp))
		if n := records.Load(); n != 2 {
			t.Errorf("%d records were written, want one to claim the ID and one to announce the pages", n)
		}
	})
}

// TestRestart_KilledAtTakeover: a controller is killed when it has taken over from a previous
// process and has announced no page yet. Another cluster restarts in this moment, and knows nothing
// of the exports: it notices that the dead cluster is stale nevertheless.
func TestRestart_KilledAtTakeover(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "the export is known", sees(t, importer.Registry, exp))
		_, _ = exporter.end(nil), importer.end(nil)

		next := w.create("cls1", cls1)
		var wrote atomic.Bool
		w.setWrote(func(r request) {
			if r.cluster == "cls1" && r.names(format.AttrHeartbeat) {
				next.wire.cut.Store(true)
				wrote.Store(true)
			}
		})
		publish(t, next.Registry, exp)
		next.run(nil)
		w.until(time.Minute, "its first record is written", wrote.Load)
		next.kill()

		notified := make(chan struct{}, 1)
		importer = w.begin(cls2, func(_ *process, key mcs.Key) {
			if key == exp.Key {
				notified <- struct{}{}
			}
		})
		for {
			view, ok := viewOf(t, importer.Registry, exp.Key, "cls1")
			if ok && view.Clusters["cls1"].State != registry.Unknown {
				t.Fatalf("the view is %v, want the cluster as unknown", view.Clusters)
			}
			if view.Clusters["cls1"].Liveness == registry.Stale {
				return
			}
			select {
			case <-notified:
			case <-time.After(5 * time.Minute):
				t.Fatalf("no notification: the view is %v", view.Clusters)
			}
		}
	})
}

// restartAmong restarts an importer of a number of clusters, one of which has changed its export
// while no process ran, with an interception of the reads of their catalogs. It returns the next
// process.
func restartAmong(t *testing.T, w *simulation, clusters, changed int, intercept func(exporter string) (code string, ok bool)) (importer *process) {
	t.Helper()
	var exporters []*process
	for i := range clusters {
		identity := mcs.Identity{ClusterID: otherID(i), ClusterSetID: cls1.ClusterSetID, UID: "uid-" + otherID(i)}
		exporters = append(exporters, w.begin(identity, nil))
		publish(t, exporters[i].Registry, webExport(otherID(i), 0, 1))
	}
	importer = w.begin(cls1, nil)
	for i := range clusters {
		w.until(2*time.Minute, "all exports are known", sees(t, importer.Registry, webExport(otherID(i), 0, 1)))
	}
	time.Sleep(time.Minute) // until the clusters are not young
	if err := importer.end(nil); err != nil {
		t.Fatal(err)
	}
	publish(t, exporters[changed].Registry, webExport(otherID(changed), 0, 2))
	time.Sleep(5 * time.Second)
	w.setIntercept(func(r request) (code, body string, ok bool) {
		for i := range clusters {
			if r.cluster == cls1.ClusterID && r.operation == "DiscoverInstances" && r.names(format.CatalogName(otherID(i))) {
				code, ok = intercept(otherID(i))
			}
		}
		return code, "", ok
	})
	return w.begin(cls1, nil)
}

func otherID(i int) string { return fmt.Sprintf("other-%02d", i) }

// TestRestart_ChangedFirst restarts an importer while AWS admits one read of a catalog a second, as
// when 1,000 clusters of an account restart at once. The catalog that has changed meanwhile is read
// first, and those that have not are not asked for while reads are throttled.
func TestRestart_ChangedFirst(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const changed = 7
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
		var admitted []string
		var admittedAt time.Time
		refused := 0
		importer := restartAmong(t, w, 12, changed, func(exporter string) (code string, ok bool) {
			if time.Since(admittedAt) < time.Second {
				refused++
				return "RequestLimitExceeded", true
			}
			admittedAt, admitted = time.Now(), append(admitted, exporter)
			return "", false
		})
		began := time.Now()
		w.until(10*time.Second, "the change is known", sees(t, importer.Registry, webExport(otherID(changed), 0, 2)))
		if admitted[0] != otherID(changed) || refused > concurrency {
			t.Errorf("after %v, %d reads were refused, and those of %q admitted; want %s first, and no read after a refused one", time.Since(began), refused, admitted, otherID(changed))
		}
	})
}

// TestRestart_ChangedIsUnreadable restarts an importer that cannot read the catalog that has
// changed. It reads the others.
func TestRestart_ChangedIsUnreadable(t *testing.T) {
	for _, code := range []string{"QuantumFlux", "AccessDeniedException", "InternalFailure", "ServiceNotFound", ""} {
		t.Run(code, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				const clusters, changed = 4, 2
				w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true})
				hang := sync.OnceFunc(func() {
					w.plan(0, cloudmaplocal.FaultRule{AccessKey: cls1.ClusterID, Service: format.CatalogName(otherID(changed)), Kind: cloudmaplocal.FaultHang})
				})
				importer := restartAmong(t, w, clusters, changed, func(exporter string) (string, bool) {
					if code == "" {
						hang()
					}
					return code, code != "" && exporter == otherID(changed)
				})
				for i := range clusters {
					if i != changed {
						w.until(30*time.Second, "the others are known", sees(t, importer.Registry, webExport(otherID(i), 0, 1)))
					}
				}
			})
		})
	}
}
