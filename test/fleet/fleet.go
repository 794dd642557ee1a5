package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// Options are the options of Measure.
type Options struct {
	// Controller is the program, Assets the folder of kube-apiserver and etcd.
	Controller, Assets string
	// Registry is cloudmap or etcd.
	Registry string
	// Clusters is the number of clusters, the importing one included.
	Clusters int
	// Outage is how long the registry is away.
	Outage time.Duration
	// Out gets a line for each step.
	Out io.Writer
}

// members are the clusters beside the importer.
func (o Options) members() int { return o.Clusters - 1 }

// whole are the members that are whole registries. A whole one reads all others, as every
// controller does: a thousand of them need a thousand times what is measured here for one.
func (o Options) whole() int {
	if o.Clusters > 100 {
		return min(3, o.members())
	}
	return min(9, o.members())
}

// heartbeat is the interval of the heartbeats of all members: 12 s, and more on Cloud Map from 300
// clusters on, so that the heartbeats of all clusters take half of the 50 writes a second that AWS
// is known to accept from an account (docs/cost.md).
func (o Options) heartbeat() time.Duration {
	const perSecond = 25
	interval := config.Default().Registry.HeartbeatInterval
	if o.Registry == config.RegistryCloudMap {
		interval = max(interval, time.Duration(o.Clusters)*time.Second/perSecond)
	}
	return interval
}

// evenly calls do for each member once in an interval until ctx ends.
func evenly[T any](ctx context.Context, members []T, interval time.Duration, do func(T)) {
	const slots = 40
	for slot := 0; len(members) > 0; slot++ {
		for i := slot % slots; i < len(members); i += slots {
			do(members[i])
		}
		if pause(ctx, interval/slots) != nil {
			return
		}
	}
}

// Result is what was measured with a number of clusters.
type Result struct {
	Registry string `json:"registry"`
	Clusters int    `json:"clusters"`
	// Whole is the number of members that are whole registries; the others write records, pages,
	// heartbeats and notifications by its encoders and read nothing.
	Whole int `json:"whole"`
	// HeartbeatSeconds is the interval of the heartbeats.
	HeartbeatSeconds float64 `json:"heartbeatSeconds"`
	// Exports and Services are those that are imported.
	Exports  int `json:"exports"`
	Services int `json:"services"`
	// FirstWrites are the writes of all members until everything was published.
	FirstWrites int64 `json:"firstWrites"`
	// ColdMS is the time from the start of the process until every import had its endpoints and its
	// status, ObjectsMS that in which one client writes the same objects.
	ColdMS    float64 `json:"coldMS"`
	ObjectsMS float64 `json:"objectsMS"`
	Cold      Load    `json:"cold"`
	Steady    Load    `json:"steady"`
	// Rollout is while one service of every member changes, RolloutMS the time until the last one
	// was imported after the last change.
	Rollout   Load    `json:"rollout"`
	RolloutMS float64 `json:"rolloutMS"`
	// RestartMS is the time from the start of the process until a change was imported that a member
	// made while the controller was down. RestartEvents are the writes of imports meanwhile.
	RestartMS     float64 `json:"restartMS"`
	RestartEvents int     `json:"restartEvents"`
	Restart       Load    `json:"restart"`
	// RestartAllMS is the time from the start of the process until the last of RestartAllChanges
	// changes was imported that members made while the controller was down, when all members
	// restart with it and the account's reads are shared between all of them. RestartAllEvents are
	// the writes of imports meanwhile.
	RestartAllMS      float64 `json:"restartAllMS"`
	RestartAllChanges int     `json:"restartAllChanges"`
	RestartAllEvents  int     `json:"restartAllEvents"`
	RestartAll        Load    `json:"restartAll"`
	// Outage is while the registry refused every request, OutageEvents the writes of imports
	// meanwhile, OutageMS the time from its end until a change was imported that a member made in
	// it.
	Outage       Load    `json:"outage"`
	OutageEvents int     `json:"outageEvents"`
	OutageMS     float64 `json:"outageMS"`
	// Delays are the times from a change to the imported EndpointSlice.
	Delays []time.Duration `json:"-"`
}

// Load is what the importing controller used in a time.
type Load struct {
	Seconds float64 `json:"seconds"`
	// Calls are its requests to the registry by operation, Refused those of them that the registry
	// refused because of their rate, Bytes the bytes of the answers.
	Calls   map[string]int `json:"calls,omitempty"`
	Refused int            `json:"refused"`
	Bytes   int64          `json:"bytes"`
	// Writes are the writes of the members.
	Writes int64 `json:"writes"`
	// CPU is in seconds, RSS and Top in MiB: at the end, and at most.
	CPU float64 `json:"cpuSeconds"`
	RSS float64 `json:"rssMiB"`
	Top float64 `json:"topMiB"`
}

// CallsPerMinute are the requests of one cluster.
func (l Load) CallsPerMinute() float64 {
	return float64(traffic{calls: l.Calls}.total()) / l.Seconds * 60
}

// PerMinute returns a part of n.
func (l Load) PerMinute(n float64) float64 { return n / l.Seconds * 60 }

// CPUPercent is the share of a core.
func (l Load) CPUPercent() float64 { return l.CPU / l.Seconds * 100 }

// registry is a registry with the members.
type members interface {
	// start makes the members publish, and keeps them alive until ctx ends.
	start(ctx context.Context, running *errgroup.Group) error
	// arguments are those of the importing controller.
	arguments() []string
	// heard waits until the members know where the importer listens.
	heard(ctx context.Context, id string) error
	// change publishes version v of service i of a member.
	change(ctx context.Context, member, i, v int) error
	// restart restarts all members, of which some have changed, and returns when each has written
	// its record again and has read all of the registry that a process does.
	restart(ctx context.Context, running *errgroup.Group, changed []int) error
	// shareReads makes the importer share what the registry answers with all other clusters, or not
	// any more.
	shareReads(isShared bool)
	// traffic is that of the importer, written the number of writes of all members.
	traffic() traffic
	written() int64
	outage(down bool)
	close()
}

// run is one measurement.
type run struct {
	options Options
	result  Result
	began   time.Time

	folder  string
	members members
	cluster *cluster
	view    *view
	program *program
	// notify is the importer's address for notifications.
	notify, kubeconfig string
	version            atomic.Int64
}

const (
	steadyTime = 30 * time.Second // six polls
	// DefaultOutage is the shortest outage in which every controller misses heartbeats.
	DefaultOutage = 20 * time.Second
	// rolloutTime is the shortest time of a rollout; it is longer where the writes of the fleet
	// would exceed half of the quota.
	rolloutTime = 20 * time.Second
	changes     = 102
	patience    = 10 * time.Minute
	// sharedPatience is for 1,000 clusters that read 1,000 catalogs each, at AWS's 1,000 a second:
	// 17 minutes, if nothing is refused.
	sharedPatience = time.Hour
)

// Measure measures a fleet.
func Measure(ctx context.Context, options Options) (Result, error) {
	r := &run{options: options, began: time.Now(), result: Result{
		Registry: options.Registry, Clusters: options.Clusters, Whole: options.whole(), HeartbeatSeconds: options.heartbeat().Seconds(),
	}}
	r.result.Exports, r.result.Services = imported(options.members())
	ctx, cancel := context.WithCancel(ctx)
	running, ctx := errgroup.WithContext(ctx)
	defer func() {
		cancel()
		r.program.stop()
		_ = running.Wait()
		r.cluster.stop()
		if r.members != nil {
			r.members.close()
		}
		_ = os.RemoveAll(r.folder)
	}()
	for _, step := range []func(context.Context, *errgroup.Group) error{r.setUp, r.publish, r.coldStart, r.steady, r.propagation, r.rollout, r.restart, r.restartAll, r.outage} {
		if err := step(ctx, running); err != nil {
			if r.program != nil {
				err = r.program.problem(err)
			}
			return r.result, err
		}
	}
	objects, err := r.cluster.readObjects(ctx)
	if err != nil {
		return r.result, err
	}
	r.program.stop()
	took, err := objects.writeAlone(ctx, importedNamespaces(options.members()))
	r.result.ObjectsMS = milliseconds(took)
	r.progress("the objects alone took %.1f s", took.Seconds())
	return r.result, err
}

func (r *run) progress(format string, args ...any) {
	fmt.Fprintf(r.options.Out, "%4.0f s  %s, %d clusters: %s\n", time.Since(r.began).Seconds(), r.options.Registry, r.options.Clusters, fmt.Sprintf(format, args...))
}

func (r *run) setUp(ctx context.Context, _ *errgroup.Group) (err error) {
	if r.folder, err = os.MkdirTemp("", "fleet-"); err != nil {
		return err
	}
	if err := os.Setenv("KUBEBUILDER_ASSETS", r.options.Assets); err != nil {
		return err
	}
	if err := r.openRegistry(ctx); err != nil {
		return err
	}
	if r.cluster, err = startCluster(ctx, importedNamespaces(r.options.members())); err != nil {
		return err
	}
	if r.kubeconfig, err = r.cluster.kubeconfig(r.folder); err != nil {
		return err
	}
	port, err := testprocess.FreePort()
	r.notify, r.view = net.JoinHostPort("127.0.0.1", port), r.cluster.watchImports(ctx)
	return err
}

// openRegistry starts the registry.
func (r *run) openRegistry(ctx context.Context) error {
	if r.options.Registry == config.RegistryCloudMap {
		c, err := openCloud(ctx, r.options)
		if err == nil {
			r.members = c
		}
		return err
	}
	s, err := openStore(ctx, r.options)
	if s != nil {
		r.members = s
	}
	return err
}

func (r *run) publish(ctx context.Context, running *errgroup.Group) error {
	if err := r.members.start(ctx, running); err != nil {
		return err
	}
	r.result.FirstWrites = r.members.written()
	r.progress("%d members have published with %d writes", r.options.members(), r.result.FirstWrites)
	return nil
}

// budgets are arguments for more imports than the budgets of all members have room for: half of
// those is reserved for members that use less than their share (docs/operations.md), so that 1,000
// members with ten exports each need twice the default.
func budgets(exports int) []string {
	total := config.Default().Budgets.Total
	if 2*exports <= total[budget.Exports] {
		return nil
	}
	return []string{"--budget-scale=2"}
}

// launch starts the controller.
func (r *run) launch(ctx context.Context, running *errgroup.Group) (err error) {
	r.program, err = startProgram(r.options.Controller, r.folder, importerID, r.kubeconfig, r.notify, append(r.members.arguments(), budgets(r.result.Exports)...)...)
	if err == nil {
		running.Go(func() error { _ = r.members.heard(ctx, importerID); return nil })
	}
	return err
}

// sample is a point in time of what is measured.
type sample struct {
	usage
	traffic
	writes int64
}

func (r *run) sample(ctx context.Context) (s sample, err error) {
	if s.usage, err = r.program.usage(); err != nil {
		return s, err
	}
	s.traffic, s.writes = r.members.traffic(), r.members.written()
	if s.calls != nil {
		return s, nil
	}
	requests, err := r.program.metric(ctx, "cloud_map_mcs_registry_requests_total", "operation")
	s.calls = map[string]int{}
	for operation, n := range requests {
		s.calls[operation] = int(n)
	}
	return s, err
}

// load returns what was used since before, which is zero at the start of the process.
func (r *run) load(ctx context.Context, before sample) (Load, error) {
	now, err := r.sample(ctx)
	used := now.since(before.traffic)
	const mib = 1 << 20
	return Load{
		Seconds: now.at.Sub(before.at).Seconds(), Calls: used.calls, Refused: used.refused, Bytes: used.bytes, Writes: now.writes - before.writes,
		CPU: (now.cpu - before.cpu).Seconds(), RSS: float64(now.resident) / mib, Top: float64(now.top) / mib,
	}, err
}

// coldStart starts the controller for the first time.
func (r *run) coldStart(ctx context.Context, running *errgroup.Group) error {
	before := sample{traffic: r.members.traffic(), writes: r.members.written()}
	before.at = time.Now()
	if err := r.launch(ctx, running); err != nil {
		return err
	}
	var last time.Time
	for deadline, n := time.Now().Add(patience), 0; ; n++ {
		slices, imports, clusters, at := r.view.seen()
		if last = at; slices == r.result.Exports && imports == r.result.Services && clusters == r.result.Exports {
			break
		}
		if n%50 == 49 {
			r.progress("%d of %d EndpointSlices, %d of %d ServiceImports with %d clusters", slices, r.result.Exports, imports, r.result.Services, clusters)
		}
		if time.Now().After(deadline) {
			return errors.New("not everything was imported")
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	var err error
	r.result.ColdMS = milliseconds(last.Sub(r.program.began))
	if r.result.Cold, err = r.load(ctx, before); err == nil {
		r.progress("everything was imported after %.1f s; %s", r.result.ColdMS/1000, r.result.Cold)
	}
	return err
}

// steady waits until the controller polls less often, and measures while nothing changes.
func (r *run) steady(ctx context.Context, _ *errgroup.Group) (err error) {
	if err := r.settle(ctx); err != nil {
		return err
	}
	r.result.Steady, err = r.during(ctx, steadyTime, func() error { return nil })
	r.progress("nothing changes; %s", r.result.Steady)
	return err
}

// settle waits until peer notifications from all members arrive, and a second heartbeat of each: it
// decides whether the cluster is live, so that its imports are compared again.
func (r *run) settle(ctx context.Context) error {
	for range 120 {
		interval, err := r.program.metric(ctx, "cloud_map_mcs_registry_poll_interval_seconds", "")
		if err == nil && interval[""] > 1 || r.options.Registry != config.RegistryCloudMap {
			return pause(ctx, r.options.heartbeat()+5*time.Second)
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	r.progress("peer notifications from all members do not arrive after a minute")
	return nil
}

// during measures for a time, of which do takes a part.
func (r *run) during(ctx context.Context, d time.Duration, do func() error) (Load, error) {
	if err := r.program.forgetTop(); err != nil {
		return Load{}, err
	}
	before, err := r.sample(ctx)
	if err != nil {
		return Load{}, err
	}
	end := time.Now().Add(d)
	if err := do(); err != nil {
		return Load{}, err
	}
	if err := pause(ctx, time.Until(end)); err != nil {
		return Load{}, err
	}
	return r.load(ctx, before)
}

// importedService returns a service of a member that is imported.
func importedService(member int) int {
	for i := rand.IntN(ServicesPerCluster); ; i = (i + 1) % ServicesPerCluster {
		if isImported(member, i) {
			return i
		}
	}
}

// change changes a service of a member to a new version, and returns when.
func (r *run) change(ctx context.Context, member, i int) (version int, at time.Time, err error) {
	version, at = int(r.version.Add(1)), time.Now()
	return version, at, r.members.change(ctx, member, i, version)
}

// propagation changes one service of each of three whole members at a time.
func (r *run) propagation(ctx context.Context, _ *errgroup.Group) error {
	const streams = 3
	var group errgroup.Group
	delays := make([][]time.Duration, streams)
	for stream := range streams {
		group.Go(func() error {
			for n := range changes / streams {
				if err := pause(ctx, rand.N(100*time.Millisecond)); err != nil {
					return err
				}
				member := (stream + n*streams) % (r.options.whole() / streams * streams)
				took, err := r.propagate(ctx, member)
				if err != nil {
					return err
				}
				delays[stream] = append(delays[stream], took)
			}
			return nil
		})
	}
	err := group.Wait()
	r.result.Delays = slices.Concat(delays...)
	slices.Sort(r.result.Delays)
	if n := len(r.result.Delays); n > 0 {
		r.progress("%d changes, imported after %v at the median, %v at most", n, r.result.Delays[n/2], r.result.Delays[n-1])
	}
	return err
}

// propagate changes a service of a member and returns the time until it is imported.
func (r *run) propagate(ctx context.Context, member int) (time.Duration, error) {
	version, began, err := r.change(ctx, member, importedService(member))
	if err != nil {
		return 0, err
	}
	at, err := r.view.await(ctx, marker(version), time.Minute)
	return at.Sub(began), err
}

// rollout changes one service of every member, a hundredth of all, evenly in time.
func (r *run) rollout(ctx context.Context, _ *errgroup.Group) (err error) {
	// two writes each: half of the 50 writes a second that AWS is known to accept
	const perSecond = 12.5
	takes := max(rolloutTime, time.Duration(float64(r.options.members())/perSecond*float64(time.Second)))
	var versions []int
	var last time.Time
	r.result.Rollout, err = r.during(ctx, takes, func() error {
		began := time.Now()
		for member := range r.options.members() {
			i := rand.IntN(ServicesPerCluster)
			version, at, err := r.change(ctx, member, i)
			if err != nil {
				return err
			}
			if isImported(member, i) {
				versions, last = append(versions, version), at
			}
			if err := pause(ctx, time.Until(began.Add(takes*time.Duration(member+1)/time.Duration(r.options.members())))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, version := range versions {
		at, err := r.view.await(ctx, marker(version), patience)
		if err != nil {
			return err
		}
		r.result.RolloutMS = max(r.result.RolloutMS, milliseconds(at.Sub(last)))
	}
	r.progress("one service of each member changed, of which %d are imported, the last one after %.1f s; %s", len(versions), r.result.RolloutMS/1000, r.result.Rollout)
	return nil
}

// restart restarts the controller, and changes a service while it is down.
func (r *run) restart(ctx context.Context, running *errgroup.Group) error {
	r.program.stop()
	version, _, err := r.change(ctx, 0, importedService(0))
	if err != nil {
		return err
	}
	if err := pause(ctx, 2*time.Second); err != nil { // until the member has written it
		return err
	}
	written, before := r.view.writeCount(), sample{traffic: r.members.traffic(), writes: r.members.written()}
	before.at = time.Now()
	if err := r.launch(ctx, running); err != nil {
		return err
	}
	at, err := r.view.await(ctx, marker(version), patience)
	if err != nil {
		return err
	}
	r.result.RestartMS = milliseconds(at.Sub(r.program.began))
	if err := r.settle(ctx); err != nil {
		return err
	}
	r.result.RestartEvents = r.view.writeCount() - written
	r.result.Restart, err = r.load(ctx, before)
	r.progress("after a restart a change was imported after %.1f s, with %d writes of imports; %s", r.result.RestartMS/1000, r.result.RestartEvents, r.result.Restart)
	return err
}

// restartAll restarts the controller and all members at once, after changes of up to twenty members
// that the controller has not seen.
func (r *run) restartAll(ctx context.Context, running *errgroup.Group) error {
	r.program.stop()
	r.result.RestartAllChanges = min(20, r.options.members())
	var versions, changed []int
	for n := range r.result.RestartAllChanges {
		member := n * r.options.members() / r.result.RestartAllChanges
		changed = append(changed, member)
		version, _, err := r.change(ctx, member, importedService(member))
		if err != nil {
			return err
		}
		versions = append(versions, version)
	}
	if err := pause(ctx, 2*time.Second); err != nil { // until the members have written it
		return err
	}
	written, before := r.view.writeCount(), sample{traffic: r.members.traffic(), writes: r.members.written()}
	before.at = time.Now()
	r.members.shareReads(true)
	defer r.members.shareReads(false)
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	restarted := make(chan error, 1)
	go func() {
		err := r.members.restart(ctx, running, changed)
		if err != nil {
			cancel(fmt.Errorf("restarting all members: %w", err))
		}
		restarted <- err
	}()
	if err := r.launch(ctx, running); err != nil {
		return err
	}
	for n, version := range versions {
		at, err := r.view.await(waiting, marker(version), sharedPatience)
		if err != nil {
			return errors.Join(err, context.Cause(waiting))
		}
		r.result.RestartAllMS = max(r.result.RestartAllMS, milliseconds(at.Sub(r.program.began)))
		if n%5 == 4 {
			r.progress("all restart: %d of %d changes are imported, after %.1f s", n+1, len(versions), r.result.RestartAllMS/1000)
		}
	}
	if err := <-restarted; err != nil {
		return err
	}
	r.result.RestartAllEvents = r.view.writeCount() - written
	var err error
	r.result.RestartAll, err = r.load(ctx, before)
	r.progress("after a restart of all, %d changes were imported after %.1f s, with %d writes of imports; %s",
		len(versions), r.result.RestartAllMS/1000, r.result.RestartAllEvents, r.result.RestartAll)
	return err
}

// outage makes the registry refuse everything for a while, in which a service changes.
func (r *run) outage(ctx context.Context, _ *errgroup.Group) (err error) {
	written, version := r.view.writeCount(), 0
	r.members.outage(true)
	r.result.Outage, err = r.during(ctx, r.options.Outage, func() (err error) {
		version, _, err = r.change(ctx, 0, importedService(0))
		return err
	})
	r.result.OutageEvents = r.view.writeCount() - written
	ended := time.Now()
	r.members.outage(false)
	if err != nil {
		return err
	}
	at, err := r.view.await(ctx, marker(version), patience)
	r.result.OutageMS = milliseconds(at.Sub(ended))
	r.progress("no registry for %v: %d writes of imports; a change of that time was imported %.1f s later; %s", r.options.Outage, r.result.OutageEvents, r.result.OutageMS/1000, r.result.Outage)
	return err
}

// String describes a load in a progress line.
func (l Load) String() string {
	return fmt.Sprintf("%.1f calls a minute %v, %d refused, %.1f MB read, CPU %.1f s (%.1f %% of a core), memory %.0f MiB (at most %.0f), %d writes of members",
		l.CallsPerMinute(), l.Calls, l.Refused, float64(l.Bytes)/1e6, l.CPU, l.CPUPercent(), l.RSS, l.Top, l.Writes)
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}
