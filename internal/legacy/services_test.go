package legacy

import (
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
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
			c := newCatalog("cls1")
			now := start
			for i, s := range tt.steps {
				now = now.Add(s.after)
				found := map[mcs.Key]service{key: {namespace: "demo", resource: api.Service{ID: "srv-1"}}}
				if s.unlisted {
					found = nil
				}
				c.setServices(now, found)
				if !s.unlisted {
					c.services[key].setExports(now, c.ownCluster, s.read)
				}
				c.removeExpired(now, hold)
				var got []mcs.Export
				if have := c.services[key]; have != nil {
					got = have.exports()
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
