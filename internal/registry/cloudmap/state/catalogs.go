package state

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

const (
	// reordered is how long a record that is older than one seen before is taken for a late answer of Cloud Map, whose
	// reads may be some seconds behind; after it the record counts, for a clock may have been set back.
	reordered = 30 * time.Second
	// A page that cannot be read whole is tried at each poll at first, because Cloud Map may be a moment behind; then
	// less and less often, up to maxRetry.
	eagerRetries = 3
	// goneReads is how often in a row a catalog must be seen to be empty or gone.
	goneReads = 3
	maxRetry  = 30 * time.Second
)

// Location is where the clusterset's records are.
type Location struct {
	// Namespace is the name of the control namespace, CatalogID the ID of the own catalog.
	Namespace, CatalogID string
	// IsNew is set if the own catalog was created now.
	IsNew bool
	// Catalogs are the catalogs of all clusters by cluster ID. They are not known if Unlisted is set.
	Catalogs map[string]api.Service
	Unlisted bool
}

// catalogs are what was read of each cluster of the clusterset, this one included. What cannot be read stays as it was.
type catalogs struct {
	identity mcs.Identity
	poll     time.Duration
	// forget is after how long a cluster is forgotten of which nothing but a catalog was ever seen.
	forget time.Duration
	// lag is how late reads may be.
	lag      time.Duration
	liveness *registry.Liveness

	// synced is set by the first whole read of the members. incomplete says that it is not known yet who has a catalog.
	synced, incomplete bool
	clusters           map[string]*catalog
	// departed are the last records of clusters that were removed a moment ago: what a late read shows of them is not news.
	departed map[string]departure
}

// departure is when a cluster was removed, and the last record that was read of it.
type departure struct {
	at     time.Time
	record format.Member
}

// catalog is one cluster's.
type catalog struct {
	// record is what the cluster said of itself last; without hasRecord none could be read yet.
	record    format.Member
	hasRecord bool
	// problem is what is wrong with its record, and unusable the record that has it.
	problem  string
	unusable map[string]string
	// lastSeen is when the record was last seen to change, absentSince since when it is not there, behindSince since when
	// it is older than record.
	lastSeen, absentSince, behindSince time.Time
	// gone is how often in a row its catalog was empty or not there.
	gone int
	retry
	pages [format.PageCount]pageState
}

// retry says when something that could not be read is tried again.
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

// pageState is a page as last read whole.
type pageState struct {
	// read says that it was read whole since this process started. A page that is announced not to exist is read.
	read       bool
	generation int64
	// digest of what was read; "" is a page that does not exist.
	digest string
	// readAt is when it was read whole last, checkedAt when a read of it ended, whatever it showed. unjoined is the number of these reads in a row
	// that showed no whole page as announced.
	readAt, checkedAt time.Time
	unjoined          int
	// lost says that the store does not have any more what was read.
	lost    bool
	exports map[mcs.Key]mcs.Export
	// unreadable are keys, and unnamed says that there are unknown ones, whose exports are there but cannot be used. What
	// was read of them before is in exports.
	unreadable map[mcs.Key]bool
	unnamed    bool
	problems   []string
	// parts is the number of parts of what was read, stored the number that the store was seen to have.
	parts, stored int
	// trouble is why the page as announced cannot be read.
	trouble string
	// earlier is what a whole page has that is not the announced one.
	earlier map[mcs.Key]mcs.Export
	retry
}

func newCatalogs(identity mcs.Identity, staleAfter, poll, lag time.Duration) *catalogs {
	return &catalogs{
		identity: identity, poll: poll, forget: staleAfter, lag: lag, clusters: map[string]*catalog{}, departed: map[string]departure{},
		liveness: registry.NewLiveness(identity.ClusterID, staleAfter),
	}
}

// own is this cluster's catalog as the registry shows it, nil while it shows none.
func (c *catalogs) own() *catalog { return c.clusters[c.identity.ClusterID] }

// members takes in a whole read of the members' records. Keys are added to changed.
func (c *catalogs) members(now time.Time, instances []api.Instance, changed engine.Keys) {
	maps.DeleteFunc(c.departed, func(_ string, d departure) bool { return now.Sub(d.at) >= reordered })
	signs := map[string]bool{} // of each cluster that is present: whether it shows a new heartbeat
	for _, instance := range instances {
		if mcs.ValidateClusterID(instance.ID) != nil {
			continue // not a member record: its instance ID is the cluster ID
		}
		if c.afterlife(instance) {
			continue
		}
		signs[instance.ID] = c.member(now, instance, changed)
	}
	for id, cluster := range c.clusters {
		if _, present := signs[id]; !present && id != c.identity.ClusterID {
			c.missing(now, id, cluster, changed)
		}
	}
	for _, id := range c.liveness.ObserveHeartbeats(now, signs) {
		c.keysOf(id, changed)
	}
	c.synced = true
}

// afterlife reports whether a record is of a cluster that was removed a moment ago, and not later than that.
func (c *catalogs) afterlife(instance api.Instance) bool {
	d, ok := c.departed[instance.ID]
	if !ok || c.clusters[instance.ID] != nil {
		return false
	}
	r, err := format.ParseMember(instance, c.identity.ClusterSetID)
	return err == nil && r.UID == d.record.UID && !r.IsLaterThan(d.record)
}

// unannounced notes that there is no record with this cluster's ID, and no cluster has claimed it: nothing is announced, and what is
// there counts.
func (c *catalogs) unannounced() {
	if own := c.own(); own != nil {
		own.record, own.hasRecord = format.Member{}, false
	}
}

// member takes in a cluster's record, and reports whether it is a new heartbeat.
func (c *catalogs) member(now time.Time, instance api.Instance, changed engine.Keys) (sign bool) {
	cluster := c.clusters[instance.ID]
	if cluster == nil {
		cluster = &catalog{}
		c.clusters[instance.ID] = cluster
	}
	isNew := !cluster.hasRecord && cluster.unusable == nil // a catalog may be known before the record that goes with it
	cluster.absentSince = time.Time{}
	written := cluster.takeRecord(now, instance, c.identity.ClusterSetID, changed)
	if written || isNew {
		cluster.lastSeen = now
	}
	return written && (c.synced || !isNew) // what was there before us may be old
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

// takeRecord takes in what service members has of a cluster, and reports whether it was written since it was read last.
func (c *catalog) takeRecord(now time.Time, instance api.Instance, clusterSetID string, changed engine.Keys) (written bool) {
	r, err := format.ParseMember(instance, clusterSetID)
	if err == nil {
		c.problem, c.unusable = "", nil
		return c.take(now, r, changed)
	}
	// Who writes what we cannot use, as a later version may, lives all the same.
	written = !maps.Equal(instance.Attributes, c.unusable)
	c.problem, c.unusable = fmt.Sprintf("the record in service %s cannot be used: %v", format.MembersService, err), instance.Attributes
	return written
}

// take takes in a cluster's record, unless it is an answer that comes late, and reports whether it is another one than before.
func (c *catalog) take(now time.Time, r format.Member, changed engine.Keys) (written bool) {
	if c.late(now, r) {
		return false
	}
	written = !c.hasRecord || !r.IsSameWrite(c.record)
	before := c.record
	c.record, c.hasRecord = r, true
	for i := range c.pages {
		p := &c.pages[i]
		if before.UID != r.UID {
			p.generation = min(p.generation, r.Generation) // by another clock
		}
		isNews := before.Pages[i] != r.Pages[i]
		if isNews {
			p.retry, p.unjoined = retry{}, 0
		}
		if isNews && c.shows(i) {
			diff(p.exports, nil, changed) // read before it was announced: it counts as published from now on
		}
		if r.Pages[i] == "" && p.removedBy(now, r) {
			p.remove(r.Generation, changed)
		}
	}
	return written
}

// late reports whether a record is older than the one that is known, and has not been so for long.
func (c *catalog) late(now time.Time, r format.Member) bool {
	if !c.hasRecord || r.UID != c.record.UID || !c.record.IsLaterThan(r) {
		c.behindSince = time.Time{}
		return false
	}
	if c.behindSince.IsZero() {
		c.behindSince = now
	}
	if now.Sub(c.behindSince) < reordered {
		return true
	}
	c.behindSince = time.Time{}
	for i := range c.pages {
		c.pages[i].generation = min(c.pages[i].generation, r.Generation)
	}
	return false
}

// missing handles a cluster whose record is not there. One that leaves says first that it has no pages; otherwise its
// exports stay until its catalog is seen to be empty (absent, verified), and it becomes stale like any other.
func (c *catalogs) missing(now time.Time, id string, cluster *catalog, changed engine.Keys) {
	if cluster.absentSince.IsZero() {
		cluster.absentSince, cluster.retry, cluster.gone = now, retry{}, 0
	}
	left := cluster.hasRecord && cluster.record.Pages == format.Digests{}
	forgotten := !cluster.hasRecord && cluster.problem == "" && now.Sub(cluster.absentSince) >= c.forget
	if left || forgotten {
		c.remove(now, id, changed)
	}
}

// suspect takes in, before the first read of the members or as soon as it is known, who has a catalog. A cluster whose record is not
// there, but whose catalog is, may have left or not: what it exports is unknown until its catalog is seen to be empty, or until it has
// been silent for as long as makes a cluster stale.
func (c *catalogs) suspect(location Location) {
	if c.synced && !c.incomplete {
		return
	}
	c.incomplete = location.Unlisted
	for id := range location.Catalogs {
		if c.clusters[id] == nil && id != c.identity.ClusterID {
			c.clusters[id] = &catalog{}
		}
	}
}

// absent are the clusters without a record of which it has to be seen whether they have a catalog.
func (c *catalogs) absent(now time.Time) []string {
	var ids []string
	for id, cluster := range c.clusters {
		if !cluster.absentSince.IsZero() && !now.Before(cluster.retryAt) {
			ids = append(ids, id)
		}
	}
	return ids
}

// verified takes in what the catalog of a cluster without a record was seen to have. One that is empty or gone, which is also
// what missing permissions, late reads and half of an answer look like, has to be so several times in a row.
func (c *catalogs) verified(now time.Time, id string, hasPages bool, changed engine.Keys) {
	cluster := c.clusters[id]
	if cluster == nil || cluster.absentSince.IsZero() {
		return
	}
	if hasPages {
		cluster.gone = 0
	} else {
		cluster.gone++
	}
	// What was written a moment ago may not be there yet, neither the record nor the pages.
	certain := now.Sub(cluster.absentSince) >= c.lag
	if certain && cluster.gone >= goneReads {
		c.remove(now, id, changed)
		return
	}
	cluster.failed(now, c.poll)
}

func (c *catalogs) remove(now time.Time, id string, changed engine.Keys) {
	if cluster := c.clusters[id]; cluster != nil && cluster.hasRecord {
		c.departed[id] = departure{now, cluster.record}
	}
	c.keysOf(id, changed)
	c.liveness.Remove(id)
	delete(c.clusters, id)
}

// wanted are the pages of a cluster that have to be read: what is announced is not what was read.
func (c *catalog) wanted(now time.Time) []int {
	if !c.hasRecord {
		return nil
	}
	var pages []int
	for i := range c.pages {
		if c.unread(now, i) && !now.Before(c.pages[i].retryAt) {
			pages = append(pages, i)
		}
	}
	return pages
}

// unread reports whether a page that is announced is not what was read.
func (c *catalog) unread(now time.Time, page int) bool {
	p := &c.pages[page]
	return c.record.Pages[page] != "" && (!p.read || p.lost || !c.shows(page) && !p.ahead(now, c.record))
}

// shows reports whether a page was read last as its cluster's record announces it.
func (c *catalog) shows(page int) bool { return c.record.Pages[page] == c.pages[page].digest }

// page takes in a read of the instances of a page. Only a whole generation counts, and only if it is the announced one or a later one.
func (c *catalogs) page(now time.Time, id string, page int, instances []api.Instance, changed engine.Keys) {
	cluster := c.clusters[id]
	if cluster == nil {
		return // left meanwhile
	}
	p := &cluster.pages[page]
	p.stored = max(p.stored, format.CountParts(page, instances))
	p.checkedAt = now
	img, err := format.JoinPage(page, instances)
	var decoded record.Page
	if err == nil {
		decoded, err = record.Decode(img.Data, id)
	}
	if err == nil {
		err = p.checkOrder(now, img)
	}
	if err == nil && cluster.record.Pages[page] != img.Digest && img.Generation <= cluster.record.Generation {
		p.earlier, _ = belonging(page, decoded.Exports)
		err = fmt.Errorf("generation %d is there, which is not what the cluster's record announces", img.Generation)
	}
	if err != nil {
		p.trouble = err.Error()
		p.unjoined++
		p.failed(now, c.poll)
		return
	}
	p.take(now, page, img, decoded, changed)
	if id == c.identity.ClusterID && cluster.shows(page) {
		// Announced before it was read: until now none of its exports counted as published, those that stayed the same either.
		diff(p.exports, nil, changed)
	}
}

// checkOrder returns an error if the image is that of a late read, also if it shows what is announced: a page may be read before the record that
// announces it.
func (p *pageState) checkOrder(now time.Time, img format.Page) error {
	if p.read && img.Generation < p.generation && now.Sub(p.readAt) < reordered {
		return fmt.Errorf("generation %d is there, which is older than generation %d that was read before", img.Generation, p.generation)
	}
	return nil
}

// take replaces what was read of the page. Exports that are there but unreadable stay as they were.
func (p *pageState) take(now time.Time, page int, img format.Page, decoded record.Page, changed engine.Keys) {
	exports, problems := belonging(page, decoded.Exports)
	unreadable := map[mcs.Key]bool{}
	for _, key := range decoded.Unreadable {
		unreadable[key] = true
	}
	for key, exp := range p.exports {
		if _, ok := exports[key]; !ok && (decoded.Unnamed || unreadable[key]) {
			exports[key] = exp
		}
	}
	diff(p.exports, exports, changed)
	*p = pageState{
		read: true, readAt: now, checkedAt: now, generation: img.Generation, digest: img.Digest, parts: img.Parts, stored: p.stored,
		exports: exports, unreadable: unreadable, unnamed: decoded.Unnamed, problems: append(decoded.Problems, problems...),
	}
}

// belonging are the exports that belong to page.
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

// ahead reports whether what was read of the page is expected to be announced yet, being later than the record. It is not for ever:
// the process that wrote it may have ended before it could, and the next one's clock may be behind.
func (p *pageState) ahead(now time.Time, r format.Member) bool {
	return p.generation > r.Generation && now.Sub(p.readAt) < reordered
}

// removedBy reports whether a record that does not announce the page is news of its end.
func (p *pageState) removedBy(now time.Time, r format.Member) bool {
	return !p.read || p.digest != "" && !p.ahead(now, r)
}

// remove makes it a page that is known not to exist.
func (p *pageState) remove(generation int64, changed engine.Keys) {
	diff(p.exports, nil, changed)
	*p = pageState{read: true, generation: generation, stored: p.stored}
}

// knows reports whether it is certain that the page has an export of key or has none.
func (p *pageState) knows(key mcs.Key) bool {
	_, has := p.exports[key]
	return has || p.read && !p.unnamed && !p.unreadable[key]
}

// audit takes in a read of all of this cluster's pages. It finds what the previous process wrote and did not announce, and what others
// changed or removed since it was read.
func (c *catalogs) audit(now time.Time, instances []api.Instance, changed engine.Keys) {
	own := c.own()
	if own == nil {
		own = &catalog{}
		c.clusters[c.identity.ClusterID] = own
	}
	byPage := format.GroupByPage(instances)
	for i := range own.pages {
		p := &own.pages[i]
		p.stored = format.CountParts(i, byPage[i])
		img, err := format.JoinPage(i, byPage[i])
		switch {
		case err == nil && p.read && img.Digest == p.digest:
			p.lost = false
		case own.withdrew(i, len(byPage[i]) > 0, img, err):
			p.remove(own.record.Generation, changed) // what is left of it is excess
		default:
			p.lost = p.read
			c.page(now, c.identity.ClusterID, i, byPage[i], changed)
		}
	}
}

// withdrew reports whether a page is one that the record says to be removed, given what an audit found of it: whether anything is
// there, and its newest whole image or why there is none.
func (c *catalog) withdrew(page int, there bool, found format.Page, err error) bool {
	return c.record.Pages[page] == "" && (!there || c.hasRecord && (err != nil || found.Generation <= c.record.Generation))
}

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

// look is what the others' catalogs have of key.
func (c *catalogs) look(key mcs.Key) (view registry.View) {
	page := format.PageOf(key)
	view.Incomplete = c.incomplete
	for _, id := range slices.Sorted(maps.Keys(c.clusters)) {
		if id == c.identity.ClusterID {
			continue
		}
		p := &c.clusters[id].pages[page]
		exp, ok := p.exports[key]
		if !ok {
			if !p.knows(key) {
				view.Unknown = append(view.Unknown, id)
			}
			continue
		}
		view.Exports = append(view.Exports, exp)
		if c.liveness.IsStale(id) {
			view.Stale = append(view.Stale, id)
		} else if c.liveness.IsUnknown(id) {
			view.LivenessUnknown = append(view.LivenessUnknown, id)
		}
	}
	return view
}

// lookFor is look for a lookup.
func (c *catalogs) lookFor(key mcs.Key, _ []string) registry.View { return c.look(key) }

// list are the members, sorted.
func (c *catalogs) list() []registry.Member {
	var members []registry.Member
	for _, id := range slices.Sorted(maps.Keys(c.clusters)) {
		cluster := c.clusters[id]
		if !cluster.hasRecord && cluster.problem == "" {
			continue // this cluster, before it has joined
		}
		members = append(members, registry.Member{
			ClusterID: id,
			UID:       cluster.record.UID,
			Version:   cluster.record.Version,
			LastSeen:  cluster.lastSeen,
			Joined:    cluster.record.Joined,
			Heartbeat: cluster.record.HeartbeatTime(),
			Stale:     c.liveness.IsStale(id),
			Problems:  cluster.problems(),
		})
	}
	return members
}

// problems are what is wrong with a cluster's records, one line each.
func (c *catalog) problems() []string {
	var lines []string
	if c.problem != "" {
		lines = append(lines, c.problem)
	}
	if c.record.ContactProblem != "" {
		lines = append(lines, c.record.ContactProblem)
	}
	if !c.absentSince.IsZero() {
		lines = append(lines, "the record in service "+format.MembersService+" is gone, but the cluster did not leave")
	}
	for i := range c.pages {
		p := &c.pages[i]
		// One failure is Cloud Map being a moment behind.
		if p.trouble != "" && p.failures > 1 {
			lines = append(lines, fmt.Sprintf("page %s cannot be read: %s", format.PageName(i), p.trouble))
		}
		for _, problem := range p.problems {
			lines = append(lines, fmt.Sprintf("page %s: %s", format.PageName(i), problem))
		}
	}
	return lines
}

// live reports whether a cluster has a record with recent heartbeats.
func (c *catalogs) live(id string) bool {
	cluster := c.clusters[id]
	return cluster.hasRecord && cluster.absentSince.IsZero() && !c.liveness.IsStale(id)
}

// behind reports whether the next read may show a page that is announced. A page that failed several times has its own backoff.
func (c *catalog) behind(now time.Time) bool {
	for i := range c.pages {
		if p := &c.pages[i]; c.unread(now, i) && p.failures <= eagerRetries {
			return true
		}
	}
	return false
}
