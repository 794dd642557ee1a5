package awsprobe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

const (
	// delayRounds is the number of instances whose delay is measured. With a spread, the first of
	// 60 shows within a tenth of it with a probability of 0.998.
	delayRounds = 60
	// watchPause is shorter than the shortest delay that is reported, because it decides between a
	// delay and its spread.
	watchPause = shortestDelay / 2
)

// probeDelays is probe 3.
func probeDelays(ctx context.Context, p *prober) error {
	s, err := p.createService(ctx, "delays")
	if err != nil {
		return err
	}
	operation, err := p.api.RegisterInstance(ctx, s.ID, api.Instance{ID: "at-once", Attributes: map[string]string{}})
	p.row("RegisterInstance", "RegisterInstance right after CreateService", codeOK, codeOf(err))
	if err != nil {
		return err
	}
	takes, err := within(ctx, visibleLimit, "the operation has ended", func() (bool, error) {
		_, done, err := p.api.GetOperation(ctx, operation)
		return done, err
	})
	if err != nil {
		return err
	}
	p.row("GetOperation", "duration of the operation of RegisterInstance", "less than a second", seconds(takes))
	p.report.found("operationDelay", roundDelay(takes))
	if err := p.visible(ctx, s, "the new service shows its instance", func(found map[string]api.Instance) bool { return len(found) == 1 }); err != nil {
		return err
	}
	shown, listed, err := p.registerAndWatch(ctx, s)
	if err != nil {
		return err
	}
	if len(shown) < delayRounds {
		return fmt.Errorf("%d of %d instances do not show after %s", delayRounds-len(shown), delayRounds, visibleLimit)
	}
	first, last := max(0, shown[0]-takes), max(0, shown[len(shown)-1]-takes)
	p.row("DiscoverInstances",
		fmt.Sprintf("time from the end of the operation until DiscoverInstances shows the instance, shortest and longest of %d", delayRounds),
		"500 ms", seconds(first)+", "+seconds(last))
	p.row("ListInstances", "time until ListInstances shows all of them", "500 ms", seconds(max(0, listed-takes)))
	p.shared.mu.Lock()
	p.shared.lag = last + takes
	p.shared.mu.Unlock()
	p.report.found("consistencyDelay", roundDelay(first))
	p.report.found("consistencySpread", roundDelay(last-first))
	return nil
}

// registerAndWatch registers instances one after the other, and returns the times until each of
// them showed, sorted, and that until a list showed all.
func (p *prober) registerAndWatch(ctx context.Context, s api.Service) (shown []time.Duration, listed time.Duration, err error) {
	begun, seen := map[string]time.Time{}, map[string]time.Duration{}
	var mu sync.Mutex
	var writing sync.WaitGroup
	var failed error
	writing.Go(func() {
		for i := range delayRounds {
			id := fmt.Sprintf("round-%d", i)
			mu.Lock()
			begun[id] = time.Now()
			mu.Unlock()
			if _, err := p.api.RegisterInstance(ctx, s.ID, api.Instance{ID: id, Attributes: map[string]string{}}); err != nil {
				failed = err
				return
			}
			pause(ctx, 2*shortestPause)
		}
	})
	var last time.Time
	_, _, err = pollEvery(ctx, visibleLimit, func() (bool, error) {
		found, _, err := p.api.DiscoverInstances(ctx, p.shared.main.HTTPName, s.Name, nil)
		mu.Lock()
		defer mu.Unlock()
		for _, i := range found {
			if at, ours := begun[i.ID]; ours && seen[i.ID] == 0 {
				seen[i.ID] = max(time.Since(at), 1)
			}
		}
		last = begun[fmt.Sprintf("round-%d", delayRounds-1)]
		return len(seen) == delayRounds, ignore(err, api.IsNotFound)
	}, func(time.Duration) time.Duration { return watchPause })
	writing.Wait()
	if err != nil || failed != nil {
		return nil, 0, errorOf(err, failed)
	}
	_, _, err = poll(ctx, visibleLimit, func() (bool, error) {
		found, err := p.api.ListInstances(ctx, s)
		return len(found) > delayRounds, err
	})
	return slices.Sorted(maps.Values(seen)), time.Since(last), err
}

// errorOf returns the first error.
func errorOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// probeAttributes is probe 4.
func probeAttributes(ctx context.Context, p *prober) error {
	s, err := p.createService(ctx, "attributes")
	if err != nil {
		return err
	}
	if err := p.probeRevisions(ctx, s); err != nil {
		return err
	}
	if err := p.register(ctx, s, "again", map[string]string{"A": "1", "B": "2"}); err != nil {
		return err
	}
	err = p.register(ctx, s, "again", map[string]string{"A": "3", "E": ""})
	p.row("RegisterInstance", "an attribute with an empty value", codeOK, codeOf(err))
	if err == nil {
		var got map[string]string
		if err := p.visible(ctx, s, "the attributes are replaced", func(found map[string]api.Instance) bool {
			got = found["again"].Attributes
			return got["A"] == "3"
		}); err != nil {
			return err
		}
		_, keepsOld := got["B"]
		_, keepsEmpty := got["E"]
		p.row("DiscoverInstances", "attributes that a later registration leaves out", "removed", pick(keepsOld, "kept", "removed"))
		p.row("DiscoverInstances", "an attribute with an empty value in answers", "kept", pick(keepsEmpty, "kept", "left out"))
	}
	for _, tc := range []struct {
		question, expected string
		attributes         map[string]string
	}{
		{"all characters that a value may have", codeOK, map[string]string{"A": "! " + printable() + "\t!"}},
		{"attributes of 4,900 characters", codeOK, sized(4900)},
		{"attributes of 5,000 characters", codeOK, sized(5000)},
		{"attributes of 5,001 characters", "InvalidInput", sized(5001)},
		{"30 attributes", codeOK, numbered(30)},
		{"31 attributes", "InvalidInput", numbered(31)},
	} {
		err := p.register(ctx, s, "limits", tc.attributes)
		p.row("RegisterInstance", tc.question, tc.expected, codeOf(err))
	}
	return nil
}

func pick(condition bool, yes, no string) string {
	if condition {
		return yes
	}
	return no
}

// printable returns the ASCII characters that have a picture.
func printable() string {
	var b strings.Builder
	for c := '!'; c <= '~'; c++ {
		b.WriteRune(c)
	}
	return b.String()
}

// sized returns attributes whose keys and values have n characters, which is at least 4,000.
func sized(n int) map[string]string {
	const count, keyLength = 5, 2
	attributes := map[string]string{}
	for i := range count {
		size := n/count - keyLength
		if i == 0 {
			size += n % count
		}
		attributes[fmt.Sprintf("K%d", i)] = strings.Repeat("v", size)
	}
	return attributes
}

func numbered(n int) map[string]string {
	attributes := map[string]string{}
	for i := range n {
		attributes[fmt.Sprintf("K%d", i)] = "v"
	}
	return attributes
}

// probeRevisions finds the first revision of a service, and which registrations change it.
func (p *prober) probeRevisions(ctx context.Context, s api.Service) error {
	revision := func() (n int64, err error) {
		_, err = within(ctx, visibleLimit, "the service has a revision", func() (bool, error) {
			n, err = p.api.InstancesRevision(ctx, p.shared.main.HTTPName, s.Name)
			return err == nil, ignore(err, api.IsNotFound)
		})
		return n, err
	}
	base, err := revision()
	if err != nil {
		return err
	}
	p.row("DiscoverInstancesRevision", "revision of a new service", "any", fmt.Sprint(base))
	p.report.found("revisionBase", base)
	before := base
	for _, step := range []struct{ what, value, expected string }{
		{"the first instance", "1", "changes"}, {"the same attributes again", "1", "changes"}, {"other attributes", "2", "changes"},
	} {
		if err := p.register(ctx, s, "revision", map[string]string{"V": step.value}); err != nil {
			return err
		}
		p.settle(ctx)
		now, err := revision()
		if err != nil {
			return err
		}
		p.row("DiscoverInstancesRevision", "revision after a registration with "+step.what, step.expected, fmt.Sprintf("%+d", now-before))
		if step.value == "1" && before > base {
			p.report.found("revisionOn", pick(now > before, string(cloudmaplocal.RevisionOnRegistration), string(cloudmaplocal.RevisionOnChange)))
		}
		before = now
	}
	return nil
}

// probeMissing is probe 5. Package api repeats a registration that another one is in the way of.
func probeMissing(ctx context.Context, p *prober) error {
	s, err := p.createService(ctx, "missing")
	if err != nil {
		return err
	}
	register := func(service, value string) (*servicediscovery.RegisterInstanceOutput, error) {
		return p.sdk.RegisterInstance(ctx, &servicediscovery.RegisterInstanceInput{
			ServiceId: &service, InstanceId: aws.String("twice"), Attributes: map[string]string{"V": value}})
	}
	var codes [2]string
	var both sync.WaitGroup
	for i := range codes {
		both.Go(func() {
			_, err := register(s.ID, fmt.Sprint(i))
			codes[i] = codeOf(err)
		})
	}
	both.Wait()
	slices.Sort(codes[:])
	p.row("RegisterInstance", "two RegisterInstance of one instance at once", "DuplicateRequest, ok", strings.Join(codes[:], ", "))

	gone, err := p.createService(ctx, "gone")
	if err != nil {
		return err
	}
	if err := p.removeService(ctx, gone.ID); err != nil {
		return err
	}
	out, err := register(gone.ID, "1")
	answer := codeOf(err)
	switch {
	case err == nil:
		_, err := p.api.AwaitOperation(ctx, aws.ToString(out.OperationId))
		answer = "accepted; operation: " + codeOf(err)
		p.report.found("missingService", cloudmaplocal.MissingAccept)
	case api.IsServiceNotFound(err):
		p.report.found("missingService", cloudmaplocal.MissingRefuse)
	}
	p.row("RegisterInstance", "RegisterInstance in a deleted service", "ServiceNotFound", answer)
	_, err = p.sdk.DeregisterInstance(ctx, &servicediscovery.DeregisterInstanceInput{ServiceId: &s.ID, InstanceId: aws.String("never")})
	p.row("DeregisterInstance", "DeregisterInstance of an instance that does not exist", "InstanceNotFound", codeOf(err))
	return nil
}

const (
	// manyInstances of manySize characters are 1.5 MB: more than the pages of a large cluster, 256
	// parts of 4,900.
	manyInstances = 300
	manySize      = 4900
	// pageKey selects instances, as the attribute of the product's records does, in pages of
	// pageSize.
	pageKey  = "PAGE"
	pageSize = 30
)

// probeAnswers is probe 6.
func probeAnswers(ctx context.Context, p *prober) error {
	s, err := p.createService(ctx, "many")
	if err != nil {
		return err
	}
	numbers := make([]int, manyInstances)
	for i := range numbers {
		numbers[i] = i
	}
	err = inParallel(numbers, func(i int) error {
		attributes := sized(manySize - len(pageKey) - 2)
		attributes[pageKey] = fmt.Sprintf("%02d", i/pageSize)
		_, err := p.api.RegisterInstance(ctx, s.ID, api.Instance{ID: fmt.Sprintf("many-%03d", i), Attributes: attributes})
		return err
	})
	if err != nil {
		return err
	}
	written := time.Now()
	if _, err := within(ctx, visibleLimit, "all instances are listed", func() (bool, error) {
		found, err := p.api.ListInstances(ctx, s)
		return len(found) == manyInstances, err
	}); err != nil {
		return err
	}
	if err := p.probeAnswerSize(ctx, s); err != nil {
		return err
	}
	return p.probeCount(ctx, s, written)
}

// probeAnswerSize reads all instances with one request, and with one for each page.
func (p *prober) probeAnswerSize(ctx context.Context, s api.Service) error {
	most, size := 0, 0
	for range 3 { // a read may be of an earlier state than the list
		p.settle(ctx)
		found, _, err := p.api.DiscoverInstances(ctx, p.shared.main.HTTPName, s.Name, nil)
		if err != nil {
			p.row("DiscoverInstances", "300 instances of 4,900 characters in one answer", "300", codeOf(err))
			return nil
		}
		if len(found) > most {
			most, size = len(found), p.rec.lastOf("DiscoverInstances").size
		}
	}
	p.row("DiscoverInstances", "300 instances of 4,900 characters in one answer", "300", fmt.Sprintf("%d in %d bytes", most, size))
	p.report.found("maxAnswerBytes", 0)
	if most < manyInstances {
		p.report.found("maxAnswerBytes", size)
	}
	pages := 0
	for i := range manyInstances / pageSize {
		found, _, err := p.api.DiscoverInstances(ctx, p.shared.main.HTTPName, s.Name, map[string]string{pageKey: fmt.Sprintf("%02d", i)})
		if err != nil {
			return err
		}
		if len(found) == pageSize {
			pages++
		}
	}
	p.row("DiscoverInstances", "the same by an attribute, 30 at a time", "10 complete answers", fmt.Sprintf("%d complete answers", pages))
	return nil
}

// probeCount reads InstanceCount.
func (p *prober) probeCount(ctx context.Context, s api.Service, written time.Time) error {
	var count *int32
	_, ok, err := poll(ctx, visibleLimit, func() (bool, error) {
		counts, _, err := p.api.CountInstances(ctx, p.shared.main)
		count = counts[s.Name]
		return count == nil || *count == manyInstances, err
	})
	if err != nil {
		return err
	}
	const question = "InstanceCount in ListServices"
	switch {
	case count == nil:
		p.row("ListServices", question, "300", "absent")
		p.report.found("instanceCount", cloudmaplocal.CountAbsent)
	case ok:
		p.row("ListServices", question, "300", "300 after "+seconds(time.Since(written)))
		p.report.found("instanceCount", cloudmaplocal.CountPresent)
	default:
		p.row("ListServices", question, "300", fmt.Sprintf("%d after %s", *count, visibleLimit))
		p.report.found("instanceCount", cloudmaplocal.CountPresent)
	}
	return nil
}
