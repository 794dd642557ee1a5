package ui

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// event returns an event as the recorder of the controller writes it.
func event(age time.Duration, kind, name, reason string) corev1.Event {
	return corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name + "." + reason}, InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "shop", Name: name},
		Type: corev1.EventTypeWarning, Reason: reason, Message: "the reason", EventTime: metav1.NewMicroTime(today.Add(-age)),
		Source: corev1.EventSource{Component: names.Lease},
	}
}

func TestNewHistory(t *testing.T) {
	repeated := event(50*time.Minute, "ServiceImport", "web", "ImportFailed")
	repeated.Series = &corev1.EventSeries{Count: 7, LastObservedTime: metav1.NewMicroTime(today.Add(-time.Minute))}
	old := event(0, "ServiceExport", "web", "Failed") // as the recorders of the older API write it
	old.EventTime, old.FirstTimestamp, old.LastTimestamp, old.Count = metav1.MicroTime{}, metav1.NewTime(today.Add(-30*time.Minute)), metav1.NewTime(today.Add(-20*time.Minute)), 3
	got := newHistory(today, []contextEvents{
		{context: "cls1", events: []corev1.Event{event(time.Hour, "ServiceExport", "web", "Conflict"), event(61*time.Minute, "ServiceExport", "web", "TooOld"), old}},
		{context: "cls2", events: []corev1.Event{repeated}},
		{context: "cls3", err: errors.New("no answer")},
	})
	at := func(age time.Duration) time.Time { return today.Add(-age) }
	want := History{
		Time: today,
		Events: []Event{
			{at(time.Minute), at(50 * time.Minute), 7, "cls2", "ServiceImport", "shop", "web", "Warning", "ImportFailed", "the reason"},
			{at(20 * time.Minute), at(30 * time.Minute), 3, "cls1", "ServiceExport", "shop", "web", "Warning", "Failed", "the reason"},
			{at(time.Hour), at(time.Hour), 1, "cls1", "ServiceExport", "shop", "web", "Warning", "Conflict", "the reason"},
		},
		Unread: []Unread{{"cls3", "no answer", "find the reason: kubectl mcs check --context cls3"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	many := contextEvents{context: "cls1"}
	for i := range maxEvents + 5 {
		many.events = append(many.events, event(time.Duration(i)*time.Second, "ServiceExport", "web", "Failed"))
	}
	if got := newHistory(today, []contextEvents{many}); len(got.Events) != maxEvents || got.More != 5 || !got.Events[0].Time.Equal(today) {
		t.Errorf("%d events from %s, %d more", len(got.Events), got.Events[0].Time, got.More)
	}
}

// The history has the events of the controller and those of no other program, and says what it may
// not read.
func TestReadHistory(t *testing.T) {
	clusters := clitest.NewClusters()
	own, other := event(time.Minute, "ServiceExport", "web", "Failed"), event(time.Minute, "ServiceExport", "api", "Failed")
	other.Source.Component = "other"
	clusters["cls1"].Add(&own, &other)
	clusters["cls2"].Denied = []string{"events"}
	connections := clusters.Start(t)
	got := readHistory(t.Context(), []*session.Cluster{connections["cls1"], connections["cls2"]})
	if len(got.Events) != 1 || got.Events[0].Name != "web" {
		t.Errorf("events %+v", got.Events)
	}
	if len(got.Unread) != 1 || got.Unread[0].Context != "cls2" || got.Unread[0].Problem != "no permission to list events in the whole cluster" {
		t.Errorf("unread %+v", got.Unread)
	}
}
