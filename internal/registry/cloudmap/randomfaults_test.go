package cloudmap

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// TestRandomFaults has four clusters that export and import while everything goes wrong that can:
// requests fail, are throttled, are carried out without an answer or answered without being carried
// out, reads are late, out of order and lack something, Cloud Map is down for one cluster or for
// all (all that by cloudmap-local's fault plan, a random one every 50 s or so), controllers are
// killed, restarted and moved between clocks, clusters leave and come back, another writer writes
// garbage and deletes records, and another cluster uses the ID of one of them. Another user deletes
// records, pages, services and the namespace, restores them from a backup, replays what clusters
// had signed earlier, and forges records, copies and pages with the key of another member. Clusters
// have clones, are renamed, lose the share of the namespace and have two leaders for a moment
// (allOperations). Each cluster uses some of the namespaces of the services, and others later: the
// pages of the others are not read. In half of the worlds there is the instance view, and in half
// of these the clusters set the health of the instances of stale ones; in half of the worlds the
// clusters send peer notifications, any of which may be lost. After every step the promises of the
// design are checked that concern a registry, in the namespaces that a cluster uses:
//
//  1. unknown is not empty: what an importer has read goes away only after it was withdrawn, also
//     when the importer restarts and however long a record or a cluster is gone, and never goes
//     back;
//  2. garbage of one cluster changes nothing of the others;
//  3. while Cloud Map is down, what is known stays exactly as it is;
//  4. no cluster whose heartbeats arrive is stale, and a dead cluster's exports stay known;
//  5. an export without endpoints is an export;
//  6. what others have put beside our instances stays as it is;
//  8. of two clusters with one ID the second gets and never seen;
//  9. who knows the same exports merges them to the same, in whatever order;
//  10. when the faults end everything becomes as it was asked for, in pages and instances, and then
//     only polls, heartbeats and audits go on.
//
// All of it is in virtual time. FAULTS_SEED replays a run: the same things happen at the same
// steps, and the n-th request about something has the same fate. The order of what happens at once,
// and the controller's jitter, are not the seed's; so a failure may take a few runs to show again.
// FAULTS_STEPS steps are shared by FAULTS_RUNS worlds; `make soak` runs many steps.
// FAULTS_OPERATIONS picks operations by name, and FAULTS_TRACE names a folder for the trace of a
// failure and the numbers of operations.
func TestRandomFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("make faults runs it")
	}
	// Several worlds, each with a seed of its own: faults that add up over a long time are found in
	// one, and bad beginnings in many. The seeds of make faults follow from the commit; make soak
	// has others.
	steps, worlds := registrytest.Setting(t, "FAULTS_STEPS", 1_000), registrytest.Setting(t, "FAULTS_RUNS", 4)
	seed := registrytest.Setting(t, "FAULTS_SEED", 1)
	for i := range worlds {
		t.Run(fmt.Sprint("seed ", seed+i), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { newTrial(t, seed+i).run(int(steps / worlds)) })
		})
	}
}

const (
	// machines are the clusters. Each is a member under one of two IDs.
	machines = 4
	// allKeys are the services that the clusters export.
	allKeys = 16
	// maxLag is how late reads are at most. The registry waits for so long before it takes over
	// from the previous process.
	maxLag = 1500 * time.Millisecond
	// calmEvery is how many steps the faults go on before they end for a while.
	calmEvery = 250
	// viewAudit is the time between two looks of a cluster at its instances, of one service each.
	viewAudit = 10 * time.Second
)

// trial is one simulation and the expected state.
type trial struct {
	*simulation
	// rnd are the dice of the users, the faults and the processes, hostile those of the other
	// operations: a seed means the same with or without them.
	rnd, hostile *rand.Rand
	operations   []operation
	// keys are those of the services, usage has the namespaces that each machine uses.
	keys  [allKeys]mcs.Key
	usage [machines]*usage
	// machines are the clusters by their present IDs, clusters all identities that were members so
	// far.
	machines [machines]*actor
	// versions are the numbers of the versions of each machine's exports.
	versions [machines][allKeys]int
	clusters []*actor
	// admin is another writer who may do everything. The faults do not concern it.
	admin *api.Client
	// twin uses the ID of the first cluster.
	twin *process
	// killed are processes that were killed while they left. They go on without requests until
	// their timeout.
	killed []*process
	// shows is set if the instance view is on, and marks if the clusters set the health of the
	// instances of stale ones. udp carries peer notifications; nil means none.
	shows, marks bool
	udp          *network
	// foreign are the instances that others have put beside ours, by service and ID.
	foreign map[string]map[string]map[string]string
	// healthWrites is the number of writes of health at the last calm.
	healthWrites int
	// left are the clusters that may leave instances.
	left map[string]bool

	// faults are the rules of the plan while Cloud Map is not down, slow more of them until
	// slowUntil, and down says for which clusters it is.
	faults, slow []cloudmaplocal.FaultRule
	slowUntil    time.Time
	down         map[string]bool
	// hidden are the clusters that do not see the clusterset's namespace. hideMu guards it.
	hideMu sync.Mutex
	hidden map[string]hiding
	// forgedCopies has the time at which another member has replaced the copy of a cluster's
	// record. backup has the instances of a time, by service.
	forgedCopies map[*actor]time.Time
	backup       map[string][]api.Instance

	// writtenMu guards what the clusters have written: services are the IDs of their services, by
	// name, and written are instances for replays. next counts them.
	writtenMu sync.Mutex
	services  map[string]string
	written   map[writtenKind][]writtenInstance
	next      int
	// recorded is the time at which each cluster has last written its record, not counting its
	// clone.
	recorded map[string]time.Time
	// hasLeft are the clusters whose last record was a farewell, and lostFarewells those whose
	// farewell another user may have deleted, or prevented by a record of its own. A cluster that
	// ends before it has joined again signs no other one.
	hasLeft, lostFarewells map[string]bool
	// cloneRecorded is the time at which the clone of each cluster has last written the record, and
	// answered that at which the cluster wrote a later one of its own.
	cloneRecorded, answered map[string]time.Time
	// ownBeats are the heartbeats of the last records that the clusters have written, cloneBeats
	// the latest ones of their clones.
	ownBeats, cloneBeats map[string]int64
	// observed is the time at which the records were last looked at.
	observed time.Time
	// beats are the latest heartbeats by then, shownBeats those of the records as they were, by any
	// writer. beat is the time at which each cluster's record was last written, at the latest, and
	// resumed when it was so after a long silence.
	beats         map[string]int64
	shownBeats    map[string]string
	beat, resumed map[string]time.Time
	// imports are the clusters that each machine's ServiceImport of a key names.
	imports [machines][allKeys]map[string]bool
	// lastSeen is the last of memories that each machine has seen of each key and cluster, by any
	// process.
	lastSeen [machines][allKeys]map[string]int
	// behind are the clusters whose latest records each machine may have read and not saved,
	// because its process was killed. older are the exports of which it may see an earlier version
	// since, until it sees a later one. changedAt is the time at which another user has last
	// changed the record of each cluster, and deletedAt that at which it was deleted.
	behind               [machines]map[string]bool
	older                [machines]map[string]*[allKeys]bool
	changedAt, deletedAt map[string]time.Time
	// merged are the views of each service at the last check of the merges.
	merged [allKeys][]string
	// outage is the time at which all clusters lost Cloud Map, zero while they have it; before has
	// their views at that time.
	outage time.Time
	before map[string]string
}

// actor is a cluster: its user, and the controller if one runs.
type actor struct {
	trial    *trial
	identity mcs.Identity
	// number distinguishes the addresses of its endpoints from those of other clusters.
	number int
	// shows is set if the running controller has the instance view. skew is how far its clock is
	// ahead.
	shows bool
	skew  time.Duration
	// joinedAt is the time at which the first controller started under this ID since the cluster
	// left, zero before that. hasJoined is set for the processes after it.
	joinedAt  time.Time
	hasJoined bool
	// alias is the other identity of the same cluster. becomes is alias while the cluster is being
	// renamed, and was isRenamable since confirmedAt.
	alias, becomes *actor
	confirmedAt    time.Time
	// isRetired is set while the cluster has the other ID. isLeaving is set until the farewell
	// under this ID is written.
	isRetired, isLeaving bool
	// clone is another process with the same identity and key, nil without one. clonedAt is the
	// time at which the last one started. contestedSince is that of the first of several whose
	// records may still count, and cloned the index of each key in memories then.
	clone                    *process
	clonedAt, contestedSince time.Time
	cloned                   [allKeys]int
	// aloneAt is the time at which the cluster was last silent beside its clone, or had no record
	// because another user had deleted it.
	aloneAt time.Time
	// process is the controller that runs, nil when none does. comesBack is the time at which the
	// next one starts.
	process   *process
	comesBack time.Time
	// memories are all versions of the export of each key, in the order in which the user wanted
	// them.
	memories [allKeys][]wish
	// seen is the last of memories that the controller that runs now saw, of each other cluster and
	// key.
	seen map[string]*[allKeys]sight
	// views are the controller's views of each key at this step.
	views [allKeys]known
	// stale are the clusters that it takes for dead.
	stale map[string]bool

	mu sync.Mutex
	// notified are keys that the controller is to look at.
	notified map[mcs.Key]bool
}

// wish is the desired state of a key: an export, or none.
type wish struct {
	at  time.Time
	exp *mcs.Export
}

// known is a registry's view of a key; without ok the registry has not been read.
type known struct {
	registry.View
	ok bool
}

// sight says which of memories was seen, and when first.
type sight struct {
	index int
	at    time.Time
}

func newTrial(t *testing.T, seed uint64) *trial {
	rnd := rand.New(rand.NewPCG(seed, 1))
	tr := &trial{
		rnd: rnd, hostile: rand.New(rand.NewPCG(seed, 2)),
		down: map[string]bool{}, beats: map[string]int64{}, shownBeats: map[string]string{}, beat: map[string]time.Time{}, resumed: map[string]time.Time{},
		shows: seed%2 == 1, marks: seed%4 == 3, foreign: map[string]map[string]map[string]string{}, left: map[string]bool{}, hidden: map[string]hiding{},
		forgedCopies: map[*actor]time.Time{}, services: map[string]string{}, written: map[writtenKind][]writtenInstance{}, recorded: map[string]time.Time{},
		ownBeats: map[string]int64{}, cloneBeats: map[string]int64{},
		cloneRecorded: map[string]time.Time{}, answered: map[string]time.Time{}, changedAt: map[string]time.Time{}, deletedAt: map[string]time.Time{},
		hasLeft: map[string]bool{}, lostFarewells: map[string]bool{},
	}
	tr.operations = tr.chosenOperations()
	tr.keys = keysIn(manyPages)
	if seed/4%2 == 1 {
		tr.keys = keysIn(fewPages)
	}
	if seed/2%2 == 1 {
		tr.udp = newNetwork()
	}
	tr.simulation = newSimulation(t, seed, cloudmaplocal.Options{
		Behaviors: cloudmaplocal.Behaviors{
			ConsistencyDelay: cloudmaplocal.Duration(time.Duration(rnd.IntN(3)) * 250 * time.Millisecond),
			OperationDelay:   cloudmaplocal.Duration(time.Duration(rnd.IntN(3)) * 300 * time.Millisecond),
			HealthDelay:      cloudmaplocal.Duration(30 * time.Second),
		},
	})
	tr.setWrote(tr.noteWrite)
	tr.history = registrytest.NewTrace(t, fmt.Sprintf("cloudmap-%d.log", seed))
	tr.tally = registrytest.NewCounts(t, fmt.Sprintf("cloudmap-%d.counts", seed))
	tr.setIntercept(tr.answerHidden)
	var line *wire
	tr.admin, line = tr.clientAt("admin", unlimitedRates())
	line.unsigned = true
	for i := range machines {
		id := fmt.Sprintf("cls%d", i+1)
		a, b := tr.newActor(i, id, "uid-"+id), tr.newActor(i, id+"b", "uid-"+id)
		a.alias, b.alias = b, a
		tr.ids.sharePins(id, b.identity.ClusterID)
		tr.machines[i], tr.usage[i], tr.behind[i], tr.older[i] = a, &usage{}, map[string]bool{}, map[string]*[allKeys]bool{}
		for n := range namespaces {
			tr.usage[i].set(n, tr.rnd.IntN(3) > 0)
		}
		for k := range allKeys {
			tr.imports[i][k], tr.lastSeen[i][k] = map[string]bool{}, map[string]int{}
		}
		tr.clusters = append(tr.clusters, a)
	}
	for _, a := range tr.clusters {
		a.start()
	}
	return tr
}

func (tr *trial) newActor(number int, id, uid string) *actor {
	a := &actor{trial: tr, number: number, identity: mcs.Identity{ClusterID: id, ClusterSetID: "set1", UID: uid}, notified: map[mcs.Key]bool{}}
	for k := range allKeys {
		a.memories[k] = []wish{{at: time.Now()}}
	}
	return a
}

func (tr *trial) run(steps int) {
	for step := range steps {
		tr.history.Logf("step %d", step)
		switch step % calmEvery {
		case calmEvery - 1:
			tr.calm()
		case 0:
			tr.change()
		default:
			tr.act()
			tr.operate()
		}
		tr.tally.Add("steps", 1)
		time.Sleep(time.Duration(tr.rnd.IntN(400)) * time.Millisecond)
		for _, a := range tr.clusters {
			a.work()
		}
		tr.check()
		if tr.t.Failed() {
			tr.traceKnown()
			tr.history.WriteIfFailed()
			tr.t.Logf("FAULTS_SEED=%d, step %d, at %v", tr.seed, step, time.Now().UTC())
			break
		}
	}
	for _, a := range tr.clusters {
		a.endClone()
		if a.process != nil {
			a.process.kill()
		}
	}
	tr.endTwin()
	for _, l := range tr.killed {
		<-l.ended //nolint:errcheck // a killed process may end with any error
	}
}

// fail reports an error, in the trace too.
func (tr *trial) fail(format string, args ...any) {
	tr.t.Helper()
	tr.history.Logf("FAILED: "+format, args...)
	tr.t.Errorf(format, args...)
}

// change changes what goes wrong.
func (tr *trial) change() {
	level := []float64{0.02, 0.1, 0.3}[tr.rnd.IntN(3)]
	tr.faults = oneOf(level, tr.misfortunes()...)
	for i := range tr.faults {
		tr.faults[i].AccessKey = "cls*"
	}
	// What was written may show late, and what was written last first.
	late := cloudmaplocal.FaultRule{
		Kind: cloudmaplocal.FaultStale, AccessKey: "cls*", Probability: 0.5, Age: cloudmaplocal.Duration(maxLag - 600*time.Millisecond),
	}
	tr.faults = append(tr.faults, late)
	tr.history.Logf("the faults change, level %v", level)
	if tr.udp != nil {
		tr.udp.lose(tr.seed, []float64{0, 0.5, 1}[tr.rnd.IntN(3)])
	}
	tr.replan()
}

// misfortunes are the faults of a request, all equally likely.
func (tr *trial) misfortunes() []cloudmaplocal.FaultRule {
	rules := []cloudmaplocal.FaultRule{
		{Kind: cloudmaplocal.FaultError, Code: "InternalFailure"},
		{Kind: cloudmaplocal.FaultError, Code: "InternalFailure", Applied: true},
		{Kind: cloudmaplocal.FaultError, Code: "ThrottlingException"},
		{Kind: cloudmaplocal.FaultError, Code: "RequestLimitExceeded"},
		{Kind: cloudmaplocal.FaultError, Code: "AccessDeniedException"},
		{Kind: cloudmaplocal.FaultError, Code: "NamespaceNotFound"},
		{Kind: cloudmaplocal.FaultError, Code: "ServiceNotFound"},
		{Kind: cloudmaplocal.FaultError, Code: "InstanceNotFound"},
		{Kind: cloudmaplocal.FaultError, Code: "ResourceLimitExceeded"},
		{Kind: cloudmaplocal.FaultError, Code: "DuplicateRequest", Members: map[string]string{"DuplicateOperationId": "no cluster-knows-it"}},
		{Kind: cloudmaplocal.FaultHang},
		{Kind: cloudmaplocal.FaultHang, Applied: true},
		{Kind: cloudmaplocal.FaultDrop},
		{Kind: cloudmaplocal.FaultDrop, Applied: true},
		{Kind: cloudmaplocal.FaultDelay, Delay: cloudmaplocal.Duration(tr.rnd.IntN(4000)+1) * cloudmaplocal.Duration(time.Millisecond)},
		{Kind: cloudmaplocal.FaultLost},
		{Kind: cloudmaplocal.FaultFail},
	}
	// Discovery lacks some records, or parts of pages.
	half := cloudmaplocal.FaultRule{
		Kind: cloudmaplocal.FaultPartial, Share: 0.5, Operations: []string{"DiscoverInstances"},
		Service: []string{format.MembersService, format.CatalogName("*")}[tr.rnd.IntN(2)],
	}
	return append(rules, half)
}

// oneOf lets one of the rules hit a request that all fit, with the given probability. Those behind
// one get what it leaves.
func oneOf(probability float64, rules ...cloudmaplocal.FaultRule) []cloudmaplocal.FaultRule {
	share := probability / float64(len(rules))
	for i := range rules {
		rules[i].Probability = min(1, share/(1-float64(i)*share))
	}
	return rules
}

// replan puts what goes wrong in force.
func (tr *trial) replan() {
	var rules []cloudmaplocal.FaultRule
	for _, key := range slices.Sorted(maps.Keys(tr.down)) {
		outage := oneOf(1,
			cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: "ServiceUnavailable"},
			cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: "AccessDeniedException"},
			cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: "ExpiredTokenException"},
			cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: "ThrottlingException"},
			cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultHang})
		for i := range outage {
			outage[i].AccessKey = key
		}
		rules = append(rules, outage...)
	}
	rules = append(rules, tr.slow...)
	tr.plan(tr.rnd.Uint64(), append(rules, tr.faults...)...)
}

// act lets one thing happen.
func (tr *trial) act() {
	a := tr.machines[tr.rnd.IntN(machines)]
	switch dice := tr.rnd.IntN(1000); {
	case dice < 6:
		tr.tally.Add("process killed", 1)
		a.die(func() { a.process.kill(); a.noteKilled() })
	case dice < 10:
		tr.tally.Add("process restarted", 1)
		a.die(func() { _ = a.process.end(nil) })
	case dice < 12:
		tr.tally.Add("cluster leaves", 1)
		_ = a.leave(30 * time.Second)
	case dice < 16:
		tr.tally.Add("Cloud Map down for a cluster", 1)
		tr.interrupt(a.identity.ClusterID)
	case dice < 18:
		tr.tally.Add("Cloud Map down for all", 1)
		tr.interrupt(everybody)
	case dice < 40:
		tr.restore()
	case dice < 46:
		tr.tally.Add("garbage, part or record deleted", 1)
		tr.vandalise()
	case dice < 50:
		tr.tally.Add("duplicate cluster ID", 1)
		tr.beginTwin()
	case dice < 60:
		tr.endTwin()
	case dice < 700:
		a.wish()
	case dice < 740:
		tr.changeUse(a)
	}
	for _, a := range tr.machines {
		if a.process == nil && !a.comesBack.After(time.Now()) {
			a.start()
		}
	}
}
