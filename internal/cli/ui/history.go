package ui

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/doctor"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// historyWindow is the age of the oldest event of the page. API servers delete events after an hour
// unless --event-ttl is another time.
const historyWindow = time.Hour

// maxEvents bounds the events of the page. The controller limits those of one object, and 200 fill
// several screens.
const maxEvents = 200

// A History has the events of the controllers in the last hour that the API servers still have.
type History struct {
	Time time.Time `json:"time"`
	// Events begin with the newest one. More is the number of older ones that are left out.
	Events []Event `json:"events"`
	More   int     `json:"more"`
	// Unread are the contexts whose events are not known.
	Unread []Unread `json:"unread"`
}

// An Event is an event about an object, and its repetitions.
type Event struct {
	// Time is that of the last repetition, First that of the first one. Count is at least 1.
	Time  time.Time `json:"time"`
	First time.Time `json:"first"`
	Count int32     `json:"count"`
	// Context is that of the cluster with the event.
	Context   string `json:"context"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Type is Normal or Warning.
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Unread says why something of a context is not known, and the action, which may be "".
type Unread struct {
	Context string `json:"context"`
	Problem string `json:"problem"`
	Remedy  string `json:"remedy,omitempty"`
}

// contextEvents are the events in the cluster of a context, or the error of reading them.
type contextEvents struct {
	context string
	events  []corev1.Event
	err     error
}

// readHistory reads the events of the controllers of all contexts.
func readHistory(ctx context.Context, clusters []*session.Cluster) History {
	return newHistory(clusters[0].Now(), session.ForEachCluster(clusters, func(k *session.Cluster) contextEvents {
		var list corev1.EventList
		// the controller's recorder has the name of its Lease
		err := k.List(ctx, "", &list, client.MatchingFields{"source": names.Lease})
		return contextEvents{context: k.Context, events: list.Items, err: err}
	}))
}

// newHistory returns the history at the time now.
func newHistory(now time.Time, lists []contextEvents) History {
	h := History{Time: now.UTC(), Events: []Event{}, Unread: []Unread{}}
	for _, l := range lists {
		if l.err != nil {
			_, problem, remedy := session.ExplainQuery(l.err)
			h.Unread = append(h.Unread, Unread{Context: l.context, Problem: problem, Remedy: cmp.Or(remedy, findReason(l.context))})
			continue
		}
		for i := range l.events {
			if e := newEvent(l.context, &l.events[i]); now.Sub(e.Time) <= historyWindow {
				h.Events = append(h.Events, e)
			}
		}
	}
	slices.SortStableFunc(h.Events, func(a, b Event) int {
		return cmp.Or(b.Time.Compare(a.Time), strings.Compare(a.Context, b.Context), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	if more := len(h.Events) - maxEvents; more > 0 {
		h.Events, h.More = h.Events[:maxEvents], more
	}
	return h
}

func newEvent(context string, e *corev1.Event) Event {
	last, first, count := doctor.EventTime(*e).UTC(), e.FirstTimestamp.UTC(), e.Count
	if e.FirstTimestamp.IsZero() {
		first = e.EventTime.UTC()
	}
	if e.Series != nil {
		count = e.Series.Count
	}
	return Event{
		Time: last, First: first, Count: max(1, count), Context: context, Type: e.Type, Reason: e.Reason, Message: e.Message,
		Kind: e.InvolvedObject.Kind, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name,
	}
}

// findReason returns the action for a problem of a context that names none.
func findReason(context string) string {
	return "find the reason: kubectl mcs check --context " + context
}
