package awsprobe

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// The account of the tests, the one that shares a namespace with it, and the role with the shipped
// policies.
const (
	ownKey, ownSecret = "AKIDOWN", "secret"
	sharer, sharerKey = "222222222222", "AKIDSHARER"
	roleARN           = "arn:aws:iam::" + cloudmaplocal.DefaultAccount + ":role/probe"
	sharedNamespace   = "shared"
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// world is a cloudmap-local in virtual time, and the options to probe it with all probes but the
// one of rates.
type world struct {
	server *cloudmaplocal.Server
	opts   Options
}

// local answers requests without a network.
type local struct{ http.Handler }

func (l local) Do(r *http.Request) (*http.Response, error) { return cloudmaptest.Serve(l, r) }

// latency is that of requests to AWS in the same Region.
const latency = 20 * time.Millisecond

// far adds the latency.
type far struct{ aws.HTTPClient }

func (f far) Do(r *http.Request) (*http.Response, error) {
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(latency):
	}
	return f.HTTPClient.Do(r)
}

// newWorld must run in a bubble of synctest.
func newWorld(t *testing.T, behaviors cloudmaplocal.Behaviors, only ...int) *world {
	t.Helper()
	policies, err := cloudmaptest.Policies(os.DirFS("../../deploy/iam"), roleIdentity(), "cluster.json", "create.json")
	if err != nil {
		t.Fatal(err)
	}
	server, err := cloudmaplocal.New(cloudmaplocal.Options{
		Now: time.Now, Behaviors: behaviors,
		AccessKeys: []cloudmaplocal.AccessKey{{ID: ownKey, Secret: ownSecret}, {ID: sharerKey, Account: sharer}},
		Roles:      []cloudmaplocal.Role{{ARN: roleARN, Trust: []string{cloudmaplocal.DefaultAccount}, Policies: policies}},
		Shares:     []cloudmaplocal.Share{{Owner: sharer, Namespace: sharedNamespace, With: []string{cloudmaplocal.DefaultAccount}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	w := &world{server: server, opts: Options{
		Region: cloudmaplocal.DefaultRegion, VPC: "vpc-1", Role: api.Role{ARN: roleARN}, only: only,
		HTTPClient: far{local{server}}, Credentials: credentials.NewStaticCredentialsProvider(ownKey, ownSecret, ""),
	}}
	w.opts.Share = w.share(t)
	return w
}

// share creates the shared namespace and returns its ARN.
func (w *world) share(t *testing.T) string {
	t.Helper()
	sdk := servicediscovery.New(servicediscovery.Options{
		Region: cloudmaplocal.DefaultRegion, HTTPClient: local{w.server}, Credentials: credentials.NewStaticCredentialsProvider(sharerKey, "any", ""),
	})
	created, err := sdk.CreateHttpNamespace(t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: aws.String(sharedNamespace)})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Minute)
	got, err := sdk.GetOperation(t.Context(), &servicediscovery.GetOperationInput{OperationId: created.OperationId})
	if err != nil {
		t.Fatal(err)
	}
	return "arn:aws:servicediscovery:" + cloudmaplocal.DefaultRegion + ":" + sharer + ":namespace/" + got.Operation.Targets["NAMESPACE"]
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	if err := warmUp(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, test)
}

// warmUp makes zstd create its channels outside of a bubble.
var warmUp = sync.OnceValue(func() error {
	exp := export(mcs.Key{Namespace: "a", Name: "b"}, "c", 1)
	data, err := record.Encode([]mcs.Export{registry.Published(exp)})
	if err == nil {
		_, err = record.Decode(data, "c")
	}
	return err
})

// probeIt runs the probes, and returns what they found.
func (w *world) probeIt(t *testing.T) (*Report, cloudmaplocal.Behaviors) {
	t.Helper()
	report, err := Run(t.Context(), w.opts)
	if err != nil {
		t.Errorf("%v\n%s", err, report.Markdown())
	}
	found, err := cloudmaplocal.ParseBehaviors(report.Behaviors())
	if err != nil {
		t.Fatalf("%v: %s", err, report.Behaviors())
	}
	return report, found
}

// closely compares durations and sizes as they are measured: within a tenth, and a few requests. Of
// 60 instances the first shows in the first quarter of a spread, and the last in the last one, but
// for one time in 10^7.
func closely(set cloudmaplocal.Behaviors) cmp.Options {
	return cmp.Options{
		cmp.Comparer(func(a, b cloudmaplocal.Duration) bool {
			return time.Duration(a-b).Abs() <= time.Duration(max(a, b)/10+set.ConsistencySpread/2)+shortestDelay
		}),
		cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".MaxAnswerBytes" },
			cmp.Comparer(func(a, b int) bool { return max(a, b)-min(a, b) <= 2*manySize })),
	}
}

// defaults are the behaviors of a cloudmap-local without any.
func defaults(t *testing.T) cloudmaplocal.Behaviors {
	t.Helper()
	b, err := cloudmaplocal.ParseBehaviors([]byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestRun_Defaults: all probes find what cloudmap-local does, and leave nothing.
func TestRun_Defaults(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, cloudmaplocal.Behaviors{})
		begin := time.Now()
		report, found := w.probeIt(t)
		t.Logf("%s, %d requests:\n%s", time.Since(begin), total(w.server), report.Markdown())
		if diff := cmp.Diff(defaults(t), found, closely(defaults(t))); diff != "" {
			t.Errorf("behaviors (-cloudmap-local +found):\n%s", diff)
		}
	})
}

func total(server *cloudmaplocal.Server) (n int) {
	for _, count := range server.Requests() {
		n += count
	}
	return n
}

// TestRun_Pessimistic is the same under the worst behaviors.
func TestRun_Pessimistic(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, cloudmaplocal.Pessimistic())
		begin := time.Now()
		report, found := w.probeIt(t)
		t.Logf("%s, %d requests:\n%s", time.Since(begin), total(w.server), report.Markdown())
		if diff := cmp.Diff(cloudmaplocal.Pessimistic(), found, closely(cloudmaplocal.Pessimistic())); diff != "" {
			t.Errorf("behaviors (-cloudmap-local +found):\n%s", diff)
		}
	})
}

// TestRun_Switches: of each behavior that is set, its probe finds exactly that.
func TestRun_Switches(t *testing.T) {
	covered := map[string]bool{}
	for _, tc := range []struct {
		name   string // of the switch
		set    cloudmaplocal.Behaviors
		probes []int
	}{
		{"strictHosts", cloudmaplocal.Behaviors{StrictHosts: true}, []int{1}},
		{"refuseOwnerFilter", cloudmaplocal.Behaviors{RefuseOwnerFilter: true}, []int{1}},
		{"httpNameSuffix", cloudmaplocal.Behaviors{HTTPNameSuffix: cloudmaplocal.SuffixNever}, []int{2, 10}},
		{"httpNameSuffix", cloudmaplocal.Behaviors{HTTPNameSuffix: cloudmaplocal.SuffixReuse}, []int{2, 10}},
		{"instanceCount", cloudmaplocal.Behaviors{InstanceCount: cloudmaplocal.CountAbsent}, []int{2, 6}},
		{"missingService", cloudmaplocal.Behaviors{MissingService: cloudmaplocal.MissingAccept}, []int{2, 5}},
		{"inUseFor", cloudmaplocal.Behaviors{InUseFor: duration(20 * time.Second)}, []int{12}},
		{"shareAllowsTags", cloudmaplocal.Behaviors{ShareAllowsTags: true}, []int{11}},
		{"tagsVisibleAfter", cloudmaplocal.Behaviors{TagsVisibleAfter: duration(5 * time.Second)}, []int{2, 9}},
		{"maxAnswerBytes", cloudmaplocal.Behaviors{MaxAnswerBytes: 500_000}, []int{2, 6}},
		{"revisionBase", cloudmaplocal.Behaviors{RevisionBase: 71462688285136850}, []int{2, 4}},
		{"revisionOn", cloudmaplocal.Behaviors{RevisionOn: cloudmaplocal.RevisionOnChange}, []int{2, 4}},
		{"healthOnReregister", cloudmaplocal.Behaviors{HealthOnReregister: cloudmaplocal.HealthKeep}, []int{2, 8}},
		{"healthDelay", cloudmaplocal.Behaviors{HealthDelay: duration(30 * time.Second)}, []int{2, 8}},
		{"consistencyDelay", cloudmaplocal.Behaviors{ConsistencyDelay: duration(time.Second)}, []int{2, 3}},
		{"consistencyDelay", cloudmaplocal.Behaviors{ConsistencyDelay: duration(45 * time.Second)}, []int{2, 3}},
		{"consistencySpread", cloudmaplocal.Behaviors{ConsistencySpread: duration(4 * time.Second)}, []int{2, 3}},
		{"operationDelay", cloudmaplocal.Behaviors{OperationDelay: duration(time.Second)}, []int{2, 3}},
		{"denyAtOnce", cloudmaplocal.Behaviors{DenyAtOnce: true}, []int{2, 10}},
	} {
		covered[tc.name] = true
		raw, err := json.Marshal(tc.set)
		if err != nil {
			t.Fatal(err)
		}
		want, err := cloudmaplocal.ParseBehaviors(raw) // with the defaults of the others
		if err != nil {
			t.Fatal(err)
		}
		t.Run(string(raw), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				report, found := newWorld(t, tc.set, tc.probes...).probeIt(t)
				if diff := cmp.Diff(want, found, closely(want)); diff != "" {
					t.Errorf("behaviors (-set +found):\n%s\n%s", diff, report.Markdown())
				}
				if !bytes.Contains(report.Behaviors(), []byte(tc.name)) {
					t.Errorf("%s was not seen:\n%s", tc.name, report.Behaviors())
				}
			})
		})
	}
	for _, s := range cloudmaplocal.Switches() {
		if !covered[s.Name] {
			t.Errorf("no case sets %s", s.Name)
		}
	}
}

func duration(d time.Duration) cloudmaplocal.Duration { return cloudmaplocal.Duration(d) }
