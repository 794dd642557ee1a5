package legacy

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

func TestCatalog(t *testing.T) {
	const hold = 15 * time.Second
	read := func(exps ...mcs.Export) []InstanceExport {
		var out []InstanceExport
		for _, e := range exps {
			out = append(out, InstanceExport{Cluster: e.Cluster, Export: &e})
		}
		return out
	}
	migrated := []InstanceExport{{Cluster: "cls2", HasPages: true, Export: new(exportOfSize("cls2", 5))}}
	unreadable := []InstanceExport{{Cluster: "cls2", Problems: []string{"bad"}}}
	type step struct {
		after time.Duration // since the step before
		read  []InstanceExport
		// listed is false for a list without the service; then nothing is read.
		unlisted bool
		want     []mcs.Export
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"an export appears and changes", []step{
			{read: nil},
			{read: read(exportOfSize("cls2", 1)), want: []mcs.Export{exportOfSize("cls2", 1)}},
			{read: read(exportOfSize("cls2", 2), exportOfSize("cls3", 1)), want: []mcs.Export{exportOfSize("cls2", 2), exportOfSize("cls3", 1)}},
		}},
		{"the export of this cluster is not imported", []step{{read: read(exportOfSize("cls1", 1))}}},
		{"an export stays for the hold time after its last instance", []step{
			{read: read(exportOfSize("cls2", 1), exportOfSize("cls3", 1)), want: []mcs.Export{exportOfSize("cls2", 1), exportOfSize("cls3", 1)}},
			{after: time.Second, read: read(exportOfSize("cls3", 1)), want: []mcs.Export{exportOfSize("cls2", 1), exportOfSize("cls3", 1)}},
			{after: hold - 1, read: read(exportOfSize("cls3", 1)), want: []mcs.Export{exportOfSize("cls2", 1), exportOfSize("cls3", 1)}},
			{after: 1, read: read(exportOfSize("cls3", 1)), want: []mcs.Export{exportOfSize("cls3", 1)}},
		}},
		{"an export returns within the hold time", []step{
			{read: read(exportOfSize("cls2", 1)), want: []mcs.Export{exportOfSize("cls2", 1)}},
			{after: time.Second, want: []mcs.Export{exportOfSize("cls2", 1)}},
			{after: time.Second, read: read(exportOfSize("cls2", 3)), want: []mcs.Export{exportOfSize("cls2", 3)}},
			{after: hold, read: read(exportOfSize("cls2", 3)), want: []mcs.Export{exportOfSize("cls2", 3)}},
		}},
		{"a cluster migrates to this controller", []step{
			{read: read(exportOfSize("cls2", 1)), want: []mcs.Export{exportOfSize("cls2", 1)}},
			{after: time.Second, read: migrated, want: []mcs.Export{exportOfSize("cls2", 1)}},
			{after: hold, read: migrated},
		}},
		{"a cluster with this controller is not imported", []step{{read: migrated}}},
		{"an unreadable export stays", []step{
			{read: unreadable},
			{read: read(exportOfSize("cls2", 1)), want: []mcs.Export{exportOfSize("cls2", 1)}},
			{after: time.Hour, read: unreadable, want: []mcs.Export{exportOfSize("cls2", 1)}},
			{after: time.Hour, read: unreadable, want: []mcs.Export{exportOfSize("cls2", 1)}},
		}},
		{"the service is deleted and created again", []step{
			{read: read(exportOfSize("cls2", 1)), want: []mcs.Export{exportOfSize("cls2", 1)}},
			{after: time.Second, unlisted: true, want: []mcs.Export{exportOfSize("cls2", 1)}},
			{after: hold, unlisted: true},
			{after: time.Second, read: read(exportOfSize("cls2", 2)), want: []mcs.Export{exportOfSize("cls2", 2)}},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := newCatalog("cls1", nil)
			now := start
			for i, s := range tt.steps {
				now = now.Add(s.after)
				found := map[mcs.Key]service{key: {namespace: "demo", resource: api.Service{ID: "srv-1"}}}
				if s.unlisted {
					found = nil
				}
				c.setServices(now, found)
				if !s.unlisted {
					c.services[key].setExports(now, c.ownCluster, c.account, s.read)
				}
				c.removeExpired(now, hold)
				var got []mcs.Export
				if have := c.services[key]; have != nil {
					got = have.content().exports
				}
				if !slices.EqualFunc(got, s.want, mcs.Export.Equal) {
					t.Errorf("step %d: %v, want %v", i, got, s.want)
				}
			}
		})
	}
}

func TestService_IsDue(t *testing.T) {
	now := time.Unix(1_790_000_000, 0)
	intervals := defaultIntervals()
	tests := []struct {
		name             string
		s                service
		wantDue, wantAll bool
	}{
		{"never read", service{}, true, true},
		{"exported before, just read", service{isRead: true, wasExported: true, readAt: now, checkedAt: now}, true, false},
		{"exported before, last read is old", service{isRead: true, wasExported: true, readAt: now.Add(-intervals.reread), checkedAt: now}, true, true},
		{"never exported, just checked", service{isRead: true, readAt: now.Add(-time.Hour), checkedAt: now}, false, false},
		{"never exported, last check is old", service{isRead: true, readAt: now.Add(-time.Hour), checkedAt: now.Add(-intervals.list)}, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if due, all := tt.s.isDue(now, intervals); due != tt.wantDue || all != tt.wantAll {
				t.Errorf("due %v whole %v, want %v %v", due, all, tt.wantDue, tt.wantAll)
			}
		})
	}
}

// TestCatalog_Budget: an export over budget stays as it was, or is unknown if it is new, until
// there is room.
func TestCatalog_Budget(t *testing.T) {
	const hold = 15 * time.Second
	// Of the endpoints of one member, the namespace has all but the share of one that comes later,
	// a quarter.
	limit := budget.Amounts{budget.Exports: 100, budget.Endpoints: 40, budget.Ports: 1000, budget.PortEndpoints: 1000, budget.Bytes: 1 << 20}
	account := budget.NewLedger(budget.Limits{Member: limit, Total: limit.Plus(limit)}).Open(budget.Owner{})
	c, now := newCatalog("cls1", account), start
	c.setServices(now, map[mcs.Key]service{key: {namespace: "demo", resource: api.Service{ID: "srv-1"}}})
	steps := []struct {
		what  string
		after time.Duration
		read  []mcs.Export
		// want are the endpoints by cluster, -1 for unknown.
		want map[string]int
		// over are the clusters with an export over budget.
		over []string
	}{
		{what: "within the budget", read: []mcs.Export{exportOfSize("cls2", 20)}, want: map[string]int{"cls2": 20}},
		{what: "a new export is over", read: []mcs.Export{exportOfSize("cls2", 20), exportOfSize("cls3", 11)}, want: map[string]int{"cls2": 20, "cls3": -1}, over: []string{"cls3"}},
		{what: "a smaller one fits", read: []mcs.Export{exportOfSize("cls2", 20), exportOfSize("cls3", 10)}, want: map[string]int{"cls2": 20, "cls3": 10}},
		{what: "one that grows is over", read: []mcs.Export{exportOfSize("cls2", 21), exportOfSize("cls3", 10)}, want: map[string]int{"cls2": 20, "cls3": 10}, over: []string{"cls2"}},
		{what: "another one is absent", after: time.Second, read: []mcs.Export{exportOfSize("cls2", 21)}, want: map[string]int{"cls2": 20, "cls3": 10}, over: []string{"cls2"}},
		{what: "its time is over", after: hold, read: []mcs.Export{exportOfSize("cls2", 21)}, want: map[string]int{"cls2": 20}},
		{what: "there is room at the next read", read: []mcs.Export{exportOfSize("cls2", 21)}, want: map[string]int{"cls2": 21}},
	}
	for _, s := range steps {
		now = now.Add(s.after)
		var read []InstanceExport
		for _, exp := range s.read {
			read = append(read, InstanceExport{Cluster: exp.Cluster, Export: &exp})
		}
		countCosts(read)
		c.services[key].setExports(now, c.ownCluster, c.account, read)
		c.removeExpired(now, hold)
		got, known := map[string]int{}, c.services[key].content()
		for _, exp := range known.exports {
			got[exp.Cluster] = exp.EndpointCount()
		}
		for _, cluster := range known.unknown {
			got[cluster] = -1
		}
		if !maps.Equal(got, s.want) {
			t.Errorf("%s: endpoints %v, want %v", s.what, got, s.want)
		}
		var over []string
		for _, m := range c.members() {
			if slices.ContainsFunc(m.Problems, registry.IsOverBudget) {
				over = append(over, m.ClusterID)
			}
		}
		if !slices.Equal(over, s.over) {
			t.Errorf("%s: over budget are %v, want %v", s.what, over, s.over)
		}
	}
}
