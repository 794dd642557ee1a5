package exports

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

const (
	// defaultReportInterval is the interval at which the reports of the other members are read,
	// from memory. A report changes with a heartbeat, every 12 or 24 s by default.
	defaultReportInterval = 10 * time.Second
	// reportRequeues bounds the exports that are requeued in one interval, five a second: each may
	// be a write of a status, and a member may report something else with every heartbeat. 3,000
	// exports take 10 minutes.
	reportRequeues = 50
)

// memberReports are the members as this cluster read them last. It is never changed, only replaced.
type memberReports struct {
	identity mcs.Identity
	// others are the members but this cluster.
	others []registry.Member
}

// of returns the importers of exp.
func (m *memberReports) of(exp mcs.Export) mcs.Importers {
	reports := make(map[string]mcs.ImportReport, len(m.others))
	for _, o := range m.others {
		if exp.Recipients == "" || exp.IsFor(o.Properties.OfCluster(o.ClusterID, m.identity.ClusterSetID)) {
			reports[o.ClusterID] = o.Imports
		}
	}
	return mcs.FindImporters(exp.Cluster, exp.Key, reports)
}

// changedFrom returns the members that o does not have with the same report. A change of their
// properties is left to findRecipients.
func (m *memberReports) changedFrom(o *memberReports) *memberReports {
	same := make(map[string]mcs.ImportReport, len(o.others))
	for _, other := range o.others {
		same[other.ClusterID] = other.Imports
	}
	return &memberReports{identity: m.identity, others: slices.DeleteFunc(slices.Clone(m.others), func(other registry.Member) bool {
		report, ok := same[other.ClusterID]
		return ok && report == other.Imports
	})}
}

// Importers returns the importers of an export of this cluster; known is false while the members
// were not read.
func (r *Controller) Importers(exp mcs.Export) (importers mcs.Importers, known bool) {
	reports := r.reports.Load()
	if reports == nil || reports.identity.ClusterID != exp.Cluster {
		return mcs.Importers{}, false
	}
	return reports.of(exp), true
}

// watchReports reads the reports of the other members, and requeues the exports that these report
// something else about.
func (r *Controller) watchReports(ctx context.Context) error {
	ticker := time.NewTicker(r.reportInterval)
	defer ticker.Stop()
	pending := map[mcs.Key]struct{}{}
	var last mcs.Key
	for {
		r.readReports(ctx, pending)
		last = r.requeueReported(pending, last)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// readReports reads the reports, and adds the exports with other importers than before.
func (r *Controller) readReports(ctx context.Context, pending map[mcs.Key]struct{}) {
	session := r.membership.State().Session
	if session == nil {
		return
	}
	members, err := session.Registry.Members(ctx)
	if err != nil {
		return // not read yet: what was reported last counts
	}
	after := &memberReports{identity: session.Identity, others: otherMembers(members, session.Identity.ClusterID)}
	before := r.reports.Swap(after)
	// Read after the swap: an export that is published later has the new reports.
	var published []mcs.Export
	r.published.Range(func(_, value any) bool {
		published = append(published, value.(publishedExport).export)
		return true
	})
	for _, key := range findReported(published, before, after) {
		pending[key] = struct{}{}
	}
}

// otherMembers returns the members but own. It leaves out those of which this cluster has accepted
// no record, neither UID nor version: any member of the clusterset can write records of clusters
// that do not exist. Mapped services import nothing.
func otherMembers(members []registry.Member, own string) []registry.Member {
	return slices.DeleteFunc(members, func(m registry.Member) bool { return m.ClusterID == own || m.Mapped || m.UID == "" && m.Version == "" })
}

// findReported returns the exports whose importers are other ones than before, nil before the first
// read. It compares only the members whose reports changed: with 1,000 members and 3,000 exports,
// comparing all takes seconds.
func findReported(published []mcs.Export, before, after *memberReports) (keys []mcs.Key) {
	isOther := before == nil || before.identity != after.identity
	if !isOther {
		before, after = before.changedFrom(after), after.changedFrom(before)
		if len(before.others)+len(after.others) == 0 {
			return nil
		}
	}
	for _, exp := range published {
		if isOther || !before.of(exp).IsSame(after.of(exp)) {
			keys = append(keys, exp.Key)
		}
	}
	return keys
}

// requeueReported requeues as many pending exports as one interval allows, and returns the last
// one. It continues after last, in the order of the keys, so that a member that reports something
// else in each interval does not keep any export from being requeued.
func (r *Controller) requeueReported(pending map[mcs.Key]struct{}, last mcs.Key) mcs.Key {
	keys := slices.SortedFunc(maps.Keys(pending), compareKeys)
	next, found := slices.BinarySearchFunc(keys, last, compareKeys)
	if found {
		next++
	}
	keys = slices.Concat(keys[next:], keys[:next])
	for _, key := range keys[:min(len(keys), reportRequeues)] {
		delete(pending, key)
		r.requeuer.RequeueAtLowPriority(key)
		last = key
	}
	return last
}

func compareKeys(a, b mcs.Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
