package cloudmap

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// compatService is what is known of a Cloud Map service in which clusters that run the AWS Cloud Map MCS Controller for K8s may
// have instances.
type compatService struct {
	key mcs.Key
	// namespace is the namespace's name for discovery.
	namespace string
	service   api.Service
	// listed says that it was in the last list of services.
	listed bool
	// read says that it has been read whole once, readAt when it was last, and lookedAt when it was last read or had not changed.
	read             bool
	readAt, lookedAt time.Time
	// revision is that of the last read, 0 when there was none to tell.
	revision int64
	// busy says that the service is of interest: an export of another cluster has been in it.
	busy     bool
	clusters map[string]*compatExport
}

// compatExport is one cluster's export as it was last seen.
type compatExport struct {
	export   mcs.Export
	problems []string
	// gone is since when it has not been seen any more, zero while it is.
	gone time.Time
}

// note takes in a whole read of the service.
func (s *compatService) note(now time.Time, own string, read []legacy.InstanceExport) {
	s.read, s.readAt, s.lookedAt = true, now, now
	seen := map[string]bool{}
	for _, e := range read {
		// Our own exports are known from our own objects. What a controller like ours wrote is in the pages.
		if e.Cluster == own || e.Ours {
			continue
		}
		if e.Export == nil && s.clusters[e.Cluster] == nil {
			continue // nothing of it can be used, and never could
		}
		seen[e.Cluster] = true
		s.busy = true
		if e.Export == nil {
			s.clusters[e.Cluster].problems = e.Problems // unreadable is not empty
			continue
		}
		s.clusters[e.Cluster] = &compatExport{export: *e.Export, problems: e.Problems}
	}
	s.missing(now, func(cluster string) bool { return !seen[cluster] })
}

// missing notes that clusters have no instance any more.
func (s *compatService) missing(now time.Time, gone func(cluster string) bool) {
	for cluster, e := range s.clusters {
		if gone(cluster) && e.gone.IsZero() {
			e.gone = now
		}
	}
}

// forget removes exports that have been gone for longer than hold.
func (s *compatService) forget(now time.Time, hold time.Duration) {
	maps.DeleteFunc(s.clusters, func(_ string, e *compatExport) bool { return !e.gone.IsZero() && now.Sub(e.gone) >= hold })
}

// exports are those of the service, sorted by cluster.
func (s *compatService) exports() []mcs.Export {
	var out []mcs.Export
	for _, cluster := range slices.Sorted(maps.Keys(s.clusters)) {
		out = append(out, s.clusters[cluster].export)
	}
	return out
}

// due says whether the service is to be looked at now, and whether whole: without asking whether it has changed.
func (s *compatService) due(now time.Time, t compatTimes) (due, whole bool) {
	switch {
	case !s.read:
		return true, true
	case s.busy:
		return true, now.Sub(s.readAt) >= t.whole
	}
	return now.Sub(s.lookedAt) >= t.list, false
}

// compatCatalog is all such services, by key.
type compatCatalog struct {
	own      string
	listed   bool
	services map[mcs.Key]*compatService
}

// list takes in a whole list of the services.
func (c *compatCatalog) list(now time.Time, found map[mcs.Key]compatService) {
	c.listed = true
	for key, f := range found {
		if have := c.services[key]; have == nil || have.service.ID != f.service.ID {
			c.services[key] = &compatService{key: key, clusters: map[string]*compatExport{}}
			if have != nil { // deleted and made again: what it had stays until it has been read
				c.services[key].clusters, c.services[key].busy = have.clusters, have.busy
			}
		}
		s := c.services[key]
		s.namespace, s.service, s.listed = f.namespace, f.service, true
	}
	for key, s := range c.services {
		if _, ok := found[key]; ok {
			continue
		}
		s.listed = false
		s.missing(now, func(string) bool { return true })
	}
}

// forget removes what has been gone for longer than hold.
func (c *compatCatalog) forget(now time.Time, hold time.Duration) {
	for key, s := range c.services {
		s.forget(now, hold)
		if !s.listed && len(s.clusters) == 0 {
			delete(c.services, key)
		}
	}
}

// dueServices are those to be looked at now, in a fixed order.
func (c *compatCatalog) dueServices(now time.Time, t compatTimes) []compatLook {
	var out []compatLook
	for key, s := range c.services {
		if due, whole := s.due(now, t); due && s.listed {
			out = append(out, compatLook{key: key, namespace: s.namespace, service: s.service, revision: s.revision, whole: whole})
		}
	}
	slices.SortFunc(out, func(a, b compatLook) int { return strings.Compare(a.key.String(), b.key.String()) })
	return out
}

// compatLook is one service to be looked at.
type compatLook struct {
	key       mcs.Key
	namespace string
	service   api.Service
	revision  int64
	// whole says that it is to be read, whether or not its revision is another one.
	whole bool
}

// members are the clusters that have exports.
func (c *compatCatalog) members() []registry.Member {
	byID := map[string]*registry.Member{}
	for _, s := range c.services {
		for cluster, e := range s.clusters {
			m := byID[cluster]
			if m == nil {
				m = &registry.Member{ClusterID: cluster, Version: oldController}
				byID[cluster] = m
			}
			if s.readAt.After(m.LastSeen) {
				m.LastSeen = s.readAt
			}
			for _, problem := range e.problems {
				m.Problems = append(m.Problems, s.key.String()+": "+problem)
			}
		}
	}
	var out []registry.Member
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		m := *byID[id]
		slices.Sort(m.Problems)
		m.Problems = m.Problems[:min(len(m.Problems), maxCompatProblems)]
		out = append(out, m)
	}
	return out
}

// compatTimes are the intervals of the compatibility import.
type compatTimes struct {
	// list is the time between two lists of namespaces and services while nothing is throttled (compatLists), and between two looks at a
	// service that no other cluster has ever exported: most of what an account has is nothing to us.
	list time.Duration
	// whole is the time between two whole reads of a service. AWS does not say whether an instance that is registered again with
	// other attributes, as for a change of readiness, gives the service another revision: this bounds what that could cost.
	whole time.Duration
	// hold is how long an export stays after its last instance has gone.
	hold time.Duration
}

const (
	// defaultCompatPoll is the time between two questions for the revision of each busy service. At 3,000 a second for an account,
	// ten clusters of our kind with 500 services of the old kind take a third.
	defaultCompatPoll = 5 * time.Second
	// compatList: AWS's own controller allows itself two ListServices a second; an account has at most 50 namespaces unless the quota
	// was raised, so once a minute they take half.
	compatList = time.Minute
	// compatWhole: 500 services every 30 s are 17 DiscoverInstances a second of the account's 1,000.
	compatWhole = 30 * time.Second
	// compatHold is longer than the longest poll of the members (5 s) with the reads after it: when a cluster's instances are
	// rewritten by a controller like ours, its pages are seen before what the instances said is forgotten.
	compatHold = 15 * time.Second
	// maxCompatProblems of a cluster say enough.
	maxCompatProblems = 20
	// oldController is its name in its own attributes and labels.
	oldController = "aws-cloud-map-mcs-controller-for-k8s"
)

func defaultCompatTimes() compatTimes {
	return compatTimes{list: compatList, whole: compatWhole, hold: compatHold}
}

// CompatRates are those of a client for the compatibility import alone, which is in no hurry: a quarter of what the registry's own
// client allows itself at most, beside which it runs. DiscoverInstancesRevision has nobody else that uses it.
func CompatRates() map[string]api.Rate {
	rates := map[string]api.Rate{}
	for _, operation := range []string{"DiscoverInstances", "ListInstances", "ListNamespaces", "ListServices"} {
		full := api.DefaultRates()[operation]
		rates[operation] = api.Rate{PerSecond: full.PerSecond / 4, Burst: max(1, full.Burst/4)}
	}
	return rates
}
