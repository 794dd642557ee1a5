package exports

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

func reportsOf(others ...registry.Member) *memberReports {
	return &memberReports{identity: mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1"}, others: others}
}

func TestMemberReports_Of(t *testing.T) {
	web := mcs.Key{Namespace: "demo", Name: "web"}
	importing := mcs.NewImportReport(map[string][]mcs.Key{"cls1": {web}}, nil)
	production, err := mcs.ParseRecipients(`[{"propertySelector":{"matchProperties":{"env.example.com":"prod"}}}]`)
	if err != nil {
		t.Fatal(err)
	}
	reports := reportsOf(
		registry.Member{ClusterID: "cls2", Imports: importing, Properties: mcs.Properties{"env.example.com": "prod"}},
		registry.Member{ClusterID: "cls3", Imports: importing}, registry.Member{ClusterID: "cls4"},
	)
	for name, tt := range map[string]struct {
		recipients mcs.ClusterSelectors
		want       mcs.Importers
	}{
		"for all clusters": {"", mcs.Importers{
			Recipients: []string{"cls2", "cls3", "cls4"}, Importing: []string{"cls2", "cls3"}, NotReporting: []string{"cls4"},
		}},
		"for clusters with a property": {production, mcs.Importers{Recipients: []string{"cls2"}, Importing: []string{"cls2"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, reports.of(mcs.Export{Cluster: "cls1", Key: web, Recipients: tt.recipients})); diff != "" {
				t.Errorf("importers (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOtherMembers checks that a record that is refused makes no cluster one that does not report
// its imports.
func TestOtherMembers(t *testing.T) {
	members := []registry.Member{
		{ClusterID: "cls1", UID: "uid-1", Version: "v1"}, {ClusterID: "cls2", UID: "uid-2"}, {ClusterID: "cls3", Version: "aws-cloud-map-mcs-controller"},
		{ClusterID: "cls4", Problems: []string{registry.RefusedProblem("the member record", errors.New("it is not signed"))}},
	}
	var got []string
	for _, m := range otherMembers(members, "cls1") {
		got = append(got, m.ClusterID)
	}
	if want := []string{"cls2", "cls3"}; !slices.Equal(got, want) {
		t.Errorf("other members %v, want %v", got, want)
	}
}

func TestFindReported(t *testing.T) {
	web, db := mcs.Key{Namespace: "demo", Name: "web"}, mcs.Key{Namespace: "demo", Name: "db"}
	published := []mcs.Export{{Cluster: "cls1", Key: web}, {Cluster: "cls1", Key: db}}
	member := func(id string, keys ...mcs.Key) registry.Member {
		return registry.Member{ClusterID: id, Imports: mcs.NewImportReport(map[string][]mcs.Key{"cls1": keys}, nil)}
	}
	before := reportsOf(member("cls2", web), member("cls3"))
	heartbeat := reportsOf(member("cls2", web), member("cls3"))
	heartbeat.others[0].Heartbeat = heartbeat.others[0].Heartbeat.AddDate(0, 0, 1)
	other := reportsOf(member("cls2", web), member("cls3"))
	other.identity.ClusterID = "cls9"
	for name, tt := range map[string]struct {
		before, after *memberReports
		want          []mcs.Key
	}{
		"the first read":                  {nil, before, []mcs.Key{web, db}},
		"a heartbeat":                     {before, heartbeat, nil},
		"another import":                  {before, reportsOf(member("cls2", web, db), member("cls3")), []mcs.Key{db}},
		"an import that ended":            {before, reportsOf(member("cls2"), member("cls3")), []mcs.Key{web}},
		"an import from another cluster":  {before, reportsOf(member("cls2", web), registry.Member{ClusterID: "cls3", Imports: mcs.NewImportReport(map[string][]mcs.Key{"cls9": {db}}, nil)}), nil},
		"a member that joined":            {before, reportsOf(member("cls2", web), member("cls3"), member("cls4")), []mcs.Key{web, db}},
		"a member that left":              {before, reportsOf(member("cls2", web)), []mcs.Key{web, db}},
		"a cluster with another identity": {before, other, []mcs.Key{web, db}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, findReported(published, tt.before, tt.after)); diff != "" {
				t.Errorf("exports with other importers (-want +got):\n%s", diff)
			}
		})
	}
}

// A member may report something else with each heartbeat: the exports that are reconciled because
// of it are bounded, and all have their turn.
func TestRequeueReported_IsBounded(t *testing.T) {
	r := &Controller{requeuer: &kube.Requeuer{}}
	pending := map[mcs.Key]struct{}{}
	for i := range 2*reportRequeues + 1 {
		pending[mcs.Key{Namespace: "demo", Name: fmt.Sprint("web-", i)}] = struct{}{}
	}
	var rest []int
	var last mcs.Key
	for range 3 {
		last = r.requeueReported(pending, last)
		rest = append(rest, len(slices.Collect(maps.Keys(pending))))
	}
	if want := []int{reportRequeues + 1, 1, 0}; !slices.Equal(rest, want) {
		t.Errorf("%v exports are left after each interval, want %v", rest, want)
	}
}

// TestRequeueReported_RequeuesAll checks that a member that reports something else about all
// exports in each interval does not keep any of them from being requeued.
func TestRequeueReported_RequeuesAll(t *testing.T) {
	r := &Controller{requeuer: &kube.Requeuer{}}
	all := map[mcs.Key]struct{}{}
	for i := range 2*reportRequeues + 1 {
		all[mcs.Key{Namespace: "demo", Name: fmt.Sprint("web-", i)}] = struct{}{}
	}
	waiting := maps.Clone(all)
	var last mcs.Key
	for range 3 {
		pending := maps.Clone(all)
		last = r.requeueReported(pending, last)
		maps.DeleteFunc(waiting, func(key mcs.Key, _ struct{}) bool { _, ok := pending[key]; return !ok })
	}
	if len(waiting) > 0 {
		t.Errorf("%d of %d exports were not requeued in 3 intervals", len(waiting), len(all))
	}
}

// TestFindReported_ComparesOnlyChangedReports checks that one report that changes costs nothing for
// the other members.
func TestFindReported_ComparesOnlyChangedReports(t *testing.T) {
	const exports, members = 100, 998
	var published []mcs.Export
	var keys []mcs.Key
	for i := range exports {
		keys = append(keys, mcs.Key{Namespace: "demo", Name: fmt.Sprint("web-", i)})
		published = append(published, mcs.Export{Cluster: "cls1", Key: keys[i]})
	}
	reports := func(importedByFirst int) *memberReports {
		others := make([]registry.Member, members)
		for i := range others {
			others[i] = registry.Member{ClusterID: fmt.Sprintf("member-%03d", i), Imports: mcs.NewImportReport(map[string][]mcs.Key{"cls1": keys}, nil)}
		}
		others[0].Imports = mcs.NewImportReport(map[string][]mcs.Key{"cls1": keys[:importedByFirst]}, nil)
		return reportsOf(others...)
	}
	before, after := reports(exports-1), reports(exports)
	var start, end runtime.MemStats
	runtime.ReadMemStats(&start)
	found := findReported(published, before, after)
	runtime.ReadMemStats(&end)
	if want := keys[exports-1:]; !slices.Equal(found, want) {
		t.Errorf("exports with other importers: %v, want %v", found, want)
	}
	if bytes, limit := end.TotalAlloc-start.TotalAlloc, uint64(2<<20); bytes > limit {
		t.Errorf("one changed report of %d members allocates %d bytes for %d exports, want at most %d", members, bytes, exports, limit)
	}
}
