package legacy

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// service is the state of a Cloud Map service that may have instances of legacy controllers.
type service struct {
	key mcs.Key
	// namespace is the namespace's name for DiscoverInstances.
	namespace string
	resource  api.Service
	// isListed: the last list of services has it.
	isListed bool
	// isRead: all instances were read once. readAt is the time of the last read, checkedAt that of
	// the last read or unchanged revision.
	isRead            bool
	readAt, checkedAt time.Time
	// revision is that of the last read, 0 if there is none.
	revision int64
	// wasExported: another cluster has exported it at some time.
	wasExported bool
	clusters    map[string]*export
}

// export is the last known export of a cluster.
type export struct {
	// export is the last one that could be used, nil if there was none: then it is not known what
	// the cluster exports.
	export   *mcs.Export
	problems []string
	// waiting is the offer of an export that is over budget, nil if it is not.
	waiting *budget.Offer
	// absentSince is the time at which its last instance was removed, zero while it has instances.
	absentSince time.Time
}

// setExports updates the service after a read of all instances.
func (s *service) setExports(now time.Time, ownCluster string, account *budget.Account, read []InstanceExport) {
	s.isRead, s.readAt, s.checkedAt = true, now, now
	seen := map[string]bool{}
	for _, e := range read {
		// The own exports are known from this cluster's objects, those of clusters with this
		// controller from their pages.
		if e.Cluster == ownCluster || e.HasPages {
			continue
		}
		if e.Export == nil && s.clusters[e.Cluster] == nil {
			continue // it was never usable
		}
		seen[e.Cluster] = true
		s.wasExported = true
		if e.Export == nil {
			s.clusters[e.Cluster].problems = e.Problems // an unreadable export is not an absent one
			continue
		}
		s.setExport(account, e)
	}
	s.markAbsent(now, func(cluster string) bool { return !seen[cluster] })
}

// setExport sets a cluster's export if the budgets admit it. Otherwise it stays as it was.
func (s *service) setExport(account *budget.Account, e InstanceExport) {
	after := &export{export: e.Export, problems: e.Problems}
	offer := budget.Offer{Key: offerKey(s.key, e.Cluster), Created: e.Export.Created.Unix(), Wanted: e.Cost}
	if admitted, _ := account.Admit([]budget.Offer{offer}); !admitted[0] {
		after.export, after.waiting = nil, &offer
		if before := s.clusters[e.Cluster]; before != nil {
			after.export = before.export
		}
	}
	s.clusters[e.Cluster] = after
}

// offerKey returns the key of a cluster's export in the account of all of them. A service has no
// slash in its name.
func offerKey(key mcs.Key, cluster string) mcs.Key {
	return mcs.Key{Namespace: key.Namespace, Name: key.Name + "/" + cluster}
}

// markAbsent records which clusters have no instance any more.
func (s *service) markAbsent(now time.Time, isAbsent func(cluster string) bool) {
	for cluster, e := range s.clusters {
		if isAbsent(cluster) && e.absentSince.IsZero() {
			e.absentSince = now
		}
	}
}

// removeExpired removes exports that have been absent for hold.
func (s *service) removeExpired(now time.Time, hold time.Duration, account *budget.Account) {
	for cluster, e := range s.clusters {
		if !e.absentSince.IsZero() && now.Sub(e.absentSince) >= hold {
			account.Release(offerKey(s.key, cluster))
			delete(s.clusters, cluster)
		}
	}
}

// content is what is known of a service.
type content struct {
	exports []mcs.Export
	// unknown are the clusters of which it is not known what they export.
	unknown []string
}

// isEmpty reports whether no cluster exports the service.
func (c content) isEmpty() bool { return len(c.exports)+len(c.unknown) == 0 }

// equal reports whether c and o are the same.
func (c content) equal(o content) bool {
	return slices.EqualFunc(c.exports, o.exports, mcs.Export.Equal) && slices.Equal(c.unknown, o.unknown)
}

// content returns what is known of the service, sorted by cluster.
func (s *service) content() (c content) {
	for _, cluster := range slices.Sorted(maps.Keys(s.clusters)) {
		if exp := s.clusters[cluster].export; exp != nil {
			c.exports = append(c.exports, *exp)
		} else {
			c.unknown = append(c.unknown, cluster)
		}
	}
	return c
}

// isDue reports whether the service must be checked now, and whether it must be read even if its
// revision has not changed.
func (s *service) isDue(now time.Time, t intervals) (due, mustRead bool) {
	switch {
	case !s.isRead:
		return true, true
	case s.wasExported:
		return true, now.Sub(s.readAt) >= t.reread
	}
	return now.Sub(s.checkedAt) >= t.list, false
}

// catalog holds all services by key.
type catalog struct {
	ownCluster string
	// account books what the exports of all clusters cost, nil without limits. Instances are not
	// signed: a user who may write them may do so in the name of any cluster, so that an account
	// for each cluster would bound nothing.
	account  *budget.Account
	isListed bool
	services map[mcs.Key]*service
}

func newCatalog(ownCluster string, account *budget.Account) catalog {
	return catalog{ownCluster: ownCluster, account: account, services: map[mcs.Key]*service{}}
}

// setServices updates the catalog after a list of all services.
func (c *catalog) setServices(now time.Time, found map[mcs.Key]service) {
	c.isListed = true
	for key, f := range found {
		if have := c.services[key]; have == nil || have.resource.ID != f.resource.ID {
			c.services[key] = &service{key: key, clusters: map[string]*export{}}
			if have != nil { // deleted and created again: its exports stay until it has been read
				c.services[key].clusters, c.services[key].wasExported = have.clusters, have.wasExported
			}
		}
		s := c.services[key]
		s.namespace, s.resource, s.isListed = f.namespace, f.resource, true
	}
	for key, s := range c.services {
		if _, ok := found[key]; ok {
			continue
		}
		s.isListed = false
		s.markAbsent(now, func(string) bool { return true })
	}
}

// removeExpired removes exports and services that have been absent for hold.
func (c *catalog) removeExpired(now time.Time, hold time.Duration) {
	for key, s := range c.services {
		s.removeExpired(now, hold, c.account)
		if !s.isListed && len(s.clusters) == 0 {
			delete(c.services, key)
		}
	}
}

// dueService is a service that must be checked.
type dueService struct {
	key       mcs.Key
	namespace string
	resource  api.Service
	revision  int64
	// mustRead: it must be read even if its revision has not changed.
	mustRead bool
}

// dueServices returns the services that must be checked now, sorted by key.
func (c *catalog) dueServices(now time.Time, t intervals) []dueService {
	var out []dueService
	for key, s := range c.services {
		if due, mustRead := s.isDue(now, t); due && s.isListed {
			out = append(out, dueService{key: key, namespace: s.namespace, resource: s.resource, revision: s.revision, mustRead: mustRead})
		}
	}
	slices.SortFunc(out, func(a, b dueService) int { return strings.Compare(a.key.String(), b.key.String()) })
	return out
}

// members returns the clusters that have exports.
func (c *catalog) members() []registry.Member {
	byID, waiting, total := map[string]*registry.Member{}, map[string][]budget.Offer{}, 0
	for _, s := range c.services {
		for cluster, e := range s.clusters {
			m := byID[cluster]
			if m == nil {
				m = &registry.Member{ClusterID: cluster, Version: ControllerName}
				byID[cluster] = m
			}
			if s.readAt.After(m.LastSeen) {
				m.LastSeen = s.readAt
			}
			for _, problem := range e.problems {
				m.Problems = append(m.Problems, s.key.String()+": "+problem)
			}
			if e.waiting != nil {
				waiting[cluster] = append(waiting[cluster], *e.waiting)
				total++
			}
		}
	}
	c.account.SetExcess(total)
	var out []registry.Member
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		m := *byID[id]
		m.Problems = append(m.Problems, c.budgetProblems(id, waiting[id])...)
		slices.Sort(m.Problems)
		m.Problems = m.Problems[:min(len(m.Problems), maxProblems)]
		out = append(out, m)
	}
	return out
}

// budgetProblems returns the lines about exports of a cluster that are over budget.
func (c *catalog) budgetProblems(cluster string, waiting []budget.Offer) (lines []string) {
	counts, examples := map[budget.Excess]int{}, map[budget.Excess]mcs.Key{}
	for i, excess := range c.account.Explain(waiting) {
		key := waiting[i].Key
		key.Name = strings.TrimSuffix(key.Name, "/"+cluster)
		if example, ok := examples[excess]; !ok || key.String() < example.String() {
			examples[excess] = key
		}
		counts[excess]++
	}
	delete(counts, budget.Excess{}) // there is room now: it is read soon
	for excess, count := range counts {
		lines = append(lines, registry.BudgetProblem(count, examples[excess], excess))
	}
	return lines
}

// intervals bound how often the registry is read, and how long absent exports stay.
type intervals struct {
	// list is the interval between lists of namespaces and services without throttling (schedule),
	// and between checks of a service without an export of another cluster: most services of an
	// account have nothing to do with the clusterset.
	list time.Duration
	// reread is the maximum age of a read. AWS does not document whether registering an instance
	// again with other attributes, such as another readiness, changes the revision of its service:
	// this bounds the delay of such a change.
	reread time.Duration
	// hold is the time for which an export stays after its last instance was removed.
	hold time.Duration
}

const (
	// defaultPollInterval is the interval between requests for the revision of each used service.
	// Ten clusters that poll 500 services send 1,000 requests a second, a third of the account's
	// quota of 3,000.
	defaultPollInterval = 5 * time.Second
	// listInterval: the legacy controller limits itself to two ListServices a second. One list of
	// the default quota of 50 namespaces per minute uses about half of that.
	listInterval = time.Minute
	// rereadInterval: 500 services every 30 s need 17 DiscoverInstances a second; the account's
	// quota is 1,000.
	rereadInterval = 30 * time.Second
	// holdTime is longer than the longest poll of the members (5 s) with the reads after it: if a
	// cluster migrates and this controller rewrites its instances, its pages are read before the
	// exports of its old instances are removed.
	holdTime = 15 * time.Second
	// maxProblems limits the problems reported per cluster.
	maxProblems = 20
)

// RequestsPerMinute returns the requests of a cluster per minute while nothing changes, by
// operation: for the services that have instances of the legacy controller, and for the others of
// the account. It is without the lists of services, which depend on the number of clusters.
func RequestsPerMinute(used, others int) map[string]float64 {
	perMinute := func(interval time.Duration) float64 { return float64(time.Minute) / float64(interval) }
	return map[string]float64{
		"DiscoverInstancesRevision": float64(used)*perMinute(defaultPollInterval) + float64(others)*perMinute(listInterval),
		"DiscoverInstances":         float64(used) * perMinute(rereadInterval),
	}
}

func defaultIntervals() intervals {
	return intervals{list: listInterval, reread: rereadInterval, hold: holdTime}
}
