package cloudmaplocal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
)

func TestStateSurvivesRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	opts := Options{StateFile: path, Behaviors: Behaviors{OperationDelay: Duration(time.Second), ConsistencyDelay: Duration(time.Second), HealthDelay: Duration(time.Minute)}}
	before := newTestServer(t, opts)
	ns, svc := filled(before)
	inFlight := before.register(svc, "late", map[string]string{"n": "2"})
	deleting := before.deregister(svc, "gone")
	if err := before.server.saver.save(); err != nil { // as if killed right after a write
		t.Fatal(err)
	}

	after := newTestServer(t, opts)
	after.clock.Advance(before.clock.Now().Sub(began))
	got, err := after.GetNamespace(t.Context(), &sd.GetNamespaceInput{Id: &ns})
	assertEqual(t, new("kept"), must(t, got, err).Namespace.Description)
	assertEqual(t, new(int32(1)), got.Namespace.ServiceCount)
	tags, err := after.ListTagsForResource(t.Context(), &sd.ListTagsForResourceInput{ResourceARN: got.Namespace.Arn})
	assertEqual(t, []types.Tag{{Key: new("a"), Value: new("b")}}, must(t, tags, err).Tags)
	attributes, err := after.GetServiceAttributes(t.Context(), &sd.GetServiceAttributesInput{ServiceId: &svc})
	assertEqual(t, map[string]string{"k": "v"}, must(t, attributes, err).ServiceAttributes.Attributes)
	assertEqual(t, types.OperationStatusSubmitted, after.operation(&inFlight).Status)
	found, revision := after.discovered("demo", "svc")
	assertEqual(t, []string{"gone", "here"}, sortedKeys(found))
	_, err = after.RegisterInstance(t.Context(), &sd.RegisterInstanceInput{ServiceId: &svc, InstanceId: new("late"), Attributes: map[string]string{}})
	wantCode(t, err, "DuplicateRequest")

	after.clock.Advance(2 * time.Second)
	assertEqual(t, types.OperationStatusSuccess, after.operation(&inFlight).Status)
	assertEqual(t, types.OperationStatusSuccess, after.operation(&deleting).Status)
	found, later := after.discovered("demo", "svc")
	assertEqual(t, []string{"here", "late"}, sortedKeys(found))
	assertEqual(t, revision+2, later)
	assertEqual(t, types.HealthStatusHealthy, found["here"].HealthStatus)
	after.clock.Advance(time.Minute)
	found, _ = after.discovered("demo", "svc")
	assertEqual(t, types.HealthStatusUnhealthy, found["here"].HealthStatus)
}

// filled creates a namespace and a service with a value in every field, and returns their IDs.
func filled(w *testServer) (ns, svc string) {
	ctx, t := w.t.Context(), w.t
	created, err := w.CreateHttpNamespace(ctx, &sd.CreateHttpNamespaceInput{
		Name: new("demo"), Description: new("kept"), Tags: []types.Tag{{Key: new("a"), Value: new("b")}},
	})
	ns = w.operation(must(t, created, err).OperationId).Targets["NAMESPACE"]
	w.clock.Advance(time.Second)
	service, err := w.CreateService(ctx, &sd.CreateServiceInput{
		NamespaceId: &ns, Name: new("svc"), HealthCheckCustomConfig: &types.HealthCheckCustomConfig{},
	})
	svc = *must(t, service, err).Service.Id
	_, err = w.UpdateServiceAttributes(ctx, &sd.UpdateServiceAttributesInput{ServiceId: &svc, Attributes: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	w.register(svc, "here", map[string]string{"n": "1"})
	w.register(svc, "gone", map[string]string{})
	w.clock.Advance(2 * time.Second)
	_, err = w.UpdateInstanceCustomHealthStatus(ctx, &sd.UpdateInstanceCustomHealthStatusInput{ServiceId: &svc, InstanceId: new("here"), Status: "UNHEALTHY"})
	if err != nil {
		t.Fatal(err)
	}
	return ns, svc
}

func TestCloseSaves(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	first, err := New(Options{StateFile: path})
	if err := must(t, first, err).Close(); err != nil {
		t.Fatal(err)
	}
	second, err := New(Options{StateFile: path})
	if err := must(t, second, err).Close(); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(path + "*")
	assertEqual(t, []string{path}, must(t, left, err)) // no temporary file stays
}

func TestServer_SavesChangesInBackground(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	w := newTestServer(t, Options{StateFile: path})
	w.namespace("demo")
	deadline := time.Now().Add(10 * saveInterval)
	for {
		raw, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(raw), `"demo"`) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not saved after %s: %s, %v", 10*saveInterval, raw, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestUnusableStateFile(t *testing.T) {
	const service = `{"ID":"srv-1","NamespaceID":"ns-1","Instances":{"a":null}}`
	tests := []struct{ name, content, want string }{
		{"empty", "", "not a state file"},
		{"something else", "hello", "not a state file"},
		{"cut off", `{"Version":1,"Regions":[`, "not a state file"},
		{"future", `{"Version":2}`, "version is 2"},
		{"no version", `{}`, "version is 0"},
		{"unknown field", `{"Version":1,"Surprise":1}`, "Surprise"},
		{"service without namespace", `{"Version":1,"Regions":[{"Services":[` + service + `]}]}`, "ns-1, which is not there"},
		{"no instance", `{"Version":1,"Regions":[{"Namespaces":[{"ID":"ns-1"}],"Services":[` + service + `]}]}`, "instance a"},
		{"null", `{"Version":1,"Regions":[{"Services":[null]}]}`, "null"},
		{"two operations on one namespace", `{"Version":1,"Regions":[{"Namespaces":[{"ID":"ns-1"}],"Operations":[` +
			`{"ID":"a","Type":"DELETE_NAMESPACE","Targets":{"NAMESPACE":"ns-1"}},{"ID":"b","Type":"DELETE_NAMESPACE","Targets":{"NAMESPACE":"ns-1"}}]}]}`,
			"a and b work on the same"},
		{"operation on nothing", `{"Version":1,"Regions":[{"Operations":[{"ID":"op","Type":"REGISTER_INSTANCE"}]}]}`, "operation op"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.json")
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := New(Options{StateFile: path})
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "away") {
				t.Errorf("error = %v, want one that contains %q, the file and what to do", err, tt.want)
			}
			if raw, err := os.ReadFile(path); err != nil || string(raw) != tt.content {
				t.Errorf("the file was changed to %q, %v", raw, err)
			}
		})
	}
}

func TestStateFileCannotBeWritten(t *testing.T) {
	s, err := New(Options{StateFile: filepath.Join(t.TempDir(), "no-such-folder", "state.json")})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "no-such-folder") {
		t.Errorf("error = %v, want one that names the file", err)
	}
}
