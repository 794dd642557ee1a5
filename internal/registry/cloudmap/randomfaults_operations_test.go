package cloudmap

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// everybody is the access keys of all who sign their requests.
const everybody = "*"

// operation is something that happens to the registry or to a cluster.
type operation struct {
	name string
	do   func(*actor)
}

// allOperations are the operations besides those of act, one as likely as another.
func (tr *trial) allOperations() []operation {
	return []operation{
		{"record deleted", tr.deleteRecord},
		{"page or copy deleted", tr.deletePage},
		{"services deleted", tr.deleteServices},
		{"service of the view deleted", tr.deleteView},
		{"record forged", tr.forgeRecord},
		{"copy forged", tr.forgeCopy},
		{"page forged", tr.forgePage},
		{"record replayed", tr.replay(writtenMember)},
		{"farewell replayed", tr.replay(writtenFarewell)},
		{"copy replayed", tr.replay(writtenCopy)},
		{"page replayed", tr.replay(writtenPart)},
		{"backed up", tr.backUp},
		{"restored", tr.restoreBackup},
		{"clone", tr.beginClone},
		{"renamed", tr.rename},
		{"flicker", tr.flicker},
		{"leaving taken back", tr.takeBack},
		{"two leaders", tr.overlap},
		{"share gone", tr.hide},
		{"slow pages", tr.slowDown},
	}
}

// chosenOperations are the operations that the environment variable FAULTS_OPERATIONS names,
// separated by commas; without it all.
func (tr *trial) chosenOperations() []operation {
	names, isSet := os.LookupEnv("FAULTS_OPERATIONS")
	return slices.DeleteFunc(tr.allOperations(), func(o operation) bool { return isSet && !slices.Contains(strings.Split(names, ","), o.name) })
}

// operate does one of the operations at one of twenty steps, and goes on with those that take a
// while.
func (tr *trial) operate() {
	if tr.hostile.IntN(20) == 0 && len(tr.operations) > 0 {
		o, a := tr.operations[tr.hostile.IntN(len(tr.operations))], tr.machines[tr.hostile.IntN(machines)]
		tr.history.Logf("operation: %s, of %s", o.name, a.identity.ClusterID)
		tr.tally.Add(o.name, 1)
		o.do(a)
	}
	for _, a := range tr.machines {
		a.endCloneOfSilent()
		if a.clone != nil && tr.hostile.IntN(200) == 0 {
			a.endClone()
		}
		a.continueRename()
	}
	if len(tr.slow) > 0 && time.Now().After(tr.slowUntil) {
		tr.slow = nil
		tr.replan()
	}
	tr.clearForgedCopies()
}

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

// forgetAll resets the views to those of a new process.
func (a *actor) forgetAll() {
	a.seen = map[string]*[allKeys]sight{}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notified = map[mcs.Key]bool{}
	for k := range allKeys {
		a.notified[a.trial.keys[k]] = true
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
			// nothing goes back
			floor[k].index = a.trial.lastSeen[a.number][k][other.identity.ClusterID]
		}
		a.seen[other.identity.ClusterID] = floor
	}
	// Machines' clocks differ, and are set.
	a.skew = time.Duration(a.trial.rnd.IntN(7)-3) * 20 * time.Minute
	a.trial.history.Logf("%s starts, its clock is %v ahead", a.identity.ClusterID, a.skew)
	a.shows = a.trial.shows && a.trial.rnd.IntN(8) > 0
	a.hasJoined = a.joinedAt != time.Time{}
	if !a.hasJoined {
		a.joinedAt = now
	}
	a.process = a.trial.create(a.identity.ClusterID, a.identity, a.trial.takingPart, a.asCluster)
	a.publishAll(a.process.Registry, func(int) bool { return true })
	a.process.run(func(_ *process, key mcs.Key) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.notified[key] = true
	})
}

// publishAll publishes the exports that the cluster's user wants and that are selected, before the
// registry runs, as the controller does: a process that starts does not announce pages without
// them.
func (a *actor) publishAll(reg *Registry, selects func(k int) bool) {
	for k := range allKeys {
		if exp := a.wanted(k); exp != nil && selects(k) {
			publish(a.trial.t, reg, *exp)
		}
	}
}

// asCluster is how the cluster's next process takes part.
func (a *actor) asCluster(cfg *Config) {
	skew := a.skew
	if a.hasJoined {
		cfg.Joined = a.joinedAt
	}
	cfg.wall = func() time.Time { return time.Now().Add(skew) }
	// as the keyring that both registries of a controller share
	cfg.Keyring.AddOwn(a.alias.identity.ClusterID, signerOf(a.identity.UID).Key())
	cfg.InstanceView = a.shows
	cfg.Wanted, cfg.UsedNamespaces = a.trial.usage[a.number].wants, a.trial.usage[a.number].names
}

// takingPart changes the configuration of a cluster that takes part in the trial.
func (tr *trial) takingPart(cfg *Config) {
	cfg.InstanceView = tr.shows
	if tr.marks {
		cfg.Instances = instances.Settings{Unready: instances.UnreadyUnhealthy, Stale: mcs.StaleWithdraw}
	}
	// With the standard one, the last of 16 services has its turn in as many minutes.
	cfg.times.instanceResync = viewAudit
	if tr.udp != nil {
		cfg.PeerNotifications = tr.udp.config()
	}
}

// die ends the controller's process, for a while.
func (a *actor) die(how func()) {
	if a.process == nil {
		return
	}
	a.endClone()
	a.trial.clearForgedCopy(a)
	how()
	a.trial.history.Logf("%s has ended", a.identity.ClusterID)
	a.process = nil
	a.comesBack = time.Now().Add(time.Duration(a.trial.rnd.IntN(8)) * time.Second)
	if a.trial.rnd.IntN(5) == 0 && (a != a.trial.clusters[0] || a.trial.twin == nil) {
		// dead for longer than heartbeats may be missing
		a.comesBack = a.comesBack.Add(5 * time.Minute)
	}
}

// leave takes the cluster out of the clusterset, which may take a while. It returns an error if not
// everything was removed by then.
func (a *actor) leave(within time.Duration) error {
	if a.process == nil || a.trial.twin != nil || a.becomes != nil && !a.isLeaving {
		return nil
	}
	now := time.Now()
	for k := range allKeys {
		a.want(now, k, nil)
	}
	a.trial.history.Logf("%s leaves", a.identity.ClusterID)
	l := a.process
	a.die(func() { l.stop(registry.ErrLeave) })
	// Leaving may fail after a while: then the next process removes the remaining records.
	timer := time.AfterFunc(within, func() { l.wire.cut.Store(true) })
	defer timer.Stop()
	err := a.trial.await(l)
	if l.wire.cut.Load() {
		a.noteKilled()
	}
	a.trial.left[a.identity.ClusterID] = l.view.IsCleanupDenied()
	if err == nil {
		a.joinedAt = time.Time{}
		a.trial.noteUnsaidFarewell(a)
	}
	return err
}

// wish changes what the user wants of one key.
func (a *actor) wish() {
	rnd, now := a.trial.rnd, time.Now()
	k := rnd.IntN(allKeys)
	if !a.uses(k) {
		return
	}
	if k >= allKeys/2 && rnd.IntN(3) == 0 {
		a.wantEverywhere(now, k, nil)
		return
	}
	exp := a.export(k, rnd.IntN(4))
	if rnd.IntN(20) == 0 {
		exp = a.export(k, 50)
	}
	exp.Annotations = a.nextVersion(k)
	exp.Created = exp.Created.Add(time.Duration(rnd.IntN(3)) * time.Second)
	exp.Ports[0].Port += int32(rnd.IntN(2))
	a.wantEverywhere(now, k, &exp)
}

// nextVersion returns a number that distinguishes the next version of an export from all others,
// whatever ID the cluster has.
func (a *actor) nextVersion(k int) map[string]string {
	next := &a.trial.versions[a.number][k]
	*next++
	return map[string]string{"example.com/version": strconv.Itoa(*next)}
}

// wantEverywhere changes what the user wants under each ID that the cluster has now.
func (a *actor) wantEverywhere(now time.Time, k int, exp *mcs.Export) {
	a.want(now, k, exp)
	if a.becomes != nil {
		a.becomes.want(now, k, a.becomes.own(exp))
	}
}

// own is an export as this cluster's, nil for none.
func (a *actor) own(exp *mcs.Export) *mcs.Export {
	if exp == nil {
		return nil
	}
	own := *exp
	own.Cluster = a.identity.ClusterID
	return &own
}

// export is an export of n endpoints, none of which has the address of another cluster's.
func (a *actor) export(k, n int) mcs.Export {
	exp := webExport(a.identity.ClusterID, k, n)
	exp.Key = a.trial.keys[k]
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
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notified[a.trial.keys[k]] = true
}

// wanted returns the export of a key that the user wants now.
func (a *actor) wanted(k int) *mcs.Export { return a.memories[k][len(a.memories[k])-1].exp }

// work reconciles exports of the notified keys, as the export reconciler does: not all of them at
// once.
func (a *actor) work() {
	if a.process == nil {
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
		if exp := a.wanted(k); a.trial.keys[k] == key && exp != nil {
			publish(a.trial.t, a.process.Registry, *exp)
			return
		}
	}
	if err := a.process.Withdraw(context.Background(), key); err != nil {
		a.trial.t.Error(err)
	}
}

// beginTwin starts a second cluster with the first one's ID, if that one is alive.
func (tr *trial) beginTwin() {
	first := tr.clusters[0]
	if first.becomes != nil {
		return
	}
	alive := first.process != nil && time.Since(tr.beat[first.identity.ClusterID]) < 5*time.Second && len(tr.down) == 0 && !tr.isHidden(first)
	if tr.twin != nil || !alive || time.Since(first.process.began) < time.Minute {
		return
	}
	identity := first.identity
	identity.UID = "uid-twin"
	tr.history.Logf("a twin of cls1 starts")
	tr.twin = tr.beginAs("cls1twin", identity, nil, tr.takingPart)
	for k := range allKeys {
		exp := webExport(identity.ClusterID, k, 1)
		exp.Key = tr.keys[k]
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

// maxForeign is the maximum number of instances that other users add to the services of a trial.
const maxForeign = 12

// settleIn lets another writer put an instance beside ours, at the address of an endpoint that
// there may be later.
func (tr *trial) settleIn() {
	if !tr.shows || len(tr.foreign) >= maxForeign {
		return
	}
	k, a := tr.rnd.IntN(allKeys), tr.machines[tr.rnd.IntN(machines)]
	services, err := tr.shownIn(k % namespaces)
	if err != nil {
		tr.t.Error(err)
		return
	}
	name := tr.keys[k].Name
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

// isUsed reports whether a cluster uses an instance ID or may still remove it. Cloud Map has no
// conditional writes: what another client registers under an ID that a cluster is just removing may
// be removed with it.
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

// beginClone starts another process with a cluster's identity, key and stored state, as the restore
// of a control plane beside the original does. It wants what the cluster wants now, or less.
func (tr *trial) beginClone(a *actor) {
	id := a.identity.ClusterID
	isLive := a.process != nil && time.Since(tr.lastRecorded(id)) < 5*time.Second && time.Since(a.process.began) > time.Minute && len(tr.down) == 0 && len(tr.slow) == 0
	if !isLive || a.clone != nil || a.becomes != nil || a == tr.clusters[0] && tr.twin != nil || tr.isHidden(a) {
		return
	}
	key := cloneKey(id)
	tr.ids.copyTo(id, key)
	// The later process gives way. Which one it is only the clocks say. What the clone before it
	// has written may still be seen.
	wasContested := a.isContested()
	if a.clonedAt = time.Now(); !wasContested {
		a.contestedSince = a.clonedAt
	}
	// reads are late
	if deleted := tr.deletedAt[id]; deleted.After(tr.lastRecorded(id)) || time.Since(deleted) < 5*time.Second {
		a.aloneAt = a.clonedAt
	}
	for k := range allKeys {
		if latest := len(a.memories[k]) - 1; !wasContested || latest < a.cloned[k] {
			a.cloned[k] = latest
		}
	}
	a.clone = tr.create(key, a.identity, tr.takingPart, a.asCluster, func(cfg *Config) { cfg.Joined = a.joinedAt })
	a.publishAll(a.clone.Registry, func(int) bool { return tr.hostile.IntN(4) > 0 })
	a.clone.run(nil)
}

// cloneKey is the access key of the clone of a cluster.
func cloneKey(id string) string { return id + "clone" }

func (a *actor) endClone() {
	if a.clone != nil {
		a.trial.history.Logf("the clone of %s ends", a.identity.ClusterID)
		a.clone.kill()
		a.clone = nil
		a.trial.writtenMu.Lock()
		defer a.trial.writtenMu.Unlock()
		if id := a.identity.ClusterID; a.trial.cloneRecorded[id].After(a.clonedAt) {
			a.trial.cloneRecorded[id] = time.Now() // a request in progress may be carried out
		}
	}
}

// endCloneOfSilent ends the clone of a silent cluster, before it takes that one for dead, as it
// should. Records that the clone has written do not count.
func (a *actor) endCloneOfSilent() {
	if time.Since(a.trial.lastRecorded(a.identity.ClusterID)) > 30*time.Second {
		a.endClone()
	}
}

// await waits for the end of a process that leaves, which may take minutes, or until it is killed.
// What has to end when another cluster is silent ends meanwhile.
func (tr *trial) await(leaving *process) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case err := <-leaving.ended:
			return err
		case <-ticker.C:
		}
		if leaving.wire.cut.Load() {
			tr.killed = append(tr.killed, leaving)
			return errCut
		}
		tr.observe()
		for _, a := range tr.clusters {
			a.noteClone()
			a.endCloneOfSilent()
		}
		tr.clearForgedCopies()
	}
}

// rename gives a cluster its other ID: it joins under that one beside the present one, as the
// controller does.
func (tr *trial) rename(a *actor) {
	b := a.alias
	if a.process == nil || a.becomes != nil || b.isLeaving || a == tr.clusters[0] && tr.twin != nil || b == tr.clusters[0] && tr.twin != nil {
		return
	}
	a.endClone()
	for _, victim := range tr.clusters {
		// the process under the new ID has no key of the cluster's own former ID, and none of those
		// that it has not seen
		tr.clearForgedCopy(victim)
	}
	if !slices.Contains(tr.clusters, b) {
		tr.clusters = append(tr.clusters, b)
		tr.before = nil // there is one cluster more to know of
	}
	b.isRetired = false
	now := time.Now()
	for k := range allKeys {
		b.want(now, k, b.own(a.wanted(k)))
	}
	a.becomes, a.confirmedAt = b, time.Time{}
	b.start()
}

// continueRename makes the cluster leave under the present ID once all exports are confirmed under
// the new one. After five minutes it does not wait for those that the registry does not show under
// the present ID either.
func (a *actor) continueRename() {
	b := a.becomes
	if b == nil {
		return
	}
	if b.process == nil {
		b.start()
	}
	if a.process == nil {
		return // it leaves when it is back
	}
	isConfirmed, isImported, id := true, false, a.identity.ClusterID
	for k := range allKeys {
		view, ok := viewOf(a.trial.t, b.process.Registry, a.trial.keys[k], id)
		if ok && (b.wanted(k) == nil || view.Local.State == registry.Exported && b.reported(k)) {
			continue
		}
		isConfirmed = false
		isImported = isImported || !ok || view.Incomplete || exportOf(view, id) != nil || slices.Contains(slices.Concat(view.In(registry.Unknown), view.In(registry.Ignored), view.In(registry.Unseen)), id)
	}
	if !isConfirmed {
		a.confirmedAt = time.Time{}
	} else if a.confirmedAt.IsZero() {
		a.confirmedAt = time.Now()
	}
	isLate := !isImported && time.Since(b.process.began) > 5*time.Minute
	if isLate || isConfirmed && time.Since(a.confirmedAt) > 2*settings.PollInterval {
		a.retire()
	}
}

// retire makes the cluster leave under the present ID, and go on under the new one.
func (a *actor) retire() {
	a.trial.endTwin()
	a.isLeaving = true
	err := a.leave(30 * time.Second)
	a.trial.history.Logf("%s is %s now, %v", a.identity.ClusterID, a.becomes.identity.ClusterID, err)
	a.isLeaving = err != nil
	a.isRetired = true
	a.trial.machines[a.number] = a.becomes
	a.becomes = nil
}

// finishLeaving lets the cluster leave under a former ID, if that has failed so far.
func (a *actor) finishLeaving() {
	for a.isLeaving {
		a.hasJoined = !a.joinedAt.IsZero()
		a.process = a.trial.begin(a.identity, nil, a.trial.takingPart, a.asCluster)
		a.process.stop(registry.ErrLeave)
		a.isLeaving = a.trial.await(a.process) != nil
		if !a.isLeaving {
			a.trial.noteUnsaidFarewell(a)
		}
		a.trial.left[a.identity.ClusterID] = a.process.view.IsCleanupDenied()
		a.process = nil
	}
}

// flicker stops and starts the controller's part several times, as ClusterProperties that come and
// go did.
func (tr *trial) flicker(a *actor) {
	if a.process == nil {
		return
	}
	a.endClone()
	for range 1 + tr.hostile.IntN(3) {
		if err := a.process.end(nil); err != nil {
			tr.t.Error(err)
		}
		time.Sleep(time.Duration(tr.hostile.IntN(3)) * 300 * time.Millisecond)
		a.start()
		time.Sleep(time.Duration(tr.hostile.IntN(3)) * time.Second)
	}
}

// takeBack makes the cluster leave, and takes that back a moment later.
func (tr *trial) takeBack(a *actor) {
	if a.process == nil || a.becomes != nil || tr.twin != nil {
		return
	}
	var wanted [allKeys]*mcs.Export
	for k := range allKeys {
		wanted[k] = a.wanted(k)
	}
	err := a.leave(time.Duration(tr.hostile.IntN(4000)) * time.Millisecond)
	tr.history.Logf("%s has taken leaving back, %v", a.identity.ClusterID, err)
	now := time.Now()
	for k, exp := range wanted {
		if exp != nil {
			again := *exp
			again.Annotations = a.nextVersion(k)
			a.want(now, k, &again)
		}
	}
	a.start()
}

// overlap starts the next leader while the process before it goes on for a moment, and is killed
// then.
func (tr *trial) overlap(a *actor) {
	if a.process == nil || !tr.lastRecorded(a.identity.ClusterID).After(a.process.began) {
		// one that writes its first record after the next leader has read the saved heartbeat:
		// docs/reliability-tests.md has that as a limit
		return
	}
	a.endClone()
	tr.clearForgedCopy(a)
	before := a.process
	time.AfterFunc(time.Duration(tr.hostile.IntN(3000))*time.Millisecond, before.kill)
	a.start()
	a.noteKilled()
}

// slowDown makes the writes of a cluster's pages slow: all of them, or one page's for as long as a
// request may take.
func (tr *trial) slowDown(a *actor) {
	page := "page-" + format.PageName(format.PageOf(tr.keys[tr.hostile.IntN(allKeys)])) + "-*"
	tr.slow = []cloudmaplocal.FaultRule{
		{Kind: cloudmaplocal.FaultDelay, Delay: cloudmaplocal.Duration(time.Duration(1+tr.hostile.IntN(5)) * time.Second), Instance: "page-*", Probability: 0.5},
		{Kind: cloudmaplocal.FaultHang, Instance: page, Probability: 0.7, Applied: tr.hostile.IntN(2) == 0},
		{Kind: cloudmaplocal.FaultFail, Delay: cloudmaplocal.Duration(time.Duration(tr.hostile.IntN(60)) * time.Second), Instance: page},
	}
	for i := range tr.slow {
		tr.slow[i].AccessKey, tr.slow[i].Operations = a.identity.ClusterID, []string{"RegisterInstance"}
	}
	tr.slowUntil = time.Now().Add(time.Duration(10+tr.hostile.IntN(110)) * time.Second)
	tr.replan()
}
