package cloudmap

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

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
