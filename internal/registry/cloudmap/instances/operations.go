package instances

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// AWS Cloud Map accepts the write of an instance and carries it out later. In a service with DNS
// records it changes Route 53 with the rights of the caller, and reports what Route 53 refuses in
// the operation of the write. So the view looks at these operations; those of other services have
// no such reason to fail.
//
// A look takes one GetOperation for each write. One ListOperations for a service would take fewer,
// but it returns no reasons, AWS has throttled users of the legacy controller for it (its issue
// 128), and cluster.json allows GetOperation.
const (
	// firstLook is the time from a write to the first look at its operation: AWS takes 1 to 2 s.
	firstLook = 2 * time.Second
	// maxLookPause is the longest pause between two looks. Until then, it is as long as the
	// operation has taken.
	maxLookPause = 30 * time.Second
	// maxOperationAge is the time after which the view does not look at an operation any more. The
	// next read of the service shows its effect.
	maxOperationAge = 2 * time.Minute
	// maxLooked is the number of operations in one look, for which a change of the service waits: a
	// second, at 100 ms for maxRequests requests.
	maxLooked = 10 * maxRequests
)

// operation is the write of an instance that AWS has accepted.
type operation struct {
	id, instance string
	isRemoval    bool
	at           time.Time
}

// undone is a write that AWS has accepted and not carried out.
type undone struct {
	isRemoval bool
	reason    error
}

// isReported reports whether it is reported to users. A retry resolves throttling.
func (u undone) isReported() bool { return !api.IsThrottled(u.reason) }

// operations are the writes of a service whose results are not known, and those that came to
// nothing, by instance.
type operations struct {
	accepted []operation
	undone   map[string]undone
	// lookAt is the time of the next look, zero if accepted is empty.
	lookAt time.Time
}

// add adds operations, which replace earlier ones of their instances.
func (o operations) add(now time.Time, written []operation) operations {
	isWritten := map[string]bool{}
	for _, op := range written {
		isWritten[op.instance] = true
	}
	sum := operations{undone: maps.Clone(o.undone), accepted: slices.Clone(o.accepted), lookAt: o.lookAt}
	// What was undone is written again, or it is as wanted by now.
	maps.DeleteFunc(sum.undone, func(id string, _ undone) bool { return !isWritten[id] })
	sum.accepted = append(slices.DeleteFunc(sum.accepted, func(op operation) bool { return isWritten[op.instance] }), written...)
	if first := now.Add(firstLook); len(written) > 0 && (len(o.accepted) == 0 || first.Before(o.lookAt)) {
		sum.lookAt = first
	}
	return sum
}

// result is what a look shows of an operation.
type result struct {
	isOver bool
	// reason is not nil if the operation failed.
	reason error
}

// settle returns the operations after a look at the first ones. Those that are not over are the
// last ones of the next look.
func (o operations) settle(now time.Time, results []result) operations {
	rest := operations{undone: map[string]undone{}}
	maps.Copy(rest.undone, o.undone) // of the attempt before, until this one is over
	var unfinished []operation
	for i, r := range results {
		switch op := o.accepted[i]; {
		case r.reason != nil:
			rest.undone[op.instance] = undone{isRemoval: op.isRemoval, reason: r.reason}
		case r.isOver:
			delete(rest.undone, op.instance)
		default:
			unfinished = append(unfinished, op)
		}
	}
	rest.accepted, rest.lookAt = slices.Concat(o.accepted[len(results):], unfinished), now
	if len(unfinished) > 0 {
		rest.lookAt = now.Add(min(maxLookPause, max(firstLook, now.Sub(unfinished[0].at))))
	}
	return rest
}

func (o operations) isEmpty() bool { return len(o.accepted)+len(o.undone) == 0 }

// giveUp returns the operations without those that take too long.
func (o operations) giveUp(now time.Time) operations {
	o.accepted = slices.DeleteFunc(slices.Clone(o.accepted), func(op operation) bool { return now.Sub(op.at) >= maxOperationAge })
	return o
}

// failure returns the error of the writes that came to nothing, nil if there are none, or if the
// results of others are not known yet.
func (o operations) failure() error {
	if len(o.accepted) > 0 || len(o.undone) == 0 {
		return nil
	}
	first := slices.Min(slices.Collect(maps.Keys(o.undone)))
	return fmt.Errorf("writing %d instances, such as %s: %w", len(o.undone), first, o.undone[first].reason)
}

// reported returns the sorted IDs of instances that were not written, or not removed, as far as
// users see them.
func (o operations) reported(isRemoval bool) (ids []string) {
	for id, u := range o.undone {
		if u.isRemoval == isRemoval && u.isReported() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// warnings returns a line for the instances that were not written, and one for those that were not
// removed.
func (o operations) warnings() (lines []string) {
	for _, kind := range []struct {
		isRemoval bool
		what      string
	}{{false, "endpoints are not shown as Cloud Map instances"}, {true, "Cloud Map instances of endpoints that are gone or not ready are still there"}} {
		if ids := o.reported(kind.isRemoval); len(ids) > 0 {
			lines = append(lines, fmt.Sprintf("%d %s (%s): %v", len(ids), kind.what, joinFirst(ids[:min(len(ids), maxNamed)], len(ids)), o.undone[ids[0]].reason))
		}
	}
	return lines
}

// look looks at the operations of a service. The error is that of writes that came to nothing, as
// if AWS had refused them.
func (v *View) look(ctx context.Context, last service) (outcome, error) {
	seen := last.outcome()
	due := seen.operations.giveUp(time.Now())
	results := v.resultsOf(ctx, due.accepted[:min(len(due.accepted), maxLooked)])
	if ctx.Err() != nil {
		return seen, ctx.Err()
	}
	seen.operations = due.settle(time.Now(), results)
	return seen, seen.operations.failure()
}

// resultsOf returns the results of the first operations, up to one that is not over: AWS takes
// about the same time for all of them.
func (v *View) resultsOf(ctx context.Context, all []operation) (results []result) {
	for part := range slices.Chunk(all, maxRequests) {
		read := make([]result, len(part))
		var group errgroup.Group
		for i, op := range part {
			group.Go(func() error { read[i] = v.resultOf(ctx, op.id); return nil })
		}
		_ = group.Wait() // there are no errors
		if results = append(results, read...); slices.ContainsFunc(read, func(r result) bool { return !r.isOver }) {
			break
		}
	}
	return results
}

// resultOf reads the result of an operation. One that cannot be read is not over, and one that AWS
// does not know any more counts as done.
func (v *View) resultOf(ctx context.Context, id string) result {
	_, isOver, err := v.client.GetOperation(ctx, id)
	switch {
	case api.IsFailedOperation(err):
		return result{isOver: true, reason: err}
	case api.IsNotFound(err):
		return result{isOver: true}
	}
	return result{isOver: isOver}
}
