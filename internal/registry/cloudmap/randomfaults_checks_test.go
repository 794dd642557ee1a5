package cloudmap

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// deadlySilence is the shortest time without heartbeats after which a cluster may be taken for
// dead: a cluster that judges may have seen the last one when it was nearly due again.
var deadlySilence = settings.StaleAfter - settings.HeartbeatInterval

// noteWrite remembers what the clusters themselves write, and where.
func (tr *trial) noteWrite(r request) {
	if r.operation != "RegisterInstance" || !r.names(format.AttrSignature) {
		return
	}
	var in struct {
		ServiceId, InstanceId string //nolint:revive // names of AWS
		Attributes            map[string]string
	}
	if json.Unmarshal(r.body, &in) != nil {
		return
	}
	if in.Attributes[format.AttrClusterID] == r.cluster {
		tr.noteWritten(in.ServiceId, in.InstanceId, in.Attributes)
	}
	beat, _ := strconv.ParseInt(in.Attributes[format.AttrHeartbeat], 10, 64)
	tr.writtenMu.Lock()
	defer tr.writtenMu.Unlock()
	switch id, now := in.InstanceId, time.Now(); r.cluster {
	case id:
		tr.ownBeats[id] = beat
		tr.recorded[id] = now
		if tr.hasLeft[id] = in.Attributes[format.AttrFarewell] != ""; tr.hasLeft[id] {
			delete(tr.lostFarewells, id)
		}
		if tr.answered[id].Before(tr.cloneRecorded[id]) && beat > tr.cloneBeats[id] {
			tr.answered[id] = now
		}
	case cloneKey(id):
		tr.cloneRecorded[id], tr.cloneBeats[id] = now, max(tr.cloneBeats[id], beat)
	}
}

// catchUp is the time in which the clock of a cluster comes to the heartbeat of its clone, which is
// up to five minutes of heartbeats and a step later.
const catchUp = 10 * time.Minute

// isBehindClone reports whether a cluster has not written a later record than its clone since that
// one ended: another user has deleted the record of the clone before the cluster has read it. The
// others take its records for replays until its clock has caught up, which
// docs/reliability-tests.md has as a limit.
func (tr *trial) isBehindClone(a *actor) bool {
	tr.writtenMu.Lock()
	defer tr.writtenMu.Unlock()
	id := a.identity.ClusterID
	return tr.ownBeats[id] <= tr.cloneBeats[id] && time.Since(tr.cloneRecorded[id]) < catchUp
}

// observe looks at the records as they are, and notes when each was written.
func (tr *trial) observe() {
	now := time.Now()
	if s, ok := tr.controlServices(); ok {
		for _, a := range tr.clusters {
			id := a.identity.ClusterID
			// An earlier one is a replay.
			if beat := tr.heartbeat(s[format.MembersService], a); beat > tr.beats[id] {
				if now.Sub(tr.beat[id]) >= deadlySilence {
					tr.resumed[id] = now
				}
				tr.beats[id], tr.beat[id] = beat, tr.observed
			}
		}
	}
	tr.observed = now
}

// heartbeat is that of a cluster's record as it is, 0 without one that the cluster has signed.
// Nothing goes wrong with its request: no cluster signs it.
func (tr *trial) heartbeat(members api.Service, a *actor) int64 {
	id := a.identity.ClusterID
	body := fmt.Sprintf(`{"ServiceId":%q,"InstanceId":%q}`, members.ID, id)
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("X-Amz-Target", "Route53AutoNaming_v20170314.GetInstance")
	answer := httptest.NewRecorder()
	tr.server.ServeHTTP(answer, r)
	var out struct {
		Instance struct{ Attributes map[string]string }
	}
	switch err := json.Unmarshal(answer.Body.Bytes(), &out); {
	case strings.HasSuffix(answer.Header().Get("X-Amzn-Errortype"), "NotFound"):
		return 0
	case answer.Code != http.StatusOK || err != nil:
		tr.t.Fatalf("reading %s's record: %s, %v", id, answer.Body, err)
	}
	if out.Instance.Attributes[format.AttrHeartbeat] == tr.shownBeats[id] {
		return 0 // as before
	}
	tr.shownBeats[id] = out.Instance.Attributes[format.AttrHeartbeat]
	record, err := format.ParseMember(api.Instance{ID: id, Attributes: out.Instance.Attributes}, "set1")
	if err != nil || record.Key != signerOf(a.identity.UID).Key() {
		return 0
	}
	return record.Heartbeat
}

// check holds what every controller knows against what there is to know.
func (tr *trial) check() {
	tr.t.Helper()
	tr.observe()
	tr.checkTwin()
	for _, a := range tr.clusters {
		a.noteClone()
	}
	for _, a := range tr.clusters {
		if a.process == nil {
			continue
		}
		for k := range allKeys {
			a.read(k)
		}
		for _, other := range tr.clusters {
			if other != a {
				a.checkViewOf(other)
			}
		}
		a.checkStale()
		a.writeImports()
	}
	tr.checkOutage()
	tr.checkMerges()
}

// reported reports whether the controller has published what its user wants of a key.
func (a *actor) reported(k int) bool {
	want, _ := a.process.state.Writes.DesiredInstances(a.trial.keys[k])
	return want != nil && want.Equal(*a.wanted(k))
}

// checkViewOf checks what a knows of other: promises 1, 2 and 5.
func (a *actor) checkViewOf(other *actor) {
	a.trial.t.Helper()
	id := other.identity.ClusterID
	last := a.seen[id]
	if last == nil {
		last = &[allKeys]sight{} // it has joined since
		a.seen[id] = last
	}
	for k := range allKeys {
		view := a.views[k]
		exp := exportOf(view.View, id)
		if !a.uses(k) {
			continue
		}
		if view.isOpen(id) {
			if last[k].at.After(a.knownSince(k)) && other.find(k, nil, last[k].index) < 0 {
				a.trial.fail("%s has seen %s's export %d and does not know of it any more", a.identity.ClusterID, id, k)
			}
			continue
		}
		if exp == nil && last[k].at.Before(a.process.began) && !a.imported(k, id) {
			continue // it may not have read the export yet: nothing that was imported ends
		}
		index := other.find(k, exp, other.floor(k, last[k].index))
		if index < 0 && exp == nil && other.wasAlone() {
			continue // withdrawn by the clone
		}
		if index < 0 && a.maySeeOlder(other, k) {
			continue
		}
		if index < 0 {
			a.trial.fail("%s sees %s's export %d as %s, after version %d of %v", a.identity.ClusterID, id, k, describe(exportOf(view.View, id)), last[k].index, len(other.memories[k])-1)
			continue
		}
		a.trial.lastSeen[a.number][k][id] = index
		a.noteSeen(other, k)
		if index != last[k].index || !last[k].at.After(a.knownSince(k)) {
			a.trial.history.Logf("%s sees %s's export %d as %s, number %d", a.identity.ClusterID, id, k, describe(exp), index)
			last[k] = sight{index, time.Now()}
		}
	}
}

// noteKilled notes that a process of the cluster was killed: it has not saved what it had read in
// the last seconds.
func (a *actor) noteKilled() {
	for _, other := range a.trial.clusters {
		a.trial.behind[a.number][other.identity.ClusterID] = true
	}
}

// maySeeOlder reports whether a may see an earlier version of an export of other than before: its
// process was killed before it had saved that it had read a later one, another user has written an
// earlier record since, and other was silent until it was stale. docs/reliability-tests.md has that
// as a limit.
func (a *actor) maySeeOlder(other *actor, k int) bool {
	tr, id := a.trial, other.identity.ClusterID
	if tr.behind[a.number][id] && a.takesForStale(id) && !tr.lastRecorded(id).After(tr.changedAt[id]) {
		tr.older[a.number][id] = &[allKeys]bool{}
		for key := range allKeys {
			tr.older[a.number][id][key] = true
		}
	}
	older := tr.older[a.number][id]
	isEarlier := other.find(k, exportOf(a.views[k].View, id), 0) >= 0
	if older == nil || !older[k] || !isEarlier {
		return false
	}
	tr.tally.Add("earlier version of a stale cluster", 1)
	tr.history.Logf("%s sees %s's export %d as %s again: %s is stale, and %s was killed", a.identity.ClusterID, id, k, describe(exportOf(a.views[k].View, id)), id, a.identity.ClusterID)
	return true
}

// noteSeen notes that a sees an export of other that is not earlier than the one before.
func (a *actor) noteSeen(other *actor, k int) {
	tr, id := a.trial, other.identity.ClusterID
	if exportOf(a.views[k].View, id) != nil && a.views[k].Clusters[id].Liveness != registry.Stale {
		delete(tr.behind[a.number], id)
	}
	if older := tr.older[a.number][id]; older != nil && !a.takesForStale(id) {
		older[k] = false
	}
}

// takesForStale reports whether a takes a cluster for stale.
func (a *actor) takesForStale(id string) bool {
	return a.hasMember(func(m registry.Member) bool { return m.ClusterID == id && m.Stale })
}

// takesForMember reports whether a cluster is a member for a.
func (a *actor) takesForMember(id string) bool {
	return a.hasMember(func(m registry.Member) bool { return m.ClusterID == id })
}

func (a *actor) hasMember(is func(registry.Member) bool) bool {
	members, err := a.process.Members(context.Background())
	return err == nil && slices.ContainsFunc(members, is)
}

// isFarewellLost reports whether another user may have deleted the farewell of a cluster.
func (tr *trial) isFarewellLost(id string) bool {
	tr.writtenMu.Lock()
	defer tr.writtenMu.Unlock()
	return tr.lostFarewells[id]
}

// lastRecorded returns the time at which a cluster has last written its record.
func (tr *trial) lastRecorded(id string) time.Time {
	tr.writtenMu.Lock()
	defer tr.writtenMu.Unlock()
	return tr.recorded[id]
}

// isOpen reports whether a view leaves open if a cluster exports the key.
func (v known) isOpen(id string) bool {
	return !v.ok || slices.Contains(v.MayExport(), id)
}

// imported reports whether the cluster's ServiceImport of k names another cluster before this step.
func (a *actor) imported(k int, id string) bool { return a.trial.imports[a.number][k][id] }

// read looks k up as the import reconciler does.
func (a *actor) read(k int) {
	named := a.trial.imports[a.number][k]
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(named)), func(id string) bool { return id == a.identity.ClusterID })
	a.views[k].View, a.views[k].ok = viewOf(a.trial.t, a.process.Registry, a.trial.keys[k], ids...)
}

// writeImports keeps which clusters the ServiceImports name after this step.
func (a *actor) writeImports() {
	for k := range allKeys {
		if !a.uses(k) {
			continue
		}
		view, named := a.views[k], a.trial.imports[a.number][k]
		for id := range named {
			if !view.isOpen(id) && id != a.identity.ClusterID {
				delete(named, id)
			}
		}
		for _, id := range view.In(registry.Exports) {
			named[id] = true
		}
	}
	a.reportImports()
}

// contest is the time for which a clone and the original may both write until the later process has
// seen the earlier one, and again the time in which the original writes its pages again after its
// first record that followed the last one of the clone. For so long the registry has signed records
// of both, and their key is the same.
const contest = time.Minute

// isContested reports whether the other clusters may see what a clone has written. A clone that
// goes on for longer than contest gets no allowance for that.
func (a *actor) isContested() bool {
	tr, id := a.trial, a.identity.ClusterID
	tr.writtenMu.Lock()
	defer tr.writtenMu.Unlock()
	if time.Since(a.clonedAt) < contest {
		return true
	}
	last := tr.cloneRecorded[id]
	if last.Before(a.contestedSince) || last.Sub(a.clonedAt) >= contest {
		return false
	}
	answered := tr.answered[id]
	return answered.Before(last) || time.Since(answered) < contest
}

// wasAlone reports whether the other clusters may see what the clone has withdrawn, because it took
// the cluster for ended.
func (a *actor) wasAlone() bool {
	return time.Since(a.aloneAt) < contest || !a.aloneAt.Before(a.contestedSince) && a.isContested()
}

// floor is the index of the earliest version of export k that others may see after the one with
// this index.
func (a *actor) floor(k, index int) int {
	if a.isContested() {
		return min(index, a.cloned[k])
	}
	return index
}

// noteClone notes whether the cluster has written no record for so long that a clone of it may take
// it for ended, and withdraw what the cluster exports.
func (a *actor) noteClone() {
	tr := a.trial
	tr.writtenMu.Lock()
	defer tr.writtenMu.Unlock()
	if a.clone != nil && time.Since(tr.recorded[a.identity.ClusterID]) >= settings.HeartbeatInterval {
		a.aloneAt = time.Now()
	}
}

func exportOf(view registry.View, clusterID string) *mcs.Export {
	return view.Clusters[clusterID].Export
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

// checkStale checks that no cluster comes to be taken for dead that is not: promise 4. One that has
// left writes no heartbeats: a cluster that could read neither its last ones nor its farewell takes
// it for dead, and so does one that could not read a record before another user replaced it.
func (a *actor) checkStale() {
	a.trial.t.Helper()
	stale := map[string]bool{}
	for k := range allKeys {
		for _, id := range a.views[k].WithLiveness(registry.Stale) {
			stale[id] = true
		}
	}
	// until it is seen that another writer is back: one read may have no answer
	late := maxLag + api.RequestTimeout
	if a.trial.udp != nil {
		late += settings.PollIntervalWithNotifications
	}
	for id := range stale {
		beat, resumed := time.Since(a.trial.beat[id]), time.Since(a.trial.resumed[id])
		isReplaced := a.trial.changedAt[id].After(a.trial.resumed[id])
		if !a.stale[id] && beat < deadlySilence && resumed > late && !a.trial.saidFarewell(id) && !isReplaced {
			a.trial.fail("%s takes %s for dead, which gave a heartbeat %v ago", a.identity.ClusterID, id, beat)
		}
	}
	a.stale = stale
}

// saidFarewell reports whether the last record that a cluster has written is a farewell.
func (tr *trial) saidFarewell(id string) bool {
	tr.writtenMu.Lock()
	defer tr.writtenMu.Unlock()
	return tr.hasLeft[id]
}

// checkTwin checks that the second cluster with an ID gets: promise 8. That no cluster sees its
// exports is in checkViewOf.
func (tr *trial) checkTwin() {
	tr.t.Helper()
	if tr.twin == nil {
		return
	}
	first, id := tr.clusters[0], tr.clusters[0].identity.ClusterID
	isDeleted := tr.deletedAt[id].After(tr.lastRecorded(id))
	if silent := time.Since(tr.beat[id]); silent > 30*time.Second || isDeleted || tr.isHidden(first) {
		// before it takes the silent one for dead, as it should; another member may have forged a
		// farewell of one that cannot write
		tr.endTwin()
		return
	}
	view, ok := viewOf(tr.t, tr.twin.Registry, tr.keys[0])
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
	if tr.before == nil {
		tr.before = map[string]string{}
	}
	for _, a := range tr.clusters {
		id := a.identity.ClusterID
		if a.process == nil || !a.process.began.Before(tr.outage) {
			delete(tr.before, id)
			continue
		}
		after, isSynced := a.knowledge()
		if before, isKnown := tr.before[id]; isKnown && after != before {
			tr.fail("Cloud Map is down, and what %s knows changes:\n%s", id, gocmp.Diff(before, after))
		}
		if isSynced { // else it may give up its last request, and know then what it has read
			tr.before[id] = after
		}
	}
}

// knowledge is all that the controller knows of the others. isSynced reports whether it has read
// everything.
func (a *actor) knowledge() (knowledge string, isSynced bool) {
	var text strings.Builder
	isSynced = true
	for k := range allKeys {
		if !a.uses(k) {
			continue
		}
		view := a.views[k]
		isSynced = isSynced && view.ok
		fmt.Fprintln(&text, k, view.ok, view.In(registry.Unknown), view.In(registry.Unseen), view.In(registry.Ignored))
		for _, exp := range view.Exports() {
			fmt.Fprintln(&text, " ", exp.Cluster, describe(&exp))
		}
	}
	return text.String(), isSynced
}

// checkMerges checks that who knows the same merges the same: promises 5 and 9. What has not
// changed was checked before.
func (tr *trial) checkMerges() {
	tr.t.Helper()
	for k := range allKeys {
		var known [][]mcs.Export
		var inputs []string
		for _, a := range tr.clusters {
			if a.process == nil || !a.uses(k) {
				continue
			}
			exports := a.views[k].Exports()
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

// checkMerge merges what each cluster knows of a service, in any order. inputs tell what is the
// same.
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

// calm ends all faults, waits until everything is as it was asked for, and counts the requests that
// still go on.
func (tr *trial) calm() {
	tr.t.Helper()
	tr.history.Logf("calm")
	tr.faults = nil
	clear(tr.down)
	tr.restore()
	tr.slow = nil
	tr.showAll()
	tr.plan(0)
	tr.endTwin()
	for _, a := range tr.machines {
		a.endClone()
		if a.process == nil {
			a.start()
		}
	}
	for _, a := range tr.clusters {
		tr.clearForgedCopy(a)
		a.finishLeaving()
	}
	// A page that another writer deleted is found every two minutes.
	if tr.settle(defaultTimes().Audit) && tr.beginUse() && tr.settle(0) {
		tr.countUnread()
		tr.countHealth()
		tr.settleIn()
		tr.checkSilence()
	}
}

// settle waits until everything is as it was asked for, and no less than atLeast. It reports
// whether it was so in time.
func (tr *trial) settle(atLeast time.Duration) bool {
	tr.t.Helper()
	patience := 3 * defaultTimes().Audit
	if tr.shows {
		// a service of the view that was refused is tried again after ten, and a share is noticed
		// within a minute
		patience = 12 * time.Minute
	}
	for began := time.Now(); ; time.Sleep(2 * time.Second) {
		for _, a := range tr.clusters {
			a.work()
			a.continueRename()
			a.finishLeaving()
		}
		tr.check()
		if tr.t.Failed() {
			return false
		}
		if time.Since(began) < atLeast || slices.ContainsFunc(tr.clusters, func(a *actor) bool { return a.becomes != nil }) {
			continue
		}
		tr.forgetRetired()
		unsettled := tr.unsettled()
		if unsettled == "" {
			return true
		}
		if slices.ContainsFunc(tr.clusters, tr.isBehindClone) {
			patience = max(patience, time.Since(began)+defaultTimes().Audit)
		}
		if time.Since(began) > patience {
			tr.fail("minutes after the last fault: %s", unsettled)
			return false
		}
	}
}

// traceKnown traces which clusters each controller knows, and their pins.
func (tr *trial) traceKnown() {
	for _, a := range tr.machines {
		if a.process == nil {
			continue
		}
		members, err := a.process.Members(context.Background())
		tr.history.Logf("%s knows %+v, %v", a.identity.ClusterID, members, err)
		for _, other := range tr.clusters {
			pin, _ := a.process.cfg.Keyring.Pin(other.identity.ClusterID)
			tr.history.Logf("%s has the pin of %s: %+v", a.identity.ClusterID, other.identity.ClusterID, pin)
		}
	}
}

// forgetRetired does as administrators do with a cluster whose last record another user has
// deleted, or prevented by a record of its own, which they remove: clusters that were down since
// then cannot know that it has left. Nor can one that was killed before it had saved the key of the
// cluster, and has not read it since. docs/reliability-tests.md has that as a limit.
func (tr *trial) forgetRetired() {
	for _, other := range tr.clusters {
		if other.isRetired && tr.isFarewellLost(other.identity.ClusterID) {
			tr.removeForeignRecord(other)
		}
	}
	for _, a := range tr.clusters {
		for _, other := range tr.clusters {
			id := other.identity.ClusterID
			if a.process == nil || !other.isRetired || !tr.isFarewellLost(id) && !a.hasLostKey(id) {
				continue
			}
			isKnown := func(v known) bool {
				return slices.Contains(v.In(registry.Unseen, registry.Unknown, registry.Exports), id)
			}
			if slices.ContainsFunc(a.views[:], isKnown) || a.takesForMember(id) {
				tr.tally.Add("forgotten", 1)
				tr.history.Logf("%s forgets %s", a.identity.ClusterID, id)
				a.process.Forget(id)
				for k := range allKeys {
					a.read(k)
				}
			}
		}
	}
}

// hasLostKey reports whether a was killed before it had saved the key of a cluster.
func (a *actor) hasLostKey(id string) bool {
	_, isPinned := a.process.cfg.Keyring.Pin(id)
	return !isPinned && a.trial.behind[a.number][id]
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
		for _, a := range tr.machines {
			view, own := a.views[k], a.wanted(k)
			switch {
			case own == nil && view.Local.State != registry.Absent, own != nil && view.Local.State != registry.Exported:
				return fmt.Sprintf("%s's own export %d is %v, %v", a.identity.ClusterID, k, view.Local.State, view.Local.Err)
			case !a.uses(k):
				continue
			case !view.ok || view.Has(registry.Unseen) || view.Has(registry.Ignored) || view.Has(registry.Unknown) && !slices.Equal(view.In(registry.Unknown), []string{garbageCluster}):
				return fmt.Sprintf("%s does not know of %v's, %v's and %v's export %d", a.identity.ClusterID, view.In(registry.Unknown), view.In(registry.Unseen), view.In(registry.Ignored), k)
			case len(view.WithLiveness(registry.Stale)) > 0:
				return fmt.Sprintf("%s takes %v for dead", a.identity.ClusterID, view.WithLiveness(registry.Stale))
			}
			have := view.Exports()
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
	for _, a := range tr.machines {
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
	for _, a := range tr.machines {
		tr.left[a.identity.ClusterID] = a.process.view.IsCleanupDenied()
	}
	for k := range allKeys {
		want, have := tr.instances(k), map[string]map[string]string(nil)
		if s, ok := services[tr.keys[k].Name]; ok {
			listed, err := tr.admin.ListInstances(context.Background(), s)
			if err != nil {
				return err.Error()
			}
			have = map[string]map[string]string{}
			for _, instance := range listed {
				delete(instance.Attributes, api.AttrInitialHealth) // what counts is the health now
				have[instance.ID] = instance.Attributes
			}
			if unhealthy := tr.unhealthy(k); unhealthy != "" {
				return unhealthy
			}
		}
		maps.DeleteFunc(have, func(_ string, attrs map[string]string) bool { return tr.left[attrs[format.AttrClusterID]] })
		if diff := gocmp.Diff(want, have, cmpopts.EquateEmpty()); diff != "" || want != nil && have == nil {
			return fmt.Sprintf("the instances of service %d are not those of its endpoints (-want +have):\n%s", k, diff)
		}
	}
	for _, a := range tr.machines {
		if n := a.process.view.Pending() + a.process.view.Unconfirmed(); n > 0 {
			return fmt.Sprintf("%s has still %d services to write or to read once more", a.identity.ClusterID, n)
		}
	}
	return ""
}

// unhealthy is an instance of service k that another cluster has made unhealthy, "" if there is
// none: all clusters are alive, and all endpoints ready.
func (tr *trial) unhealthy(k int) string {
	if !tr.marks {
		return ""
	}
	found, _, err := tr.admin.DiscoverInstances(context.Background(), tr.keys[k].Namespace, tr.keys[k].Name, nil)
	if err != nil {
		return err.Error()
	}
	for _, instance := range found {
		if id := instance.Attributes[format.AttrClusterID]; instance.Health != api.HealthHealthy && !tr.left[id] {
			return fmt.Sprintf("instance %s of %s's export %d is %s", instance.ID, id, k, instance.Health)
		}
	}
	return ""
}

// countHealth counts the writes of health since the last call.
func (tr *trial) countHealth() {
	before := tr.healthWrites
	tr.healthWrites = tr.count()["UpdateInstanceCustomHealthStatus"]
	tr.tally.Add("health of an instance set", tr.healthWrites-before)
}

// instances are those that service k is to have in the instance view, nil if no cluster exports it.
func (tr *trial) instances(k int) (want map[string]map[string]string) {
	want = maps.Clone(tr.foreign[tr.keys[k].Name])
	for _, a := range tr.clusters {
		exp := a.wanted(k)
		if exp == nil || !a.shows {
			continue
		}
		if want == nil {
			want = map[string]map[string]string{} // an export without endpoints has a service
		}
		for _, instance := range instances.FromExport(*exp, "set1", "test") {
			if _, taken := tr.foreign[tr.keys[k].Name][instance.ID]; !taken {
				if tr.marks {
					instance.Attributes[instances.AttrNames] = api.AttrInitialHealth
				}
				want[instance.ID] = instance.Attributes
			}
		}
	}
	return want
}

// shownServices are those of the instance view. No two have the same name.
func (tr *trial) shownServices() (map[string]api.Service, error) {
	shown, err := tr.admin.ListNamespaces(context.Background())
	if err != nil {
		return nil, err
	}
	services := map[string]api.Service{}
	for n := range namespaces {
		if in, ok := shown[namespaceName(n)]; ok {
			listed, err := tr.admin.ListServices(context.Background(), in)
			if err != nil {
				return nil, err
			}
			maps.Copy(services, listed)
			time.Sleep(listPause)
		}
	}
	return services, nil
}

// listPause is the pause between two lists of services. AWS allows two in a second for all clients
// of an account, and the clusters need some.
const listPause = time.Second

// shownIn are the services of the instance view in a namespace.
func (tr *trial) shownIn(n int) (map[string]api.Service, error) {
	shown, err := tr.admin.ListNamespaces(context.Background())
	if err != nil {
		return nil, err
	}
	in, ok := shown[namespaceName(n)]
	if !ok {
		return nil, nil
	}
	return tr.admin.ListServices(context.Background(), in)
}

// excess is something in the cluster's catalog that does not belong there, "" if nothing is.
func (a *actor) excess() string {
	place, _ := a.process.control.lastKnown()
	wanted := a.process.state.Writes.PartIDs()
	wanted[format.CopyID] = true
	for _, excess := range a.process.state.Writes.Excess() {
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
	return a.altered(listed)
}

// altered is a page among the instances of the cluster's catalog that is not the one of its record,
// "" if none is. Another user has written it, and the cluster writes its own again after its next
// audit.
func (a *actor) altered(listed []api.Instance) string {
	services, _ := a.trial.controlServices()
	record, ok := a.trial.shownRecord(services[format.MembersService], a.identity.ClusterID)
	if !ok {
		return a.identity.ClusterID + " has no record"
	}
	byPage := format.GroupByPage(listed)
	for i, digest := range record.Pages {
		if img, err := format.JoinPage(i, byPage[i], record.Author()); digest != "" && (err != nil || img.Digest != digest) {
			return fmt.Sprintf("%s's page %s is not the one of its record: %v", a.identity.ClusterID, format.PageName(i), err)
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
	if tr.marks {
		audits *= 2 // the view reads its own instances, and those of all clusters
	}
	time.Sleep(span)
	after := tr.count()
	const clusters = machines
	allowed := map[string]int{
		// And one look at the own pages, those at the instances, and now and then one for the page
		// that garbage announces.
		"DiscoverInstances":        clusters * (int(span/settings.PollInterval+3+span/defaultTimes().MaxRetry) + audits),
		"RegisterInstance members": clusters * int(span/settings.HeartbeatInterval+1),
		// The instance view lists the namespaces once within five minutes of its start, and again
		// after a failure.
		"ListNamespaces": clusters,
		// A controller that started within the last minutes lists the services, and reads the tags
		// of each catalog once. TestSealIsShown has the numbers of the hours after that.
		"ListServices":        clusters,
		"ListTagsForResource": clusters * len(tr.clusters),
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
