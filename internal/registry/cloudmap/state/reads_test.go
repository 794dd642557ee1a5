package state

import (
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
)

// TestAbsence checks after which polls the clusterset is shown again: lists that were made before
// may have been empty.
func TestAbsence(t *testing.T) {
	notFound, denied := &types.NamespaceNotFound{}, &smithy.GenericAPIError{Code: "AccessDeniedException"}
	throttled, failed := &types.RequestLimitExceeded{}, errors.New("connection refused")
	for name, tt := range map[string]struct {
		polls []error
		want  bool // of the last poll
	}{
		"no failure":                            {[]error{nil, nil}, false},
		"not found":                             {[]error{nil, notFound, nil}, true},
		"denied":                                {[]error{denied, nil}, true},
		"not found, and then throttled":         {[]error{notFound, throttled, failed, nil}, true},
		"throttled":                             {[]error{throttled, failed, nil}, false},
		"not found before the previous success": {[]error{notFound, nil, throttled, nil}, false},
		"not found, and it has not been read since": {[]error{notFound}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var a absence
			got := false
			for _, err := range tt.polls {
				got = a.observe(err)
			}
			if got != tt.want {
				t.Errorf("shown again: %t, want %t", got, tt.want)
			}
		})
	}
}

// TestFollowsOtherProcess: a record of another process of this cluster, whose clock is ahead, has a
// later generation. The next records and pages of this process are not earlier: for a cluster that
// has read pages of the other process they would be earlier versions.
func TestFollowsOtherProcess(t *testing.T) {
	for name, observe := range map[string]func(s *State, r format.Member){
		"its record": func(s *State, r format.Member) { s.Reads.ObserveClaim(&r, engine.Keys{}) },
		"the copy of its record": func(s *State, r format.Member) {
			s.Reads.ObserveAudit(time.Now(), nil, []api.Instance{format.CopyOf(r.Instance(signerOf(cls1.UID)))}, engine.Keys{})
		},
		"its page": func(s *State, r format.Member) {
			w, err := EncodePage(cls1, signerOf(cls1.UID), thePage, r.Generation, holding(webExport("cls1", 0, 1)))
			if err != nil {
				t.Fatal(err)
			}
			s.Reads.ObserveAudit(time.Now(), nil, w.Instances, engine.Keys{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(testConfig())
			s.claim.state = Held
			other := format.Member{
				ClusterID: "cls1", ClusterSetID: "set1", UID: cls1.UID, Key: signerOf(cls1.UID).Key(), Joined: time.Now(),
				Generation: time.Now().Add(time.Hour).UnixMilli(), Heartbeat: time.Now().UnixMilli(), Process: "2-other",
			}
			observe(s, other)
			if s.outbox.generation < other.Generation {
				t.Errorf("the next page has generation %d, want a later one than %d", s.outbox.generation+1, other.Generation)
			}
		})
	}
}

// TestUnannouncedPage: the catalog of a cluster has a page that its record does not announce. The
// page is read if the record is known by its copy alone, which is older than the pages. Otherwise
// the cluster announces it: an import that began before would end if this process restarts.
func TestUnannouncedPage(t *testing.T) {
	exp := webExport("cls3", 0, 1)
	r := memberOf("cls3")
	w, err := EncodePage(mcs.Identity{ClusterID: "cls3", ClusterSetID: "set1", UID: r.UID}, signerOf(r.UID), format.PageOf(exp.Key), r.Generation+1, holding(exp))
	if err != nil {
		t.Fatal(err)
	}
	record := r.Instance(signerOf(r.UID))
	for name, tt := range map[string]struct {
		members []api.Instance
		want    int
	}{
		"its record is there": {[]api.Instance{record}, 0},
		"its record is gone":  {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(testConfig())
			s.Reads.ObserveMembers(tt.members, engine.Keys{})
			if _, err := s.Lookup(exp.Key, []string{"cls3"}); err != nil && len(tt.members) == 0 {
				t.Fatal(err)
			}
			s.Reads.ObserveMembers(tt.members, engine.Keys{})
			s.Reads.ObserveCatalog(time.Now(), "cls3", append([]api.Instance{format.CopyOf(record)}, w.Instances...))
			view, err := s.Lookup(exp.Key, []string{"cls3"})
			if err != nil || len(view.Exports()) != tt.want {
				t.Errorf("%d exports, %v; want %d", len(view.Exports()), err, tt.want)
			}
		})
	}
}
