package trust

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// Time orders the records of a cluster: by heartbeat, which grows with every write of a record in
// any registry, then by generation.
type Time struct{ Generation, Heartbeat int64 }

// After reports whether t is later than o.
func (t Time) After(o Time) bool {
	return t.Heartbeat > o.Heartbeat || t.Heartbeat == o.Heartbeat && t.Generation > o.Generation
}

// Pin is the trust state of another cluster, kept across restarts.
type Pin struct {
	// Key is the key that the cluster's records must be signed with. UID is the UID of its
	// namespace kube-system.
	Key Key
	UID string
	// From is the heartbeat of the first record of Key that was read, 0 before one was. An earlier
	// record of another key is from before: a registry that was restored shows it again.
	From int64
	// Last is the time of the latest record that was read from each registry, by the registry's
	// name. An earlier record is a replay.
	Last map[string]Time
	// Content is a digest of the latest content of the cluster that was read as a whole from each
	// registry, if that has one (ObserveContent).
	Content map[string]string
	// Left is set after a farewell of the cluster, Forgotten after an administrator requested to
	// forget it. Any key may follow a farewell; a forgotten cluster returns with a record later
	// than Last.
	Left, Forgotten bool
	// Unsealed are the names of the registries, sorted, in which the cluster's catalog has shown
	// another key while any member of the clusterset could have written it: sealing the catalog
	// later proves nothing.
	Unsealed []string
	// Since is when this cluster saw the other one for the first time, zero if that was before it
	// was recorded.
	Since time.Time
}

// detail selects the fields of a Pin that are compared: all but the times and the content, also the
// content and the generations of the records, or all.
type detail int

const (
	withoutTimes detail = iota
	withGenerations
	withTimes
)

// equal reports whether p and o are the same.
func (p Pin) equal(o Pin, d detail) bool {
	return p.Key == o.Key && p.From == o.From && p.UID == o.UID && p.Since.Equal(o.Since) && p.Left == o.Left && p.Forgotten == o.Forgotten && slices.Equal(p.Unsealed, o.Unsealed) && p.hasRead(o, d)
}

// hasRead reports whether p and o are the same in what was read from each registry.
func (p Pin) hasRead(o Pin, d detail) bool {
	return maps.EqualFunc(p.Last, o.Last, func(a, b Time) bool {
		return d == withoutTimes || a.Generation == b.Generation && (d == withGenerations || a == b)
	}) && (d == withoutTimes || maps.Equal(p.Content, o.Content))
}

// size returns the size of a pin in the store at most: that of its texts, of which JSON escapes
// those of the cluster, and 180 bytes, and for each registry 75 bytes with times of 19 digits, and
// 20 with a digest of 11 characters.
func (p Pin) size() int {
	const fields, time, digest, escaped = 180, 75, 20, 2
	n := fields + escaped*len(p.UID)
	for registry := range p.Last {
		n += time + len(registry)
	}
	for registry := range p.Content {
		n += digest + len(registry)
	}
	for _, registry := range p.Unsealed {
		n += len(`"",`) + len(registry)
	}
	return n
}

// IsZero reports whether p is no pin.
func (p Pin) IsZero() bool { return p.Key == Key{} && !p.Left && !p.Forgotten }

// clone returns a copy of p.
func (p Pin) clone() Pin {
	p.Last, p.Content, p.Unsealed = maps.Clone(p.Last), maps.Clone(p.Content), slices.Clone(p.Unsealed)
	return p
}

// heartbeat returns the latest heartbeat in any registry.
func (p Pin) heartbeat() (latest int64) {
	for _, at := range p.Last {
		latest = max(latest, at.Heartbeat)
	}
	return latest
}

// merged returns the pin of a cluster after another process of this cluster has saved it as stored:
// that of the process that has read the later heartbeat. A pin of another key stays as it is.
func (p Pin) merged(stored Pin) Pin {
	if stored.Key != p.Key {
		return p
	}
	merged := p.clone()
	if stored.heartbeat() > p.heartbeat() {
		merged = stored.clone()
	}
	merged.Unsealed = slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.Unsealed, stored.Unsealed))))
	merged.Last = map[string]Time{}
	for _, last := range []map[string]Time{p.Last, stored.Last} {
		for registry, at := range last {
			if at.After(merged.Last[registry]) {
				merged.Last[registry] = at
			}
		}
	}
	return merged
}

// ErrChanged means that another process of this cluster has saved pins.
var ErrChanged = errors.New("another process of this cluster has saved the keys of the clusters")

// Store keeps the pins of a clusterset across restarts, for one process.
type Store interface {
	// LoadPins returns the pins by cluster ID.
	LoadPins(ctx context.Context) (map[string]Pin, error)
	// SavePins replaces the pins of these clusters and keeps the others. The zero Pin removes one.
	// It must not keep or change the map. It saves nothing and returns ErrChanged if another
	// process has saved pins since this one loaded or saved them.
	SavePins(ctx context.Context, pins map[string]Pin) error
	// LoadEnd returns when the previous process of this cluster ended after it had saved all that
	// it had read, zero if it did not.
	LoadEnd(ctx context.Context) (time.Time, error)
	// SaveEnd saves such an end, or with the zero time that a process runs. Like SavePins, it saves
	// nothing and returns ErrChanged after another process.
	SaveEnd(ctx context.Context, ended time.Time) error
}

// Config configures a Keyring.
type Config struct {
	ClusterSetID string
	// StaleAfter is the time without a record of a key after which the registry may prove another
	// one (Presented.Proven).
	StaleAfter time.Duration
	// Listed are the keys that the administrator listed, by cluster ID: such a cluster never has
	// another key. If ListedOnly is set, the other clusters have none.
	Listed     map[string]Key
	ListedOnly bool
	// Store keeps the pins; nil is none.
	Store Store
	// Changed is called for each change of the key of another cluster; nil is none. It must not
	// block, nor call the Keyring.
	Changed func(Change)
	Logger  logr.Logger
	// MaxPins is the number of pins from which on a new one replaces another one, and MaxPinBytes
	// the size of all pins from which on a new one that replaces none is refused. 0 is the default.
	MaxPins, MaxPinBytes int
	// Now is the clock, and Succeeds reports whether a signature is that of key previous for key
	// next of a cluster. nil is time.Now and Key.IsSucceededBy; package engine/model has its own.
	Now      func() time.Time
	Succeeds func(previous, next Key, clusterID, signature string) bool
}

const (
	// defaultMaxPins is the number of clusters that a clusterset was measured with
	// (docs/operations-measurements.md).
	defaultMaxPins = 1000
	// defaultMaxPinBytes leaves a tenth of the 1 MiB of a ConfigMap to the keys of other
	// clustersets. A pin takes a quarter of a KiB, and up to 0.7 KiB if its cluster chooses all
	// texts as long as they may be.
	defaultMaxPinBytes = 900 << 10
)

// Keyring has the keys of the other clusters of a clusterset. All registries of a controller share
// one. It is safe for concurrent use.
type Keyring struct {
	cfg Config

	mu   sync.Mutex
	pins map[string]*entry
	// own are the keys of this cluster, by the IDs that it has.
	own map[string][]Key
	// removed are the clusters whose pins have to be removed from the store.
	removed map[string]struct{}
	// imported are the clusters that this cluster imports from, nil if they are not known: then
	// these may be all whose pins were stored.
	imported map[string]struct{}
	// isComplete is set if no process of this cluster has read a later record than the pins had
	// when Run began.
	isComplete bool
	// lacks is set if this process has read exports of which the pins know nothing.
	lacks bool

	// saving is held while the store is used: a cluster that is renamed runs read for each of its
	// IDs.
	saving sync.Mutex
	// readers is the number of reads that run since it was saved that the process runs. saving
	// protects it.
	readers int
}

// entry is a pin in memory.
type entry struct {
	Pin
	// heard is the time at which a record of the cluster was last read, or when this process
	// started.
	heard time.Time
	// saved is the pin as stored.
	saved Pin
	// loaded reports whether the pin was stored when this process started. read counts the records
	// that this process has read, each later than the one before.
	loaded bool
	read   int
	// successor is the key that the pinned key has signed, zero if none was presented.
	successor Key
}

// Reason is the reason why a cluster has another key.
type Reason string

// The reasons of changes.
const (
	Succession      Reason = "succession"    // the previous key has signed the new one
	AfterFarewell   Reason = "farewell"      // the previous key has signed a farewell
	AfterForget     Reason = "forgotten"     // an administrator had the cluster forgotten
	ByAdministrator Reason = "administrator" // an administrator has named the key
	ByRegistry      Reason = "registry"      // the registry proves the key, see Presented.Proven
)

// Reasons are all reasons.
var Reasons = []Reason{Succession, AfterFarewell, AfterForget, ByAdministrator, ByRegistry}

// Change is a change of the key of another cluster.
type Change struct {
	// Registry is the name of the registry that showed the key, "" after Trust.
	Registry, ClusterID string
	Previous, Key       Key
	Reason              Reason
}

// reason returns the reason why records with a key are accepted instead of those with the pinned
// one.
func (e *entry) reason(key Key) Reason {
	switch {
	case e.Forgotten:
		return AfterForget
	case e.Left:
		return AfterFarewell
	case e.successor == key:
		return Succession
	}
	return ByRegistry
}

// Load returns the Keyring with the stored pins.
func Load(ctx context.Context, cfg Config) (*Keyring, error) {
	if cfg.Store == nil {
		return New(cfg, nil), nil
	}
	pins, err := cfg.Store.LoadPins(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the keys of the clusters: %w", err)
	}
	return New(cfg, pins), nil
}

// New returns the Keyring of a process that starts with these stored pins.
func New(cfg Config, stored map[string]Pin) *Keyring {
	cfg.MaxPins, cfg.MaxPinBytes = cmp.Or(cfg.MaxPins, defaultMaxPins), cmp.Or(cfg.MaxPinBytes, defaultMaxPinBytes)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Succeeds == nil {
		cfg.Succeeds = func(previous, next Key, clusterID, signature string) bool {
			return previous.IsSucceededBy(next, cfg.ClusterSetID, clusterID, signature)
		}
	}
	k := &Keyring{cfg: cfg, pins: map[string]*entry{}, own: map[string][]Key{}, removed: map[string]struct{}{}}
	for id, pin := range stored {
		k.pins[id] = &entry{Pin: pin.clone(), heard: cfg.Now(), saved: pin.clone(), loaded: true}
	}
	return k
}

// Clone returns a copy with another clock.
func (k *Keyring) Clone(now func() time.Time) *Keyring {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := &Keyring{
		cfg: k.cfg, pins: make(map[string]*entry, len(k.pins)), own: maps.Clone(k.own), removed: maps.Clone(k.removed),
		imported: maps.Clone(k.imported), isComplete: k.isComplete, lacks: k.lacks,
	}
	out.cfg.Now = now
	for id, pin := range k.pins {
		copied := *pin
		copied.Pin, copied.saved = pin.clone(), pin.saved.clone()
		out.pins[id] = &copied
	}
	return out
}

// AddOwn adds the keys that this cluster has under an ID. While it is renamed it has two, and reads
// its own records under the previous one, which may have been another cluster's before.
func (k *Keyring) AddOwn(clusterID string, keys ...Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.own[clusterID] = slices.Clone(keys)
}

// Verdict is the result of Keyring.Check.
type Verdict int

const (
	// Refused means that the key is not the cluster's.
	Refused Verdict = iota
	// Unknown means that no other key is the cluster's: the key is the cluster's if the place that
	// only the cluster can write has it.
	Unknown
	// Accepted means that the key is the cluster's.
	Accepted
)

// Presented is a key as a record presents it. The record must have been verified with it.
type Presented struct {
	// Registry is the name of the registry that has the record.
	Registry, ClusterID string
	Key                 Key
	// Succession is the signature of Key with the previous key, or "".
	Succession string
	// At is the time of the record, zero if only the key is asked about.
	At Time
	// Proven reports whether the registry proves that the owner of Key has the place of the
	// cluster: only it can have written Key there, and no heartbeat of the cluster was shown for
	// StaleAfter, so that a second cluster with this ID takes nothing over. Unproven is the reason
	// why not, "" if the heartbeats are the only one.
	//
	// etcd proves it by the user of the cluster's prefix, Cloud Map by the tag catalog-of of the
	// cluster's catalog, which only an administrator can set.
	Proven   bool
	Unproven string
}

// Check returns whether the key is the cluster's, with the reason if it is refused.
func (k *Keyring) Check(p Presented) (Verdict, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if listed, ok := k.cfg.Listed[p.ClusterID]; ok {
		if listed == p.Key {
			return Accepted, nil
		}
		return Refused, fmt.Errorf("it is signed with key %s, but --trusted-keys lists key %s for this cluster", p.Key, listed)
	}
	if slices.Contains(k.own[p.ClusterID], p.Key) {
		return Accepted, nil
	}
	if k.cfg.ListedOnly {
		return Refused, fmt.Errorf("it is signed with key %s, but --trusted-keys does not list this cluster", p.Key)
	}
	return k.checkPin(p)
}

// checkPin is Check for a cluster whose key is not listed. A key changes when its owner says so, by
// signing the next one or a farewell, or when an administrator does, by Forget or Trust; and by
// itself only where the registry proves the next one. The caller holds k.mu.
func (k *Keyring) checkPin(p Presented) (Verdict, error) {
	pin, ok := k.pins[p.ClusterID]
	switch {
	case ok && pin.Key == p.Key:
		return Accepted, nil
	case ok && pin.isBefore(p.At):
		return Refused, fmt.Errorf("it is signed with key %s, and earlier than the first record that this cluster has read with key %s: the registry was restored from a "+
			"backup, or the clock of the cluster is behind; if the key is that of the cluster, run kubectl mcs trust %s in this cluster", p.Key, pin.Key, p.ClusterID)
	case ok && pin.Left, !ok && k.hasRoom():
		return Unknown, nil
	case !ok:
		return Refused, fmt.Errorf("this cluster keeps the keys of %d clusters, and has no room for that of another one: forget clusters that are gone (kubectl mcs forget), "+
			"or list the key of cluster %s in --trusted-keys", len(k.pins), p.ClusterID)
	case k.cfg.Succeeds(pin.Key, p.Key, p.ClusterID, p.Succession):
		pin.successor = p.Key
		return Accepted, nil
	case pin.Forgotten, p.Proven && k.mayBeProven(pin, p.Registry):
		return Unknown, nil
	}
	return Refused, fmt.Errorf("it is signed with key %s, but the records of this cluster were signed with key %s until now: either another cluster "+
		"uses the same cluster ID, or the cluster was built anew or has lost its key; %s", p.Key, pin.Key, k.remedy(pin, p))
}

// isBefore reports whether a record of another key is from before the pinned one. An administrator
// who has a cluster forgotten accepts any record.
func (e *entry) isBefore(at Time) bool {
	return !e.Forgotten && at != Time{} && at.Heartbeat < e.From
}

// mayBeProven reports whether a registry can prove another key than the pinned one. A registry that
// has never shown the pinned key cannot show that the cluster was built anew.
func (k *Keyring) mayBeProven(pin *entry, registry string) bool {
	return !slices.Contains(pin.Unsealed, registry) && pin.Last[registry] != Time{} && k.cfg.Now().Sub(pin.heard) >= k.cfg.StaleAfter
}

// remedy returns when a refused key will count.
func (k *Keyring) remedy(pin *entry, p Presented) string {
	reason := p.Unproven
	switch {
	case reason != "":
	case slices.Contains(pin.Unsealed, p.Registry):
		reason = "any member may have written this key, because the catalog had no tag catalog-of"
	case pin.Last[p.Registry] == Time{}:
		reason = "this registry has shown no record with the previous key"
	default:
		return fmt.Sprintf("in the latter case its new key counts once its previous key has been silent for %s", k.cfg.StaleAfter)
	}
	return fmt.Sprintf("%s: if the key is that of the cluster, run kubectl mcs trust %s in this cluster", reason, p.ClusterID)
}

// Pin returns the pin of a cluster.
func (k *Keyring) Pin(clusterID string) (Pin, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if pin, ok := k.pins[clusterID]; ok {
		return pin.clone(), true
	}
	return Pin{}, false
}

// Known is what the keyring knows of a cluster, as far as one registry depends on it.
type Known struct {
	// Key is the pinned key, zero if there is none, and Last the time of the latest record of it
	// that was read from this registry.
	Key  Key
	Last Time
	// Content is that of the pin.
	Content string
	// HasEnded is set if the cluster has left or was forgotten, and has not returned. IsSaved
	// reports whether the next process will know that.
	HasEnded, IsSaved bool
	// IsSilent is set if no registry has shown a record of Key for Config.StaleAfter.
	IsSilent bool
	// IsLatest reports whether no other registry has shown a later heartbeat of the cluster. After
	// a cluster has moved to another registry, its records in the previous one are out of date.
	IsLatest bool
}

// Of returns what is known of a cluster in a registry.
func (k *Keyring) Of(registry, clusterID string) Known {
	k.mu.Lock()
	defer k.mu.Unlock()
	pin, ok := k.pins[clusterID]
	if !ok {
		return Known{IsSaved: true, IsLatest: true}
	}
	last := pin.Last[registry]
	return Known{
		Key: pin.Key, Last: last, Content: pin.Content[registry], HasEnded: pin.Left || pin.Forgotten,
		IsSaved:  k.cfg.Store == nil || pin.Left == pin.saved.Left && pin.Forgotten == pin.saved.Forgotten,
		IsSilent: k.cfg.Now().Sub(pin.heard) >= k.cfg.StaleAfter,
		IsLatest: last.Heartbeat >= pin.heartbeat(),
	}
}

// Members returns the clusters of which records of a registry were read, and that have not ended.
func (k *Keyring) Members(registry string) (ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, pin := range k.pins {
		if _, isRead := pin.Last[registry]; isRead && !pin.Left && !pin.Forgotten {
			ids = append(ids, id)
		}
	}
	return ids
}

// Record is an accepted record of a cluster.
type Record struct {
	// Registry is the name of the registry that it was read from.
	Registry       string
	ClusterID, UID string
	Key            Key
	At             Time
	// Farewell is set if the cluster has left with it.
	Farewell bool
}

// Observe updates the pin of a cluster after an accepted record. A farewell counts unless another
// registry has a later record: a cluster that moves to another registry leaves the previous one.
func (k *Keyring) Observe(r Record) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pin := k.pins[r.ClusterID]
	switch {
	case pin == nil:
		k.makeRoom()
		pin = &entry{Pin: Pin{Key: r.Key, Since: k.now()}}
		k.pins[r.ClusterID] = pin
		delete(k.removed, r.ClusterID)
	case pin.Key != r.Key:
		k.changeKey(pin, Change{Registry: r.Registry, ClusterID: r.ClusterID, Previous: pin.Key, Key: r.Key, Reason: pin.reason(r.Key)})
	case !r.At.After(pin.Last[r.Registry]):
		return
	}
	if latest := r.At.Heartbeat >= pin.heartbeat(); latest {
		pin.Left, pin.Forgotten = r.Farewell, false
	}
	if pin.Last == nil {
		pin.Last = map[string]Time{}
	}
	pin.From = cmp.Or(pin.From, r.At.Heartbeat)
	pin.UID, pin.Last[r.Registry], pin.heard = r.UID, r.At, k.cfg.Now()
	pin.read++
}

// ObserveContent records that all content of a cluster was read from a registry, with the digest of
// its names. A process that starts reads other content first.
func (k *Keyring) ObserveContent(registry, clusterID, digest string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if pin, ok := k.pins[clusterID]; ok && pin.Content[registry] != digest {
		content := maps.Clone(pin.Content)
		if content == nil {
			content = map[string]string{}
		}
		content[registry] = digest
		pin.Content = content
	}
}

// ObserveEnd records that the latest record of a cluster, a farewell, is its last word, although a
// process that has read no other record could not tell: see Observe.
func (k *Keyring) ObserveEnd(registry, clusterID string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if pin, ok := k.pins[clusterID]; ok && pin.Last[registry].Heartbeat >= pin.heartbeat() {
		pin.Left = true
	}
}

// changeKey changes the key of a pin. The caller holds k.mu.
func (k *Keyring) changeKey(pin *entry, change Change) {
	pin.Pin, pin.successor = Pin{Key: change.Key, Since: pin.Since}, Key{}
	if len(k.own[change.ClusterID]) > 0 || change.Previous == (Key{}) {
		return // the key of the earlier owner of this cluster's own ID, or the first one
	}
	k.cfg.Logger.Info("A cluster has a new key", "member", change.ClusterID, "key", change.Key.String(), "previousKey", change.Previous.String(), "reason", string(change.Reason))
	if k.cfg.Changed != nil {
		k.cfg.Changed(change)
	}
}

// SetImported sets the clusters that this cluster imports from. Until it is called, these may be
// all whose pins were stored.
func (k *Keyring) SetImported(clusters []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.imported = make(map[string]struct{}, len(clusters))
	for _, id := range clusters {
		k.imported[id] = struct{}{}
	}
}

// hasRoom reports whether there may be a pin of a further cluster. The caller holds k.mu.
func (k *Keyring) hasRoom() bool {
	return len(k.pins) < k.cfg.MaxPins || k.leastNeeded() != "" || k.size() < k.cfg.MaxPinBytes
}

// size returns the size of all pins in the store. The caller holds k.mu.
func (k *Keyring) size() (n int) {
	for id, pin := range k.pins {
		n += len(k.cfg.ClusterSetID) + len(id) + pin.size()
	}
	return n
}

// makeRoom removes a pin if there are as many as there may be and one is not needed. The caller
// holds k.mu.
func (k *Keyring) makeRoom() {
	if len(k.pins) < k.cfg.MaxPins {
		return
	}
	if id := k.leastNeeded(); id != "" {
		delete(k.pins, id)
		k.removed[id] = struct{}{}
	}
}

// leastNeeded returns the cluster whose pin a new one may replace, "" if there is none: of those
// that are silent and that nothing is imported from, the one that was seen last, one that was
// forgotten after all others. So a member that invents one cluster after the other replaces its own
// pins, and the key of a cluster that is down and imported from stays known. The caller holds k.mu.
func (k *Keyring) leastNeeded() (id string) {
	for other, pin := range k.pins {
		switch {
		case k.cfg.Now().Sub(pin.heard) < k.cfg.StaleAfter, k.isImported(other, pin):
		case id == "", pin.needs(k.pins[id]) < 0:
			id = other
		}
	}
	return id
}

// needs compares how much the pins of two silent clusters are needed.
func (e *entry) needs(o *entry) int {
	switch {
	case e.Forgotten == o.Forgotten:
		return o.Since.Compare(e.Since)
	case e.Forgotten:
		return 1
	}
	return -1
}

// isImported reports whether this cluster may import from a cluster. The caller holds k.mu.
func (k *Keyring) isImported(id string, pin *entry) bool {
	if k.imported == nil {
		return pin.loaded
	}
	_, ok := k.imported[id]
	return ok
}

// Forget makes the keyring treat the records of a cluster up to now as its last ones: the cluster
// returns with a later record, or with another key.
func (k *Keyring) Forget(clusterID string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if pin, ok := k.pins[clusterID]; ok {
		pin.Forgotten = true
		return
	}
	k.pins[clusterID] = &entry{Pin: Pin{Forgotten: true, Since: k.now()}}
}

// Trust makes a key that of a cluster, in place of the pinned one: an administrator says so. What
// was imported stays until records with the key are read. A cluster that has left or was forgotten
// with this key has not any more: no other key follows it. It returns an error if another key is
// listed for the cluster, or it is not listed and only listed clusters are trusted.
func (k *Keyring) Trust(clusterID string, key Key) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch listed, ok := k.cfg.Listed[clusterID]; {
	case ok && listed != key:
		return fmt.Errorf("--trusted-keys lists key %s for cluster %s: change it there", listed, clusterID)
	case !ok && k.cfg.ListedOnly:
		return fmt.Errorf("--trusted-keys does not list cluster %s, as --trusted-keys-only demands: add its key there", clusterID)
	}
	pin := k.pins[clusterID]
	switch {
	case pin == nil:
		k.makeRoom()
		pin = &entry{Pin: Pin{Key: key, Since: k.now()}}
		k.pins[clusterID] = pin
		delete(k.removed, clusterID)
	case pin.Key != key:
		k.changeKey(pin, Change{ClusterID: clusterID, Previous: pin.Key, Key: key, Reason: ByAdministrator})
	default: // Unsealed stays: the other key that the catalog showed may be there still
		pin.Left, pin.Forgotten = false, false
	}
	pin.heard = k.cfg.Now()
	return nil
}

// ObserveUnsealed records that the catalog of a cluster in a registry shows a refused key while any
// member of the clusterset can have written it.
func (k *Keyring) ObserveUnsealed(registry, clusterID string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if pin, ok := k.pins[clusterID]; ok && !slices.Contains(pin.Unsealed, registry) {
		pin.Unsealed = append(slices.Clone(pin.Unsealed), registry)
		slices.Sort(pin.Unsealed)
	}
}

// Since returns when this cluster saw another one for the first time, across restarts: now if it
// has not, and the zero time if the administrator listed the cluster's key. No other cluster can
// choose it.
func (k *Keyring) Since(clusterID string) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, isListed := k.cfg.Listed[clusterID]; isListed {
		return time.Time{}
	}
	if pin, ok := k.pins[clusterID]; ok {
		return pin.Since
	}
	return k.now()
}

// now returns the time as pins have it: the wall clock in seconds.
func (k *Keyring) now() time.Time { return k.cfg.Now().UTC().Truncate(time.Second) }

// HasEnded reports whether the cluster has signed a farewell or was forgotten, and has not
// returned.
func (k *Keyring) HasEnded(clusterID string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	pin, ok := k.pins[clusterID]
	return ok && (pin.Left || pin.Forgotten)
}

// IsSigned reports whether a record of the cluster was accepted, also by an earlier process, and it
// has neither left nor was forgotten since.
func (k *Keyring) IsSigned(clusterID string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	pin, ok := k.pins[clusterID]
	return ok && pin.Key != Key{} && !pin.Left && !pin.Forgotten
}

const (
	// saveInterval is the interval at which pins with advanced heartbeats are saved, saveChanges
	// the shortest interval between two saves after new generations. So a controller that was
	// killed recognizes records as earlier ones if it had saved the later ones. A new key is saved
	// within a second.
	saveInterval = 5 * time.Minute
	saveChanges  = 10 * time.Second
	// saveAttempts are the attempts to save while another process saves too.
	saveAttempts = 3
	// endLifetime is the time for which the saved end of a process counts. A restart takes seconds;
	// a backup of the API server that has the end may be restored days later.
	endLifetime = 10 * time.Minute
)

// Run runs read, which reads records, and saves changes of the pins meanwhile and once more after
// it. Then it saves that the pins have all that was read: the next process needs no second record
// of a cluster. It waits for the store before it runs read, until ctx ends.
func (k *Keyring) Run(ctx context.Context, read func() error) error {
	if k.cfg.Store == nil {
		return read()
	}
	hasBegun := k.begin(ctx) == nil
	for !hasBegun && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
			hasBegun = k.begin(ctx) == nil
		}
	}
	saving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { k.keepSaving(saving) })
	err := read()
	stop()
	running.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if hasBegun {
		k.end(last)
	} else {
		k.save(last, withTimes)
	}
	return err
}

// begin saves that a process runs, before it reads a record, and finds out whether the pins have
// all that earlier processes have read.
func (k *Keyring) begin(ctx context.Context) error {
	k.saving.Lock()
	defer k.saving.Unlock()
	if k.readers > 0 {
		k.readers++
		return nil
	}
	ended, err := k.cfg.Store.LoadEnd(ctx)
	if err == nil {
		err = k.cfg.Store.SaveEnd(ctx, time.Time{})
	}
	if errors.Is(err, ErrChanged) { // another process has run since the pins were loaded
		ended = time.Time{}
		if err = k.merge(ctx); err == nil {
			err = k.cfg.Store.SaveEnd(ctx, time.Time{})
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	since := time.Since(ended)
	k.isComplete = err == nil && !ended.IsZero() && since >= 0 && since < endLifetime
	switch {
	case err == nil:
		k.readers = 1
	case ctx.Err() == nil:
		k.cfg.Logger.Error(err, "Failed to save that this controller reads the records of the clusters, retrying")
	}
	return err
}

// end saves the pins with all times, and with the last reader that they have all that was read,
// unless another process has saved meanwhile.
func (k *Keyring) end(ctx context.Context) {
	k.saving.Lock()
	defer k.saving.Unlock()
	k.readers--
	_, err := k.trySave(ctx, withTimes)
	if err == nil && k.readers == 0 && k.HasAll() {
		err = k.cfg.Store.SaveEnd(ctx, time.Now())
	}
	switch {
	case errors.Is(err, ErrChanged):
		k.saveMerged(ctx, withTimes)
	case err != nil:
		k.cfg.Logger.Error(err, "Failed to save the keys of the clusters at the end")
	}
}

// SetComplete sets IsComplete, for a model of restarts that has no Store.
func (k *Keyring) SetComplete(isComplete bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.isComplete = isComplete
}

// SetLacking makes the next process need a second record of each cluster: this one has read exports
// that no record of their cluster names yet, and the pins know nothing of them.
func (k *Keyring) SetLacking() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lacks = true
}

// HasAll reports whether the pins have the latest record of each cluster that any process of this
// cluster has read: those of a process that began without that have it once it has read a second
// record, or none for as long as makes a cluster stale. The first one may be from a backup, and
// earlier than one that a killed process has read.
func (k *Keyring) HasAll() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.lacks:
		return false
	case k.isComplete:
		return true
	}
	for _, pin := range k.pins {
		isOpen := pin.loaded && !pin.Left && !pin.Forgotten && k.cfg.Now().Sub(pin.heard) < k.cfg.StaleAfter
		if isOpen && pin.read < 2 {
			return false
		}
	}
	return true
}

// IsComplete reports whether the pins had the latest record of each cluster that any process of
// this cluster has read when Run began: a record that is not earlier is no older one.
func (k *Keyring) IsComplete() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.isComplete
}

// keepSaving saves changes until ctx ends.
func (k *Keyring) keepSaving(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	saved, savedTimes := time.Now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			d := withoutTimes
			switch {
			case time.Since(savedTimes) >= saveInterval:
				d, savedTimes = withTimes, time.Now()
			case time.Since(saved) >= saveChanges:
				d = withGenerations
			}
			if k.save(ctx, d) {
				saved = time.Now()
			}
		}
	}
}

// save saves the pins that differ from the stored ones, and reports whether there were any.
func (k *Keyring) save(ctx context.Context, d detail) bool {
	k.saving.Lock()
	defer k.saving.Unlock()
	return k.saveMerged(ctx, d)
}

// saveMerged is save for a caller that holds saving. It merges the pins with those of another
// process that has saved.
func (k *Keyring) saveMerged(ctx context.Context, d detail) bool {
	hadChanges, err := k.trySave(ctx, d)
	// A leader that resumes after a pause runs for a moment beside the next one.
	for attempt := 1; errors.Is(err, ErrChanged) && attempt < saveAttempts; attempt++ {
		if err = k.merge(ctx); err == nil {
			_, err = k.trySave(ctx, d)
		}
	}
	if err != nil {
		k.cfg.Logger.Error(err, "Failed to save the keys of the clusters, retrying")
	}
	return hadChanges
}

// merge merges the pins with those that another process has saved.
func (k *Keyring) merge(ctx context.Context) error {
	stored, err := k.cfg.Store.LoadPins(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, entry := range k.pins {
		entry.saved = stored[id].clone() // the zero Pin without one
		entry.Pin = entry.merged(entry.saved)
	}
	return nil
}

// trySave saves the pins that differ from the stored ones, and reports whether there were any.
func (k *Keyring) trySave(ctx context.Context, d detail) (hadChanges bool, err error) {
	k.mu.Lock()
	changed := map[string]Pin{}
	for id, pin := range k.pins {
		if !pin.equal(pin.saved, d) {
			changed[id] = pin.clone()
		}
	}
	for id := range k.removed {
		changed[id] = Pin{}
	}
	k.mu.Unlock()
	if len(changed) == 0 {
		return false, nil
	}
	if err := k.cfg.Store.SavePins(ctx, changed); err != nil {
		return true, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, pin := range changed {
		k.markSaved(id, pin)
	}
	return true, nil
}

// MarkSaved records that the store has the pin of a cluster.
func (k *Keyring) MarkSaved(clusterID string, stored Pin) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.markSaved(clusterID, stored)
}

func (k *Keyring) markSaved(clusterID string, stored Pin) {
	if stored.IsZero() {
		delete(k.removed, clusterID)
	}
	if entry := k.pins[clusterID]; entry != nil {
		entry.saved = stored
	}
}
