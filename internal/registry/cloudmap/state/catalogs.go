package state

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

const (
	// aheadFor is the time for which a page may be later than the record. After that the record
	// counts: the process that wrote the page may have ended before it announced it.
	aheadFor = 30 * time.Second
	// A page that cannot be read completely is read again at each poll at first, because Cloud Map
	// is eventually consistent; after eagerRetries failures with a backoff of up to maxRetry.
	eagerRetries = 3
	maxRetry     = 30 * time.Second
	// CopyReads is the number of reads of a catalog's record, or tags, within the time until a
	// cluster is stale.
	CopyReads = 4
	// maxCopyBackoff is the longest pause between two reads of a catalog that does not exist, as a
	// multiple of the pause for one that does.
	maxCopyBackoff = 16
)

// Location is the location of the clusterset's records.
type Location struct {
	// Namespace is the name of the control namespace, CatalogID the ID of the own catalog.
	Namespace, CatalogID string
	// IsNew is set if the own catalog was created now.
	IsNew bool
	// Heartbeat is the heartbeat of the previous process of this cluster, or a later one.
	Heartbeat int64
}

// catalogs has the state of each cluster of the clusterset as read from the registry. Only a record
// or page that the cluster signed changes it. Missing, unreadable and older records change nothing.
type catalogs struct {
	identity mcs.Identity
	own      *ownCatalog
	// registry is the name of the registry in the keyring.
	registry         string
	poll, staleAfter time.Duration
	keyring          *trust.Keyring
	liveness         *registry.Liveness
	// ledger has the budgets of the other clusters. isWanted reports whether the exports of a
	// namespace are used; nil is all.
	ledger   *budget.Ledger
	isWanted func(namespace string) bool
	// observed gets the exports of other clusters that a read has changed; nil is none.
	observed func(mcs.Export)
	// used selects the namespaces whose exports are used.
	used *usedNamespaces
	// refused is called for each version of a record that is refused.
	refused func()
	// allowsContact reports whether peer notifications may be sent to an address.
	allowsContact func(netip.Addr) bool

	// synced is set by the first complete read of the members, proven when isSynced reported true.
	synced, proven bool
	// clusters are the other ones.
	clusters  map[string]*catalog
	exporters exporters
	unknowns  *unknowns
	// nextTags is the time from which the tags of a catalog may be read to show Member.Seal; zero
	// before the first read of the members.
	nextTags time.Time
	// unsealedAt is the time of the last read of tags that showed no seal, and sealedAt that of the
	// last one that showed a seal that was not there before.
	unsealedAt, sealedAt time.Time
	// newProcess is set if another cluster has a new process since the members were read last.
	newProcess bool
}

// parsedRecord is the record that service members had last, nil without one, and the result of
// parsing it.
type parsedRecord struct {
	shown    map[string]string
	parsed   format.Member
	parseErr error
}

// parse parses an instance of service members, unless it is as it was, and reports whether it
// differs.
func (p *parsedRecord) parse(instance api.Instance, clusterSetID string) (differs bool) {
	if p.shown != nil && maps.Equal(instance.Attributes, p.shown) {
		return false
	}
	p.parsed, p.parseErr = format.ParseMember(instance, clusterSetID)
	p.shown = instance.Attributes
	return true
}

// catalog is the state of another cluster: its record and its pages.
type catalog struct {
	// id is the ID of the cluster, exporters and unknowns those of all catalogs; nil in a catalog
	// that belongs to none.
	id        string
	exporters exporters
	unknowns  *unknowns
	used      *usedNamespaces
	// record is the latest accepted record; without hasRecord this process has read none.
	record    format.Member
	hasRecord bool
	// properties are the ClusterProperties of record.
	properties mcs.DecodedProperties
	// isCopy is set if record is the first one, and was read from the catalog: it may be old, so
	// pages that it does not announce may exist.
	isCopy bool
	// mayBeOld is set with the first record if a previous process may have read a later one:
	// another user may have restored an earlier state of the registry. It is cleared by a record
	// that is later than first, or when the cluster is stale. Until then, all exports of the
	// cluster are unknown. first has the times of the first record in service members and of the
	// first copy.
	mayBeOld bool
	first    [2]trust.Time
	// isReturning is set from the return of the cluster until it is saved that it has not left.
	// Until then its exports are unknown: the next process must not take imports of them for those
	// that ended with the farewell.
	isReturning bool
	// left is set after the farewell of the cluster.
	left bool
	parsedRecord
	// isShown is set if service members has the record now.
	isShown bool
	// isMissing is set while service members has no valid record: none, an older or a refused one,
	// or one with a key that is not proven.
	isMissing bool
	// problem is the reason why the record in service members or its copy is refused. unproven is a
	// record in service members that the catalog has to prove: its key is not known yet, or it is a
	// farewell and the first record that this process reads.
	problem  string
	unproven *format.Member
	// refusedKey is the key of the record in service members if it was refused because of its key;
	// seal has that of the copy.
	refusedKey trust.Key
	seal       seal
	// copyAt is the time from which the copy of the record may be read again, copyFailures the
	// number of reads in a row that showed none.
	copyAt       time.Time
	copyFailures int
	// resetAt is the time at which these were last reset, for the first record of a process.
	resetAt time.Time
	// isCopyTried is set after the first read of the copy.
	isCopyTried bool
	// beats is set if the copy had a heartbeat since the last read of the members.
	beats bool
	// isUntracked is set from the first record until the next read of the members: liveness does
	// not have the cluster yet.
	isUntracked bool
	// news is the generation of the own record that this cluster is notified of, 0 for the latest.
	news int64
	// lastSeen is the time at which the record was last seen to change.
	lastSeen time.Time
	pages    [format.PageCount]pageState
	// listings says where unknowns has the catalog.
	listings [format.PageCount]listing
	// account has the cost of the exports; nil has no limits.
	account *budget.Account
}

// retry is the backoff of reads that fail.
type retry struct {
	failures int
	retryAt  time.Time
}

func (r *retry) failed(now time.Time, poll time.Duration) {
	r.failures++
	if r.failures > eagerRetries {
		r.retryAt = now.Add(min(maxRetry, poll<<min(r.failures-eagerRetries, 10)))
	}
}

// pageState is a page as last read completely.
type pageState struct {
	// read is set if the page was read completely since this process started. A page that does not
	// exist, according to the record, counts as read.
	read bool
	// unreadable are the keys of exports that exist but cannot be used. unnamed is set if the keys
	// of some cannot be read either. exports has their previous versions.
	unreadable map[mcs.Key]bool
	unnamed    bool
	generation int64
	// digest is the digest of the page that was read, "" if it does not exist.
	digest string
	// readAt is the time of the last complete read.
	readAt   time.Time
	exports  map[mcs.Key]mcs.Export
	problems []string
	// waiting are the exports that are over budget, and reasons the budgets that they exceed.
	// excess is their number, including those that are not named. triedAt is the Released of the
	// account when they were tried last.
	waiting []budget.Offer
	reasons []budget.Excess
	excess  int
	triedAt uint64
	// ignored are exports in namespaces that are not imported, ignoredCount is their number.
	ignored      map[mcs.Key]bool
	ignoredCount int
	// isWanted is set if the page has to be read again, to use exports that were over budget or
	// ignored.
	isWanted bool
	// isSkipped is set if a later version of the page was announced and not read, because nothing
	// of it is used.
	isSkipped bool
	// parts is the number of parts of the page that was read.
	parts int
	// trouble is the reason why the page as announced cannot be read.
	trouble string
	retry
}

func newCatalogs(cfg Config) *catalogs {
	c := &catalogs{
		identity: cfg.Identity, own: newOwnCatalog(cfg), registry: cfg.ClientName, poll: cfg.PollInterval, staleAfter: cfg.StaleAfter, keyring: cfg.Keyring,
		clusters: map[string]*catalog{}, exporters: exporters{}, unknowns: &unknowns{skipped: map[pageNamespace][]*catalog{}}, liveness: registry.NewLiveness(cfg.Identity.ClusterID, cfg.StaleAfter),
		ledger: cfg.Ledger, isWanted: cfg.Wanted, used: &usedNamespaces{}, observed: cfg.Observed,
		refused: func() { cfg.Metrics.CountRefusedRecord(cfg.ClientName) }, allowsContact: cfg.AllowsContact,
	}
	cfg.Keyring.AddOwn(cfg.Identity.ClusterID, c.own.keys...)
	return c
}

// cluster returns the catalog of another cluster, and creates it if it is new. At a start all
// members have an account before the first page is read, so that the shares of the older ones are
// reserved.
func (c *catalogs) cluster(id string) *catalog {
	if c.clusters[id] == nil {
		account := c.ledger.Open(budget.Owner{ClusterID: id, Since: c.keyring.Since(id)})
		c.clusters[id] = &catalog{id: id, exporters: c.exporters, unknowns: c.unknowns, used: c.used, account: account}
	}
	return c.clusters[id]
}

// members observes a complete read of the member records. mine reports whether a record with this
// cluster's ID counts. It adds changed keys to changed.
func (c *catalogs) members(now time.Time, instances []api.Instance, mine func(format.Member) bool, changed engine.Keys) {
	heartbeats := map[string]bool{}
	present := map[string]bool{}
	for _, cluster := range c.clusters {
		cluster.isShown = false
	}
	for _, instance := range instances {
		id := instance.ID
		if mcs.ValidateClusterID(id) != nil {
			continue // not a member record: its instance ID is the cluster ID
		}
		present[id] = true
		if id == c.identity.ClusterID {
			beats, isRefused := c.own.member(now, instance, mine, changed)
			if heartbeats[id] = beats && c.synced; isRefused {
				c.refused()
			}
			continue
		}
		beats := c.member(now, instance, changed)
		c.clusters[id].isShown = true
		if cluster := c.clusters[id]; cluster.countsAsMember() {
			heartbeats[id] = beats || cluster.beats
		}
	}
	c.missing(present, heartbeats)
	c.track(heartbeats, changed)
	for _, id := range c.liveness.ObserveHeartbeats(now, heartbeats) {
		c.keysOf(id, changed)
	}
	for id, cluster := range c.clusters {
		c.makeCertain(id, cluster, changed)
	}
	c.synced = true
}

// outranks reports whether record a is used instead of record b, which has the same cluster ID.
func (c *catalogs) outranks(a, b api.Instance) bool {
	first, errA := format.ParseMember(a, c.identity.ClusterSetID)
	second, errB := format.ParseMember(b, c.identity.ClusterSetID)
	if errA != nil || errB != nil {
		return errA == nil && errB != nil
	}
	if isKnown := c.hasKey(a.ID, first.Key); isKnown != c.hasKey(a.ID, second.Key) {
		return isKnown
	}
	return first.IsLaterThan(second)
}

// hasKey reports whether a key is known to be that of a cluster.
func (c *catalogs) hasKey(id string, key trust.Key) bool {
	if id == c.identity.ClusterID {
		return slices.Contains(c.own.keys, key)
	}
	if pin, ok := c.keyring.Pin(id); ok {
		return pin.Key == key
	}
	cluster := c.clusters[id]
	return cluster != nil && cluster.hasRecord && cluster.record.Key == key
}

// makeCertain lets what is known of a cluster count if no later record can follow any more, or if
// its return is saved.
func (c *catalogs) makeCertain(id string, cluster *catalog, changed engine.Keys) {
	if cluster.mayBeOld && c.liveness.IsStale(id) {
		cluster.mayBeOld = false // a later record would have been read
		cluster.reviewAll()
		c.namedBy(id, changed)
	}
	if cluster.isReturning && c.keyring.IsReturnSaved(id) {
		cluster.isReturning = false
		cluster.reviewAll()
		c.namedBy(id, changed)
	}
}

// countsAsMember reports whether the cluster's heartbeats count. A cluster with a key that is not
// proven yet is not a member. A cluster whose record is refused counts: if it has no heartbeats,
// another key may follow.
func (c *catalog) countsAsMember() bool {
	return !c.left && (c.hasRecord || c.unproven == nil && c.problem != "")
}

// missing observes the clusters without a record in service members, and adds them to heartbeats.
func (c *catalogs) missing(present, heartbeats map[string]bool) {
	for id, cluster := range c.clusters {
		if !present[id] && cluster.shown != nil && c.isNewcomer(id, cluster) {
			c.drop(id)
			continue
		}
		if !present[id] {
			cluster.isMissing, cluster.unproven = !cluster.left, nil
			if cluster.hasRecord && !cluster.left {
				heartbeats[id] = cluster.beats
			}
		}
		cluster.beats = false
	}
}

// track adds the keys of clusters that liveness gets for the first time with a heartbeat.
func (c *catalogs) track(heartbeats map[string]bool, changed engine.Keys) {
	for id, beats := range heartbeats {
		if cluster := c.clusters[id]; cluster != nil && cluster.isUntracked {
			cluster.isUntracked = false
			if beats {
				c.keysOf(id, changed)
			}
		}
	}
}

// member observes the record of another cluster in service members, and reports whether it is a new
// heartbeat.
func (c *catalogs) member(now time.Time, instance api.Instance, changed engine.Keys) (beats bool) {
	id := instance.ID
	cluster := c.cluster(id)
	isNew := cluster.shown == nil
	differs := c.parseShown(now, cluster, instance)
	r := cluster.parsed
	cluster.problem, cluster.unproven, cluster.isMissing, cluster.refusedKey = "", nil, true, trust.Key{}
	if err := cluster.parseErr; err != nil {
		cluster.problem = registry.RefusedProblem("the member record", err)
		// A record of a later version is a heartbeat even if this version cannot use it.
		return differs && cluster.hasRecord && r.Key == cluster.record.Key
	}
	if cluster.hasRecord && r.Key == cluster.record.Key && !c.keyring.IsReplaced(id, r.Key) {
		if cluster.record.IsLaterThan(r) {
			return false // a late read, or a replay
		}
		return c.accept(now, cluster, r, changed)
	}
	beats = c.memberWithNewKey(now, cluster, r, isNew, changed)
	if differs && cluster.refusedKey != (trust.Key{}) {
		c.refused()
	}
	return beats
}

// parseShown parses the record of a cluster, and reports whether it differs from the previous one.
// The first record of a cluster that has none, and one of another process, makes its catalog due at
// once: seek, or an old record without a catalog, may have lengthened the pause before the cluster
// joined.
func (c *catalogs) parseShown(now time.Time, cluster *catalog, instance api.Instance) (differs bool) {
	isNew, before := cluster.shown == nil, cluster.parsed
	if differs = cluster.parse(instance, c.identity.ClusterSetID); differs && cluster.parseErr != nil {
		c.refused()
	}
	isOther := cluster.parsed.Key != before.Key || cluster.parsed.Process != before.Process
	if !cluster.hasRecord && (isNew || isOther && now.Sub(cluster.resetAt) >= c.staleAfter/CopyReads) {
		cluster.copyFailures, cluster.resetAt = 0, now
		if cluster.copyAt.IsZero() || cluster.copyAt.After(now) {
			cluster.copyAt = now // otherwise it keeps its turn among newcomers
		}
	}
	return differs
}

// memberWithNewKey observes the first record of a cluster, or one with another key than the latest
// record. It accepts the record if the cluster signed it, and reports whether it is a new
// heartbeat.
func (c *catalogs) memberWithNewKey(now time.Time, cluster *catalog, r format.Member, isNew bool, changed engine.Keys) (beats bool) {
	id := r.ClusterID
	verdict, err := c.keyring.Check(c.presented(now, id, r))
	last := c.keyring.Last(c.registry, id, r.Key)
	switch {
	case last.After(r.Time()):
		return false // a replay
	case r.Time() == last && c.keyring.HasEnded(id), verdict == trust.Unknown && r.Farewell && isNew:
		cluster.left = true // its farewell, or its last record before it was forgotten
		return false
	case verdict == trust.Unknown, verdict == trust.Accepted && r.Farewell && !cluster.hasRecord:
		cluster.unproven = &r
		return false
	case verdict == trust.Accepted:
		return c.accept(now, cluster, r, changed)
	}
	cluster.problem, cluster.refusedKey = registry.RefusedProblem("the member record", err), r.Key
	return false
}

// accept observes a record in service members that the cluster signed, and reports whether it is a
// new heartbeat.
func (c *catalogs) accept(now time.Time, cluster *catalog, r format.Member, changed engine.Keys) (beats bool) {
	isFirst := !cluster.hasRecord
	cluster.isMissing, cluster.seal.refused = false, trust.Key{}
	written := c.observe(now, cluster, r, false, changed)
	// a record that this process found at its start may be old
	return written && (c.synced || !isFirst)
}

// observe records a record that another cluster signed, and reports whether it differs from the
// previous one.
func (c *catalogs) observe(now time.Time, cluster *catalog, r format.Member, isCopy bool, changed engine.Keys) (written bool) {
	defer cluster.reviewAll()
	if c.hasNewKey(cluster, r) || cluster.left {
		c.liveness.Remove(r.ClusterID) // the previous key had no heartbeats
		cluster.isUntracked = true
	}
	cluster.isUntracked = cluster.isUntracked || !cluster.hasRecord
	c.compareFirst(cluster, r, isCopy, changed)
	c.newProcess = c.newProcess || c.synced && r.Process != cluster.record.Process
	written = cluster.take(now, r, isCopy, changed)
	if !written {
		return false
	}
	c.keyring.Observe(trust.Record{
		Registry: c.registry, ClusterID: r.ClusterID, UID: r.UID, Key: r.Key, At: r.Time(), Farewell: r.Farewell,
	})
	cluster.left = r.Farewell
	// makeCertain ends it, and notifies of the exports
	cluster.isReturning = !r.Farewell && (cluster.isReturning || !c.keyring.IsReturnSaved(r.ClusterID))
	if r.Farewell {
		cluster.isMissing = false
		c.liveness.Remove(r.ClusterID)
	}
	return true
}

// hasNewKey reports whether a record has another key than the previous one of its cluster, which a
// previous process of this cluster may have read.
func (c *catalogs) hasNewKey(cluster *catalog, r format.Member) bool {
	if cluster.hasRecord {
		return cluster.record.Key != r.Key
	}
	pin, ok := c.keyring.Pin(r.ClusterID)
	return !ok || pin.Key != r.Key
}

// compareFirst decides whether a record that another cluster signed may be older than one that a
// previous process of this cluster has read, and had no time to save.
func (c *catalogs) compareFirst(cluster *catalog, r format.Member, isCopy bool, changed engine.Keys) {
	if pin, ok := c.keyring.Pin(r.ClusterID); ok && !cluster.hasRecord {
		cluster.mayBeOld = !c.keyring.IsComplete() && pin.Key == r.Key && pin.Last[c.registry] != (trust.Time{}) && !pin.Left && !pin.Forgotten
	}
	if r.Farewell {
		cluster.mayBeOld = false // its catalog shows that it has left
	}
	if !cluster.mayBeOld {
		return
	}
	first := &cluster.first[0]
	if isCopy {
		first = &cluster.first[1] // it may be much older than the record
	}
	switch {
	case *first == (trust.Time{}):
		*first = r.Time()
	case r.Time().After(*first):
		cluster.mayBeOld = false
		c.namedBy(r.ClusterID, changed)
		cluster.dropOld(&r)
	}
}

// dropOld drops the pages that record r does not announce as they were read: an old record
// announced them.
func (c *catalog) dropOld(r *format.Member) {
	for i := range c.pages {
		if p := &c.pages[i]; p.read && p.digest != r.Pages[i] {
			c.account.Retain(slices.Collect(maps.Keys(p.exports)), func(mcs.Key) bool { return false })
			c.setPage(i, pageState{})
		}
	}
	c.countExcess()
}

// take sets the record, and reports whether it differs from the previous one.
func (c *catalog) take(now time.Time, r format.Member, isCopy bool, changed engine.Keys) (written bool) {
	written = !c.hasRecord || !r.IsSameWrite(c.record)
	before := c.record
	c.isCopy = isCopy && (!c.hasRecord || c.isCopy && !written)
	c.record, c.hasRecord = r, true
	if written {
		c.lastSeen = now
	}
	for i := range c.pages {
		c.takePage(now, i, &before, &r, changed)
		if before.Properties != r.Properties {
			diff(c.pages[i].exports, nil, changed)
		}
	}
	return written
}

// takePage updates a page for record r, which follows the record before.
func (c *catalog) takePage(now time.Time, i int, before, r *format.Member, changed engine.Keys) {
	p := &c.pages[i]
	if before.UID != r.UID || before.Key != r.Key {
		p.generation = min(p.generation, r.Generation) // by another clock
	}
	isChanged := before.Pages[i] != r.Pages[i] || before.Key != r.Key
	if isChanged {
		p.retry = retry{}
	}
	if isChanged && c.shows(i) {
		// read before it was announced: it counts as published from now on
		diff(p.exports, nil, changed)
	}
	if r.Pages[i] == "" && (r.Farewell || !c.isCopy && p.removedBy(now, r)) {
		c.removePage(i, r.Generation, changed)
	}
}

// errUnread is the error of a catalog that could not be read.
var errUnread = errors.New("the catalog could not be read")

// copyRead observes the copy of the record in the catalog of another cluster. r is nil if there is
// none, or if err is set: the copy is not signed, or it is errUnread. The copy counts like the
// record in service members, and the catalog proves that the key is the cluster's.
func (c *catalogs) copyRead(now time.Time, id string, r *format.Member, err error, changed engine.Keys) {
	cluster := c.clusters[id]
	if cluster == nil {
		return // forgotten since the read began
	}
	cluster.isCopyTried = true
	cluster.copyFailures++
	cluster.copyAt = now.Add(c.copyPause(cluster, r == nil && err == nil))
	if r != nil && !r.Farewell && c.takeCopy(now, cluster, *r, changed) { // a farewell has no copy
		cluster.copyFailures = 0
	}
	if u := cluster.unproven; u != nil && !errors.Is(err, errUnread) {
		c.prove(now, cluster, *u, changed)
	}
}

// copyPause returns the pause until the next read of the copy of a record. isMissing is set if
// there was none.
func (c *catalogs) copyPause(cluster *catalog, isMissing bool) time.Duration {
	pause := c.staleAfter / CopyReads
	switch {
	case cluster.unproven != nil && cluster.copyFailures <= eagerRetries:
		return 0
	case cluster.unproven != nil && isMissing && !cluster.hasRecord:
		return min(pause*maxCopyBackoff, c.poll<<min(cluster.copyFailures-eagerRetries, 10))
	case cluster.unproven != nil:
		return min(pause, c.poll<<min(cluster.copyFailures-eagerRetries, 10))
	case isMissing && !cluster.hasRecord:
		return pause * time.Duration(min(cluster.copyFailures, maxCopyBackoff))
	}
	return pause
}

// takeCopy observes a copy of a record, and reports whether the cluster signed it.
func (c *catalogs) takeCopy(now time.Time, cluster *catalog, r format.Member, changed engine.Keys) bool {
	id := r.ClusterID
	if cluster.hasRecord && r.Key == cluster.record.Key && !r.IsLaterThan(cluster.record) && !c.keyring.IsReplaced(id, r.Key) {
		cluster.seal.refused = trust.Key{}
		return true
	}
	verdict, err := c.keyring.Check(c.presented(now, id, r))
	if verdict == trust.Refused {
		c.refuseCopy(cluster, r, err)
		return false
	}
	cluster.seal.refused = trust.Key{}
	last := c.keyring.Last(c.registry, id, r.Key)
	if last.After(r.Time()) || last == r.Time() && c.keyring.HasEnded(id) {
		return false // a replay, or the last record before the cluster was forgotten
	}
	isFirst := !cluster.hasRecord
	cluster.beats = c.observe(now, cluster, r, true, changed) && !isFirst
	return true
}

// refuseCopy records that the copy r of a cluster's record was refused because of its key.
func (c *catalogs) refuseCopy(cluster *catalog, r format.Member, err error) {
	if cluster.seal.refused != r.Key && cluster.refusedKey != r.Key {
		c.refused()
	}
	cluster.problem = registry.RefusedProblem("the record in its catalog", err)
	if _, isPinned := c.keyring.Pin(r.ClusterID); isPinned {
		cluster.seal.refused = r.Key
	} else {
		// there is no room for it, which the tags of the catalog do not change
		cluster.refusedKey = r.Key
	}
}

// prove accepts a record in service members if the catalog has shown its key.
func (c *catalogs) prove(now time.Time, cluster *catalog, r format.Member, changed engine.Keys) {
	verdict, err := c.keyring.Check(c.presented(now, r.ClusterID, r))
	switch {
	case verdict == trust.Accepted && r.Farewell && cluster.copyFailures == 1:
		// One read may miss the copy. A cluster that has returned writes one: then the farewell is
		// a replay, or a late write.
	case verdict == trust.Accepted:
		cluster.unproven, cluster.problem, cluster.copyFailures = nil, "", 0
		if !cluster.hasRecord || r.Key == cluster.record.Key && r.IsLaterThan(cluster.record) {
			c.accept(now, cluster, r, changed)
		}
		cluster.isMissing = cluster.record.IsLaterThan(r)
	case verdict == trust.Unknown && cluster.copyFailures > 1: // one read may be late
		cluster.problem = registry.RefusedProblem("the member record", fmt.Errorf("it is signed with key %s, which the cluster's catalog does not show", r.Key))
	case verdict == trust.Refused:
		cluster.problem, cluster.refusedKey = registry.RefusedProblem("the member record", err), r.Key
	}
}

// isCopyDue reports whether the copy of a cluster's record has to be read: the record in service
// members is missing or not valid, or a key has to be proven.
func (c *catalog) isCopyDue(now time.Time) bool {
	isNeeded := c.isMissing && !c.left || c.unproven != nil
	return isNeeded && !now.Before(c.copyAt)
}

// isSynced reports whether lookups have an answer: all members were read, and each catalog that has
// to prove a key was read, or could not be read, once. Until then an import could begin with old
// exports of a cluster that has moved to another registry.
func (c *catalogs) isSynced() bool {
	if c.proven || !c.synced {
		return c.proven
	}
	for _, cluster := range c.clusters {
		if cluster.unproven != nil && !cluster.isCopyTried {
			return false
		}
	}
	c.proven = true
	return true
}

// isNewcomer reports whether neither this process nor a previous one has accepted a record of
// another cluster.
func (c *catalogs) isNewcomer(id string, cluster *catalog) bool {
	if cluster.hasRecord {
		return false
	}
	_, isKnown := c.keyring.Pin(id)
	return !isKnown
}

// seek makes the reader search for imported clusters that this process has seen no record of: their
// catalogs may have records that service members lacks.
func (c *catalogs) seek(imported []string) {
	for _, id := range imported {
		if c.clusters[id] == nil && id != c.identity.ClusterID && mcs.ValidateClusterID(id) == nil && !c.keyring.HasEnded(id) {
			c.cluster(id).isMissing = true
		}
	}
}

// forget drops a cluster until its next record.
func (c *catalogs) forget(id string, changed engine.Keys) {
	c.keysOf(id, changed)
	c.drop(id)
	c.keyring.Forget(id)
}

// drop removes a cluster.
func (c *catalogs) drop(id string) {
	c.liveness.Remove(id)
	if cluster := c.clusters[id]; cluster != nil {
		cluster.account.Close()
		for i := range cluster.pages {
			cluster.setPage(i, pageState{})
		}
		cluster.hasRecord = false
		cluster.reviewAll()
	}
	delete(c.clusters, id)
}

// keysOf adds the keys of a cluster's exports.
func (c *catalogs) keysOf(id string, keys engine.Keys) {
	if cluster := c.clusters[id]; cluster != nil {
		for i := range cluster.pages {
			for key := range cluster.pages[i].exports {
				keys[key] = struct{}{}
			}
		}
	}
}

// namedBy adds the keys of a cluster whose exports count from now on: those of its exports, and
// those that are ignored, which wait for their namespaces.
func (c *catalogs) namedBy(id string, keys engine.Keys) {
	if cluster := c.clusters[id]; cluster != nil {
		for i := range cluster.pages {
			for key := range cluster.pages[i].keys {
				keys[key] = struct{}{}
			}
		}
	}
}

// unreadPages returns the pages of a cluster that have to be read now.
func (c *catalog) unreadPages(now time.Time) []int {
	if !c.hasRecord {
		return nil
	}
	var pages []int
	for i := range c.pages {
		switch p := &c.pages[i]; {
		case !c.needsRead(now, i):
			p.isSkipped = p.isSkipped || !c.shows(i) && c.isUnused(i)
			c.review(i)
		case !now.Before(p.retryAt):
			pages = append(pages, i)
		}
	}
	return pages
}

// needsRead reports whether a page has to be read: the announced page is not the one that was read.
func (c *catalog) needsRead(now time.Time, page int) bool {
	p := &c.pages[page]
	if c.record.Pages[page] == format.UnwrittenDigest {
		return false // it is read when it is announced
	}
	return c.record.Pages[page] != "" && (!p.read || p.isWanted || !c.shows(page) && !p.ahead(now, &c.record) && !c.isUnused(page))
}

// shows reports whether the page that was read last is the announced one.
func (c *catalog) shows(page int) bool { return c.record.Pages[page] == c.pages[page].digest }

// checkOrder returns an error if the image is that of a late read, even if it is the announced
// page: a page may be read before the record that announces it. Once that record is not expected
// any more, the image counts if the cluster has written a record since: a cluster that is silent
// has not taken the later page back, and the image may be that of a backup.
func (c *catalog) checkOrder(now time.Time, page int, img format.Page) error {
	p := &c.pages[page]
	if !p.read || img.Generation >= p.generation || now.Sub(p.readAt) >= aheadFor && c.lastSeen.After(p.readAt) {
		return nil
	}
	return olderPageError(img.Generation, p.generation)
}

// olderPageError is the error of a page that is older than one that was read before.
func olderPageError(found, before int64) error {
	return fmt.Errorf("it has generation %d, which is older than generation %d that was read before", found, before)
}

// unannouncedError is the error of a page that is not the announced one.
func unannouncedError(found int64) error {
	return fmt.Errorf("generation %d is there, which is not what the cluster's record announces", found)
}

// belonging returns the exports that belong to page.
func belonging(page int, list []mcs.Export) (exports map[mcs.Key]mcs.Export, problems []string) {
	exports = make(map[mcs.Key]mcs.Export, len(list))
	for _, exp := range list {
		if right := format.PageOf(exp.Key); right != page {
			problems = append(problems, fmt.Sprintf("export %s is ignored: it belongs to page %s", exp.Key, format.PageName(right)))
			continue
		}
		exports[exp.Key] = exp
	}
	return exports, problems
}

// ahead reports whether the page that was read is later than the record, and a record that
// announces it is expected. The expectation expires: the process that wrote the page may have ended
// before it wrote the record, and the clock of the next process may be behind.
func (p *pageState) ahead(now time.Time, r *format.Member) bool {
	return p.generation > r.Generation && now.Sub(p.readAt) < aheadFor
}

// removedBy reports whether the page has been removed, given a record that does not announce it.
func (p *pageState) removedBy(now time.Time, r *format.Member) bool {
	return !p.read || p.digest != "" && !p.ahead(now, r)
}

// knows reports whether it is certain that the page has an export of key or has none.
func (p *pageState) knows(key mcs.Key) bool {
	if p.read && !p.unnamed && !p.unreadable[key] {
		return true
	}
	_, has := p.exports[key]
	return has
}

// isBlank reports whether nothing of the page was read.
func (p *pageState) isBlank() bool { return !p.read && len(p.exports) == 0 && len(p.ignored) == 0 }

// diff adds the keys whose exports differ.
func diff(before, after map[mcs.Key]mcs.Export, changed engine.Keys) {
	for key, exp := range after {
		if old, ok := before[key]; !ok || !old.Equal(exp) {
			changed[key] = struct{}{}
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			changed[key] = struct{}{}
		}
	}
}

// viewOf returns the view of key in the catalogs of the other clusters. imported are the clusters
// of the existing import: those without a record since this process started are unseen. Other
// clusters without a record are not part of the view.
func (c *catalogs) viewOf(key mcs.Key, imported []string) (view registry.View) {
	page, code := format.PageOf(key), format.NamespaceCode(key.Namespace)
	unknowns := c.unknowns.of(page, code)
	if n := len(unknowns) + len(c.exporters[key]); n > 0 {
		view.Clusters = make(map[string]registry.ClusterView, n) // of 1,000 clusters at a start
	}
	for _, cluster := range unknowns {
		if cluster.isUnknown(key, page, code) {
			unknown := registry.ClusterView{State: registry.Unknown}
			if slices.Contains(imported, cluster.id) {
				unknown.Liveness, unknown.Properties = c.livenessOf(cluster), cluster.properties.Decode(cluster.record.Properties)
			}
			view.Set(cluster.id, unknown)
		}
	}
	c.addExports(&view, key)
	view.SetUnseen(imported, func(id string) bool { return c.isSeen(id, key) })
	return view
}

// unusedView is viewOf for a key in a namespace whose exports are not used and were not imported:
// nine tenths of all keys, which only wait for their namespaces. Of the clusters that may export it
// it names one.
func (c *catalogs) unusedView(key mcs.Key, _ []string) (view registry.View) {
	page, code := format.PageOf(key), format.NamespaceCode(key.Namespace)
	for _, cluster := range c.unknowns.of(page, code) {
		if cluster.isUnknown(key, page, code) {
			view.Set(cluster.id, registry.ClusterView{State: registry.Unknown})
			break
		}
	}
	c.addExports(&view, key)
	return view
}

// addExports adds the exports of key that were read to a view.
func (c *catalogs) addExports(view *registry.View, key mcs.Key) {
	page, code := format.PageOf(key), format.NamespaceCode(key.Namespace)
	for _, cluster := range c.exporters[key] {
		if cluster.hasRecord && !cluster.isUnknown(key, page, code) {
			view.Set(cluster.id, c.exporter(cluster, &cluster.pages[page], key))
		}
	}
}

// exporter returns the state of key in a cluster that names key in the page p.
func (c *catalogs) exporter(cluster *catalog, p *pageState, key mcs.Key) registry.ClusterView {
	exp, ok := p.exports[key]
	if !ok {
		return registry.ClusterView{State: registry.Ignored}
	}
	return registry.ClusterView{State: registry.Exports, Export: new(exp), Liveness: c.livenessOf(cluster), Properties: cluster.properties.Decode(cluster.record.Properties)}
}

// livenessOf returns the liveness of a cluster that has a record.
func (c *catalogs) livenessOf(cluster *catalog) registry.LivenessState {
	liveness := c.liveness.Of(cluster.id)
	if liveness == registry.Live && cluster.isUntracked {
		return registry.Undecided
	}
	return liveness
}

// statusOf returns the status of the view of key. It is the same as that of viewOf, without a view
// that has the clusters that have not shown the page. imported is sorted.
func (c *catalogs) statusOf(key mcs.Key, imported []string) (status engine.Status) {
	page, code := format.PageOf(key), format.NamespaceCode(key.Namespace)
	status.IsOpen = slices.ContainsFunc(c.unknowns.of(page, code), func(cluster *catalog) bool { return cluster.isUnknown(key, page, code) })
	for _, id := range imported {
		if cluster := c.clusters[id]; cluster != nil && cluster.isUnknown(key, page, code) {
			status.Unknown = append(status.Unknown, id)
			if c.liveness.IsStale(id) {
				status.Stale = append(status.Stale, id)
			}
		} else if !c.isSeen(id, key) {
			status.Unseen = append(status.Unseen, id)
		}
	}
	return status
}

// isSeen reports whether it is known whether another cluster exports key: a record shows it, or the
// cluster has left. This cluster is no other one.
func (c *catalogs) isSeen(id string, key mcs.Key) bool {
	return id == c.identity.ClusterID || c.clusters[id].isSeen(key) || c.keyring.HasEnded(id)
}

// isSeen reports whether a record shows whether the cluster exports key.
func (c *catalog) isSeen(key mcs.Key) bool {
	if c == nil || !c.hasRecord {
		return false
	}
	p := &c.pages[format.PageOf(key)]
	return !c.isCopy || p.knows(key) || p.ignored[key]
}

// expiredFarewells returns the clusters whose farewell in service members is older than
// farewellLifetime. The live cluster with the lowest ID removes them; for the others it returns
// none.
func (c *catalogs) expiredFarewells(wall time.Time) (ids []string) {
	for id, cluster := range c.clusters {
		if id < c.identity.ClusterID && c.live(id) {
			return nil
		}
		if cluster.left && cluster.isShown && cluster.parsed.Farewell && wall.Sub(cluster.parsed.HeartbeatTime()) >= farewellLifetime {
			ids = append(ids, id)
		}
	}
	return ids
}

// farewellLifetime is the time for which farewells stay, for clusters that are down.
const farewellLifetime = 7 * 24 * time.Hour

// list returns the members, sorted.
func (c *catalogs) list() []registry.Member {
	var members []registry.Member
	if c.own.hasRecord {
		members = append(members, c.ownMember())
	}
	for id, cluster := range c.clusters {
		if cluster.left || !cluster.hasRecord && cluster.problem == "" {
			continue // it has left, or has no accepted record
		}
		members = append(members, registry.Member{
			ClusterID:  id,
			UID:        cluster.record.UID,
			Version:    cluster.record.Version,
			Key:        c.keyOf(cluster),
			RefusedKey: cluster.refused(),
			Seal:       cluster.seal.shown(id),
			LastSeen:   cluster.lastSeen,
			Joined:     cluster.record.Joined,
			Heartbeat:  cluster.record.HeartbeatTime(),
			Stale:      c.liveness.IsStale(id),
			NoRecord:   !cluster.hasRecord,
			Properties: cluster.properties.Decode(cluster.record.Properties),
			Imports:    cluster.record.Imports,
			OverBudget: cluster.overBudget(),
			Problems:   slices.Concat(c.contactProblems(&cluster.record), cluster.problems()),
			Address:    c.address(&cluster.record),
		})
	}
	slices.SortFunc(members, func(a, b registry.Member) int { return strings.Compare(a.ClusterID, b.ClusterID) })
	return members
}

// ownMember returns this cluster as a member.
func (c *catalogs) ownMember() registry.Member {
	id, r := c.identity.ClusterID, &c.own.record
	return registry.Member{
		ClusterID: id, UID: r.UID, Version: r.Version, Key: r.Key.String(), RefusedKey: c.own.seal.refusedKey(), Seal: c.own.seal.shown(id), LastSeen: c.own.lastSeen,
		Joined: r.Joined, Heartbeat: r.HeartbeatTime(), Stale: c.liveness.IsStale(id), Properties: c.own.properties.Decode(r.Properties), Imports: r.Imports,
		Problems: slices.Concat(c.contactProblems(r), c.own.problems()), Address: c.address(r),
	}
}

// address returns the address of a cluster's controller, zero if its record has none or this
// cluster sends nothing there.
func (c *catalogs) address(r *format.Member) netip.Addr {
	if address := r.Contact.Address.Addr(); address.IsValid() && c.allowsContact(address) {
		return address
	}
	return netip.Addr{}
}

// keyOf returns the public key of a cluster, "" if none is known.
func (c *catalogs) keyOf(cluster *catalog) string {
	if pin, ok := c.keyring.Pin(cluster.id); ok && pin.Key != (trust.Key{}) {
		return pin.Key.String()
	}
	if !cluster.hasRecord {
		return ""
	}
	return cluster.record.Key.String()
}

// refused returns the key that was refused: that in the catalog, where fewer can write than into
// service members, or that of the record there; "" if there is none.
func (c *catalog) refused() string {
	switch key := c.seal.refusedKey(); {
	case key != "":
		return key
	case c.refusedKey != (trust.Key{}):
		return c.refusedKey.String()
	}
	return ""
}

// contactProblems returns the reason why a cluster gets no peer notifications although its record
// has an address, one line or none.
func (c *catalogs) contactProblems(r *format.Member) []string {
	address := r.Contact.Address
	if !address.IsValid() || c.allowsContact(address.Addr()) {
		return nil
	}
	return []string{fmt.Sprintf("it gets no peer notifications from here: its address %s is not in --peer-notification-networks of this cluster", address)}
}

// problems returns the problems of a cluster's records, one line each.
func (c *catalog) problems() []string {
	var lines []string
	if c.problem != "" {
		lines = append(lines, c.problem)
	}
	lines = append(lines, c.record.Problems()...)
	if c.isMissing && c.hasRecord && c.problem == "" {
		lines = append(lines, "the member record is missing or older than the one last read, but the cluster did not leave")
	}
	lines = append(lines, c.excessProblems()...)
	for i := range c.pages {
		p := &c.pages[i]
		lines = append(lines, pageProblems(i, p.trouble, p.failures, p.problems)...)
	}
	return lines
}

// pageProblems returns the problems of a page, one line each: the reason why it cannot be read,
// after a number of failures, and those of the page that was read.
func pageProblems(page int, trouble string, failures int, problems []string) (lines []string) {
	// A single failure is the eventual consistency of Cloud Map.
	if trouble != "" && failures > 1 {
		lines = append(lines, fmt.Sprintf("page %s cannot be read: %s", format.PageName(page), trouble))
	}
	for _, problem := range problems {
		lines = append(lines, fmt.Sprintf("page %s: %s", format.PageName(page), problem))
	}
	return lines
}

// live reports whether a cluster has a record with recent heartbeats.
func (c *catalogs) live(id string) bool {
	cluster := c.clusters[id]
	return cluster.hasRecord && !cluster.left && !cluster.isMissing && !c.liveness.IsStale(id)
}

// behind reports whether the next read may show a page that is announced. A page that failed
// several times has its own backoff.
func (c *catalog) behind(now time.Time) bool {
	for i := range c.pages {
		if p := &c.pages[i]; c.needsRead(now, i) && p.failures <= eagerRetries {
			return true
		}
	}
	return false
}
