package cloudmaplocal

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
)

// TestSwitches: the text is of the fields, in their order, and the zero value is the default of
// each.
func TestSwitches(t *testing.T) {
	shape := reflect.TypeFor[Behaviors]()
	all := Switches()
	assertEqual(t, shape.NumField(), len(all))
	for i, s := range all {
		name, _, _ := strings.Cut(shape.Field(i).Tag.Get("json"), ",")
		assertEqual(t, name, s.Name)
		if s.Meaning == "" || s.Evidence == "" || s.Default == "" || s.Pessimistic == "" || s.Evidence != Unknown && s.Source == "" {
			t.Errorf("%s lacks something: %+v", s.Name, s)
		}
		for _, value := range []string{s.Default, s.Pessimistic} {
			b, err := ParseBehaviors(fmt.Appendf(nil, "%s: %s", s.Name, value))
			if err != nil || b.fieldText(i) != value {
				t.Errorf("%s: %s reads as %s, %v", s.Name, value, b.fieldText(i), err)
			}
		}
	}
	if _, err := Pessimistic().withDefaults(); err != nil {
		t.Error(err)
	}
}

func TestParseBehaviors(t *testing.T) {
	for content, want := range map[string]string{
		`{"strictHost": true}`:            "the keys are strictHosts, ",
		`{"strictHosts": "maybe"}`:        "strictHosts",
		`{"httpNameSuffix": "often"}`:     `httpNameSuffix "often": must be one of [coexisting never reuse]`,
		`{"instanceCount": "many"}`:       "instanceCount",
		`{"missingService": "x"}`:         "missingService",
		`{"revisionOn": "x"}`:             "revisionOn",
		`{"healthOnReregister": "x"}`:     "healthOnReregister",
		`{"inUseFor": "1d"}`:              "1d",
		`{"inUseFor": "-1s"}`:             "inUseFor -1s",
		`{"tagsVisibleAfter": "2h"}`:      "tagsVisibleAfter 2h0m0s: must be between 0 and 1h0m0s",
		`{"maxAnswerBytes": -1}`:          "maxAnswerBytes -1",
		`{"revisionBase": -1}`:            "revisionBase -1",
		`{"denyAtOnce":1,"denyAtOnce":2}`: "denyAtOnce",
		`[]`:                              "the keys are",
	} {
		if _, err := ParseBehaviors([]byte(content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want one that contains %q", content, err, want)
		}
	}
	got, err := ParseBehaviors([]byte("inUseFor: 90s\ninstanceCount: absent"))
	want := Behaviors{
		InUseFor: Duration(90 * time.Second), InstanceCount: CountAbsent, HTTPNameSuffix: SuffixCoexisting,
		MissingService: MissingRefuse, RevisionOn: RevisionOnRegistration, HealthOnReregister: HealthReset,
	}
	assertEqual(t, want, must(t, got, err))

	path := t.TempDir() + "/behaviors.json"
	must(t, 0, os.WriteFile(path, []byte("{}"), 0o600))
	amended, err := ReadBehaviors(path, Pessimistic())
	assertEqual(t, Pessimistic(), must(t, amended, err))
	must(t, 0, os.WriteFile(path, []byte(`{"strictHosts": false, "inUseFor": "0s"}`), 0o600))
	amended, err = ReadBehaviors(path, Pessimistic())
	want = Pessimistic()
	want.StrictHosts, want.InUseFor = false, 0
	assertEqual(t, want, must(t, amended, err))
	if _, err := ReadBehaviors(path+".not", Behaviors{}); err == nil {
		t.Error("a missing file is no error")
	}
}

// FuzzParseBehaviors: behaviors that can be read are valid, and read the same after they were
// written.
func FuzzParseBehaviors(f *testing.F) {
	pessimistic, _ := json.Marshal(Pessimistic())
	f.Add(pessimistic)
	f.Add([]byte("revisionBase: 9007199254740993\nconsistencyDelay: 1ms"))
	f.Add([]byte("{}"))
	f.Add([]byte("{inUseFor: ''}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := ParseBehaviors(raw)
		if err != nil {
			return
		}
		written, err := json.Marshal(b)
		again, errAgain := ParseBehaviors(must(t, written, err))
		assertEqual(t, b, must(t, again, errAgain))
		if _, err := New(Options{Behaviors: b}); err != nil {
			t.Error(err)
		}
	})
}

func TestStrictHosts(t *testing.T) {
	w := newTestServer(t, Options{Behaviors: Behaviors{StrictHosts: true}})
	ns := w.namespace("demo")
	w.service(ns, "svc")
	discover := &sd.DiscoverInstancesInput{NamespaceName: new("demo"), ServiceName: new("svc")}
	_, err := w.DiscoverInstances(t.Context(), discover)
	wantCode(t, err, "UnknownOperationException")
	_, err = w.DiscoverInstancesRevision(t.Context(), &sd.DiscoverInstancesRevisionInput{NamespaceName: new("demo"), ServiceName: new("svc")})
	wantCode(t, err, "UnknownOperationException")

	data := w.dataClient()
	_, err = data.DiscoverInstances(t.Context(), discover)
	must(t, 0, err)
	_, err = data.ListNamespaces(t.Context(), &sd.ListNamespacesInput{})
	wantCode(t, err, "UnknownOperationException")
}

// TestDataPlane: where names of hosts are not strict, and for clients that can use no such name, an
// address counts as one.
func TestDataPlane(t *testing.T) {
	w := newTestServer(t, Options{Now: time.Now, Behaviors: Behaviors{StrictHosts: true}, AccessKeys: []AccessKey{{ID: "AKIDEXAMPLE", Secret: "secret"}}})
	w.service(w.namespace("demo"), "svc")
	listener := httptest.NewServer(w.server.DataPlane())
	t.Cleanup(listener.Close)
	w.url = listener.URL
	data := w.client("us-east-1", "AKIDEXAMPLE", "secret")
	_, err := data.DiscoverInstances(t.Context(), &sd.DiscoverInstancesInput{NamespaceName: new("demo"), ServiceName: new("svc")})
	must(t, 0, err)
	_, err = data.ListNamespaces(t.Context(), &sd.ListNamespacesInput{})
	wantCode(t, err, "UnknownOperationException")
}

// dataClient returns a client whose requests all have a host of AWS's data plane.
func (w *testServer) dataClient() *sd.Client {
	options := w.Options()
	options.BaseEndpoint = aws.String(strings.Replace(w.url, "http://", "http://data-", 1))
	options.HTTPClient = toHost{options.HTTPClient, strings.TrimPrefix(w.url, "http://")}
	return sd.New(options)
}

// toHost sends requests to a host, whatever they name.
type toHost struct {
	sd.HTTPClient
	host string
}

func (c toHost) Do(r *http.Request) (*http.Response, error) {
	r.Host, r.URL.Host = r.URL.Host, c.host
	return c.HTTPClient.Do(r)
}

func TestRefuseOwnerFilter(t *testing.T) {
	w := newTestServer(t, Options{Behaviors: Behaviors{RefuseOwnerFilter: true}})
	owner, name := types.NamespaceFilterNameResourceOwner, types.NamespaceFilterNameName
	_, err := w.ListNamespaces(t.Context(), &sd.ListNamespacesInput{Filters: []types.NamespaceFilter{{Name: owner, Values: []string{"SELF"}}}})
	wantCode(t, err, "InvalidInput")
	_, err = w.ListServices(t.Context(), &sd.ListServicesInput{Filters: []types.ServiceFilter{{Name: "RESOURCE_OWNER", Values: []string{"SELF"}}}})
	wantCode(t, err, "InvalidInput")
	_, err = w.ListNamespaces(t.Context(), &sd.ListNamespacesInput{Filters: []types.NamespaceFilter{{Name: name, Values: []string{"demo"}}}})
	must(t, 0, err)
}

func TestHTTPNameSuffix(t *testing.T) {
	// of the first, of another kind meanwhile, of one after both
	for suffix, want := range map[HTTPNameSuffix][3]bool{
		SuffixNever: {false, false, false}, SuffixCoexisting: {false, true, false}, SuffixReuse: {false, true, true},
	} {
		t.Run(string(suffix), func(t *testing.T) {
			w := newTestServer(t, Options{Behaviors: Behaviors{HTTPNameSuffix: suffix}})
			hasSuffix := func(id string) bool {
				got, err := w.GetNamespace(t.Context(), &sd.GetNamespaceInput{Id: &id})
				return *must(t, got, err).Namespace.Properties.HttpProperties.HttpName != "demo"
			}
			remove := func(id string) {
				_, err := w.DeleteNamespace(t.Context(), &sd.DeleteNamespaceInput{Id: &id})
				must(t, 0, err)
			}
			first := w.namespace("demo")
			created, err := w.CreatePrivateDnsNamespace(t.Context(), &sd.CreatePrivateDnsNamespaceInput{Name: new("demo"), Vpc: new("vpc-1")})
			second := w.operation(must(t, created, err).OperationId).Targets["NAMESPACE"]
			got := [3]bool{hasSuffix(first), hasSuffix(second)}
			remove(first)
			remove(second)
			third := w.namespace("demo")
			got[2] = hasSuffix(third)
			assertEqual(t, want, got)
			w.service(third, "svc")
			if suffix == SuffixNever { // the first namespaces have left nothing behind
				found, _ := w.discovered("demo", "svc")
				assertEqual(t, 0, len(found))
			}
		})
	}
}

// TestHTTPNameSuffix_Restart: the state file has the names of deleted namespaces.
func TestHTTPNameSuffix_Restart(t *testing.T) {
	opts := Options{Behaviors: Behaviors{HTTPNameSuffix: SuffixReuse}, StateFile: t.TempDir() + "/state.json"}
	before := newTestServer(t, opts)
	id := before.namespace("demo")
	_, err := before.DeleteNamespace(t.Context(), &sd.DeleteNamespaceInput{Id: &id})
	must(t, 0, err)
	must(t, 0, before.server.saver.save())
	after := newTestServer(t, opts)
	id = after.namespace("demo")
	got, err := after.GetNamespace(t.Context(), &sd.GetNamespaceInput{Id: &id})
	wantMatch(t, "demo-[a-z0-9]{16}", *must(t, got, err).Namespace.Properties.HttpProperties.HttpName)
}

func TestInstanceCountAbsent(t *testing.T) {
	w := newTestServer(t, Options{Behaviors: Behaviors{InstanceCount: CountAbsent}})
	svc := w.service(w.namespace("demo"), "svc")
	services, err := w.ListServices(t.Context(), &sd.ListServicesInput{})
	if n := must(t, services, err).Services[0].InstanceCount; n != nil {
		t.Errorf("InstanceCount is %d", *n)
	}
	namespaces, err := w.ListNamespaces(t.Context(), &sd.ListNamespacesInput{})
	if n := must(t, namespaces, err).Namespaces[0].ServiceCount; n != nil {
		t.Errorf("ServiceCount is %d", *n)
	}
	one, err := w.GetService(t.Context(), &sd.GetServiceInput{Id: &svc})
	assertEqual(t, new(int32(0)), must(t, one, err).Service.InstanceCount)
}

func TestMissingServiceAccept(t *testing.T) {
	opts := Options{
		Behaviors: Behaviors{MissingService: MissingAccept, OperationDelay: Duration(time.Second)}, StateFile: t.TempDir() + "/state.json",
	}
	w := newTestServer(t, opts)
	id := w.register("srv-0123456789abcdef", "a", map[string]string{"V": "1"})
	assertEqual(t, types.OperationStatusSubmitted, w.operation(&id).Status)
	must(t, 0, w.server.saver.save())
	again := newTestServer(t, opts)
	for _, w := range []*testServer{w, again} {
		w.clock.Advance(time.Second)
		op := w.operation(&id)
		assertEqual(t, types.OperationStatusFail, op.Status)
		wantMatch(t, "(?s).*srv-0123456789abcdef.*", *op.ErrorMessage)
	}
	wantCode(t, w.tryRegister(t.Context(), "srv-0123456789abcdef", "no spaces"), "InvalidInput")
	_, err := w.DeregisterInstance(t.Context(), &sd.DeregisterInstanceInput{ServiceId: new("srv-0123456789abcdef"), InstanceId: new("a")})
	wantCode(t, err, "ServiceNotFound")
}

func TestInUseFor(t *testing.T) {
	w := newTestServer(t, Options{Behaviors: Behaviors{InUseFor: Duration(time.Minute)}})
	ns := w.namespace("demo")
	svc := w.service(ns, "svc")
	deleteService := func() error { return errorOf(w.DeleteService(t.Context(), &sd.DeleteServiceInput{Id: &svc})) }
	deleteNamespace := func() error { return errorOf(w.DeleteNamespace(t.Context(), &sd.DeleteNamespaceInput{Id: &ns})) }
	w.register(svc, "a", map[string]string{})
	w.deregister(svc, "a")
	for _, remove := range []func() error{deleteService, deleteNamespace} {
		w.clock.Advance(time.Minute - 1)
		wantCode(t, remove(), "ResourceInUse")
		w.clock.Advance(1)
		must(t, 0, remove())
	}
	unused := w.namespace("unused")
	must(t, 0, errorOf(w.DeleteNamespace(t.Context(), &sd.DeleteNamespaceInput{Id: &unused})))
}

func TestShareRefusesTags(t *testing.T) {
	w := newTestServer(t, Options{Shares: []Share{{Owner: ownAccount, Namespace: "demo", With: []string{otherAccount}}},
		AccessKeys: []AccessKey{{ID: "OWNER", Account: ownAccount}, {ID: "CONSUMER", Account: otherAccount}}})
	owner := &testServer{t: t, Client: w.client("us-east-1", "OWNER", "s")}
	consumer := w.client("us-east-1", "CONSUMER", "s")
	arn := aws.String("arn:aws:servicediscovery:us-east-1:" + ownAccount + ":namespace/" + owner.namespace("demo"))
	tags := []types.Tag{{Key: new("a"), Value: new("b")}}
	_, err := consumer.CreateService(t.Context(), &sd.CreateServiceInput{NamespaceId: arn, Name: new("svc"), Tags: tags})
	wantCode(t, err, "AccessDeniedException")
	created, err := consumer.CreateService(t.Context(), &sd.CreateServiceInput{NamespaceId: arn, Name: new("svc")})
	svc := must(t, created, err).Service.Arn
	wantCode(t, errorOf(consumer.TagResource(t.Context(), &sd.TagResourceInput{ResourceARN: svc, Tags: tags})), "AccessDeniedException")
	wantCode(t, errorOf(consumer.UntagResource(t.Context(), &sd.UntagResourceInput{ResourceARN: svc, TagKeys: []string{"a"}})), "AccessDeniedException")
	must(t, 0, errorOf(owner.TagResource(t.Context(), &sd.TagResourceInput{ResourceARN: svc, Tags: tags})))
	own := w.client("us-east-1", "CONSUMER", "s")
	must(t, 0, errorOf(own.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("own"), Tags: tags})))
}

func TestTagsVisibleAfter(t *testing.T) {
	const document = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "servicediscovery:RegisterInstance",
		"Resource": "*", "Condition": {"StringEquals": {"aws:ResourceTag/a": "b"}}}}`
	var policy iampolicy.Policy
	must(t, 0, json.Unmarshal([]byte(document), &policy))
	w := newTestServer(t, Options{
		Behaviors: Behaviors{TagsVisibleAfter: Duration(10 * time.Second)}, AccessKeys: []AccessKey{{ID: "ADMIN"}, {ID: "GUEST", Policies: []iampolicy.Policy{policy}}},
	})
	admin := &testServer{t: t, Client: w.client("us-east-1", "ADMIN", "s")}
	guest := &testServer{t: t, Client: w.client("us-east-1", "GUEST", "s")}
	created, err := admin.CreateService(t.Context(), &sd.CreateServiceInput{
		NamespaceId: aws.String(admin.namespace("demo")), Name: new("svc"), Tags: []types.Tag{{Key: new("a"), Value: new("b")}}})
	svc := must(t, created, err).Service
	allowed := func(want bool) {
		t.Helper()
		if err := guest.tryRegister(t.Context(), *svc.Id, "a"); (err == nil) != want {
			t.Fatalf("error = %v, want allowed %v", err, want)
		}
	}
	setTo := func(value string) {
		must(t, 0, errorOf(admin.TagResource(t.Context(), &sd.TagResourceInput{ResourceARN: svc.Arn, Tags: []types.Tag{{Key: new("a"), Value: &value}}})))
	}
	w.clock.Advance(10*time.Second - 1)
	allowed(false)
	w.clock.Advance(1)
	allowed(true)
	setTo("c")
	w.clock.Advance(5 * time.Second)
	setTo("b")
	allowed(true)
	w.clock.Advance(5 * time.Second)
	allowed(false) // the value c
	w.clock.Advance(5 * time.Second)
	allowed(true)
}

func TestMaxAnswerBytes(t *testing.T) {
	const limit = 10_000
	w := newTestServer(t, Options{Behaviors: Behaviors{MaxAnswerBytes: limit}})
	svc := w.service(w.namespace("demo"), "svc")
	for i := range 12 {
		w.register(svc, numbered("i", i), map[string]string{"V": strings.Repeat("v", 1000)})
	}
	found, _ := w.discovered("demo", "svc")
	if len(found) != 8 && len(found) != 9 { // 1,000 characters and what is around them
		t.Errorf("%d instances in %d bytes", len(found), limit)
	}
	svc = w.service(w.namespace("few"), "svc")
	w.register(svc, "a", map[string]string{})
	found, _ = w.discovered("few", "svc")
	assertEqual(t, 1, len(found))
}

func TestRevisions(t *testing.T) {
	const base = 71462688285136850
	w := newTestServer(t, Options{Behaviors: Behaviors{RevisionBase: base, RevisionOn: RevisionOnChange}})
	svc := w.service(w.namespace("demo"), "svc")
	for _, step := range []struct {
		id, value string
		want      int64
	}{{"a", "1", 1}, {"a", "1", 1}, {"a", "2", 2}, {"b", "2", 3}} {
		w.register(svc, step.id, map[string]string{"V": step.value})
		_, revision := w.discovered("demo", "svc")
		assertEqual(t, int64(base)+step.want, revision)
	}
	w.deregister(svc, "a")
	_, revision := w.discovered("demo", "svc")
	assertEqual(t, int64(base+4), revision)
}

func TestHealthOnReregister(t *testing.T) {
	for rule, want := range map[HealthOnReregister]types.HealthStatus{
		HealthReset: types.HealthStatusHealthy, HealthKeep: types.HealthStatusUnhealthy,
	} {
		w := newTestServer(t, Options{Behaviors: Behaviors{HealthOnReregister: rule}})
		created, err := w.CreateService(t.Context(), &sd.CreateServiceInput{
			NamespaceId: aws.String(w.namespace("demo")), Name: new("svc"), HealthCheckCustomConfig: &types.HealthCheckCustomConfig{}})
		svc := must(t, created, err).Service.Id
		w.register(*svc, "a", map[string]string{"AWS_INIT_HEALTH_STATUS": "UNHEALTHY"})
		w.register(*svc, "a", map[string]string{"V": "2"})
		found, _ := w.discovered("demo", "svc")
		assertEqual(t, want, found["a"].HealthStatus)
	}
}

// TestConsistencySpread: changes show within the spread, those of several instances in any order,
// and in the end all.
func TestConsistencySpread(t *testing.T) {
	const delay, spread, count = 2 * time.Second, 3 * time.Second, 50
	w := newTestServer(t, Options{Behaviors: Behaviors{ConsistencyDelay: Duration(delay), ConsistencySpread: Duration(spread)}})
	ns := w.namespace("demo")
	svc := w.service(ns, "svc")
	w.clock.Advance(delay)
	for i := range count {
		w.register(svc, numbered("i", i), map[string]string{"V": "1"})
		w.register(svc, numbered("i", i), map[string]string{"V": "2"})
	}
	w.clock.Advance(delay - 1)
	found, _ := w.discovered("demo", "svc")
	assertEqual(t, 0, len(found))
	w.clock.Advance(spread / 2)
	found, _ = w.discovered("demo", "svc")
	if len(found) < 5 || len(found) == count { // each shows with a probability of at least a half
		t.Errorf("%d of %d instances after half of the spread", len(found), count)
	}
	w.clock.Advance(spread/2 + 1)
	found, revision := w.discovered("demo", "svc")
	assertEqual(t, int64(2*count), revision)
	for id, inst := range found {
		if inst.Attributes["V"] != "2" {
			t.Errorf("%s has an earlier value", id)
		}
		w.deregister(svc, id)
	}
	assertEqual(t, count, len(found))
	must(t, 0, errorOf(w.DeleteService(t.Context(), &sd.DeleteServiceInput{Id: &svc})))
	again := w.service(ns, "svc")
	w.register(again, "new", map[string]string{})
	w.clock.Advance(delay + spread)
	found, _ = w.discovered("demo", "svc")
	assertEqual(t, 1, len(found))
}
