package cloudmap

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// unshown is what of a service the instance view cannot show.
type unshown struct {
	// beyond is how many endpoints there are more than a service may have instances.
	beyond int
	// collisions are instances that belong to others.
	collisions []plan.Collision
	// refused are instances that AWS Cloud Map does not take, with its reason.
	refused []string
	// failed is why nothing could be written, and count how many endpoints there are.
	failed string
	count  int
	// told is what warnings said when somebody was last notified.
	told string
}

// maxNamed is how many instances a warning names.
const maxNamed = 3

// warnings are the lines of u, for users.
func (u unshown) warnings() []string {
	var lines []string
	if u.failed != "" {
		lines = append(lines, fmt.Sprintf("the endpoints are not shown as Cloud Map instances: %s", u.failed))
	}
	if u.beyond > 0 {
		lines = append(lines, fmt.Sprintf("%d endpoints are not shown as Cloud Map instances: a service has at most %d (the other clusters import all of them)", u.beyond, maxInstances))
	}
	if n := len(u.collisions); n > 0 {
		var names []string
		for _, c := range u.collisions[:min(n, maxNamed)] {
			owner := "no cluster of the clusterset"
			if c.ClusterID != "" {
				owner = "cluster " + c.ClusterID
			}
			names = append(names, fmt.Sprintf("%s of %s", c.ID, owner))
		}
		lines = append(lines, fmt.Sprintf("%d endpoints are not shown as Cloud Map instances because others use their IDs (%s): do the pod networks overlap?", n, list(names, n)))
	}
	if n := len(u.refused); n > 0 {
		lines = append(lines, fmt.Sprintf("%d endpoints are not shown because AWS Cloud Map refuses their instances: %s", n, list(u.refused[:min(n, maxNamed)], n)))
	}
	return lines
}

// list names some of n.
func list(names []string, n int) string {
	text := strings.Join(names, ", ")
	if n > len(names) {
		text += ", …"
	}
	return text
}

// note notes what of a service is not shown. The caller holds v.mu.
func (v *instanceView) note(key mcs.Key, u unshown) {
	u.told = v.unshown[key].told
	v.unshown[key] = u
}

// failed notes that a service could not be written.
func (v *instanceView) failed(key mcs.Key, err error) {
	exp, _ := v.desired(key)
	v.mu.Lock()
	defer v.mu.Unlock()
	u := unshown{}
	// What waiting mends, as being throttled, is not for users to act upon.
	if exp != nil && (api.IsInvalid(err) || api.IsDenied(err)) {
		u = unshown{failed: err.Error(), count: exp.EndpointCount()}
	}
	v.note(key, u)
}

// changed says whether the warnings of a service are others than those that were last told, and logs them then.
func (v *instanceView) changed(key mcs.Key) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	u := v.unshown[key]
	text := strings.Join(u.warnings(), "; ")
	if text == "" {
		delete(v.unshown, key)
		return u.told != ""
	}
	if text == u.told {
		return false
	}
	if u.failed == "" { // a failure is logged where it is noted when to try again
		v.log.Info("Not all endpoints are shown as Cloud Map instances", "service", key.String(), "reason", text)
	}
	u.told = text
	v.unshown[key] = u
	return true
}

// warnings are what the user has to know of a service.
func (v *instanceView) warnings(key mcs.Key) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.unshown[key].warnings()
}

// count tells the metrics how many endpoints are not shown, and how many services wait to be written. The caller holds v.mu.
func (v *instanceView) count() {
	v.metrics.SetPending(v.client.Name(), "services", len(v.queue))
	counts := map[string]int{"collision": 0, "limit": 0, "refused": 0, "failed": 0}
	for _, u := range v.unshown {
		counts["collision"] += len(u.collisions)
		counts["limit"] += u.beyond
		counts["refused"] += len(u.refused)
		counts["failed"] += u.count
	}
	for reason, count := range counts {
		v.metrics.SetOmittedInstances(v.client.Name(), reason, count)
	}
}

// auditIfDue looks at the service that was not looked at for the longest time, whether somebody has removed or changed instances of
// ours. One service at a time: a thousand of them take most of a day, and cost a request a minute.
func (v *instanceView) auditIfDue(ctx context.Context) {
	key, due := v.nextAudit(time.Now())
	if !due {
		return
	}
	present, ok, err := v.discoverOwn(ctx, key)
	if err != nil {
		return // the next audit tries again
	}
	listed := ok
	switch {
	case ok:
	case v.isShown(key):
		v.places.forget()
	default:
		if _, listed, err = v.places.find(ctx, key); err != nil {
			return
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	shown, still := v.shown[key]
	if !still || v.queue[key] != nil {
		v.auditDoubtful(key, listed, ok, present)
		return
	}
	want, _ := v.instances(shown.exp)
	changes := plan.Instances(want, present, v.own)
	if ok && len(changes.Register) <= len(want)-shown.instances && len(changes.Deregister) == 0 {
		shown.seen = time.Now()
		v.shown[key] = shown
		return
	}
	v.log.Info("Somebody changed the instances of this cluster: writing them again", "service", key.String())
	delete(v.shown, key)
	v.enqueue(key)
}

// auditDoubtful takes in a look at a service that is not shown. One that is not found is looked at again, as long as it is listed and once
// more in any case: an answer may be late, or wrong.
// The caller holds v.mu.
func (v *instanceView) auditDoubtful(key mcs.Key, listed, found bool, present []api.Instance) {
	before, doubtful := v.doubtful[key]
	if !doubtful || v.queue[key] != nil {
		return // it is being looked at anyway
	}
	if !found && (listed || !before.missed) {
		v.doubtful[key] = doubt{seen: time.Now(), missed: true}
		return
	}
	delete(v.doubtful, key)
	if slices.ContainsFunc(present, func(i api.Instance) bool { return v.own(i.Attributes) }) {
		v.enqueue(key)
	}
}

// isShown says whether a service is shown by this process.
func (v *instanceView) isShown(key mcs.Key) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.shown[key]
	return ok
}

// discoverOwn reads our instances of a service, by names: it costs one read and no list. ok is false when the service is not there.
func (v *instanceView) discoverOwn(ctx context.Context, key mcs.Key) (own []api.Instance, ok bool, err error) {
	own, _, err = v.client.DiscoverInstances(ctx, v.places.httpNameOf(key.Namespace), key.Name, map[string]string{attrClusterID: v.identity.ClusterID})
	if api.IsNotFound(err) {
		return nil, false, nil
	}
	return own, err == nil, err
}

// nextAudit is the service that is to be looked at, if it is time.
func (v *instanceView) nextAudit(now time.Time) (key mcs.Key, due bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.enabled || now.Before(v.auditAt) {
		return key, false
	}
	v.auditAt = now.Add(v.audit)
	oldest := now
	consider := func(candidate mcs.Key, seen time.Time) {
		// What was just written may not show yet.
		if v.queue[candidate] == nil && now.Sub(seen) >= v.audit && (!due || seen.Before(oldest)) {
			key, oldest, due = candidate, seen, true
		}
	}
	for candidate, s := range v.shown {
		delete(v.doubtful, candidate) // it is looked at as long as it is shown
		consider(candidate, s.seen)
	}
	for candidate, d := range v.doubtful {
		consider(candidate, d.seen)
	}
	return key, due
}
