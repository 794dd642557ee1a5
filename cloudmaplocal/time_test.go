package cloudmaplocal

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
)

func TestConsistencyDelay(t *testing.T) {
	const delay = 500 * time.Millisecond
	w := newTestServer(t, Options{Behaviors: ReadsLate(delay)})
	find := func() (*sd.DiscoverInstancesOutput, error) {
		return w.DiscoverInstances(t.Context(), &sd.DiscoverInstancesInput{NamespaceName: new("demo"), ServiceName: new("svc")})
	}
	ns := w.namespace("demo")
	_, err := find()
	wantCode(t, err, "NamespaceNotFound")
	w.clock.Advance(delay)
	svc := w.service(ns, "svc")
	_, err = find()
	wantCode(t, err, "ServiceNotFound")
	w.clock.Advance(delay)

	see := func(wantRevision int64, want ...string) {
		t.Helper()
		out, err := find()
		ids := mapSlice(must(t, out, err).Instances, func(i types.HttpInstanceSummary) string { return *i.InstanceId })
		slices.Sort(ids)
		listed, err := w.ListInstances(t.Context(), &sd.ListInstancesInput{ServiceId: &svc})
		listedIDs := mapSlice(must(t, listed, err).Instances, func(i types.InstanceSummary) string { return *i.Id })
		revision, err := w.DiscoverInstancesRevision(t.Context(), &sd.DiscoverInstancesRevisionInput{NamespaceName: new("demo"), ServiceName: new("svc")})
		if *must(t, revision, err).InstancesRevision != wantRevision || *out.InstancesRevision != wantRevision {
			t.Errorf("revision = %d and %d, want %d", *revision.InstancesRevision, *out.InstancesRevision, wantRevision)
		}
		if !slices.Equal(ids, want) || !slices.Equal(listedIDs, want) {
			t.Errorf("discovered %v, listed %v, want %v", ids, listedIDs, want)
		}
	}
	w.register(svc, "a", map[string]string{"v": "1"})
	w.clock.Advance(300 * time.Millisecond)
	w.register(svc, "b", map[string]string{})
	see(0)
	w.clock.Advance(199 * time.Millisecond)
	see(0)
	w.clock.Advance(time.Millisecond)
	see(1, "a")
	w.deregister(svc, "a")
	if _, err := w.GetInstance(t.Context(), &sd.GetInstanceInput{ServiceId: &svc, InstanceId: new("a")}); err == nil {
		t.Error("GetInstance must not lag")
	}
	w.clock.Advance(300 * time.Millisecond)
	see(2, "a", "b")
	w.clock.Advance(200 * time.Millisecond)
	see(3, "b")

	w.deregister(svc, "b")
	if _, err := w.DeleteService(t.Context(), &sd.DeleteServiceInput{Id: &svc}); err != nil {
		t.Fatal(err)
	}
	if out, err := find(); err != nil || len(out.Instances) != 1 {
		t.Errorf("right after the deletion: %v, %v, want what was there before", out, err)
	}
	w.clock.Advance(delay)
	_, err = find()
	wantCode(t, err, "ServiceNotFound")
}

func TestOperationDelay(t *testing.T) {
	w := newTestServer(t, Options{Behaviors: Behaviors{OperationDelay: Duration(2 * time.Second)}})
	created, err := w.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("demo"), CreatorRequestId: new("once")})
	ns := w.operation(must(t, created, err).OperationId).Targets["NAMESPACE"]
	again, err := w.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("demo"), CreatorRequestId: new("once")})
	assertEqual(t, created.OperationId, must(t, again, err).OperationId)
	_, err = w.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("demo")})
	wantCode(t, err, "DuplicateRequest")
	_, err = w.GetNamespace(t.Context(), &sd.GetNamespaceInput{Id: &ns})
	wantCode(t, err, "NamespaceNotFound")
	w.clock.Advance(2 * time.Second)
	svc := w.service(ns, "svc")

	start := w.clock.Now()
	id := w.register(svc, "a", map[string]string{"v": "1"})
	for _, step := range []struct {
		at      time.Duration
		status  types.OperationStatus
		updated time.Duration
		found   int
	}{
		{0, types.OperationStatusSubmitted, 0, 0},
		{time.Second, types.OperationStatusPending, time.Second, 0},
		{1999 * time.Millisecond, types.OperationStatusPending, time.Second, 0},
		{2 * time.Second, types.OperationStatusSuccess, 2 * time.Second, 1},
	} {
		w.clock.Advance(start.Add(step.at).Sub(w.clock.Now()))
		op := w.operation(&id)
		if found, _ := w.discovered("demo", "svc"); op.Status != step.status || !op.UpdateDate.Equal(start.Add(step.updated)) || len(found) != step.found {
			t.Errorf("after %s: %s since %s, %d instances; want %s since %s, %d", step.at, op.Status, op.UpdateDate.Sub(start), len(found),
				step.status, step.updated, step.found)
		}
	}
}

func TestDuplicateRequest(t *testing.T) {
	w := newTestServer(t, Options{Behaviors: Behaviors{OperationDelay: Duration(time.Second)}})
	created, err := w.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("demo")})
	ns := w.operation(must(t, created, err).OperationId).Targets["NAMESPACE"]
	w.clock.Advance(time.Second)
	svc := w.service(ns, "svc")
	register := func(id, request, value string) (*sd.RegisterInstanceOutput, error) {
		return w.RegisterInstance(t.Context(), &sd.RegisterInstanceInput{
			ServiceId: &svc, InstanceId: &id, CreatorRequestId: &request, Attributes: map[string]string{"v": value},
		})
	}
	first, err := register("a", "r1", "1")
	must(t, first, err)
	again, err := register("a", "r1", "1")
	assertEqual(t, first.OperationId, must(t, again, err).OperationId)

	wantDuplicate := func(err error) {
		t.Helper()
		var duplicate *types.DuplicateRequest
		if !errors.As(err, &duplicate) {
			t.Fatalf("error = %v, want DuplicateRequest", err)
		}
		assertEqual(t, first.OperationId, duplicate.DuplicateOperationId)
	}
	_, err = register("a", "r1", "2")
	wantDuplicate(err)
	_, err = register("a", "r2", "1")
	wantDuplicate(err)
	_, err = w.DeregisterInstance(t.Context(), &sd.DeregisterInstanceInput{ServiceId: &svc, InstanceId: new("a")})
	wantDuplicate(err)
	if _, err := register("b", "r1", "1"); err != nil {
		t.Errorf("another instance: %v", err)
	}
	_, err = w.DeleteService(t.Context(), &sd.DeleteServiceInput{Id: &svc})
	wantCode(t, err, "ResourceInUse")

	pending, err := w.ListOperations(t.Context(), &sd.ListOperationsInput{Filters: []types.OperationFilter{
		{Name: "SERVICE_ID", Values: []string{svc}}, {Name: "STATUS", Condition: "IN", Values: []string{"SUBMITTED", "PENDING"}},
	}})
	assertEqual(t, 2, len(must(t, pending, err).Operations))
	w.clock.Advance(time.Second)
	if _, err := register("a", "r2", "2"); err != nil {
		t.Errorf("after the first was done: %v", err)
	}
}

func TestDuplicateDeletion(t *testing.T) {
	w := newTestServer(t, Options{Behaviors: Behaviors{OperationDelay: Duration(time.Second)}})
	created, err := w.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("demo")})
	id := w.operation(must(t, created, err).OperationId).Targets["NAMESPACE"]
	w.clock.Advance(time.Second)
	deleted, err := w.DeleteNamespace(t.Context(), &sd.DeleteNamespaceInput{Id: &id})
	must(t, deleted, err)
	_, err = w.DeleteNamespace(t.Context(), &sd.DeleteNamespaceInput{Id: &id})
	wantCode(t, err, "DuplicateRequest")
	_, err = w.CreateService(t.Context(), &sd.CreateServiceInput{NamespaceId: &id, Name: new("svc")})
	wantCode(t, err, "NamespaceNotFound")
	w.clock.Advance(time.Second)
	_, err = w.GetNamespace(t.Context(), &sd.GetNamespaceInput{Id: &id})
	wantCode(t, err, "NamespaceNotFound")
	assertEqual(t, types.OperationStatusSuccess, w.operation(deleted.OperationId).Status)
}

func TestHealthDelay(t *testing.T) {
	w := newTestServer(t, Options{Behaviors: Behaviors{HealthDelay: Duration(30 * time.Second)}})
	ns := w.namespace("demo")
	created, err := w.CreateService(t.Context(), &sd.CreateServiceInput{
		NamespaceId: &ns, Name: new("svc"), HealthCheckCustomConfig: &types.HealthCheckCustomConfig{},
	})
	svc := must(t, created, err).Service.Id
	w.register(*svc, "a", map[string]string{})
	_, err = w.UpdateInstanceCustomHealthStatus(t.Context(), &sd.UpdateInstanceCustomHealthStatusInput{ServiceId: svc, InstanceId: new("a"), Status: "UNHEALTHY"})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		wait time.Duration
		want types.HealthStatus
	}{{0, "HEALTHY"}, {29 * time.Second, "HEALTHY"}, {time.Second, "UNHEALTHY"}} {
		w.clock.Advance(step.wait)
		found, _ := w.discovered("demo", "svc")
		assertEqual(t, step.want, found["a"].HealthStatus)
	}
}

func TestOperations_ExpireAfterRetention(t *testing.T) {
	w := newTestServer(t, Options{})
	svc := w.service(w.namespace("demo"), "svc")
	old := w.register(svc, "old", map[string]string{})
	w.clock.Advance(keptOperationsTime + time.Second)
	fresh := w.register(svc, "fresh", map[string]string{})
	_, err := w.GetOperation(t.Context(), &sd.GetOperationInput{OperationId: &old})
	wantCode(t, err, "OperationNotFound")
	w.operation(&fresh)
}

// TestReplicaFollows compares the replica with the truth after many random changes.
func TestReplicaFollows(t *testing.T) {
	w := newTestServer(t, Options{Behaviors: Behaviors{ConsistencyDelay: Duration(time.Second), OperationDelay: Duration(300 * time.Millisecond)}})
	created, err := w.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("demo")})
	w.clock.Advance(time.Second)
	svc := w.service(w.operation(must(t, created, err).OperationId).Targets["NAMESPACE"], "svc")
	// registered instances by time
	type moment struct {
		at  time.Time
		ids []string
	}
	history := []moment{{w.clock.Now(), nil}}
	truth := map[string]bool{}
	for i := range 200 {
		id := numbered("i", i*7%31)
		if truth[id] {
			w.deregister(svc, id)
		} else {
			w.register(svc, id, map[string]string{})
		}
		truth[id] = !truth[id]
		maps.DeleteFunc(truth, func(_ string, there bool) bool { return !there })
		w.clock.Advance(300 * time.Millisecond) // the operation is done now
		history = append(history, moment{w.clock.Now(), sortedKeys(truth)})

		before := w.clock.Now().Add(-time.Second)
		if before.Before(history[0].at) {
			continue
		}
		var want []string
		for _, m := range history {
			if !m.at.After(before) {
				want = m.ids
			}
		}
		found, _ := w.discovered("demo", "svc")
		if got := sortedKeys(found); !slices.Equal(got, want) {
			t.Fatalf("step %d: found %v, want %v", i, got, want)
		}
	}
}
