package exports

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/membership"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
)

// shownRegistry is a registry that shows what a test sets.
type shownRegistry struct {
	registry.Registry
	// views are the results of the next lookups, the last one of all later ones; a result with an
	// error in errs fails.
	views                   []registry.View
	errs                    []error
	publishErr, withdrawErr error
	withdrawn               []mcs.Key
}

func (s *shownRegistry) Lookup(context.Context, mcs.Key, ...string) (view registry.View, err error) {
	if len(s.errs) > 0 {
		err = s.errs[0]
		s.errs = s.errs[min(1, len(s.errs)-1):]
	}
	if len(s.views) > 0 && err == nil {
		view = s.views[0]
		s.views = s.views[min(1, len(s.views)-1):]
	}
	return view, err
}

func (s *shownRegistry) Publish(context.Context, mcs.Export) error { return s.publishErr }

func (s *shownRegistry) Withdraw(_ context.Context, key mcs.Key) error {
	s.withdrawn = append(s.withdrawn, key)
	return s.withdrawErr
}

// publishTest is a controller with one ServiceExport.
type publishTest struct {
	*Controller
	t        *testing.T
	now      time.Time
	recorder *events.FakeRecorder
	src      kube.LocalSource
	key      mcs.Key
}

func newPublishTest(t *testing.T, funcs interceptor.Funcs) *publishTest {
	t.Helper()
	scope, err := kube.NewScope(config.Default().Scope)
	if err != nil {
		t.Fatal(err)
	}
	p := &publishTest{t: t, now: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC), recorder: events.NewFakeRecorder(10), key: mcs.Key{Namespace: "demo", Name: "web"}}
	p.Controller = &Controller{
		client: fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithInterceptorFuncs(funcs).
			WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}).Build(),
		membership: &membership.Membership{}, scope: scope, events: kube.EventRecorder{Recorder: p.recorder},
	}
	p.Controller.now = func() time.Time { return p.now }
	exp := controllertest.ServiceExport(p.key)
	exp.CreationTimestamp = metav1.NewTime(p.now.Add(-time.Hour))
	p.src = kube.LocalSource{Source: mcs.Source{
		Identity: mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1"}, ServiceExport: exp, Service: controllertest.Service(p.key),
	}}
	return p
}

// publishOnce publishes some seconds after the last time.
func (p *publishTest) publishOnce(reg registry.Registry, after time.Duration) (exportFacts, error) {
	p.t.Helper()
	p.now = p.now.Add(after)
	var facts exportFacts
	err := p.publish(p.t.Context(), reg, p.src, p.key, &facts)
	return facts, err
}

func (p *publishTest) mustPublish(reg registry.Registry, after time.Duration) exportFacts {
	p.t.Helper()
	facts, err := p.publishOnce(reg, after)
	if err != nil {
		p.t.Fatal(err)
	}
	return facts
}

func local(state registry.PublishState) registry.View {
	return registry.View{Local: registry.PublishStatus{State: state}}
}

func TestPublish_ReturnsWhatTheRegistryShows(t *testing.T) {
	unreachable := errors.New("unreachable")
	notSynced := registry.NotSynced(unreachable)
	for name, tt := range map[string]struct {
		reg       *shownRegistry
		check     func(exportFacts) bool
		wantErr   string
		withdrawn bool
	}{
		"the state after the publication": {
			reg:   &shownRegistry{views: []registry.View{local(registry.Absent), local(registry.Exported)}},
			check: func(f exportFacts) bool { return f.synced && f.status.State == registry.Exported && !f.unknown },
		},
		"a cluster whose export is unknown": {
			reg:   &shownRegistry{views: []registry.View{registrytest.With(registry.View{}, registry.Unknown, "cls2")}},
			check: func(f exportFacts) bool { return f.unknown },
		},
		"a cluster whose export is ignored": {
			reg:   &shownRegistry{views: []registry.View{registrytest.With(registry.View{}, registry.Ignored, "cls2")}},
			check: func(f exportFacts) bool { return f.unknown },
		},
		"an incomplete view": {
			reg:   &shownRegistry{views: []registry.View{{Incomplete: true}}},
			check: func(f exportFacts) bool { return f.unknown },
		},
		"not read yet": {
			reg:   &shownRegistry{errs: []error{notSynced}},
			check: func(f exportFacts) bool { return !f.synced && errors.Is(f.readProblem, unreachable) && f.problem == "" },
		},
		"not read any more after the publication": {
			reg:   &shownRegistry{errs: []error{nil, notSynced}},
			check: func(f exportFacts) bool { return !f.synced && errors.Is(f.readProblem, unreachable) },
		},
		"a failed lookup": {
			reg: &shownRegistry{errs: []error{unreachable}}, wantErr: "looking up the exports of demo/web: unreachable",
		},
		"an export that the registry refuses is withdrawn even if none is shown": {
			reg:       &shownRegistry{views: []registry.View{local(registry.Absent)}, publishErr: errors.New("too many ports")},
			check:     func(f exportFacts) bool { return f.problem == "too many ports" },
			withdrawn: true,
		},
		"a withdrawal that fails": {
			reg:     &shownRegistry{publishErr: errors.New("too many ports"), withdrawErr: unreachable},
			wantErr: "withdrawing demo/web: unreachable", withdrawn: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPublishTest(t, interceptor.Funcs{})
			facts, err := p.publishOnce(tt.reg, 0)
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want one that contains %q", err, tt.wantErr)
			}
			if tt.check != nil && !tt.check(facts) {
				t.Errorf("facts %+v", facts)
			}
			if got := slices.Contains(tt.reg.withdrawn, p.key); got != tt.withdrawn {
				t.Errorf("withdrawn: %v, want %v", got, tt.withdrawn)
			}
		})
	}
}

// An export that is shown as absent needs no request to withdraw it.
func TestPublish_WithdrawsUnexportedService(t *testing.T) {
	for state, want := range map[registry.PublishState]int{registry.Absent: 0, registry.Pending: 1, registry.Exported: 1} {
		p := newPublishTest(t, interceptor.Funcs{})
		p.src.ServiceExport = nil
		reg := &shownRegistry{views: []registry.View{local(state)}}
		p.mustPublish(reg, 0)
		if len(reg.withdrawn) != want {
			t.Errorf("state %v: %d withdrawals, want %d", state, len(reg.withdrawn), want)
		}
	}
}

// Ready stays True for as long as the registry does not show the latest change, which begins anew
// when it was shown, and after a withdrawal.
func TestPublish_MeasuresHowLongExportIsNotShown(t *testing.T) {
	unread := func() *shownRegistry { return &shownRegistry{errs: []error{registry.NotSynced(nil)}} }
	shown := func(state registry.PublishState) *shownRegistry {
		return &shownRegistry{views: []registry.View{local(state)}}
	}
	p := newPublishTest(t, interceptor.Funcs{})
	expect := func(what string, reg registry.Registry, want time.Duration) {
		t.Helper()
		if got := p.mustPublish(reg, 10*time.Second).unshown; got != want {
			t.Errorf("%s: not shown for %v, want %v", what, got, want)
		}
	}
	expect("not read yet", unread(), 0)
	expect("still not read", unread(), 10*time.Second)
	expect("pending", shown(registry.Pending), 20*time.Second)
	expect("exported", shown(registry.Exported), 0)
	expect("pending again", shown(registry.Pending), 0)
	expect("still pending", shown(registry.Pending), 10*time.Second)
	exp := p.src.ServiceExport
	p.src.ServiceExport = nil
	p.mustPublish(shown(registry.Pending), 10*time.Second)
	p.src.ServiceExport = exp
	expect("pending after a withdrawal", shown(registry.Pending), 0)
}

// TestPublish_Logs: an export is a line of the log when it begins, changes its shape and ends. Its
// endpoints are none.
func TestPublish_Logs(t *testing.T) {
	p := newPublishTest(t, interceptor.Funcs{})
	var lines strings.Builder
	ctx := log.IntoContext(t.Context(), funcr.New(func(_, args string) { lines.WriteString(args + "\n") }, funcr.Options{}))
	reg := &shownRegistry{views: []registry.View{local(registry.Exported)}}
	step := func(want string) {
		t.Helper()
		lines.Reset()
		if err := p.publish(ctx, reg, p.src, p.key, &exportFacts{}); err != nil {
			t.Fatal(err)
		}
		if (lines.Len() > 0) != (want != "") || !strings.Contains(lines.String(), want) {
			t.Errorf("log %q, want %q", lines.String(), want)
		}
	}
	step("")
	exported := []metav1.Condition{mcs.ExportReady(mcs.Progress{Exported: true})}
	if err := p.recordConditions(ctx, p.src.ServiceExport, metav1.Condition{}, nil, exported); err != nil || !strings.Contains(lines.String(), `"Exported service"`) {
		t.Errorf("log %q, %v, want that the service is exported", lines.String(), err)
	}
	p.src.Slices = []discoveryv1.EndpointSlice{*controllertest.EndpointSlice(p.key, controllertest.Endpoints(1, 2))}
	step("")
	p.src.Service.Spec.Ports = append(p.src.Service.Spec.Ports, corev1.ServicePort{Name: "other", Port: 8443, Protocol: corev1.ProtocolTCP})
	step(`"Changed export"`)
	p.src.ServiceExport = nil
	step(`"Withdrew service"`)
	step("")
}

// A warning is reported when it changes, and again after the export has ended and returned.
func TestPublish_ReportsWarnings(t *testing.T) {
	p := newPublishTest(t, interceptor.Funcs{})
	warn := func(warnings ...string) registry.Registry {
		return &shownRegistry{views: []registry.View{{Local: registry.PublishStatus{State: registry.Exported, Warnings: warnings}}}}
	}
	expect := func(what string, want ...string) {
		t.Helper()
		var got []string
		for len(p.recorder.Events) > 0 {
			got = append(got, <-p.recorder.Events)
		}
		if !slices.EqualFunc(got, want, strings.Contains) {
			t.Errorf("%s: events %q, want %q", what, got, want)
		}
	}
	p.mustPublish(warn("no room"), 0)
	expect("a first warning", "no room")
	p.mustPublish(warn("no room"), 0)
	expect("the same warning")
	p.mustPublish(warn("no room", "no name"), 0)
	expect("another one", "no room; no name")
	p.mustPublish(warn(), 0)
	expect("none")
	p.mustPublish(warn("no room"), 0)
	expect("after none", "no room")
	exp := p.src.ServiceExport
	p.src.ServiceExport = nil
	p.mustPublish(&shownRegistry{}, 0)
	p.src.ServiceExport = exp
	p.mustPublish(warn("no room"), 0)
	expect("after a withdrawal", "no room")
}

// The conflicts of an export are those of the precedence that the exports have in this cluster's
// import.
func TestPublish_FindsConflicts(t *testing.T) {
	other := mcs.Export{
		Key: mcs.Key{Namespace: "demo", Name: "web"}, Cluster: "cls2", Type: mcsv1beta1.Headless,
		Ports: []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
	}
	t.Run("by the claimed times and by the order of the registry", func(t *testing.T) {
		p := newPublishTest(t, interceptor.Funcs{})
		other.Created = p.now.Add(-2 * time.Hour).UTC()
		for decides, order := range map[string]map[string]int64{"cls2": nil, "cls1": {"cls1": 1, "cls2": 2}} {
			facts := p.mustPublish(&shownRegistry{views: []registry.View{{Clusters: registrytest.ViewOf(other).Clusters, Order: order}}}, 0)
			if len(facts.conflicts) == 0 || !strings.Contains(facts.conflicts[0].Message, "from cluster "+decides) {
				t.Errorf("order %v: conflicts %v, want that %s decides", order, facts.conflicts, decides)
			}
		}
	})
	t.Run("none without other exports", func(t *testing.T) {
		p := newPublishTest(t, interceptor.Funcs{})
		if facts := p.mustPublish(&shownRegistry{}, 0); len(facts.conflicts) > 0 {
			t.Errorf("conflicts %v", facts.conflicts)
		}
	})
	t.Run("unless the ServiceImport cannot be read", func(t *testing.T) {
		p := newPublishTest(t, interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
				if _, ok := obj.(*mcsv1beta1.ServiceImport); ok {
					return errors.New("denied")
				}
				return c.Get(ctx, key, obj, opts...)
			},
		})
		if _, err := p.publishOnce(&shownRegistry{views: []registry.View{registrytest.ViewOf(other)}}, 0); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Errorf("error %v, want that of the API server", err)
		}
	})
}

// The keys of all exports are requeued when a session begins or ends.
func TestPublishedKeys(t *testing.T) {
	var r Controller
	want := []mcs.Key{{Namespace: "a", Name: "x"}, {Namespace: "a", Name: "y"}, {Namespace: "b", Name: "x"}}
	for _, key := range want {
		r.published.Store(key, publishedExport{})
	}
	got := r.PublishedKeys()
	slices.SortFunc(got, func(a, b mcs.Key) int { return strings.Compare(a.String(), b.String()) })
	if !slices.Equal(got, want) {
		t.Errorf("keys %v, want %v", got, want)
	}
}
