package cloudmap

import (
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing/tracingtest"
)

// TestTraces_OfSentPages: the trace of a change that the cluster has sent has no steps of reads,
// which were made before the change. The next read ends that.
func TestTraces_OfSentPages(t *testing.T) {
	receiver, err := tracingtest.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	tracer, err := tracing.New(t.Context(), tracing.Config{Endpoint: receiver.Address, Insecure: true, Ratio: 1, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	traces := newTraces(tracer.Of(mcs.Identity{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-2"}))
	change := func(second int) {
		exp := cloudmaptest.WebExport("cls1", 0, second)
		exp.Changed = began.Add(time.Duration(second) * time.Second)
		traces.decoded(exp)
	}
	p := newPeers(Config{}, "", nil, nil, nil)
	traces.membersRead(began)
	traces.catalogRead("cls1", p, began)
	change(1)
	traces.pagesReceived("cls1", began.Add(time.Second))
	change(2)
	traces.membersRead(began)
	traces.catalogRead("cls1", p, began)
	change(3)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []int
	for _, trace := range tracingtest.ByTrace(receiver.Spans()) {
		isReceived := slices.ContainsFunc(trace, func(s tracingtest.Span) bool { return s.Name == tracing.ReceivePage })
		isRead := slices.ContainsFunc(trace, func(s tracingtest.Span) bool { return s.Name == tracing.ReadPage })
		if isReceived == isRead {
			t.Errorf("a trace was read: %t, received: %t", isRead, isReceived)
		}
		got = append(got, len(trace))
	}
	slices.Sort(got)
	if want := []int{1, 3, 3}; !slices.Equal(got, want) {
		t.Errorf("the traces have %v spans, want %v", got, want)
	}
}
