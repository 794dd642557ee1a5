// Package guard applies the import policy to the registry's views. It reads the file of
// --import-policy whenever it changes, and the addresses of this cluster, which endpoints of other
// clusters must not have.
package guard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

const (
	// pollInterval is the interval at which the file is read. The kubelet takes up to two minutes
	// to update a mounted ConfigMap.
	pollInterval = time.Second
	// localInterval is the shortest interval between two changes of the addresses of this cluster:
	// each compares the endpoints of all exports with them, and nodes may come and go all the time.
	localInterval = time.Minute
)

// Guard applies the import policy.
type Guard struct {
	// path is the file of --import-policy, "" for none.
	path   string
	source LocalSource
	// requeueAll requeues all exports and imports.
	requeueAll func(context.Context) error
	// requeueAddresses requeues the imports that have one of addresses.
	requeueAddresses func(ctx context.Context, addresses map[netip.Addr]struct{}) error
	importer         func() (mcs.Properties, bool)
	log              logr.Logger
	now              func() time.Time

	current atomic.Pointer[policy.Policy]
	local   atomic.Pointer[policy.Local]
	// ready is true once the policy and the addresses were read.
	ready atomic.Bool
	// requeue is set after a change until everything has been requeued. addresses are the addresses
	// that have changed, until the imports that have them have been requeued. Only refresh uses the
	// two.
	requeue   bool
	addresses map[netip.Addr]struct{}

	mu sync.Mutex
	// content is the file as last read, problem the reason why it is not in use, and loaded the
	// time at which the policy in use was read.
	content []byte
	problem string
	loaded  time.Time
	// localRead is the time at which the addresses of this cluster changed last.
	localRead time.Time
	refusals  map[mcs.Key][]policy.Refusal
}

// LocalSource reads the addresses of this cluster.
type LocalSource interface {
	// ReadLocal returns the addresses, or nil if they did not change since the last call.
	ReadLocal(ctx context.Context) (*policy.Local, error)
}

// Config configures New.
type Config struct {
	// Path is the file of --import-policy, "" for none.
	Path string
	// Source may be nil: then this cluster has no addresses.
	Source LocalSource
	// RequeueAll requeues all exports and imports.
	RequeueAll func(context.Context) error
	// RequeueAddresses requeues the imports that have one of addresses.
	RequeueAddresses func(ctx context.Context, addresses map[netip.Addr]struct{}) error
	// Importer returns the ClusterProperties of this cluster, including those with its IDs; known
	// is false until they were read. It may be nil: then they stay unknown.
	Importer func() (properties mcs.Properties, known bool)
	Log      logr.Logger
}

// New returns a Guard. Start reads the policy.
func New(cfg Config) *Guard {
	return &Guard{
		path: cfg.Path, source: cfg.Source, requeueAll: cfg.RequeueAll, requeueAddresses: cfg.RequeueAddresses, importer: cfg.Importer, log: cfg.Log, now: time.Now,
		addresses: map[netip.Addr]struct{}{}, refusals: map[mcs.Key][]policy.Refusal{},
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: a standby knows the policy when it
// becomes the leader.
func (g *Guard) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (g *Guard) Start(ctx context.Context) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		g.refresh(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// refresh reads the policy and the addresses, and requeues the exports and imports that a change
// may affect.
func (g *Guard) refresh(ctx context.Context) {
	g.requeue = g.readPolicy() || g.requeue
	if err := g.readLocal(ctx); err != nil {
		if ctx.Err() == nil {
			g.log.Error(err, "Failed to read the addresses of this cluster, retrying")
		}
		return
	}
	if !g.ready.Load() && (g.path == "" || g.current.Load() != nil) {
		g.ready.Store(true)
		g.requeue = true
	}
	if !g.ready.Load() {
		return
	}
	if err := g.requeueChanged(ctx); err != nil {
		g.log.Error(err, "Failed to requeue imports after a change of the import policy or of this cluster's addresses, retrying")
	}
}

// requeueChanged requeues everything, or the imports that have a changed address.
func (g *Guard) requeueChanged(ctx context.Context) error {
	switch {
	case g.requeue:
		if err := g.requeueAll(ctx); err != nil {
			return err
		}
	case len(g.addresses) > 0:
		if err := g.requeueAddresses(ctx, g.addresses); err != nil {
			return err
		}
	}
	g.requeue, g.addresses = false, map[netip.Addr]struct{}{}
	return nil
}

// readPolicy reads the file, and reports whether another policy is in use now. A file that is
// missing or not valid changes nothing.
func (g *Guard) readPolicy() bool {
	if g.path == "" {
		return false
	}
	content, err := readFile(g.path)
	if err != nil {
		var pathError *fs.PathError
		if errors.As(err, &pathError) {
			err = pathError.Err
		}
		g.refuse(nil, fmt.Errorf("reading %s: %w", g.path, err))
		return false
	}
	g.mu.Lock()
	same := g.content != nil && bytes.Equal(content, g.content)
	g.mu.Unlock()
	if same {
		return false
	}
	p, err := policy.Parse(content)
	if err != nil {
		g.refuse(content, err)
		return false
	}
	g.mu.Lock()
	g.content, g.problem, g.loaded = content, "", g.now()
	g.mu.Unlock()
	g.current.Store(p)
	g.log.Info("Loaded the import policy", "file", g.path)
	return true
}

// readFile returns the content of the file at path, up to one byte more than a policy may have.
// Only a regular file is opened: reading another one may block or not end. path may be a link, as
// in a mounted ConfigMap.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, policy.MaxBytes+1))
}

// refuse records why the file is not in use. content is nil if it could not be read.
func (g *Guard) refuse(content []byte, err error) {
	text := err.Error()
	g.mu.Lock()
	repeated := text == g.problem
	g.content, g.problem = content, text
	g.mu.Unlock()
	if repeated {
		return
	}
	if g.current.Load() == nil {
		g.log.Error(err, "Failed to load the import policy: imports stay as they are until it is valid", "file", g.path)
		return
	}
	g.log.Error(err, "Failed to load the import policy: the previous one stays in use", "file", g.path)
}

// readLocal reads the addresses of this cluster, and records the changes. Every import and export
// depends on the Service networks, which hardly ever change.
func (g *Guard) readLocal(ctx context.Context) error {
	before := g.local.Load()
	if g.source == nil || before != nil && g.now().Sub(g.localRead) < localInterval {
		return nil
	}
	local, err := g.source.ReadLocal(ctx)
	if err != nil || local == nil {
		return err
	}
	if before == nil {
		before = &policy.Local{}
	}
	changed := before.ChangedAddresses(local)
	if g.local.Load() != nil && len(changed) == 0 && before.IsSameNetworks(local) {
		return nil
	}
	g.localRead = g.now()
	g.local.Store(local)
	g.requeue = g.requeue || !before.IsSameNetworks(local)
	maps.Copy(g.addresses, changed)
	return nil
}

// IsReady reports whether the policy has been read. Until then imports stay as they are.
func (g *Guard) IsReady() bool { return g == nil || g.ready.Load() }

// AllowsSystemNamespace reports whether the policy lists a system namespace to be imported into.
func (g *Guard) AllowsSystemNamespace(namespace string) bool {
	return g.current.Load().AllowsSystemNamespace(namespace)
}

// ServiceNetworks returns the networks of the cluster IPs of Services, none where the API server
// does not serve them. The nil *Guard has none.
func (g *Guard) ServiceNetworks() []netip.Prefix {
	if g == nil {
		return nil
	}
	if local := g.local.Load(); local != nil {
		return local.ServiceNetworks
	}
	return nil
}

// CheckOwnAddress returns an error if an endpoint of this cluster cannot have address a.
func (g *Guard) CheckOwnAddress(a netip.Addr) error { return g.local.Load().CheckService(a) }

// CheckAddress returns an error if this cluster must not connect to address a for another cluster,
// because it would not import an endpoint with it. Until the guard is ready, it allows no address.
// The nil *Guard allows every address that can belong to a pod.
func (g *Guard) CheckAddress(cluster string, a netip.Addr) error {
	switch {
	case g == nil:
		return mcs.CheckPodAddress(a)
	case !g.IsReady():
		return errors.New("the import policy has not been read")
	}
	return g.current.Load().CheckAddress(cluster, a, g.local.Load())
}

// Filter returns the part of view, the registry's view of key, that this cluster imports, and the
// refusals. To this cluster, an export that is refused or for other clusters does not exist. Filter
// does not change view. The nil *Guard refuses nothing.
func (g *Guard) Filter(key mcs.Key, view registry.View) (registry.View, []policy.Refusal) {
	if g == nil {
		return view, nil
	}
	view = g.filterRecipients(view)
	p, local := g.current.Load(), g.local.Load()
	maps.DeleteFunc(view.Clusters, func(cluster string, c registry.ClusterView) bool {
		return c.State != registry.Exports && p.AllowsNamespace(cluster, key.Namespace) != nil
	})
	var refusals []policy.Refusal
	for _, cluster := range view.In(registry.Exports) {
		c := view.Clusters[cluster]
		allowed, refused, ok := p.Apply(*c.Export, c.Properties, local)
		switch {
		case !ok:
			delete(view.Clusters, cluster)
		case len(refused) > 0:
			c.Export = new(allowed)
			view.Clusters[cluster] = c
		}
		refusals = append(refusals, refused...)
	}
	return view, refusals
}

// filterRecipients returns a copy of view without the exports that are for other clusters. Until
// the ClusterProperties of this cluster are known, exports for some clusters are unknown.
func (g *Guard) filterRecipients(view registry.View) registry.View {
	view.Clusters = maps.Clone(view.Clusters)
	for cluster, c := range view.Clusters {
		if c.State != registry.Exports || c.Export.Recipients == "" {
			continue
		}
		var importer mcs.Properties
		known := false
		if g.importer != nil {
			importer, known = g.importer()
		}
		switch {
		case !known:
			c.State, c.Export = registry.Unknown, nil
			view.Clusters[cluster] = c
		case !c.Export.IsFor(importer):
			delete(view.Clusters, cluster)
		}
	}
	return view
}

// NotFor returns the clusters, sorted, whose exports in view are for other clusters than this one.
// The nil *Guard has none.
func (g *Guard) NotFor(view registry.View) (clusters []string) {
	if g == nil {
		return nil
	}
	filtered := g.filterRecipients(view)
	return slices.DeleteFunc(view.In(registry.Exports), func(cluster string) bool { return filtered.Clusters[cluster].State != registry.None })
}

// Record records the refusals of key for metrics and status, and logs each new reason.
func (g *Guard) Record(key mcs.Key, refusals []policy.Refusal) {
	if g == nil {
		return
	}
	g.mu.Lock()
	before := g.refusals[key]
	changed := !slices.Equal(before, refusals)
	if len(refusals) == 0 {
		delete(g.refusals, key)
	} else {
		g.refusals[key] = refusals
	}
	g.mu.Unlock()
	if !changed {
		return
	}
	for _, r := range refusals {
		if !slices.ContainsFunc(before, func(b policy.Refusal) bool { return b.Cluster == r.Cluster && b.Reason == r.Reason }) {
			g.log.Info("Refused an export", "service", key.String(), "cluster", r.Cluster, "reason", r.Reason, "message", r.Message)
		}
	}
}

// State is the state of a Guard, for the status endpoint.
type State struct {
	// File is the file of --import-policy, "" for none. Problem is the reason why its content is
	// not in use. Loaded is the time at which the policy in use was read, zero if there is none.
	File    string
	Problem string
	Loaded  time.Time
	// Refusals are by key.
	Refusals map[mcs.Key][]policy.Refusal
}

// State returns the state. The nil *Guard has none.
func (g *Guard) State() State {
	if g == nil {
		return State{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s := State{File: g.path, Problem: g.problem, Loaded: g.loaded, Refusals: make(map[mcs.Key][]policy.Refusal, len(g.refusals))}
	for key, r := range g.refusals {
		s.Refusals[key] = r
	}
	return s
}
