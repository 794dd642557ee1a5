package mapped

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped/servicesfile"
)

// maxReads bounds the services that are read at once.
const maxReads = 8

// Config configures a Registry.
type Config struct {
	// Identity is that of this cluster.
	Identity mcs.Identity
	// Cluster is the ID of the pseudo-cluster.
	Cluster string
	// Path is the file of --cloud-map-services.
	Path string
	// StaleAfter is the time after which a service that cannot be read is stale; 0 is never.
	StaleAfter time.Duration
	// Ledger has the budgets of the other clusters, of which the pseudo-cluster is one; nil has no
	// limits.
	Ledger *budget.Ledger
	Logger logr.Logger
	// Metrics may be nil.
	Metrics *registry.Metrics

	// intervals are changed only by tests.
	intervals intervals
}

// Rates returns the client-side rate limits of a client for this registry: a quarter of those of
// the main registry, beside which it runs with low priority.
func Rates() map[string]api.Rate {
	rates := map[string]api.Rate{}
	for _, operation := range []string{"DiscoverInstances", "DiscoverInstancesRevision", "ListNamespaces", "ListServices"} {
		full := api.DefaultRates()[operation]
		rates[operation] = api.Rate{PerSecond: full.PerSecond / 4, Burst: max(1, full.Burst/4)}
	}
	return rates
}

// Registry reads the mapped services. It writes nothing. An export ends when its mapping is
// removed, and by nothing that Cloud Map says or does not say: a service without instances is an
// export without endpoints, and one that is not found is stale.
type Registry struct {
	cfg    Config
	client *api.Client
	log    logr.Logger

	// Only the goroutine that reads Cloud Map uses these. namespaces are those of the account by
	// name and by ID, countPace is the time of the next list of services, and countTurn the number
	// of lists. lastTurn is the time of the last read in turn.
	namespaces   map[string]api.Namespace
	namespacesAt time.Time
	countPace    pace
	countTurn    int
	// listsWithoutCounts is the number of lists in a row in which AWS gave no number of instances.
	// revisionPace is the time of the next read of revisions, which replaces the lists then.
	listsWithoutCounts int
	revisionPace       pace
	lastTurn           time.Time

	mu sync.Mutex
	// content is the file as last read, fileProblem the reason why it is not in use, isLoaded is
	// true once a file was.
	content     []byte
	fileProblem error
	isLoaded    bool
	services    map[mcs.Key]*service
	stale       map[mcs.Key]bool
	clock       clock
	lastAnswer  time.Time
	account     *budget.Account
	// pending are the keys of lookups before the file was read.
	pending engine.Keys
	problem *engine.Problem
	// ambiguous has a line for each name that several namespaces have.
	ambiguous map[string]string
}

var (
	_ registry.Registry = (*Registry)(nil)
	_ registry.Reporter = (*Registry)(nil)
)

// New creates a registry. It makes no request.
func New(client *api.Client, cfg Config) *Registry {
	if cfg.intervals == (intervals{}) {
		cfg.intervals = defaultIntervals()
	}
	return &Registry{
		cfg: cfg, client: client.InOwnAccount().WithPriority(api.PriorityLow), log: cfg.Logger,
		services: map[mcs.Key]*service{}, stale: map[mcs.Key]bool{}, pending: engine.Keys{}, clock: clock{after: cfg.StaleAfter}, lastAnswer: time.Now(),
		account: cfg.Ledger.Open(budget.Owner{ClusterID: cfg.Cluster, Since: time.Now()}),
		problem: engine.NewProblem(cfg.Logger, "Failed to read mapped services of AWS Cloud Map: their last endpoints stay",
			"Reading the mapped services of AWS Cloud Map works again", api.IsThrottled),
	}
}

// Publish implements registry.Registry.
func (r *Registry) Publish(context.Context, mcs.Export) error { return registry.ErrReadOnly }

// Withdraw implements registry.Registry.
func (r *Registry) Withdraw(context.Context, mcs.Key) error { return registry.ErrReadOnly }

// SetProperties implements registry.Registry. They are not read here.
func (r *Registry) SetProperties(mcs.Properties) {}

// SetImports implements registry.Registry. They are not read here.
func (r *Registry) SetImports(mcs.ImportReport) {}

// Forget implements registry.Registry. It does nothing: an export ends with its mapping.
func (r *Registry) Forget(string) {}

// Lookup implements registry.Registry. It never returns ErrNotSynced, because imports without a
// mapped service must not wait for this registry: until the file is read, the pseudo-cluster is
// unseen in the imports that have it.
func (r *Registry) Lookup(_ context.Context, key mcs.Key, imported ...string) (registry.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var view registry.View
	if !r.isLoaded && slices.Contains(imported, r.cfg.Cluster) {
		r.pending.Add(key)
	}
	if s := r.services[key]; s != nil {
		view.Mapped = s.describe(r.cfg.Cluster, r.account)
		view.Set(r.cfg.Cluster, s.view(r.stale[key]))
	}
	view.SetUnseen(imported, func(id string) bool { return id == r.cfg.Cluster && r.isLoaded })
	return view, nil
}

// Members implements registry.Registry: the pseudo-cluster, also without a service, so that no
// member can use its ID. It is stale when all services are.
func (r *Registry) Members(context.Context) ([]registry.Member, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := registry.Member{ClusterID: r.cfg.Cluster, Version: MemberVersion, Mapped: true, LastSeen: r.lastAnswer, Stale: len(r.stale) > 0 && len(r.stale) == len(r.services)}
	if r.fileProblem != nil {
		m.Problems = append(m.Problems, r.fileProblem.Error())
	}
	if line := r.uncounted(); line != "" {
		m.Problems = append(m.Problems, line)
	}
	m.Problems = append(m.Problems, r.ambiguousNames()...)
	for _, key := range r.keys() {
		m.Problems = append(m.Problems, r.services[key].problems(r.account)...)
	}
	m.Problems = first(m.Problems)
	return []registry.Member{m}, nil
}

// ambiguousNames returns a line for each mapped name that several namespaces have. The caller holds
// r.mu.
func (r *Registry) ambiguousNames() (lines []string) {
	names := map[string]bool{}
	for _, s := range r.services {
		names[s.mapping.Namespace] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if line := r.ambiguous[name]; line != "" {
			lines = append(lines, line+"; write the ID as cloudMap.namespace to choose")
		}
	}
	return lines
}

// uncounted returns the line about the services that AWS does not count, "" without any. The caller
// holds r.mu.
func (r *Registry) uncounted() string {
	n, first := 0, ""
	for _, key := range r.keys() {
		if s := r.services[key]; s.isUncounted {
			if n++; first == "" {
				first = s.mapping.String()
			}
		}
	}
	if n == 0 {
		return ""
	}
	if n > 1 {
		first += fmt.Sprintf(" and %d more", n-1)
	}
	return fmt.Sprintf("AWS gives no number of instances of %s: changes are found within %v, as those of health are", first, r.cfg.intervals.readInTurn(len(r.services)))
}

// keys returns the keys of all services, sorted. The caller holds r.mu.
func (r *Registry) keys() []mcs.Key {
	return slices.SortedFunc(maps.Keys(r.services), func(a, b mcs.Key) int { return strings.Compare(a.String(), b.String()) })
}

// Report implements registry.Reporter. Reading fails if the file is not in use, or if no service
// can be read.
func (r *Registry) Report() registry.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := registry.Report{Reading: r.fileProblem}
	failing := 0
	for key, s := range r.services {
		if s.export != nil {
			report.Keys = append(report.Keys, key)
		}
		if s.err != nil {
			failing++
		}
	}
	if report.Reading == nil && failing > 0 && failing == len(r.services) {
		report.Reading = r.problem.Err()
	}
	return report
}

// Run implements registry.Registry. Leaving has no effect: this cluster has nothing in this
// registry.
func (r *Registry) Run(ctx context.Context, notify func(mcs.Key)) error {
	if errors.Is(context.Cause(ctx), registry.ErrLeave) {
		return nil
	}
	r.readFile(notify)
	var running sync.WaitGroup
	defer running.Wait()
	// The removal of a mapping does not wait for requests.
	running.Go(func() { every(ctx, r.cfg.intervals.reload, func() { r.readFile(notify) }) })
	r.readServices(ctx, notify)
	every(ctx, r.cfg.intervals.tick, func() { r.readServices(ctx, notify) })
	return nil
}

// every calls do at an interval until ctx ends.
func every(ctx context.Context, interval time.Duration, do func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}

// readFile reads the file, and notifies of the keys that it changes. A file that is missing or not
// valid changes nothing.
func (r *Registry) readFile(notify func(mcs.Key)) {
	content, err := readRegular(r.cfg.Path)
	if r.cfg.Cluster == r.cfg.Identity.ClusterID {
		err = fmt.Errorf("--cloud-map-services-cluster=%s is the ID of this cluster: set another one", r.cfg.Cluster)
	}
	r.mu.Lock()
	if err == nil && r.isLoaded && r.fileProblem == nil && bytes.Equal(content, r.content) {
		r.mu.Unlock()
		return
	}
	var mappings []servicesfile.Mapping
	if err == nil {
		mappings, err = servicesfile.Parse(content)
	}
	if err != nil {
		r.setFileProblem(fmt.Errorf("--cloud-map-services=%s is not in use: %w", r.cfg.Path, err))
		r.mu.Unlock()
		return
	}
	r.fileProblem, r.content = nil, content
	changed := r.setMappings(mappings)
	r.isLoaded = true
	maps.Copy(changed, r.pending)
	r.pending = engine.Keys{}
	r.setMetrics()
	r.mu.Unlock()
	r.log.Info("Loaded the mapped services", "file", r.cfg.Path, "services", len(mappings))
	for key := range changed {
		notify(key)
	}
}

// setFileProblem records why the file is not in use, and logs it once. The caller holds r.mu.
func (r *Registry) setFileProblem(err error) {
	if r.fileProblem == nil || r.fileProblem.Error() != err.Error() {
		r.log.Error(err, "Failed to load the mapped services: the previous ones stay")
	}
	r.fileProblem = err
}

// setMappings replaces the mappings and returns the keys with a change. The caller holds r.mu.
func (r *Registry) setMappings(mappings []servicesfile.Mapping) engine.Keys {
	changed, next := engine.Keys{}, map[mcs.Key]*service{}
	for _, m := range mappings {
		s := r.services[m.Key]
		if s == nil || !s.mapping.Equal(m) {
			s = s.replacedBy(m)
			changed.Add(m.Key)
		}
		next[m.Key] = s
	}
	for key := range r.services {
		if next[key] == nil {
			changed.Add(key)
			r.account.Release(key)
			delete(r.stale, key)
		}
	}
	r.services = next
	return changed
}

// readRegular returns the content of the file at path, up to one byte more than it may have. path
// may be a link, as in a mounted ConfigMap. Reading anything but a regular file may block or not
// end.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return nil, errors.New("it is not a file")
	}
	var f *os.File
	if err == nil {
		f, err = os.Open(path) //nolint:gosec // the administrator names the file
	}
	if err != nil {
		var pathError *fs.PathError
		if errors.As(err, &pathError) {
			err = pathError.Err
		}
		return nil, fmt.Errorf("reading it: %w", err)
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, servicesfile.MaxBytes+1))
}

// answers collects whether requests were answered.
type answers struct {
	mu               sync.Mutex
	answered, failed bool
}

func (a *answers) add(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answered, a.failed = a.answered || isAnswer(err), a.failed || !isAnswer(err)
}

// readServices makes the requests that are due.
func (r *Registry) readServices(ctx context.Context, notify func(mcs.Key)) {
	r.mu.Lock()
	services := make([]*service, 0, len(r.services))
	for _, key := range r.keys() {
		services = append(services, r.services[key])
	}
	names := namespacesOf(services)
	r.mu.Unlock()
	var a answers
	r.listNamespaces(ctx, &a, names)
	r.countInstances(ctx, &a, names, len(services))
	r.readRevisions(ctx, &a, services)
	changed := r.readDue(ctx, &a, services)
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	now := time.Now()
	r.clock.observe(now, a.answered, a.failed)
	if a.answered {
		r.lastAnswer = now
	}
	maps.Copy(changed, r.updateStale())
	r.problem.Set(r.readingProblem())
	r.setMetrics()
	r.mu.Unlock()
	for key := range changed {
		notify(key)
	}
}

// listNamespaces lists the namespaces of the account if that is due.
func (r *Registry) listNamespaces(ctx context.Context, a *answers, names []string) {
	now := time.Now()
	if len(names) == 0 || now.Before(r.namespacesAt) {
		return
	}
	all, err := r.client.ListAllNamespaces(ctx)
	a.add(err)
	r.namespacesAt = now.Add(r.cfg.intervals.missing)
	if err != nil {
		return // requests then use the names of the file, and no counts
	}
	found, ambiguous := api.ByName(all)
	for _, in := range all {
		found[in.ID] = in // a mapping may name it, for a name that several have
	}
	r.namespaces = found
	r.mu.Lock()
	r.ambiguous = ambiguous
	r.mu.Unlock()
	if !slices.ContainsFunc(names, func(name string) bool { _, ok := found[name]; return !ok }) {
		r.namespacesAt = now.Add(r.cfg.intervals.namespaces)
	}
}

// countInstances counts the instances of one namespace if that is due, and marks the services whose
// number has changed.
func (r *Registry) countInstances(ctx context.Context, a *answers, names []string, services int) {
	now := time.Now()
	if !r.cfg.intervals.needsCounts(services, len(names)) || r.listsWithoutCounts >= maxListsWithoutCounts || now.Before(r.countPace.at) {
		return
	}
	name := names[r.countTurn%len(names)]
	in, known := r.namespaces[name]
	r.countTurn++
	if !known {
		return
	}
	counts, requests, err := r.client.CountInstances(ctx, in)
	a.add(err)
	r.countPace.finish(now, r.cfg.intervals.poll, requests, err)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listsWithoutCounts++
	for _, s := range r.services {
		if count, ok := counts[s.mapping.Service]; ok && s.mapping.Namespace == name {
			if s.setCount(count); count != nil {
				r.listsWithoutCounts = 0
			}
		}
	}
}

// readRevisions marks the services whose instances have changed since their last read, in place of
// counts if AWS gives none. A revision does not change with health.
func (r *Registry) readRevisions(ctx context.Context, a *answers, services []*service) {
	now := time.Now()
	if r.listsWithoutCounts < maxListsWithoutCounts || now.Before(r.revisionPace.at) {
		return
	}
	var mu sync.Mutex
	var failed error
	var group errgroup.Group
	group.SetLimit(maxReads)
	for _, s := range services {
		group.Go(func() error {
			revision, err := r.client.InstancesRevision(ctx, r.httpNameOf(s.mapping.Namespace), s.mapping.Service)
			a.add(err)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = err
				return nil
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			s.isUncounted, s.mustRead = false, s.mustRead || !s.readAt.IsZero() && revision != s.revision
			return nil
		})
	}
	_ = group.Wait()
	r.revisionPace.finish(now, r.cfg.intervals.poll, 1, failed)
}

// httpNameOf returns the name of a namespace of the file in reads.
func (r *Registry) httpNameOf(namespace string) string {
	if in, known := r.namespaces[namespace]; known {
		return in.HTTPName
	}
	return namespace
}

// readDue reads the services that are due, and returns the keys with a change.
func (r *Registry) readDue(ctx context.Context, a *answers, services []*service) engine.Keys {
	now := time.Now()
	r.mu.Lock()
	due, inTurn := r.cfg.intervals.dueReads(now, r.lastTurn, services)
	r.mu.Unlock()
	if inTurn {
		r.lastTurn = now
	}
	var mu sync.Mutex
	changed := engine.Keys{}
	var group errgroup.Group
	group.SetLimit(maxReads)
	for _, i := range due {
		group.Go(func() error {
			if r.readService(ctx, a, services[i]) {
				mu.Lock()
				defer mu.Unlock()
				changed.Add(services[i].mapping.Key)
			}
			return nil
		})
	}
	_ = group.Wait()
	return changed
}

// readService reads a service, and reports whether its export has changed.
func (r *Registry) readService(ctx context.Context, a *answers, s *service) (changed bool) {
	namespace := r.httpNameOf(s.mapping.Namespace)
	list, revision, err := r.client.DiscoverHealth(ctx, namespace, s.mapping.Service)
	if ctx.Err() != nil {
		return false
	}
	a.add(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.services[s.mapping.Key] != s {
		return false // its mapping was changed or removed meanwhile
	}
	if err == nil {
		s.revision = revision
	}
	return s.setRead(time.Now(), &r.clock, r.account, r.cfg.Cluster, r.cfg.Identity.ClusterSetID, list, err)
}

// updateStale updates the services that are stale, and returns the keys with a change. The caller
// holds r.mu.
func (r *Registry) updateStale() engine.Keys {
	changed := engine.Keys{}
	for key, s := range r.services {
		if is := s.isStale(&r.clock); is != r.stale[key] {
			changed.Add(key)
			if delete(r.stale, key); is {
				r.stale[key] = true
			}
		}
	}
	return changed
}

// readingProblem returns the problem of the first service that cannot be read, with the number of
// the others. The caller holds r.mu.
func (r *Registry) readingProblem() error {
	var first error
	more := 0
	for _, key := range r.keys() {
		s := r.services[key]
		switch {
		case s.err == nil:
		case first == nil:
			first = fmt.Errorf("reading %s: %w", s.mapping, s.err)
		default:
			more++
		}
	}
	if more > 0 {
		return fmt.Errorf("%w; and %d more services", first, more)
	}
	return first
}

// setMetrics sets the number of services by state. The caller holds r.mu.
func (r *Registry) setMetrics() {
	counts := map[string]int{"ok": 0, "unread": 0, "failing": 0, "stale": 0}
	for key, s := range r.services {
		switch {
		case r.stale[key]:
			counts["stale"]++
		case s.err != nil:
			counts["failing"]++
		case s.export == nil:
			counts["unread"]++
		default:
			counts["ok"]++
		}
	}
	r.cfg.Metrics.SetMappedServices(counts)
}
