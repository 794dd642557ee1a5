package cloudmaplocal

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go"
	"golang.org/x/sync/errgroup"
)

// faulty starts a server that has a service svc in a namespace demo and a fault plan of these
// rules.
func faulty(t *testing.T, opts Options, rules ...FaultRule) (w *testServer, service string) {
	t.Helper()
	w = newTestServer(t, opts)
	service = w.service(w.namespace("demo"), "svc")
	w.plan(rules...)
	return w, service
}

func (w *testServer) plan(rules ...FaultRule) {
	w.t.Helper()
	if err := w.server.SetFaults(FaultPlan{Seed: 1, Rules: rules}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *testServer) tryRegister(ctx context.Context, service, id string) error {
	_, err := w.RegisterInstance(ctx, &sd.RegisterInstanceInput{
		ServiceId: &service, InstanceId: &id, Attributes: map[string]string{"V": id}})
	return err
}

func TestFaultErrors(t *testing.T) {
	tests := []struct {
		code       string
		wantStatus int
	}{
		{"ThrottlingException", 400}, {"RequestLimitExceeded", 429}, {"AccessDeniedException", 400}, {"ExpiredTokenException", 400},
		{"InternalFailure", 500}, {"ServiceUnavailable", 503}, {"ServiceNotFound", 400}, {"ResourceLimitExceeded", 400},
	}
	for _, tt := range tests {
		t.Run(tt.code, func(t *testing.T) {
			w, svc := faulty(t, Options{}, FaultRule{Kind: FaultError, Code: tt.code, Next: 1})
			err := w.tryRegister(t.Context(), svc, "a")
			wantCode(t, err, tt.code)
			wantStatus(t, err, tt.wantStatus)
			if err := w.tryRegister(t.Context(), svc, "a"); err != nil {
				t.Errorf("after the only hit: %v", err)
			}
		})
	}
}

func TestFaultErrorMembers(t *testing.T) {
	w, svc := faulty(t, Options{}, FaultRule{
		Kind: FaultError, Code: "DuplicateRequest", Message: "busy", Members: map[string]string{"DuplicateOperationId": "op-1"}})
	err := w.tryRegister(t.Context(), svc, "a")
	var duplicate *types.DuplicateRequest
	if !errors.As(err, &duplicate) || aws.ToString(duplicate.DuplicateOperationId) != "op-1" || duplicate.ErrorMessage() != "busy" {
		t.Errorf("error = %v", err)
	}
}

// TestFaultRulesFit checks which requests a rule matches.
func TestFaultRulesFit(t *testing.T) {
	const denied = "AccessDeniedException"
	tests := []struct {
		name     string
		rule     FaultRule
		wantHits []string // by key and request, in the order of the requests
	}{
		{"everything", FaultRule{}, []string{
			"A register-svc", "A register-other", "A discover-svc", "A list", "B register-svc", "B register-other", "B discover-svc", "B list"}},
		{"an operation", FaultRule{Operations: []string{"RegisterInstance"}}, []string{
			"A register-svc", "A register-other", "B register-svc", "B register-other"}},
		{"a service", FaultRule{Service: "s*"}, []string{"A register-svc", "A discover-svc", "B register-svc", "B discover-svc"}},
		{"an instance", FaultRule{Instance: "?"}, []string{"A register-svc", "A register-other", "B register-svc", "B register-other"}},
		{"an instance of a service", FaultRule{Service: "svc", Instance: "a"}, []string{"A register-svc", "B register-svc"}},
		{"another instance", FaultRule{Instance: "b*"}, nil},
		{"a key", FaultRule{AccessKey: "B", Operations: []string{"ListNamespaces"}}, []string{"B list"}},
		{"keys", FaultRule{AccessKey: "B*", Operations: []string{"ListNamespaces"}}, []string{"B list"}},
		{"another account", FaultRule{Account: "111111111111"}, nil},
		{"this account", FaultRule{Account: DefaultAccount, Operations: []string{"ListNamespaces"}}, []string{"A list", "B list"}},
		{"the next three", FaultRule{Next: 3}, []string{"A register-svc", "A register-other", "A discover-svc"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.rule.Kind, tt.rule.Code = FaultError, denied
			w, svc := faulty(t, Options{})
			other := w.service(must(t, w.listNamespaces(t), nil)[0], "other")
			w.plan(tt.rule)
			var hit []string
			for _, key := range []string{"A", "B"} {
				c := &testServer{t: t, Client: w.client("us-east-1", key, "s")}
				for _, request := range []struct {
					name string
					err  error
				}{
					{"register-svc", c.tryRegister(t.Context(), svc, "a")},
					{"register-other", c.tryRegister(t.Context(), other, "a")},
					{"discover-svc", errorOf(c.DiscoverInstances(t.Context(), &sd.DiscoverInstancesInput{NamespaceName: new("demo"), ServiceName: new("svc")}))},
					{"list", errorOf(c.ListNamespaces(t.Context(), &sd.ListNamespacesInput{}))},
				} {
					if request.err != nil {
						wantCode(t, request.err, denied)
						hit = append(hit, key+" "+request.name)
					}
				}
			}
			assertEqual(t, tt.wantHits, hit)
			if _, hits := w.server.Faults(); hits[0] != len(hit) {
				t.Errorf("%d hits counted, want %d", hits[0], len(hit))
			}
		})
	}
}

func (w *testServer) listNamespaces(t *testing.T) []string {
	t.Helper()
	out, err := w.ListNamespaces(t.Context(), &sd.ListNamespacesInput{})
	return mapSlice(must(t, out, err).Namespaces, func(ns types.NamespaceSummary) string { return *ns.Id })
}

func errorOf[T any](_ T, err error) error { return err }

// TestFaultServiceOfEveryRequest checks that a rule for a service matches requests that name it by
// ID, ARN or name.
func TestFaultServiceOfEveryRequest(t *testing.T) {
	w, svc := faulty(t, Options{})
	operation := w.register(svc, "a", map[string]string{})
	got, err := w.GetService(t.Context(), &sd.GetServiceInput{Id: &svc})
	arn := must(t, got, err).Service.Arn
	namespace := got.Service.NamespaceId
	w.plan(FaultRule{Kind: FaultError, Code: "InternalFailure", Service: "svc"})
	ctx := t.Context()
	for name, err := range map[string]error{
		"by id":        errorOf(w.GetService(ctx, &sd.GetServiceInput{Id: &svc})),
		"by ARN":       errorOf(w.ListTagsForResource(ctx, &sd.ListTagsForResourceInput{ResourceARN: arn})),
		"by service":   errorOf(w.ListInstances(ctx, &sd.ListInstancesInput{ServiceId: arn})),
		"by names":     errorOf(w.DiscoverInstancesRevision(ctx, &sd.DiscoverInstancesRevisionInput{NamespaceName: new("demo"), ServiceName: new("svc")})),
		"by operation": errorOf(w.GetOperation(ctx, &sd.GetOperationInput{OperationId: &operation})),
		"created":      errorOf(w.CreateService(ctx, &sd.CreateServiceInput{NamespaceId: namespace, Name: new("svc")})),
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, err, "InternalFailure") })
	}
	if _, err := w.GetNamespace(ctx, &sd.GetNamespaceInput{Id: namespace}); err != nil {
		t.Errorf("a request about the namespace: %v", err)
	}
}

func TestFaultDrop(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprint("applied ", applied), func(t *testing.T) {
			w, svc := faulty(t, Options{}, FaultRule{Kind: FaultDrop, Applied: applied, Operations: []string{"RegisterInstance"}})
			err := w.tryRegister(t.Context(), svc, "a")
			var answered smithy.APIError
			if err == nil || errors.As(err, &answered) {
				t.Errorf("error = %v, want none of the API's", err)
			}
			found, _ := w.discovered("demo", "svc")
			if _, there := found["a"]; there != applied {
				t.Errorf("registered: %v, want %v", there, applied)
			}
			_, body := w.get("/metrics")
			if want := `cloudmap_local_requests_total{operation="RegisterInstance",result="dropped"} 1`; !strings.Contains(body, want) {
				t.Errorf("/metrics lacks %s", want)
			}
		})
	}
}

func TestFaultAppliedError(t *testing.T) {
	w, svc := faulty(t, Options{}, FaultRule{Kind: FaultError, Code: "InternalFailure", Applied: true, Operations: []string{"RegisterInstance"}})
	wantCode(t, w.tryRegister(t.Context(), svc, "a"), "InternalFailure")
	if found, _ := w.discovered("demo", "svc"); len(found) != 1 {
		t.Error("not applied")
	}
	// a request that fails by itself keeps its own error
	wantCode(t, w.tryRegister(t.Context(), "srv-x", "a"), "ServiceNotFound")
}

// TestFaultDelay has a client that waits and one that does not.
func TestFaultDelay(t *testing.T) {
	const delay = 50 * time.Millisecond
	w, svc := faulty(t, Options{}, FaultRule{Kind: FaultDelay, Delay: Duration(delay)}, FaultRule{Kind: FaultDelay, Delay: Duration(delay)})
	start := time.Now()
	if err := w.tryRegister(t.Context(), svc, "a"); err != nil || time.Since(start) < 2*delay {
		t.Errorf("answered after %v with error %v", time.Since(start), err)
	}
	w.plan(FaultRule{Kind: FaultDrop, Delay: Duration(time.Hour)})
	ctx, cancel := context.WithTimeout(t.Context(), delay)
	defer cancel()
	if err := w.tryRegister(ctx, svc, "b"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error = %v", err)
	}
	w.plan()
	if found, _ := w.discovered("demo", "svc"); len(found) != 1 {
		t.Errorf("found %v", found)
	}
}

// TestFaultOperations checks operations that are accepted and have no effect: nothing of them
// stays, and no quota is held.
func TestFaultOperations(t *testing.T) {
	const takes = time.Second
	tests := []struct {
		rule       FaultRule
		wantStatus types.OperationStatus
		wantCode   string
	}{
		{FaultRule{Kind: FaultFail}, types.OperationStatusFail, "INTERNAL_FAILURE"},
		{FaultRule{Kind: FaultFail, Code: "THROTTLED_REQUEST"}, types.OperationStatusFail, "THROTTLED_REQUEST"},
		{FaultRule{Kind: FaultLost}, types.OperationStatusSubmitted, ""},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.rule.Kind, tt.rule.Code), func(t *testing.T) {
			w := newTestServer(t, Options{Behaviors: Behaviors{OperationDelay: Duration(takes)}, InstancesPerNamespace: 1})
			created, err := w.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("demo")})
			must(t, created, err)
			w.clock.Advance(takes)
			ns := w.operation(created.OperationId).Targets["NAMESPACE"]
			svc := w.service(ns, "svc")
			w.plan(tt.rule)
			id := w.register(svc, "a", map[string]string{})
			w.clock.Advance(2 * takes)
			op := w.operation(&id)
			if op.Status != tt.wantStatus || aws.ToString(op.ErrorCode) != tt.wantCode {
				t.Errorf("status %s %s, want %s %s", op.Status, aws.ToString(op.ErrorCode), tt.wantStatus, tt.wantCode)
			}
			if found, _ := w.discovered("demo", "svc"); len(found) != 0 {
				t.Errorf("found %v", found)
			}
			w.plan()
			w.register(svc, "b", map[string]string{}) // the quota of one was not used up
			w.clock.Advance(takes)
			w.plan(tt.rule)
			w.deregister(svc, "b")
			w.clock.Advance(takes)
			if found, _ := w.discovered("demo", "svc"); len(found) != 1 {
				t.Errorf("found %v, want b, whose deregistration did not happen", found)
			}
			w.plan()
			w.deregister(svc, "b")
			w.clock.Advance(takes)
			if _, err := w.DeleteService(t.Context(), &sd.DeleteServiceInput{Id: &svc}); err != nil {
				t.Error(err) // nothing is in flight
			}
			w.plan(tt.rule)
			_, err = w.DeleteNamespace(t.Context(), &sd.DeleteNamespaceInput{Id: &ns})
			must(t, ns, err)
			w.clock.Advance(takes)
			assertEqual(t, 1, len(w.listNamespaces(t)))
		})
	}
}

func TestFaultFailsLater(t *testing.T) {
	w, svc := faulty(t, Options{}, FaultRule{Kind: FaultFail, Delay: Duration(time.Minute), Message: "no"})
	id := w.register(svc, "a", map[string]string{})
	assertEqual(t, types.OperationStatusSubmitted, w.operation(&id).Status)
	_, err := w.RegisterInstance(t.Context(), &sd.RegisterInstanceInput{ServiceId: &svc, InstanceId: new("a"), Attributes: map[string]string{}})
	wantCode(t, err, "DuplicateRequest")
	w.clock.Advance(time.Minute)
	op := w.operation(&id)
	assertEqual(t, types.OperationStatusFail, op.Status)
	assertEqual(t, "no", aws.ToString(op.ErrorMessage))
}

// TestFaultStale registers a, b, c, … one a second and reads all the time. A read may show each as
// late as its age allows and no later, and some read shows a later one before an earlier one.
func TestFaultStale(t *testing.T) {
	const age = 5
	w, svc := faulty(t, Options{}, FaultRule{Kind: FaultStale, Age: Duration(age * time.Second)})
	w.clock.Advance(age * time.Second) // now the service is seen by all
	reordered, behind := false, false
	for i := range 60 {
		w.register(svc, numbered("i", i), map[string]string{})
		found, revision := w.discovered("demo", "svc")
		behind = behind || revision < int64(i+1)
		if revision < int64(i+1-age) || revision > int64(i+1) {
			t.Errorf("after %d registrations the revision is %d", i+1, revision)
		}
		for j := range i + 1 {
			if _, there := found[numbered("i", j)]; !there && j < i-age {
				t.Errorf("after %d registrations, %d is not there", i+1, j)
			} else if _, next := found[numbered("i", j+1)]; next && !there {
				reordered = true
			}
		}
		w.clock.Advance(time.Second)
	}
	if !reordered || !behind {
		t.Errorf("reordered: %v, behind: %v", reordered, behind)
	}
	w.clock.Advance(age * time.Second)
	if found, _ := w.discovered("demo", "svc"); len(found) != 60 {
		t.Errorf("%d found at the end", len(found))
	}
	if past := w.server.regions.getRegion(regionKey{DefaultAccount, "us-east-1"}).replica.services[svc].past; len(past) > age+1 {
		t.Errorf("%d changes are remembered", len(past))
	}
}

func TestFaultStaleDeletionAndService(t *testing.T) {
	w, svc := faulty(t, Options{})
	w.register(svc, "a", map[string]string{"V": "old"})
	w.plan(FaultRule{Kind: FaultStale, Age: Duration(time.Minute)})
	w.register(svc, "a", map[string]string{"V": "new"})
	w.clock.Advance(time.Second)
	w.deregister(svc, "a")
	seen := map[string]bool{}
	for range 200 {
		out, err := w.ListInstances(t.Context(), &sd.ListInstancesInput{ServiceId: &svc})
		value := "gone"
		for _, inst := range must(t, out, err).Instances {
			value = inst.Attributes["V"]
		}
		seen[value] = true
		w.clock.Advance(250 * time.Millisecond)
	}
	assertEqual(t, []string{"gone", "new", "old"}, sortedKeys(seen))

	w.service(w.listNamespaces(t)[0], "young")
	hidden := 0
	for range 20 {
		_, err := w.DiscoverInstances(t.Context(), &sd.DiscoverInstancesInput{NamespaceName: new("demo"), ServiceName: new("young")})
		if err != nil {
			wantCode(t, err, "ServiceNotFound")
			hidden++
		}
		w.clock.Advance(time.Minute / 20)
	}
	if hidden == 0 || hidden == 20 {
		t.Errorf("the new service was hidden in %d of 20 reads", hidden)
	}
}

func TestFaultPartial(t *testing.T) {
	w, svc := faulty(t, Options{}, FaultRule{Kind: FaultPartial, Share: 0.3})
	for i := range 100 {
		w.register(svc, numbered("i", i), map[string]string{})
	}
	first, revision := w.discovered("demo", "svc")
	second, _ := w.discovered("demo", "svc")
	assertEqual(t, int64(100), revision)
	for _, found := range []map[string]types.HttpInstanceSummary{first, second} {
		if n := len(found); n < 50 || n > 90 {
			t.Errorf("%d of 100 found, want about 70", n)
		}
	}
	if slices.Equal(sortedKeys(first), sortedKeys(second)) {
		t.Error("both reads lack the same")
	}
}

// TestFaultHangs has a caller that gives up.
func TestFaultHangs(t *testing.T) {
	for _, applied := range []bool{false, true} {
		t.Run(fmt.Sprint("applied ", applied), func(t *testing.T) {
			w, svc := faulty(t, Options{}, FaultRule{Kind: FaultHang, Applied: applied, Next: 1})
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := w.tryRegister(ctx, svc, "a"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error = %v", err)
			}
			found, _ := w.discovered("demo", "svc")
			if _, there := found["a"]; there != applied {
				t.Errorf("registered: %v, want %v", there, applied)
			}
		})
	}
}

// TestFaultsCanBeReplayed is the promise of the seed: the n-th request of a caller for the same has
// the same fate.
func TestFaultsCanBeReplayed(t *testing.T) {
	outcomes := func(seed uint64, between bool) (all string) {
		w, svc := faulty(t, Options{})
		other := w.service(must(t, w.listNamespaces(t), nil)[0], "other")
		if err := w.server.SetFaults(FaultPlan{Seed: seed, Rules: []FaultRule{
			{Kind: FaultError, Code: "InternalFailure", Probability: 0.3}, {Kind: FaultDrop, Probability: 0.3}}}); err != nil {
			t.Fatal(err)
		}
		for range 64 {
			if between {
				_, _ = w.ListServices(t.Context(), &sd.ListServicesInput{})
				_, _ = w.client("us-east-1", "OTHER", "s").GetInstance(t.Context(), &sd.GetInstanceInput{ServiceId: &svc, InstanceId: new("a")})
				_, _ = w.GetInstance(t.Context(), &sd.GetInstanceInput{ServiceId: &svc, InstanceId: new("b")})
				_, _ = w.GetInstance(t.Context(), &sd.GetInstanceInput{ServiceId: &other, InstanceId: new("a")})
			}
			var failed smithy.APIError
			_, err := w.GetInstance(t.Context(), &sd.GetInstanceInput{ServiceId: &svc, InstanceId: new("a")})
			switch {
			case !errors.As(err, &failed):
				all += "d"
			case failed.ErrorCode() == "InternalFailure":
				all += "e"
			default: // there is no such instance
				all += "."
			}
		}
		return all
	}
	one := outcomes(7, false)
	assertEqual(t, one, outcomes(7, true))
	for _, want := range []string{"e", "d", "."} {
		if n := strings.Count(one, want); n < 8 {
			t.Errorf("%s: %d times %s", one, n, want)
		}
	}
	if one == outcomes(8, false) {
		t.Error("another seed makes no difference")
	}
}

// TestFaultsWhileThePlanChanges checks that requests and changes of the plan do not deadlock.
func TestFaultsWhileThePlanChanges(t *testing.T) {
	w, svc := faulty(t, Options{})
	var group errgroup.Group
	for range 4 {
		group.Go(func() error {
			for range 50 {
				if err := w.tryRegister(t.Context(), svc, "a"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for range 200 {
		w.plan(FaultRule{Kind: FaultStale, Age: Duration(time.Second), Service: "svc"})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func TestFaultsSurviveRestart(t *testing.T) {
	opts := Options{StateFile: filepath.Join(t.TempDir(), "state.json"), Behaviors: Behaviors{OperationDelay: Duration(time.Second)}}
	before := newTestServer(t, opts)
	_, svc := filled(before)
	before.plan(FaultRule{Kind: FaultFail, Next: 1}, FaultRule{Kind: FaultLost})
	failing, lost := before.register(svc, "a", map[string]string{}), before.register(svc, "b", map[string]string{})
	if err := before.server.saver.save(); err != nil {
		t.Fatal(err)
	}
	after := newTestServer(t, opts)
	after.clock.Advance(before.clock.Now().Sub(began) + time.Second)
	assertEqual(t, types.OperationStatusFail, after.operation(&failing).Status)
	assertEqual(t, types.OperationStatusSubmitted, after.operation(&lost).Status)
	found, _ := after.discovered("demo", "svc")
	assertEqual(t, []string{"gone", "here"}, sortedKeys(found))
}

func TestRefusedFaultPlans(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"no kind", `{"rules":[{}]}`, "rule 1: kind"},
		{"unknown kind", `{"rules":[{"kind":"delay","delay":"1s"},{"kind":"magic"}]}`, "rule 2: kind \"magic\""},
		{"unknown operation", `{"rules":[{"kind":"drop","operations":["Dance"]}]}`, "no such operation"},
		{"operation that never waits", `{"rules":[{"kind":"lost","operations":["CreateService"]}]}`, "CreateService"},
		{"error without code", `{"rules":[{"kind":"error"}]}`, "code: required"},
		{"error with status 200", `{"rules":[{"kind":"error","code":"X","status":200}]}`, "status 200"},
		{"delay without delay", `{"rules":[{"kind":"delay"}]}`, "delay: required"},
		{"delay of days", `{"rules":[{"kind":"delay","delay":"48h"}]}`, "delay 48h"},
		{"negative delay", `{"rules":[{"kind":"delay","delay":"-1s"}]}`, "delay -1s"},
		{"delay without unit", `{"rules":[{"kind":"delay","delay":"5"}]}`, "missing unit"},
		{"stale without age", `{"rules":[{"kind":"stale"}]}`, "age"},
		{"partial with share 2", `{"rules":[{"kind":"partial","share":2}]}`, "share 2"},
		{"probability 2", `{"rules":[{"kind":"drop","probability":2}]}`, "probability 2"},
		{"next -1", `{"rules":[{"kind":"drop","next":-1}]}`, "next -1"},
		{"service pattern", `{"rules":[{"kind":"drop","service":"[a"}]}`, "service \"[a\": syntax error in pattern"},
		{"instance pattern", `{"rules":[{"kind":"drop","instance":"[a"}]}`, "instance \"[a\": syntax error in pattern"},
		{"key pattern", `{"rules":[{"kind":"drop","accessKey":"[a"}]}`, "accessKey \"[a\": syntax error in pattern"},
		{"applied stale", `{"rules":[{"kind":"stale","age":"1s","applied":true}]}`, "applied"},
		{"code of drop", `{"rules":[{"kind":"drop","code":"X"}]}`, "code"},
		{"members of fail", `{"rules":[{"kind":"fail","members":{"A":"b"}}]}`, "members"},
		{"age of drop", `{"rules":[{"kind":"drop","age":"1s"}]}`, "age"},
		{"share of drop", `{"rules":[{"kind":"drop","share":1}]}`, "share"},
		{"unknown field", `{"rules":[{"kind":"drop","often":true}]}`, "often"},
		{"no plan", `hello`, "unmarshal"},
	}
	w := newTestServer(t, Options{})
	w.plan(FaultRule{Kind: FaultDelay, Delay: 1})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, body := w.send(http.MethodPut, "/faults", tt.body)
			if status != http.StatusBadRequest || !strings.Contains(body, tt.want) {
				t.Errorf("%d %s, want 400 and %q", status, body, tt.want)
			}
		})
	}
	if plan, _ := w.server.Faults(); len(plan.Rules) != 1 {
		t.Error("a refused plan has replaced the one in force")
	}
}

func TestFaultsEndpoint(t *testing.T) {
	w, svc := faulty(t, Options{})
	plan := "seed: 5\nrules:\n- kind: error\n  operations: [RegisterInstance]\n  code: ThrottlingException\n  delay: 1ms\n"
	if status, body := w.send(http.MethodPut, "/faults", plan); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, body)
	}
	wantCode(t, w.tryRegister(t.Context(), svc, "a"), "ThrottlingException")
	status, body := w.get("/faults")
	for _, want := range []string{`"seed": 5`, `"kind": "error"`, `"delay": "1ms"`, "\"hits\": [\n    1\n  ]"} {
		if status != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%d %s lacks %s", status, body, want)
		}
	}
	if status, body := w.send(http.MethodDelete, "/faults", ""); status != http.StatusNoContent {
		t.Errorf("%d %s", status, body)
	}
	if err := w.tryRegister(t.Context(), svc, "a"); err != nil {
		t.Error(err)
	}
}

// send sends a request to an endpoint that is not AWS's.
func (w *testServer) send(method, path, body string) (int, string) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	return w.do(must(w.t, r, err))
}
