package state

import (
	"errors"
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
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
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

// catalogs has what the registry shows of each cluster. Package belief decides what that means for
// the exports of the other clusters: catalogs passes each read to it as an event, and keeps what is
// for users and for the next reads.
type catalogs struct {
	identity   mcs.Identity
	own        *ownCatalog
	belief     *belief.State
	staleAfter time.Duration
	keyring    *trust.Keyring
	// registry is the name of the registry in the keyring.
	registry string
	// ledger has the budgets of the other clusters. isWanted reports whether the exports of a
	// namespace are used; nil is all.
	ledger   *budget.Ledger
	isWanted func(namespace string) bool
	// observed gets the exports of other clusters that a read has changed; nil is none.
	observed func(mcs.Export)
	// used are the namespaces whose exports are used, sorted; nil is all.
	used []string
	// refused is called for each version of a record that is refused.
	refused func()
	// allowsContact reports whether peer notifications may be sent to an address.
	allowsContact func(netip.Addr) bool

	// synced is set by the first complete read of the members, proven when isSynced reported true.
	synced, proven bool
	// clusters are the other ones.
	clusters map[string]*catalog
	// nextTags is the time from which the tags of a catalog may be read to show Member.Seal; zero
	// before the first read of the members.
	nextTags time.Time
	// unsealedAt is the time of the last read of tags that showed no seal, and sealedAt that of the
	// last one that showed a seal that was not there before.
	unsealedAt, sealedAt time.Time
	// newProcesses are the clusters with a new process since the members were read last.
	newProcesses []string
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

// catalog is what the registry shows of another cluster.
type catalog struct {
	id string
	// record is the latest record that counts, nil if there is none or the cluster leaves with it.
	// lastSeen is the time at which it was last seen to change.
	record     *format.Member
	lastSeen   time.Time
	properties mcs.DecodedProperties
	// content is a digest of the pages that record announces, "" if it does not decide all. isKept
	// is set once the keyring has it, because all of them were read.
	content string
	isKept  bool
	parsedRecord
	// read is the record in service members as belief has it, and manifest the last one of a
	// record.
	read     belief.Record
	manifest manifest
	// isShown is set if service members has a record now, isSought if an import names the cluster.
	isShown, isSought bool
	// isTried is set after the first read of the copy of the record. turn is the time of the last
	// one, or since which the cluster is known: the one that waits longest is read first.
	isTried bool
	turn    time.Time
	// copyProblem is the reason why the copy of the record is refused, "" if it is not.
	copyProblem string
	seal        seal
	// news is the generation of the own record that this cluster is notified of, 0 for the latest.
	news  int64
	pages [format.PageCount]pageInfo
	// account has the cost of the exports; nil has no limits.
	account *budget.Account
}

func newCatalogs(cfg Config) *catalogs {
	c := &catalogs{
		identity: cfg.Identity, own: newOwnCatalog(cfg), staleAfter: cfg.StaleAfter, keyring: cfg.Keyring, registry: cfg.ClientName,
		belief: belief.New(belief.Config{
			Own: cfg.Identity.ClusterID, UnitOf: unitOf, CodeOf: format.NamespaceCode, Poll: cfg.PollInterval, StaleAfter: cfg.StaleAfter,
			Keyring: cfg.Keyring, Registry: cfg.ClientName,
		}),
		clusters: map[string]*catalog{}, ledger: cfg.Ledger, isWanted: cfg.Wanted, observed: cfg.Observed,
		refused: func() { cfg.Metrics.CountRefusedRecord(cfg.ClientName) }, allowsContact: cfg.AllowsContact,
	}
	cfg.Keyring.AddOwn(cfg.Identity.ClusterID, c.own.keys...)
	return c
}

// cluster returns the catalog of another cluster, and creates it if it is new. At a start all
// members have an account before the first page is read, so that the shares of the older ones are
// reserved.
func (c *catalogs) cluster(now time.Time, id string) *catalog {
	if c.clusters[id] == nil {
		account := c.ledger.Open(budget.Owner{ClusterID: id, Since: c.keyring.Since(id)})
		c.clusters[id] = &catalog{id: id, account: account, turn: now}
	}
	return c.clusters[id]
}

// step passes an event about a cluster to belief, or about all of them without one, and adds the
// keys with a View that may have changed. Exports that have ended cost nothing any more.
func (c *catalogs) step(now time.Time, of *catalog, event belief.Event, changed engine.Keys) {
	actions := c.belief.Step(event, now)
	for _, key := range actions.Notify {
		changed.Add(key)
		if of != nil && of.account != nil && c.belief.ExportOf(of.id, key) == nil {
			of.account.Release(key)
		}
	}
	if of != nil {
		return
	}
	for _, id := range actions.Decided {
		if cluster := c.clusters[id]; cluster != nil {
			cluster.account.KeepOnly(func(key mcs.Key) bool { return c.belief.ExportOf(id, key) != nil })
		}
	}
}

// members observes a complete read of the member records. mine reports whether a record with this
// cluster's ID counts. It adds changed keys to changed.
func (c *catalogs) members(now time.Time, instances []api.Instance, mine func(format.Member) bool, changed engine.Keys) {
	for _, cluster := range c.clusters {
		cluster.isShown = false
	}
	hasHeartbeat := false
	for _, instance := range instances {
		switch id := instance.ID; {
		case mcs.ValidateClusterID(id) != nil:
			// not a member record: its instance ID is the cluster ID
		case id == c.identity.ClusterID:
			beats, isRefused := c.own.member(now, instance, mine, changed)
			if hasHeartbeat = beats && c.synced; isRefused {
				c.refused()
			}
		default:
			cluster := c.cluster(now, id)
			cluster.isShown = true
			c.member(now, cluster, instance, changed)
		}
	}
	for id, cluster := range c.clusters {
		if !cluster.isShown {
			c.step(now, cluster, belief.RecordMissing{Cluster: id}, changed)
		}
	}
	c.step(now, nil, belief.Tick{Heartbeat: hasHeartbeat}, changed)
	for _, cluster := range c.clusters {
		c.finish(now, cluster)
	}
	c.synced = true
}

// member observes the record of another cluster in service members.
func (c *catalogs) member(now time.Time, cluster *catalog, instance api.Instance, changed engine.Keys) {
	differs := cluster.parse(instance, c.identity.ClusterSetID)
	if err := cluster.parseErr; err != nil {
		isHeartbeat := differs && cluster.record != nil && cluster.parsed.Key == cluster.record.Key
		c.step(now, cluster, belief.RecordRefused{Cluster: cluster.id, Reason: err.Error(), IsHeartbeat: isHeartbeat}, changed)
		if differs {
			c.refused()
		}
		return
	}
	if differs {
		r := cluster.parsed
		cluster.read = cluster.recordOf(&r, belief.Shared)
	}
	cluster.read.Unproven = cluster.seal.unproven(cluster.id)
	c.step(now, cluster, belief.RecordRead{Record: cluster.read}, changed)
	switch p := c.belief.ProblemOf(cluster.id); {
	case p.Kind == belief.NoProblem && !c.belief.IsUnproven(cluster.id):
		cluster.seal.refused, cluster.copyProblem = trust.Key{}, ""
	case p.Kind == belief.KeyRefused && differs:
		c.refused()
	}
}

// sent observes a record that another cluster has sent, and reports whether it counts.
func (c *catalogs) sent(now time.Time, id string, r *format.Member, changed engine.Keys) bool {
	cluster := c.clusters[id]
	if cluster == nil {
		return false
	}
	record := cluster.recordOf(r, belief.Sent)
	if !c.belief.TakesSent(&record) {
		return false
	}
	c.step(now, cluster, belief.RecordRead{Record: record}, changed)
	c.finish(now, cluster)
	return true
}

// recordOf returns a record that was read from a place as belief has it.
func (c *catalog) recordOf(r *format.Member, place belief.Place) belief.Record {
	out := belief.Record{
		Cluster: c.id, Place: place, Key: r.Key, UID: r.UID, Succession: r.Succession, At: r.Time(), Process: r.Process,
		Farewell: r.Farewell, Properties: c.properties.Decode(r.Properties), Stored: r,
	}
	if !r.Farewell {
		out.Manifest = c.manifest.of(r)
	}
	return out
}

// finish ends a change of what the registry shows of a cluster: it takes over the record that
// counts, and removes a cluster of which nothing is known.
func (c *catalogs) finish(now time.Time, cluster *catalog) {
	var record *format.Member
	if r := c.belief.RecordOf(cluster.id); r != nil && !r.Farewell {
		record, _ = r.Stored.(*format.Member)
	}
	if record != cluster.record {
		c.take(now, cluster, record)
	}
	isSought := cluster.isSought && !c.keyring.HasEnded(cluster.id)
	if cluster.isShown || isSought || record != nil || c.belief.StateOf(cluster.id) == belief.Saving {
		return
	}
	cluster.account.Close()
	delete(c.clusters, cluster.id)
}

// take sets the record that counts, nil for none.
func (c *catalogs) take(now time.Time, cluster *catalog, record *format.Member) {
	before := cluster.record
	cluster.record, cluster.content, cluster.isKept = record, contentOf(record), false
	switch {
	case record == nil:
		cluster.pages = [format.PageCount]pageInfo{}
		cluster.account.SetExcess(0)
		return
	case before == nil || !record.IsSameWrite(*before):
		cluster.lastSeen = now
	}
	if c.synced && (before == nil || record.Process != before.Process) {
		c.newProcesses = append(c.newProcesses, cluster.id)
	}
	for i := range cluster.pages {
		if before != nil && before.Pages[i] != record.Pages[i] {
			c.announce(cluster, i)
		}
	}
}

// contentOf returns a digest of the pages that a record announces, "" if it does not decide all:
// the next one follows soon.
func contentOf(r *format.Member) string {
	if r == nil || slices.Contains(r.Pages[:], format.UnwrittenDigest) {
		return ""
	}
	return format.Digest([]byte(strings.Join(r.Pages[:], ",")))
}

// hasChanged reports whether a cluster announces other pages than those of which this process or a
// previous one has read all.
func (c *catalogs) hasChanged(cluster *catalog) bool {
	return cluster.content != "" && cluster.content != c.keyring.Of(c.registry, cluster.id).Content
}

// observeRead records of which clusters all pages that they announce were read.
func (c *catalogs) observeRead() {
	for id, cluster := range c.clusters {
		if cluster.content != "" && !cluster.isKept && !c.belief.HasUnread(id) {
			c.keyring.ObserveContent(c.registry, id, cluster.content)
			cluster.isKept = true
		}
	}
}

// announce observes that the record that counts announces another version of a page, or its end.
func (c *catalogs) announce(cluster *catalog, page int) {
	p := &cluster.pages[page]
	p.failures = 0
	if _, state := c.belief.UnitOf(cluster.id, unitNames[page]); state == belief.Absent && p.parts > 0 {
		*p = pageInfo{}
		cluster.countExcess()
	}
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
	return cluster != nil && cluster.record != nil && cluster.record.Key == key
}

// errUnread is the error of a catalog that could not be read.
var errUnread = errors.New("the catalog could not be read")

// copyRead observes the copy of the record in the catalog of another cluster, which proves that the
// key is the cluster's. r is nil if there is none, or if err is set: the copy is not signed, or it
// is errUnread.
func (c *catalogs) copyRead(now time.Time, id string, r *format.Member, err error, changed engine.Keys) {
	cluster := c.clusters[id]
	if cluster == nil {
		return // forgotten since the read began
	}
	cluster.isTried, cluster.turn = true, now
	proof := belief.ProofRead{Cluster: id, Failed: errors.Is(err, errUnread)}
	if r != nil {
		record := cluster.recordOf(r, belief.Own)
		record.Seal, record.Unproven = cluster.seal.at(id, now, c.staleAfter), cluster.seal.unproven(id)
		proof.Record = &record
	}
	c.step(now, cluster, proof, changed)
	if r != nil {
		c.observeCopy(cluster, r)
	}
	c.finish(now, cluster)
}

// observeCopy records whether the copy of a cluster's record was refused because of its key. The
// tags of its catalog may prove that, unless there is no room for the key.
func (c *catalogs) observeCopy(cluster *catalog, r *format.Member) {
	p := c.belief.ProblemOf(cluster.id)
	if p.Kind != belief.KeyRefused || p.Place != belief.Own || p.Key != r.Key {
		cluster.seal.refused, cluster.copyProblem = trust.Key{}, ""
		return
	}
	if cluster.seal.refused != r.Key && (cluster.parseErr != nil || cluster.parsed.Key != r.Key) {
		c.refused()
	}
	cluster.copyProblem = p.Reason
	if _, isPinned := c.keyring.Pin(cluster.id); isPinned {
		cluster.seal.refused = r.Key
	}
}

// isSynced reports whether lookups have an answer: all members were read, and each catalog that has
// to prove a key was read, or could not be read, once. Until then an import could begin with old
// exports of a cluster that has moved to another registry.
func (c *catalogs) isSynced() bool {
	if c.proven || !c.synced {
		return c.proven
	}
	for id, cluster := range c.clusters {
		if !cluster.isTried && c.belief.IsUnproven(id) {
			return false
		}
	}
	c.proven = true
	return true
}

// isUnknown reports whether a cluster has still proved no key, or none since it left.
func (c *catalogs) isUnknown(id string) bool {
	cluster := c.clusters[id]
	if cluster != nil && cluster.record != nil {
		return false
	}
	pin, isKnown := c.keyring.Pin(id)
	return !isKnown || cluster != nil && (pin.Left || pin.Forgotten)
}

// seek makes the reader search for imported clusters that this process has seen no record of: their
// catalogs may have records that service members lacks.
func (c *catalogs) seek(now time.Time, imported []string) {
	for _, id := range imported {
		cluster := c.clusters[id]
		if cluster == nil && id != c.identity.ClusterID && mcs.ValidateClusterID(id) == nil && !c.keyring.HasEnded(id) {
			cluster = c.cluster(now, id)
		}
		if cluster != nil && !cluster.isSought && cluster.record == nil {
			cluster.isSought = true
			c.step(now, cluster, belief.Imported{Clusters: []string{id}}, engine.Keys{})
		}
	}
}

// forget drops a cluster until its next record.
func (c *catalogs) forget(now time.Time, id string, changed engine.Keys) {
	cluster := c.clusters[id]
	c.step(now, cluster, belief.Forget{Cluster: id}, changed)
	if cluster != nil {
		c.finish(now, cluster)
	}
}

// setUsed sets the namespaces whose exports are used, nil for all.
func (c *catalogs) setUsed(now time.Time, namespaces []string, changed engine.Keys) {
	if namespaces != nil {
		namespaces = slices.Sorted(slices.Values(namespaces))
	}
	if (namespaces == nil) == (c.used == nil) && slices.Equal(namespaces, c.used) {
		return
	}
	c.used = namespaces
	c.step(now, nil, belief.Namespaces{Used: namespaces}, changed)
}

// farewellLifetime is the time for which farewells stay, for clusters that are down.
const farewellLifetime = 7 * 24 * time.Hour

// expiredFarewells returns the clusters whose farewell in service members is older than
// farewellLifetime. The live cluster with the lowest ID removes them; for the others it returns
// none.
func (c *catalogs) expiredFarewells(wall time.Time) (ids []string) {
	for id, cluster := range c.clusters {
		if id < c.identity.ClusterID && c.live(id) {
			return nil
		}
		isFarewell := cluster.isShown && cluster.parseErr == nil && cluster.parsed.Farewell
		if isFarewell && cluster.record == nil && wall.Sub(cluster.parsed.HeartbeatTime()) >= farewellLifetime {
			ids = append(ids, id)
		}
	}
	return ids
}

// viewOf returns the View of a key in the catalogs of the other clusters.
func (c *catalogs) viewOf(key mcs.Key, imported []string) registry.View {
	return c.belief.View(key, imported...)
}

// isStale reports whether a cluster has no heartbeats.
func (c *catalogs) isStale(id string) bool { return c.belief.LivenessOf(id) == registry.Stale }

// live reports whether service members has the record of a cluster that counts, with recent
// heartbeats.
func (c *catalogs) live(id string) bool {
	return c.clusters[id].record != nil && c.belief.ProblemOf(id).Kind == belief.NoProblem && !c.belief.IsUnproven(id) && !c.isStale(id)
}
