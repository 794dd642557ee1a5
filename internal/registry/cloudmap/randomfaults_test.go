package cloudmap

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// TestRandomFaults has four clusters that export and import while everything goes wrong that can: requests fail, are
// throttled, are carried out without an answer or answered without being carried out, reads are late, out of order and lack
// something, Cloud Map is down for one cluster or for all (all that by cloudmap-local's fault plan, a random one every 50 s or so),
// controllers are killed, restarted and moved between clocks, clusters leave and come back, another writer writes garbage and
// deletes records, and another cluster uses the ID of one of them. In half of the worlds there is the instance view, and in
// half of them send peer notifications, any of which may be lost. After every step the promises of the design are checked that
// concern a registry:
//
//  1. unknown is not empty: what an importer has read goes away only after it was withdrawn, also when the importer restarts and however long a
//     record or a cluster is gone, and never goes back;
//  2. garbage of one cluster changes nothing of the others;
//  3. while Cloud Map is down, what is known stays exactly as it is;
//  4. no cluster whose heartbeats arrive is stale, and a dead cluster's exports stay known;
//  5. an export without endpoints is an export;
//  6. what others have put beside our instances stays as it is;
//  8. of two clusters with one ID the second gets and never seen;
//  9. who knows the same exports merges them to the same, in whatever order;
//  10. when the faults end everything becomes as it was asked for, in pages and instances, and then only polls, heartbeats
//     and audits go on.
//
// All of it is in virtual time. FAULTS_SEED replays a run: the same things happen at the same steps, and the n-th request about
// something has the same fate. The order of what happens at once, and the controller's jitter, are not the seed's; so a failure
// may take a few runs to show again. FAULTS_STEPS makes a run longer or shorter; `make soak` runs many steps.
// FAULTS_TRACE names a folder for the trace of a failure. In about one of 30,000 steps one
// cluster still sees an export end that did not (FAULTS_SEED=3344251665, rarely); the cause is not known yet.
func TestRandomFaults(t *testing.T) {
	// Several worlds: faults that add up over a long time are found in one, and bad beginnings in many.
	steps := int(registrytest.Setting(t, "FAULTS_STEPS", 1_000))
	seed := registrytest.Setting(t, "FAULTS_SEED", rand.Uint64N(1<<32))
	const worlds = 4
	warmUp(t)
	for i := range worlds {
		t.Run(fmt.Sprint("seed ", seed+uint64(i)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newTrial(t, seed+uint64(i)).run(steps / worlds) })
		})
	}
}

const (
	// allKeys are the services that the clusters export.
	allKeys = 16
	// maxLag is how late reads are at most. The registry waits for so long before it takes over from the previous process.
	maxLag = 1500 * time.Millisecond
	// calmEvery is how many steps the faults go on before they end for a while.
	calmEvery = 250
	// viewAudit is the time between two looks of a cluster at its instances, of one service each.
	viewAudit = 10 * time.Second
)

// trial is one world and what is known of it by right.
type trial struct {
	*world
	rnd      *rand.Rand
	clusters []*actor
	// admin is another writer who may do everything.
	admin *api.Client
	// twin uses the ID of the first cluster.
	twin *life
	// shows says that there is the instance view. udp carries peer notifications; nil means none.
	shows bool
	udp   *network
	// foreign are the instances that others have put beside ours, by service and ID.
	foreign map[string]map[string]map[string]string
	// left are the clusters that may leave instances.
	left map[string]bool

	// faults are the rules of the plan while Cloud Map is not down, down says for which clusters it is.
	faults []cloudmaplocal.FaultRule
	down   map[string]bool
	// members is the service that a record was last written to, and observed when the records were last looked at.
	members  atomic.Value
	observed time.Time
	// beats are the heartbeats as they were then. beat is when each cluster's record was last written, at the latest, and
	// resumed when it was so after a long silence.
	beats         map[string]string
	beat, resumed map[string]time.Time
	// merged is what the clusters knew of each service when the merges were last checked.
	merged [allKeys][]string
	// outage is when all clusters lost Cloud Map, zero while they did not; before is what they knew.
	outage time.Time
	before map[string]string
}

// actor is a cluster: its user, and the controller if one runs.
type actor struct {
	trial    *trial
	identity mcs.Identity
	// number tells its endpoints' addresses from those of the others.
	number int
	// shows says that the controller that runs has the instance view.
	shows bool
	// life is the controller that runs, nil when none does. comesBack is when the next one starts.
	life      *life
	comesBack time.Time
	// memories are what each export was, of each key, in the order in which the user wanted it.
	memories [allKeys][]wish
	// solid is the last of memories that the registry was seen to show, and since when; -1 is none.
	solid [allKeys]sight
	// seen is the last of memories that the controller that runs now saw, of each other cluster and key.
	seen map[string]*[allKeys]sight
	// views are what the controller says of each key at this step.
	views [allKeys]known
	// stale are the clusters that it takes for dead.
	stale map[string]bool

	mu sync.Mutex
	// notified are keys that the controller is to look at.
	notified map[mcs.Key]bool
}

// wish is what a user wanted of a key: an export, or none.
type wish struct {
	at  time.Time
	exp *mcs.Export
}

// known is what a registry says of a key; without ok it knows nothing yet.
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
		rnd: rnd, down: map[string]bool{}, beats: map[string]string{}, beat: map[string]time.Time{}, resumed: map[string]time.Time{},
		shows: seed%2 == 1, foreign: map[string]map[string]map[string]string{}, left: map[string]bool{},
	}
	if seed/2%2 == 1 {
		tr.udp = newNetwork()
	}
	tr.world = newWorld(t, seed, cloudmaplocal.Options{
		ConsistencyDelay: time.Duration(rnd.IntN(3)) * 250 * time.Millisecond,
		OperationDelay:   time.Duration(rnd.IntN(3)) * 300 * time.Millisecond,
	})
	tr.wrote = tr.noteWrite
	tr.history = registrytest.NewTrace(t, fmt.Sprintf("cloudmap-%d.log", seed))
	tr.admin, _ = tr.client("admin")
	for i := range 4 {
		id := fmt.Sprintf("cls%d", i+1)
		a := &actor{trial: tr, number: i, identity: mcs.Identity{ClusterID: id, ClusterSetID: "set1", UID: "uid-" + id}, notified: map[mcs.Key]bool{}}
		for k := range allKeys {
			a.memories[k] = []wish{{at: time.Now()}}
		}
		tr.clusters = append(tr.clusters, a)
	}
	for _, a := range tr.clusters {
		a.start()
	}
	return tr
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
		}
		time.Sleep(time.Duration(tr.rnd.IntN(400)) * time.Millisecond)
		for _, a := range tr.clusters {
			a.work()
		}
		tr.check()
		if tr.t.Failed() {
			tr.history.WriteIfFailed()
			tr.t.Logf("FAULTS_SEED=%d, step %d, at %v", tr.seed, step, time.Now().UTC())
			break
		}
	}
	for _, a := range tr.clusters {
		if a.life != nil {
			a.life.kill()
		}
	}
	tr.endTwin()
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

// misfortunes are what may become of a request, one as likely as another.
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

// oneOf lets one of the rules hit a request that all fit, with the given probability. Those behind one get what it leaves.
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
	tr.plan(tr.rnd.Uint64(), append(rules, tr.faults...)...)
}

// act lets one thing happen.
func (tr *trial) act() {
	a := tr.clusters[tr.rnd.IntN(len(tr.clusters))]
	switch dice := tr.rnd.IntN(1000); {
	case dice < 6:
		a.die(func() { a.life.kill() })
	case dice < 10:
		a.die(func() { _ = a.life.end(nil) })
	case dice < 12:
		a.leave()
	case dice < 16:
		tr.interrupt(a.identity.ClusterID)
	case dice < 18:
		tr.interrupt(everybody)
	case dice < 40:
		tr.restore()
	case dice < 46:
		tr.vandalise()
	case dice < 50:
		tr.beginTwin()
	case dice < 60:
		tr.endTwin()
	case dice < 700:
		a.wish()
	}
	for _, a := range tr.clusters {
		if a.life == nil && !a.comesBack.After(time.Now()) {
			a.start()
		}
	}
}

// everybody is the access keys of all who sign their requests.
const everybody = "*"

// interrupt cuts who has an access key off Cloud Map.
func (tr *trial) interrupt(key string) {
	tr.history.Logf("Cloud Map is down for %s", key)
	tr.down[key] = true
	tr.replan()
}

func (tr *trial) restore() {
	if len(tr.down) > 0 {
		tr.history.Logf("Cloud Map is back")
		clear(tr.down)
		tr.replan()
	}
	tr.outage, tr.before = time.Time{}, nil
}

// deadlySilence is the shortest time without heartbeats after which a cluster may be taken for dead: a cluster that judges may
// have seen the last one when it was nearly due again.
var deadlySilence = settings.StaleAfter - settings.HeartbeatInterval

// noteWrite remembers where records are.
func (tr *trial) noteWrite(r request) {
	var in struct{ ServiceId string }
	if r.operation == "RegisterInstance" && r.names(format.AttrHeartbeat) && json.Unmarshal(r.body, &in) == nil {
		tr.members.Store(in.ServiceId)
	}
}

// observe looks at the records as they are, and notes when each was written.
func (tr *trial) observe() {
	now := time.Now()
	if tr.members.Load() != nil {
		for _, a := range tr.clusters {
			id := a.identity.ClusterID
			if beat := tr.heartbeat(id); beat != "" && beat != tr.beats[id] {
				if now.Sub(tr.beat[id]) >= deadlySilence {
					tr.resumed[id] = now
				}
				tr.beats[id], tr.beat[id] = beat, tr.observed
			}
		}
	}
	tr.observed = now
}

// heartbeat is that of a cluster's record as it is, "" without one. Nothing goes wrong with its request: no cluster signs it.
func (tr *trial) heartbeat(id string) string {
	body := fmt.Sprintf(`{"ServiceId":%q,"InstanceId":%q}`, tr.members.Load(), id)
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("X-Amz-Target", "Route53AutoNaming_v20170314.GetInstance")
	answer := httptest.NewRecorder()
	tr.server.ServeHTTP(answer, r)
	var out struct {
		Instance struct{ Attributes map[string]string }
	}
	switch err := json.Unmarshal(answer.Body.Bytes(), &out); {
	case strings.HasSuffix(answer.Header().Get("X-Amzn-Errortype"), "NotFound"):
		return ""
	case answer.Code != http.StatusOK || err != nil:
		tr.t.Fatalf("reading %s's record: %s, %v", id, answer.Body, err)
	}
	return out.Instance.Attributes[format.AttrHeartbeat]
}

// forgetAll is what a new life of the controller knows.
func (a *actor) forgetAll() {
	a.seen = map[string]*[allKeys]sight{}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notified = map[mcs.Key]bool{}
	for k := range allKeys {
		a.notified[webKey(k)] = true
	}
}

// start starts the cluster's controller. The one before has ended.
func (a *actor) start() {
	a.forgetAll()
	now := time.Now()
	for _, other := range a.trial.clusters {
		if other == a {
			continue
		}
		floor := &[allKeys]sight{}
		for k := range floor {
			// What the registry had shown before this life, it must show to it.
			if s := other.solid[k]; s.index > 0 && now.Sub(s.at) > maxLag {
				floor[k] = s
			}
		}
		a.seen[other.identity.ClusterID] = floor
	}
	// Machines' clocks differ, and are set.
	skew := time.Duration(a.trial.rnd.IntN(7)-3) * 20 * time.Minute
	a.trial.history.Logf("%s starts, its clock is %v ahead", a.identity.ClusterID, skew)
	a.shows = a.trial.shows && a.trial.rnd.IntN(8) > 0
	a.life = a.trial.begin(a.identity, func(_ *life, key mcs.Key) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.notified[key] = true
	}, a.trial.takingPart, func(cfg *Config) {
		cfg.wall = func() time.Time { return time.Now().Add(skew) }
		cfg.InstanceView = a.shows
	})
}

// takingPart is how clusters of this world take part.
func (tr *trial) takingPart(cfg *Config) {
	cfg.InstanceView = tr.shows
	// With the standard one, the last of 16 services has its turn in as many minutes.
	cfg.times.instanceResync = viewAudit
	if tr.udp != nil {
		cfg.PeerNotifications = tr.udp.config()
	}
}

// die ends the controller's life, for a while.
func (a *actor) die(how func()) {
	if a.life == nil {
		return
	}
	how()
	a.trial.history.Logf("%s has ended", a.identity.ClusterID)
	a.life = nil
	a.comesBack = time.Now().Add(time.Duration(a.trial.rnd.IntN(8)) * time.Second)
	if a.trial.rnd.IntN(5) == 0 && (a != a.trial.clusters[0] || a.trial.twin == nil) {
		a.comesBack = a.comesBack.Add(5 * time.Minute) // dead for longer than heartbeats may be missing
	}
}

// leave takes the cluster out of the clusterset.
func (a *actor) leave() {
	if a.life == nil || a.trial.twin != nil {
		return
	}
	now := time.Now()
	for k := range allKeys {
		a.want(now, k, nil)
	}
	l := a.life
	a.die(func() { l.stop(registry.ErrLeave) })
	a.trial.history.Logf("%s leaves", a.identity.ClusterID)
	// Removing takes its time, and may fail: then what is left is for the next life to remove.
	timer := time.AfterFunc(30*time.Second, func() { l.wire.cut.Store(true) })
	defer timer.Stop()
	<-l.ended //nolint:errcheck // how it ended does not matter
}

// wish changes what the user wants of one key.
func (a *actor) wish() {
	rnd, now := a.trial.rnd, time.Now()
	k := rnd.IntN(allKeys)
	if k >= allKeys/2 && rnd.IntN(3) == 0 {
		a.want(now, k, nil)
		return
	}
	exp := a.export(k, rnd.IntN(4))
	if rnd.IntN(20) == 0 {
		exp = a.export(k, 50)
	}
	exp.Annotations = map[string]string{"example.com/version": strconv.Itoa(len(a.memories[k]))}
	exp.Created = exp.Created.Add(time.Duration(rnd.IntN(3)) * time.Second)
	exp.Ports[0].Port += int32(rnd.IntN(2))
	a.want(now, k, &exp)
}

// export is an export of n endpoints, none of which has the address of another cluster's.
func (a *actor) export(k, n int) mcs.Export {
	exp := webExport(a.identity.ClusterID, k, n)
	for _, backends := range exp.Backends {
		for i, endpoint := range backends.Endpoints {
			address := endpoint.Address.As4()
			address[1] = byte(a.number)
			backends.Endpoints[i].Address = netip.AddrFrom4(address)
		}
	}
	return exp
}

func (a *actor) want(now time.Time, k int, exp *mcs.Export) {
	if last := a.wanted(k); last == nil && exp == nil {
		return
	}
	a.memories[k] = append(a.memories[k], wish{at: now, exp: exp})
	a.trial.history.Logf("%s's user wants export %d to be %s, number %d", a.identity.ClusterID, k, describe(exp), len(a.memories[k])-1)
	a.solid[k] = sight{}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notified[webKey(k)] = true
}

// wanted is what the user wants of a key now.
func (a *actor) wanted(k int) *mcs.Export { return a.memories[k][len(a.memories[k])-1].exp }

// work is what the export reconciler does with the keys that it was notified of; it does not reach all of them at once.
func (a *actor) work() {
	if a.life == nil {
		return
	}
	a.mu.Lock()
	keys := slices.SortedFunc(maps.Keys(a.notified), func(x, y mcs.Key) int { return cmp.Compare(x.String(), y.String()) })
	a.mu.Unlock()
	for _, key := range keys {
		if a.trial.rnd.IntN(4) == 0 {
			continue
		}
		a.mu.Lock()
		delete(a.notified, key)
		a.mu.Unlock()
		a.reconcile(key)
	}
}

func (a *actor) reconcile(key mcs.Key) {
	for k := range allKeys {
		if exp := a.wanted(k); webKey(k) == key && exp != nil {
			publish(a.trial.t, a.life.Registry, *exp)
			return
		}
	}
	if err := a.life.Withdraw(context.Background(), key); err != nil {
		a.trial.t.Error(err)
	}
}

// garbageCluster is a member that writes nothing that can be used.
const garbageCluster = "garbage"

// vandalise does what no cluster should, with no regard to what belongs to whom.
func (tr *trial) vandalise() {
	admin, ctx := tr.admin, context.Background()
	namespaces, err := admin.ListNamespaces(ctx)
	if err != nil {
		return // Cloud Map is down for the admin too
	}
	in, ok := namespaces["mcs.set1"]
	if !ok {
		return
	}
	services, err := admin.ListServices(ctx, in)
	if err != nil {
		return
	}
	victim := tr.clusters[tr.rnd.IntN(len(tr.clusters))].identity.ClusterID
	switch tr.rnd.IntN(4) {
	case 0: // a part of a page is deleted
		tr.deleteOne(admin, services[format.CatalogName(victim)])
	case 1: // a record is deleted
		_ = admin.DeregisterInstance(ctx, services[format.MembersService].ID, victim)
	case 2: // garbage
		attrs := (&format.Member{ClusterID: garbageCluster, ClusterSetID: "set1", UID: "uid-garbage", Joined: time.Now(), Generation: 1}).Instance(signerOf("uid-garbage")).Attributes
		attrs[[]string{format.AttrPages, format.AttrFormat, format.AttrGeneration, format.AttrUID}[tr.rnd.IntN(4)]] = []string{"", "99.0", "00.AAAAAAAAAAA", "%"}[tr.rnd.IntN(4)]
		_, _ = admin.RegisterInstance(ctx, services[format.MembersService].ID, api.Instance{ID: garbageCluster, Attributes: attrs})
	case 3: // an instance that is none of ours in a catalog
		if s, ok := services[format.CatalogName(victim)]; ok {
			_, _ = admin.RegisterInstance(ctx, s.ID, api.Instance{ID: "page-07-9", Attributes: map[string]string{"PAGE": "07", "GENERATION": "99999999999999", "PARTS": "1"}})
		}
	}
}

func (tr *trial) deleteOne(admin *api.Client, s api.Service) {
	if s.ID == "" {
		return
	}
	instances, err := admin.ListInstances(context.Background(), s)
	if err != nil || len(instances) == 0 {
		return
	}
	_ = admin.DeregisterInstance(context.Background(), s.ID, instances[tr.rnd.IntN(len(instances))].ID)
}

// beginTwin starts a second cluster with the first one's ID, if that one is alive.
func (tr *trial) beginTwin() {
	first := tr.clusters[0]
	alive := first.life != nil && time.Since(tr.beat[first.identity.ClusterID]) < 5*time.Second && len(tr.down) == 0
	if tr.twin != nil || !alive || time.Since(first.life.began) < time.Minute {
		return
	}
	identity := first.identity
	identity.UID = "uid-twin"
	tr.history.Logf("a twin of cls1 starts")
	tr.twin = tr.beginAs("cls1twin", identity, nil, tr.takingPart)
	for k := range allKeys {
		exp := webExport(identity.ClusterID, k, 1)
		exp.Annotations = map[string]string{"example.com/version": "twin"}
		publish(tr.t, tr.twin.Registry, exp)
	}
}

func (tr *trial) endTwin() {
	if tr.twin != nil {
		tr.history.Logf("the twin ends")
		tr.twin.kill()
		tr.twin = nil
	}
}

// check holds what every controller knows against what there is to know.
func (tr *trial) check() {
	tr.t.Helper()
	tr.observe()
	tr.checkTwin()
	for _, a := range tr.clusters {
		if a.life == nil {
			continue
		}
		for k := range allKeys {
			a.views[k].View, a.views[k].ok = viewOf(tr.t, a.life.Registry, webKey(k), a.others()...)
		}
		a.noteSolid()
		for _, other := range tr.clusters {
			if other != a {
				a.checkViewOf(other)
			}
		}
		a.checkStale()
	}
	tr.checkOutage()
	tr.checkMerges()
}

// noteSolid notes which exports the registry has shown.
func (a *actor) noteSolid() {
	for k := range allKeys {
		view := a.views[k]
		last := len(a.memories[k]) - 1
		// The registry says Exported of the previous process's export until it is asked for another.
		if view.ok && view.Local.State == registry.Exported && a.wanted(k) != nil && a.solid[k].index != last && a.reported(k) {
			a.solid[k] = sight{index: last, at: time.Now()}
		}
	}
}

// reported reports whether the controller has published what its user wants of a key.
func (a *actor) reported(k int) bool {
	want, _ := a.life.state.Writes.DesiredInstances(webKey(k))
	return want != nil && want.Equal(*a.wanted(k))
}

// checkViewOf checks what a knows of other: promises 1, 2 and 5.
func (a *actor) checkViewOf(other *actor) {
	a.trial.t.Helper()
	id := other.identity.ClusterID
	last := a.seen[id]
	for k := range allKeys {
		view := a.views[k]
		exp := exportOf(view.View, id)
		if !view.ok || slices.Contains(view.Unknown, id) || slices.Contains(view.Unseen, id) {
			if last[k].at.After(a.life.began) && other.find(k, nil, last[k].index) < 0 {
				a.trial.fail("%s has seen %s's export %d and does not know of it any more", a.identity.ClusterID, id, k)
			}
			continue
		}
		index := other.find(k, exp, last[k].index)
		if index < 0 {
			a.trial.fail("%s sees %s's export %d as %s, after version %d of %v", a.identity.ClusterID, id, k, describe(exportOf(view.View, id)), last[k].index, len(other.memories[k])-1)
			continue
		}
		if index != last[k].index {
			a.trial.history.Logf("%s sees %s's export %d as %s, number %d", a.identity.ClusterID, id, k, describe(exp), index)
			last[k] = sight{index, time.Now()}
		}
	}
}

func exportOf(view registry.View, clusterID string) *mcs.Export {
	for i := range view.Exports {
		if view.Exports[i].Cluster == clusterID {
			return &view.Exports[i]
		}
	}
	return nil
}

func describe(exp *mcs.Export) string {
	if exp == nil {
		return "absent"
	}
	return "version " + exp.Annotations["example.com/version"]
}

// find is the first wish from index on that is exp, -1 if none is.
func (a *actor) find(k int, exp *mcs.Export, index int) int {
	for i := index; i < len(a.memories[k]); i++ {
		want := a.memories[k][i].exp
		if describe(want) == describe(exp) {
			return i
		}
	}
	return -1
}

// others returns the IDs of the other clusters: each may be named in a ServiceImport of this one.
func (a *actor) others() (ids []string) {
	for _, other := range a.trial.clusters {
		if other != a {
			ids = append(ids, other.identity.ClusterID)
		}
	}
	return ids
}

// checkStale checks that no cluster comes to be taken for dead who is not: promise 4.
func (a *actor) checkStale() {
	a.trial.t.Helper()
	stale := map[string]bool{}
	for k := range allKeys {
		for _, id := range a.views[k].Stale {
			stale[id] = true
		}
	}
	late := maxLag // until it is seen that another writer is back
	if a.trial.udp != nil {
		late += settings.PollIntervalWithNotifications
	}
	for id := range stale {
		beat, resumed := time.Since(a.trial.beat[id]), time.Since(a.trial.resumed[id])
		if !a.stale[id] && beat < deadlySilence && resumed > late {
			a.trial.fail("%s takes %s for dead, which gave a heartbeat %v ago", a.identity.ClusterID, id, beat)
		}
	}
	a.stale = stale
}

// checkTwin checks that the second cluster with an ID gets: promise 8. That no cluster sees its exports is in checkViewOf.
func (tr *trial) checkTwin() {
	tr.t.Helper()
	if tr.twin == nil {
		return
	}
	if silent := time.Since(tr.beat[tr.clusters[0].identity.ClusterID]); silent > 20*time.Second {
		tr.endTwin() // before it takes the silent one for dead, as it should
		return
	}
	view, ok := viewOf(tr.t, tr.twin.Registry, webKey(0))
	if !ok {
		return
	}
	var duplicate *registry.DuplicateIDError
	if view.Local.State == registry.Exported || view.Local.Err != nil && len(tr.faults) == 0 && !errors.As(view.Local.Err, &duplicate) {
		tr.fail("the second cluster with an ID gets %v, %v", view.Local.State, view.Local.Err)
	}
}

// checkOutage checks that nothing changes while Cloud Map is down for all: promise 3.
func (tr *trial) checkOutage() {
	tr.t.Helper()
	if !tr.down[everybody] {
		return
	}
	if tr.outage.IsZero() {
		tr.outage = time.Now()
	}
	// Answers may be under way for as long as a request takes.
	if time.Since(tr.outage) < api.RequestTimeout {
		return
	}
	now := map[string]string{}
	for _, a := range tr.clusters {
		if a.life != nil && a.life.began.Before(tr.outage) {
			now[a.identity.ClusterID] = a.knowledge()
		}
	}
	for id, before := range tr.before {
		if after, alive := now[id]; alive && after != before {
			tr.fail("Cloud Map is down, and what %s knows changes:\n%s", id, gocmp.Diff(before, after))
		}
	}
	tr.before = now
}

// knowledge is all that the controller knows of the others.
func (a *actor) knowledge() string {
	var text strings.Builder
	for k := range allKeys {
		view := a.views[k]
		fmt.Fprintln(&text, k, view.ok, view.Unknown, view.Unseen)
		for _, exp := range view.Exports {
			fmt.Fprintln(&text, " ", exp.Cluster, describe(&exp))
		}
	}
	return text.String()
}

// checkMerges checks that who knows the same merges the same: promises 5 and 9. What has not changed was checked before.
func (tr *trial) checkMerges() {
	tr.t.Helper()
	for k := range allKeys {
		var known [][]mcs.Export
		var inputs []string
		for _, a := range tr.clusters {
			if a.life == nil {
				continue
			}
			exports := slices.Clone(a.views[k].Exports)
			if own := a.wanted(k); own != nil {
				exports = append(exports, *own)
			}
			slices.SortFunc(exports, func(x, y mcs.Export) int { return cmp.Compare(x.Cluster, y.Cluster) })
			known, inputs = append(known, exports), append(inputs, fmt.Sprint(mapOf(exports, describe)))
		}
		if slices.Equal(inputs, tr.merged[k]) {
			continue
		}
		tr.merged[k] = inputs
		tr.checkMerge(k, known, inputs)
	}
}

// checkMerge merges what each cluster knows of a service, in any order. inputs tell what is the same.
func (tr *trial) checkMerge(k int, known [][]mcs.Export, inputs []string) {
	tr.t.Helper()
	merged := map[string]mcs.Merged{}
	for i, exports := range known {
		tr.rnd.Shuffle(len(exports), func(i, j int) { exports[i], exports[j] = exports[j], exports[i] })
		m := mcs.Merge(exports)
		if len(m.Clusters) != len(exports) {
			tr.fail("of %d exports of service %d, %v are in the merge", len(exports), k, m.Clusters)
		}
		if before, ok := merged[inputs[i]]; ok && !reflect.DeepEqual(before, m) {
			tr.fail("two clusters merge the same exports to something else:\n%s", gocmp.Diff(before, m))
		}
		merged[inputs[i]] = m
	}
}

func mapOf(exports []mcs.Export, f func(*mcs.Export) string) []string {
	var texts []string
	for i := range exports {
		texts = append(texts, exports[i].Cluster+" "+f(&exports[i]))
	}
	return texts
}

// calm ends all faults, waits until everything is as it was asked for, and counts the requests that still go on.
func (tr *trial) calm() {
	tr.t.Helper()
	tr.history.Logf("calm")
	tr.faults = nil
	clear(tr.down)
	tr.restore()
	tr.plan(0)
	tr.endTwin()
	for _, a := range tr.clusters {
		if a.life == nil {
			a.start()
		}
	}
	// The slowest repair is that of a page which another writer deleted: it is found every two minutes.
	patience := 3 * defaultTimes().Audit
	if tr.shows {
		patience = 10 * time.Minute // a service of the view that was refused is tried again so seldom
	}
	for began := time.Now(); ; time.Sleep(2 * time.Second) {
		for _, a := range tr.clusters {
			a.work()
		}
		tr.check()
		if tr.t.Failed() {
			return
		}
		if time.Since(began) < defaultTimes().Audit {
			continue
		}
		unsettled := tr.unsettled()
		if unsettled == "" {
			break
		}
		if time.Since(began) > patience {
			tr.fail("minutes after the last fault: %s", unsettled)
			return
		}
	}
	tr.settleIn()
	tr.checkSilence()
}

// unsettled is something that is not as it was asked for, "" if everything is.
func (tr *trial) unsettled() string {
	for k := range allKeys {
		var wants []mcs.Export
		for _, a := range tr.clusters {
			if exp := a.wanted(k); exp != nil {
				wants = append(wants, *exp)
			}
		}
		for _, a := range tr.clusters {
			view, own := a.views[k], a.wanted(k)
			switch {
			case !view.ok || len(view.Unseen) > 0 || len(view.Unknown) > 0 && !slices.Equal(view.Unknown, []string{garbageCluster}):
				return fmt.Sprintf("%s does not know of %v's and %v's export %d", a.identity.ClusterID, view.Unknown, view.Unseen, k)
			case len(view.Stale) > 0:
				return fmt.Sprintf("%s takes %v for dead", a.identity.ClusterID, view.Stale)
			case own == nil && view.Local.State != registry.Absent, own != nil && view.Local.State != registry.Exported:
				return fmt.Sprintf("%s's own export %d is %v, %v", a.identity.ClusterID, k, view.Local.State, view.Local.Err)
			}
			have := slices.Clone(view.Exports)
			if own != nil {
				have = append(have, *own)
			}
			if exported, imported := mcs.Merge(wants), mcs.Merge(have); !reflect.DeepEqual(exported, imported) {
				return fmt.Sprintf("%s merges service %d to something else than is exported:\n%s", a.identity.ClusterID, k, gocmp.Diff(exported, imported))
			}
			for _, other := range tr.clusters {
				if want, got := other.wanted(k), exportOf(view.View, other.identity.ClusterID); other != a && want != nil && !got.Equal(registry.Published(*want)) {
					return fmt.Sprintf("%s sees %s's export %d otherwise than it is", a.identity.ClusterID, other.identity.ClusterID, k)
				}
			}
		}
	}
	for _, a := range tr.clusters {
		if excess := a.excess(); excess != "" {
			return excess
		}
	}
	return tr.unshown()
}

// unshown is something that is not as it should be in the instance view, "" if everything is.
func (tr *trial) unshown() string {
	if !tr.shows {
		return ""
	}
	services, err := tr.shownServices()
	if err != nil {
		return err.Error()
	}
	for _, a := range tr.clusters {
		tr.left[a.identity.ClusterID] = a.life.view.IsCleanupDenied()
	}
	for k := range allKeys {
		want, have := tr.instances(k), map[string]map[string]string(nil)
		if s, ok := services[webKey(k).Name]; ok {
			listed, err := tr.admin.ListInstances(context.Background(), s)
			if err != nil {
				return err.Error()
			}
			have = map[string]map[string]string{}
			for _, instance := range listed {
				have[instance.ID] = instance.Attributes
			}
		}
		maps.DeleteFunc(have, func(_ string, attrs map[string]string) bool { return tr.left[attrs[format.AttrClusterID]] })
		if diff := gocmp.Diff(want, have, cmpopts.EquateEmpty()); diff != "" || want != nil && have == nil {
			return fmt.Sprintf("the instances of service %d are not those of its endpoints (-want +have):\n%s", k, diff)
		}
	}
	for _, a := range tr.clusters {
		if n := a.life.view.Pending() + a.life.view.Unconfirmed(); n > 0 {
			return fmt.Sprintf("%s has still %d services to write or to read once more", a.identity.ClusterID, n)
		}
	}
	return ""
}

// instances are those that service k is to have in the instance view, nil if no cluster exports it.
func (tr *trial) instances(k int) (want map[string]map[string]string) {
	want = maps.Clone(tr.foreign[webKey(k).Name])
	for _, a := range tr.clusters {
		exp := a.wanted(k)
		if exp == nil || !a.shows {
			continue
		}
		if want == nil {
			want = map[string]map[string]string{} // an export without endpoints has a service
		}
		for _, instance := range instances.FromExport(*exp, "set1", "test") {
			if _, taken := tr.foreign[webKey(k).Name][instance.ID]; !taken {
				want[instance.ID] = instance.Attributes
			}
		}
	}
	return want
}

// shownServices are those of the instance view.
func (tr *trial) shownServices() (map[string]api.Service, error) {
	namespaces, err := tr.admin.ListNamespaces(context.Background())
	if err != nil {
		return nil, err
	}
	in, ok := namespaces[webKey(0).Namespace]
	if !ok {
		return nil, nil
	}
	return tr.admin.ListServices(context.Background(), in)
}

// maxForeign is how many instances others put into the services of a world.
const maxForeign = 12

// settleIn lets another writer put an instance beside ours, at the address of an endpoint that there may be later.
func (tr *trial) settleIn() {
	if !tr.shows || len(tr.foreign) >= maxForeign {
		return
	}
	services, err := tr.shownServices()
	if err != nil {
		tr.t.Error(err)
		return
	}
	k, a := tr.rnd.IntN(allKeys), tr.clusters[tr.rnd.IntN(len(tr.clusters))]
	name := webKey(k).Name
	s, ok := services[name]
	if !ok || tr.foreign[name] != nil {
		return
	}
	drawn := instances.FromExport(a.export(k, 1+tr.rnd.IntN(3)), "set1", "test")
	foreign := drawn[tr.rnd.IntN(len(drawn))]
	if used, err := tr.isUsed(a, k, s, foreign.ID); err != nil || used {
		return
	}
	foreign.Attributes = map[string]string{"COLOUR": "blue", "CLUSTER_ID": []string{"elsewhere", "%"}[tr.rnd.IntN(2)]}
	if _, err := tr.admin.RegisterInstance(context.Background(), s.ID, foreign); err != nil {
		tr.t.Error(err)
	}
	tr.foreign[name] = map[string]map[string]string{foreign.ID: foreign.Attributes}
}

// isUsed reports whether a cluster uses an instance ID or may still remove it. Cloud Map has no conditional writes: what another
// client registers under an ID that a cluster is just removing may be removed with it.
func (tr *trial) isUsed(a *actor, k int, s api.Service, id string) (bool, error) {
	has := func(exp *mcs.Export) bool {
		return exp != nil && slices.ContainsFunc(instances.FromExport(*exp, "set1", "test"), func(i api.Instance) bool { return i.ID == id })
	}
	for i, w := range a.memories[k] {
		isRecent := i+1 == len(a.memories[k]) || time.Since(a.memories[k][i+1].at) < 10*time.Minute
		if isRecent && has(w.exp) {
			return true, nil
		}
	}
	there, err := tr.admin.ListInstances(context.Background(), s)
	return slices.ContainsFunc(there, func(i api.Instance) bool { return i.ID == id }), err
}

// excess is something in the cluster's catalog that does not belong there, "" if nothing is.
func (a *actor) excess() string {
	place, _ := a.life.control.lastKnown()
	wanted := a.life.state.Writes.PartIDs()
	wanted[format.CopyID] = true
	for _, excess := range a.life.state.Writes.Excess() {
		for _, id := range excess.IDs() {
			delete(wanted, id)
		}
	}
	listed, err := a.trial.admin.ListInstances(context.Background(), place.catalog)
	if err != nil {
		return err.Error()
	}
	if len(listed) != len(wanted) {
		return fmt.Sprintf("%s's catalog has %d instances, want %d", a.identity.ClusterID, len(listed), len(wanted))
	}
	for _, instance := range listed {
		if !wanted[instance.ID] {
			return fmt.Sprintf("%s's catalog has %s", a.identity.ClusterID, instance.ID)
		}
	}
	return ""
}

// checkSilence counts requests while nothing changes: promise 10.
func (tr *trial) checkSilence() {
	tr.t.Helper()
	const span = time.Minute
	before := tr.count()
	audits := 0
	if tr.shows {
		audits = int(span / viewAudit)
	}
	time.Sleep(span)
	after := tr.count()
	clusters := len(tr.clusters)
	allowed := map[string]int{
		// And one look at the own pages, those at the instances, and now and then one for the page that garbage announces.
		"DiscoverInstances":        clusters * (int(span/settings.PollInterval+3+span/defaultTimes().MaxRetry) + audits),
		"RegisterInstance members": clusters * int(span/settings.HeartbeatInterval+1),
		// The instance view lists the namespaces once within five minutes of its start, and again after a failure.
		"ListNamespaces": clusters,
	}
	for operation, n := range after {
		if strings.HasPrefix(operation, "cls") || operation == "admin" {
			continue
		}
		if n -= before[operation]; n > allowed[operation] {
			tr.fail("with nothing changing there were %d requests %s in %v, want %d at most", n, operation, span, allowed[operation])
		}
	}
}
