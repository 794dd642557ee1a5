package membership

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

const (
	// refusalRepeat is the time after which an event reports again that records of a cluster are
	// refused, and refusalPause the shortest time between two of these events: other members may
	// invent clusters, and overwrite the record of one again and again.
	refusalRepeat = time.Hour
	refusalPause  = time.Minute
	// maxGone is the number of clusters that are no members any more and whose keys are kept for
	// the next event, as many as a keyring has pins.
	maxGone = 1000
	// refusalsNamed is the number of clusters whose problems an event has.
	refusalsNamed = 3
)

// keyWatch decides which events report the keys of the other clusters.
type keyWatch struct {
	// keys are the keys of the clusters, by ID, as last read, also of those that have left or were
	// forgotten since.
	keys map[string]string
	// reported is when an event has last reported that records of a cluster are refused, by ID, and
	// latest the time of the latest of these events.
	reported map[string]time.Time
	latest   time.Time
}

// observe returns a message for each cluster that has another key than before, and one for the
// clusters whose records are refused, "" for none. members includes this cluster, whose ID is own:
// other members can write records under it.
func (w *keyWatch) observe(now time.Time, own string, members []registry.Member) (changes []string, refusal string) {
	return w.observeKeys(own, members), w.observeRefused(now, members)
}

func (w *keyWatch) observeKeys(own string, members []registry.Member) (changes []string) {
	keys := make(map[string]string, len(members))
	for _, m := range members {
		before := w.keys[m.ClusterID]
		keys[m.ClusterID] = cmp.Or(m.Key, before)
		if before != "" && m.Key != "" && m.Key != before && m.ClusterID != own {
			changes = append(changes, fmt.Sprintf("cluster %s has another key: its records are signed with %s from now on, and with %s before", m.ClusterID, m.Key, before))
		}
	}
	// Any key may follow a farewell, and the cluster is no member in between.
	gone := 0
	for id, key := range w.keys {
		if _, isMember := keys[id]; !isMember && key != "" && gone < maxGone {
			keys[id] = key
			gone++
		}
	}
	w.keys = keys
	return changes
}

func (w *keyWatch) observeRefused(now time.Time, members []registry.Member) string {
	refused := 0
	var fresh, lines []string
	for _, m := range members {
		i := slices.IndexFunc(m.Problems, registry.IsRefused)
		if i < 0 {
			continue
		}
		refused++
		if now.Sub(w.reported[m.ClusterID]) >= refusalRepeat {
			fresh = append(fresh, m.ClusterID)
			lines = append(lines, m.ClusterID+": "+m.Problems[i])
		}
	}
	if len(fresh) == 0 || now.Sub(w.latest) < refusalPause {
		return ""
	}
	maps.DeleteFunc(w.reported, func(_ string, at time.Time) bool { return now.Sub(at) >= refusalRepeat })
	if w.reported == nil {
		w.reported = map[string]time.Time{}
	}
	for _, id := range fresh {
		w.reported[id] = now
	}
	w.latest = now
	return fmt.Sprintf("records of %d clusters are refused: %s", refused, strings.Join(lines[:min(len(lines), refusalsNamed)], "; "))
}

// reportKeys records events about the keys of the other clusters.
func (m *Membership) reportKeys(ctx context.Context) {
	s := m.State().Session
	if s == nil || m.identities.Namespace == "" || m.events.Recorder == nil {
		return
	}
	members, err := s.Registry.Members(ctx)
	if err != nil {
		return // not read yet
	}
	changes, refusal := m.keys.observe(time.Now(), s.Identity.ClusterID, members)
	for _, change := range changes {
		m.events.Publish(kube.KeyChanged(m.identities.object(), change))
	}
	if refusal != "" {
		m.events.Publish(kube.RecordRefused(m.identities.object(), refusal))
	}
}
