package ui

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/show"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// A Clusterset is the document that the page shows. Status is the JSON output of status, Clusters
// that of get clusters, and Services that of get services -A.
type Clusterset struct {
	// Time is the time of the reading, by the clock of this computer.
	Time     time.Time            `json:"time"`
	Status   []show.ClusterStatus `json:"status"`
	Clusters []show.Member        `json:"clusters"`
	Services []show.Service       `json:"services"`
	// Problems are those of status, why names do not resolve, and why services could not be read.
	Problems []show.Problem `json:"problems"`
	// Contexts are those that the page was started with.
	Contexts []ContextState `json:"contexts"`
	// Map and Paths say who serves and who reaches whom.
	Map   Map         `json:"map"`
	Paths []PathsFrom `json:"paths"`
}

// A ContextState is the state of the controller that a context leads to.
type ContextState struct {
	Context string `json:"context"`
	// State is that of status. Problem is the reason unless it is ok, Remedy the action.
	State   string `json:"state"`
	Problem string `json:"problem,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
	// HasCluster reports whether Clusters has the cluster of the context.
	HasCluster bool `json:"hasCluster"`
}

// newClusterset returns the document. Statuses and lists are of the same contexts.
func newClusterset(now time.Time, statuses []show.ClusterStatus, lists []show.ContextServices) Clusterset {
	members := show.MergeMembers(statuses)
	c := Clusterset{
		Time: now.UTC(), Status: statuses, Clusters: members, Services: show.MergeServices(statuses, lists),
		Problems: append([]show.Problem{}, show.ListProblems(statuses)...), Map: newMap(statuses, lists, members), Paths: newPaths(statuses),
	}
	for _, s := range statuses {
		if s.Status != nil && s.Status.DNS != nil && s.Status.DNS.State == status.DNSNotServed {
			c.Problems = append(c.Problems, show.Problem{Context: s.Context, Text: s.Context + ": " + s.Status.DNS.Problem})
		}
	}
	for i, l := range lists {
		if l.Problem != "" && statuses[i].Status != nil {
			c.Problems = append(c.Problems, show.Problem{Context: l.Context, Text: l.Context + ": " + l.Problem})
		}
	}
	for i := range c.Problems {
		c.Problems[i].Remedy = cmp.Or(c.Problems[i].Remedy, remedy(c.Problems[i]))
	}
	for _, s := range statuses {
		c.Contexts = append(c.Contexts, newContextState(s, c.Problems, members))
	}
	return c
}

// remedy returns the command that finds the action for a problem which names none.
func remedy(p show.Problem) string {
	if p.Service == nil {
		return findReason(p.Context)
	}
	return "find the reason: kubectl mcs diagnose " + p.Service.Name + " -n " + p.Service.Namespace + " --context " + p.Context
}

// newContextState returns the state of a context, with its first problem.
func newContextState(s show.ClusterStatus, problems []show.Problem, members []show.Member) ContextState {
	c := ContextState{
		Context: s.Context, State: s.ControllerState(),
		HasCluster: slices.ContainsFunc(members, func(m show.Member) bool { return m.Context == s.Context }),
	}
	i := slices.IndexFunc(problems, func(p show.Problem) bool { return strings.HasPrefix(p.Text, s.Context+": ") })
	if c.State != "ok" && i >= 0 {
		c.Problem, c.Remedy = strings.TrimPrefix(problems[i].Text, s.Context+": "), problems[i].Remedy
	}
	return c
}

// readClusterset reads the controllers of all contexts. A standby and a controller that does not
// respond know no services.
func readClusterset(ctx context.Context, s *session.Session, clusters []*session.Cluster) Clusterset {
	statuses := show.QueryStatuses(ctx, s, clusters)
	lists := make([]show.ContextServices, len(clusters))
	var answering []*session.Cluster
	var at []int
	for i, c := range statuses {
		lists[i].Context = clusters[i].Context
		if c.Status != nil && c.Status.Identity != nil && c.Status.Synced {
			answering, at = append(answering, clusters[i]), append(at, i)
		}
	}
	for i, list := range show.QueryServices(ctx, s, answering) {
		lists[at[i]] = list
	}
	return newClusterset(clusters[0].Now(), statuses, lists)
}

// polls is the number of poll intervals of the commands, 1 s, between two readings.
const polls = 2

// maxShare is the inverse of the largest share of the time in which the page reads. A clusterset
// with many endpoints takes seconds to read, and the controllers have other work.
const maxShare = 10

func interval(poll time.Duration) time.Duration { return polls * poll }

// pause returns the time between the end of a reading and the next one.
func pause(interval, took time.Duration) time.Duration { return max(interval, (maxShare-1)*took) }

// A feed reads the clusterset for all pages that are open, and only while one is.
type feed struct {
	read     func(context.Context) Clusterset
	interval time.Duration

	mu   sync.Mutex
	text []byte
	due  time.Time
}

// latest returns the document as JSON, and the time until there is a newer one. It returns nil if
// ctx ended.
func (f *feed) latest(ctx context.Context) ([]byte, time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if wait := time.Until(f.due); wait > 0 {
		return f.text, wait, nil
	}
	began := time.Now()
	document := f.read(ctx)
	if err := ctx.Err(); err != nil {
		return nil, 0, err // the problems in the document are those of the request that ended
	}
	var text bytes.Buffer
	if err := session.PrintJSON(&text, document); err != nil {
		return nil, 0, err
	}
	wait := pause(f.interval, time.Since(began))
	f.text, f.due = text.Bytes(), time.Now().Add(wait)
	return f.text, wait, nil
}
