package awsprobe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// Options say where to probe.
type Options struct {
	// Region is that of AWS's own environment variables and files if it is empty.
	Region string
	// Role is a role with the policies of a cluster, which probe 9 needs. RoleClusterSet and
	// RoleCluster are the IDs in these policies.
	Role api.Role
	// VPC is the ID of a VPC for a private namespace, which probe 10 needs.
	VPC string
	// Share is the ARN of a namespace that another account shares, which probe 11 needs.
	Share string
	// Rates includes probe 7, which uses up the account's quotas of requests for some seconds.
	Rates bool
	// Endpoint is the address of cloudmap-local. Requests keep the names of AWS's hosts. "" is AWS.
	Endpoint string
	// Confirm reports whether to begin, after a text that says what that costs. nil is yes.
	Confirm func(text string) bool
	// Progress gets a line for each step; nil is none.
	Progress io.Writer

	// HTTPClient and Credentials replace AWS's own, unless nil.
	HTTPClient  aws.HTTPClient
	Credentials aws.CredentialsProvider

	// only are the numbers of the probes to run; nil is all.
	only []int
}

// The IDs of the policies of Options.Role: those of the stack of deploy/iam/cloudformation.yaml
// (docs/aws-behavior.md).
const (
	RoleClusterSet = namePrefix
	RoleCluster    = "probe"
)

const (
	// namePrefix begins the names of all resources of probes.
	namePrefix = "mcs-probe"
	// timeLimit bounds a run. The last part of it is for the removal of the resources: Terraform
	// retries the deletion of a namespace for two minutes.
	timeLimit = 10 * time.Minute
	sweepTime = 3 * time.Minute
)

var errTimeLimit = fmt.Errorf("the probes took longer than %s", timeLimit-sweepTime)

// Errors of Run.
var (
	// ErrLeftovers means that an earlier run has left resources.
	ErrLeftovers = errors.New("an earlier run has left resources; remove them with --sweep")
	// ErrNotConfirmed means that the user does not want to begin.
	ErrNotConfirmed = errors.New("nothing was done")
)

// probe is one of the twelve.
type probe struct {
	number int
	name   string
	run    func(context.Context, *prober) error
	// alone is set for a probe that runs before the next one begins. The others run beside one
	// another.
	alone bool
	// requests, instances and zones are the most that it makes.
	requests, instances, zones int
	// missing returns the flag that the probe needs and that is not set, "" for none.
	missing func(Options) string
}

var probes = []probe{
	{number: 1, name: "hosts and lists", run: probeHosts, alone: true, requests: 5},
	{number: 2, name: "namespaces", run: probeNamespaces, alone: true, requests: 40},
	{number: 3, name: "delays", run: probeDelays, alone: true, requests: 500, instances: delayRounds + 1},
	{number: 4, name: "attributes and revisions", run: probeAttributes, alone: true, requests: 100, instances: 10},
	{number: 5, name: "concurrent and missing", run: probeMissing, alone: true, requests: 40, instances: 2},
	{number: 6, name: "large answers", run: probeAnswers, alone: true, requests: 900, instances: manyInstances},
	{number: 7, name: "rates", run: probeRates, alone: true, requests: rateRequests(), instances: 1, missing: func(o Options) string {
		if o.Rates {
			return ""
		}
		return "--rates"
	}},
	{number: 8, name: "health", run: probeHealth, requests: 150, instances: 1},
	{number: 9, name: "rights", run: probeRights, requests: 150, instances: 2, missing: func(o Options) string { return unset("--role", o.Role.ARN) }},
	{number: 10, name: "DNS", run: probeDNS, requests: 150, instances: 4, zones: 1, missing: func(o Options) string { return unset("--vpc", o.VPC) }},
	{number: 11, name: "shares", run: probeShare, requests: 40, missing: func(o Options) string { return unset("--share", o.Share) }},
	{number: 12, name: "two clusters", run: probeProduct, requests: 900, instances: 10},
}

func unset(flag, value string) string {
	if value == "" {
		return flag
	}
	return ""
}

// prober is the state of a probe in a run.
type prober struct {
	*connection
	opts   Options
	report *Report
	shared *sharedState
	number int
	rec    *recorder
	print  func(format string, args ...any)
	// services are those that the probe has created.
	services []api.Service
}

// sharedState is what probes tell one another.
type sharedState struct {
	// name is that of the run: the beginning of the names of its resources.
	name string
	// main is the namespace of probe 2.
	main api.Namespace

	mu sync.Mutex
	// lag is how late reads may be, as probe 3 has measured it.
	lag time.Duration
}

// identity is in the tags of all resources of this run.
func (p *prober) identity() mcs.Identity {
	return mcs.Identity{ClusterSetID: p.shared.name, ClusterID: "probe"}
}

// row adds an answer. operation is the one that was asked.
func (p *prober) row(operation, question, expected, got string) {
	p.report.add(Row{
		Probe: p.number, Question: question, Expected: expected, Got: got,
		Latency: p.rec.latency(operation), RequestID: p.rec.lastOf(operation).id,
	})
}

// settle waits until reads show all that was written.
func (p *prober) settle(ctx context.Context) {
	p.shared.mu.Lock()
	lag := p.shared.lag
	p.shared.mu.Unlock()
	pause(ctx, lag+lag/2+shortestDelay)
}

// Run makes the probes and removes what they have made. It returns the answers so far also with an
// error.
func Run(ctx context.Context, opts Options) (*Report, error) {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	report := &Report{Date: time.Now(), Version: config.Version, Endpoint: opts.Endpoint}
	main, err := opts.connect(ctx, api.Role{})
	if err != nil {
		return report, err
	}
	report.Region, report.Account = main.region, main.account
	left, err := main.leftovers(ctx)
	if err != nil {
		return report, err
	}
	if len(left) > 0 {
		return report, fmt.Errorf("%w: %s", ErrLeftovers, describe(left))
	}
	chosen, skipped := opts.choose()
	if opts.Confirm != nil && !opts.Confirm(costOf(chosen)) {
		return report, ErrNotConfirmed
	}
	for number, flag := range skipped {
		report.add(Row{Probe: number, Question: probes[number-1].name, Expected: "", Got: "skipped: needs " + flag})
	}
	p := &prober{
		connection: main, opts: opts, report: report, print: opts.printer(),
		shared: &sharedState{name: namePrefix + "-" + strings.ToLower(rand.Text()[:6]), lag: time.Second},
	}
	err = p.runAll(ctx, chosen)
	p.print("removing everything")
	sweep, cancelSweep := context.WithTimeout(context.WithoutCancel(ctx), sweepTime)
	defer cancelSweep()
	report.Left, err = joinErrors(err, p.sweep(sweep))
	return report, err
}

// joinErrors returns what a sweep has left, and its error with that of the run.
func joinErrors(run error, left []string) ([]string, error) {
	if len(left) > 0 {
		return left, errors.Join(run, fmt.Errorf("%w: %s", ErrLeftovers, strings.Join(left, ", ")))
	}
	return nil, run
}

// Sweep removes what earlier runs have left.
func Sweep(ctx context.Context, opts Options) error {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	main, err := opts.connect(ctx, api.Role{})
	if err != nil {
		return err
	}
	p := &prober{connection: main, opts: opts, print: opts.printer(), shared: &sharedState{}}
	_, err = joinErrors(nil, p.sweep(ctx))
	return err
}

// printer returns a function that prints lines of progress. It is safe for concurrent use.
func (o Options) printer() func(format string, args ...any) {
	var mu sync.Mutex
	begin := time.Now()
	return func(format string, args ...any) {
		if o.Progress == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Fprintf(o.Progress, "%5.1fs %s\n", time.Since(begin).Seconds(), mask(fmt.Sprintf(format, args...)))
	}
}

// choose returns the probes to run, and the missing flags of the others by number.
func (o Options) choose() (chosen []probe, skipped map[int]string) {
	skipped = map[int]string{}
	for _, p := range probes {
		if o.only != nil && !slices.Contains(o.only, p.number) {
			continue
		}
		if p.missing != nil {
			if flag := p.missing(o); flag != "" {
				skipped[p.number] = flag
				continue
			}
		}
		chosen = append(chosen, p)
	}
	return chosen, skipped
}

// runAll runs the probes: first those that run alone, in their order, then the others beside one
// another, because most of their time is waiting. A probe that fails is a row, and the others go
// on.
func (p *prober) runAll(ctx context.Context, chosen []probe) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeLimit-sweepTime, errTimeLimit)
	defer cancel()
	var beside sync.WaitGroup
	for _, one := range chosen {
		if one.alone {
			own := p.runOne(ctx, one)
			beside.Go(func() { own.removeOwn(ctx) })
		}
	}
	for _, one := range chosen {
		if !one.alone {
			beside.Go(func() { p.runOne(ctx, one).removeOwn(ctx) })
		}
	}
	beside.Wait()
	return context.Cause(ctx)
}

// removeOwn removes the services of a probe while others run, so that there is less to wait for in
// the end. The sweep removes what stays.
func (p *prober) removeOwn(ctx context.Context) {
	_ = inParallel(p.services, func(s api.Service) error { return p.removeService(ctx, s.ID) })
}

// runOne runs a probe with a prober of its own, which it returns.
func (p *prober) runOne(ctx context.Context, one probe) *prober {
	own := *p
	own.number, own.rec = one.number, newRecorder()
	if ctx.Err() != nil {
		p.report.add(Row{Probe: one.number, Question: one.name, Got: "not run: " + context.Cause(ctx).Error()})
		return &own
	}
	p.print("probe %d: %s", one.number, one.name)
	if err := one.run(context.WithValue(ctx, recorderKey{}, own.rec), &own); err != nil {
		p.report.add(Row{Probe: one.number, Question: one.name, Got: "stopped: " + err.Error()})
		p.print("probe %d: stopped: %v", one.number, err)
		return &own
	}
	p.print("probe %d: done", one.number)
	return &own
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Pauses between two requests of poll: a tenth of the time so far, so that what is measured is
// right to a tenth.
const (
	shortestPause = 20 * time.Millisecond
	longestPause  = time.Second
)

// poll calls done until it returns true or an error, or limit is over, and returns the time that
// took.
func poll(ctx context.Context, limit time.Duration, done func() (bool, error)) (took time.Duration, ok bool, err error) {
	return pollEvery(ctx, limit, done, func(took time.Duration) time.Duration { return min(max(took/10, shortestPause), longestPause) })
}

// pollEvery is poll with other pauses, by the time so far.
func pollEvery(ctx context.Context, limit time.Duration, done func() (bool, error), next func(took time.Duration) time.Duration) (
	took time.Duration, ok bool, err error) {
	begin := time.Now()
	for {
		ok, err := done()
		took = time.Since(begin)
		switch {
		case err != nil:
			return took, false, err
		case ok:
			return took, true, nil
		case ctx.Err() != nil:
			return took, false, context.Cause(ctx)
		case took > limit:
			return took, false, nil
		}
		pause(ctx, next(took))
	}
}

// within is poll whose end without success is an error.
func within(ctx context.Context, limit time.Duration, what string, done func() (bool, error)) (time.Duration, error) {
	took, ok, err := poll(ctx, limit, done)
	if err == nil && !ok {
		err = fmt.Errorf("after %s still not: %s", limit, what)
	}
	return took, err
}

// unthrottled repeats a request while AWS throttles it: the probes beside it use the same quotas.
func unthrottled(ctx context.Context, request func() error) error {
	_, err := within(ctx, throttledLimit, "a request that is not throttled", func() (bool, error) {
		err := request()
		return err == nil, ignore(err, api.IsThrottled)
	})
	return err
}

// throttledLimit is the time in which the lowest rate, 0.5 requests a second, lets thirty requests
// through.
const throttledLimit = time.Minute

// seconds returns a duration for people.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2g s", d.Seconds()) }
