package exports

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

func TestDecideExportConditions(t *testing.T) {
	valid := mcs.ExportValid(&mcsv1beta1.ServiceExport{}, &corev1.Service{})
	readyBefore := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Exported"}}
	conflicts := []mcs.Conflict{{Reason: mcsv1beta1.ServiceExportReasonPortConflict, Message: "m"}}
	tests := []struct {
		name  string
		facts exportFacts
		have  []metav1.Condition
		want  []string
	}{
		{
			name:  "no Service",
			facts: exportFacts{valid: mcs.ExportValid(&mcsv1beta1.ServiceExport{}, nil), synced: true},
			have:  readyBefore,
			want:  []string{"Valid=False NoService", "Ready=False Failed", "Conflict=False NoConflicts"},
		},
		{
			name:  "being deleted, kept by a finalizer, imported before",
			facts: exportFacts{terminating: &mcsv1beta1.ServiceExport{}},
			have:  append([]metav1.Condition{{Type: mcs.ConditionImported, Status: metav1.ConditionTrue}}, readyBefore...),
			want:  []string{"Ready=False Pending", "Conflict=False NoConflicts", mcs.ConditionImported + "=False NotImported"},
		},
		{
			name:  "no identity",
			facts: exportFacts{valid: valid, problem: "create it"},
			have:  readyBefore,
			want:  []string{"Valid=True Valid", "Ready=False Failed"},
		},
		{
			name:  "no identity any more, imported before",
			facts: exportFacts{valid: valid, problem: "create it"},
			have:  []metav1.Condition{{Type: mcs.ConditionImported, Status: metav1.ConditionTrue}},
			want:  []string{"Valid=True Valid", "Ready=False Failed", mcs.ConditionImported + "=False NotImported"},
		},
		{
			name:  "the namespace may not export",
			facts: exportFacts{valid: valid, denial: "not allowed", problem: "create it", synced: true, conflicts: conflicts},
			have:  readyBefore,
			want:  []string{"Valid=True Valid", "Ready=False Failed", "Conflict=False NoConflicts"},
		},
		{
			name:  "no Service in a namespace that may not export",
			facts: exportFacts{valid: mcs.ExportValid(&mcsv1beta1.ServiceExport{}, nil), denial: "not allowed"},
			want:  []string{"Valid=False NoService", "Ready=False Failed", "Conflict=False NoConflicts"},
		},
		{
			name:  "not read yet",
			facts: exportFacts{valid: valid},
			want:  []string{"Valid=True Valid", "Ready=False Pending"},
		},
		{
			name:  "the registry cannot be read, a new export",
			facts: exportFacts{valid: valid, readProblem: fmt.Errorf("looking up demo/web: %w", registry.NotSynced(errors.New("denied")))},
			want:  []string{"Valid=True Valid", "Ready=False Failed"},
		},
		{
			name:  "the registry cannot be read, exported by a previous process",
			facts: exportFacts{valid: valid, readProblem: registry.NotSynced(errors.New("denied"))},
			have:  readyBefore,
			want:  []string{"Valid=True Valid", "Ready=True Exported"},
		},
		{
			name:  "the registry does not answer",
			facts: exportFacts{valid: valid, unshown: pendingGrace, readProblem: registry.NotSynced(nil)},
			want:  []string{"Valid=True Valid", "Ready=False Failed"},
		},
		{
			name:  "no Service any more, imported before",
			facts: exportFacts{valid: mcs.ExportValid(&mcsv1beta1.ServiceExport{}, nil), synced: true, importers: &mcs.Importers{Importing: []string{"cls2"}}},
			have:  []metav1.Condition{{Type: mcs.ConditionImported, Status: metav1.ConditionTrue}},
			want:  []string{"Valid=False NoService", "Ready=False Failed", "Conflict=False NoConflicts", mcs.ConditionImported + "=False NotImported"},
		},
		{
			name:  "the namespace may not export any more, imported before",
			facts: exportFacts{valid: valid, denial: "not allowed", synced: true},
			have:  []metav1.Condition{{Type: mcs.ConditionImported, Status: metav1.ConditionTrue}},
			want:  []string{"Valid=True Valid", "Ready=False Failed", "Conflict=False NoConflicts", mcs.ConditionImported + "=False NotImported"},
		},
		{
			name: "imported",
			facts: exportFacts{
				valid: valid, synced: true, status: registry.PublishStatus{State: registry.Exported},
				importers: &mcs.Importers{Recipients: []string{"cls2"}, Importing: []string{"cls2"}},
			},
			want: []string{"Valid=True Valid", "Ready=True Exported", "Conflict=False NoConflicts", mcs.ConditionImported + "=True Imported"},
		},
		{
			name:  "no other cluster",
			facts: exportFacts{valid: valid, synced: true, status: registry.PublishStatus{State: registry.Exported}, importers: &mcs.Importers{}},
			want:  []string{"Valid=True Valid", "Ready=True Exported", "Conflict=False NoConflicts"},
		},
		{
			name:  "no other cluster any more",
			facts: exportFacts{valid: valid, synced: true, status: registry.PublishStatus{State: registry.Exported}, importers: &mcs.Importers{}},
			have:  []metav1.Condition{{Type: mcs.ConditionImported, Status: metav1.ConditionTrue}},
			want:  []string{"Valid=True Valid", "Ready=True Exported", "Conflict=False NoConflicts", mcs.ConditionImported + "=False NotImported"},
		},
		{
			name:  "not read yet, exported by a previous process",
			facts: exportFacts{valid: valid},
			have:  readyBefore,
			want:  []string{"Valid=True Valid", "Ready=True Exported"},
		},
		{
			name:  "being written",
			facts: exportFacts{valid: valid, synced: true, status: registry.PublishStatus{State: registry.Pending}},
			want:  []string{"Valid=True Valid", "Ready=False Pending", "Conflict=False NoConflicts"},
		},
		{
			name:  "a change being written",
			facts: exportFacts{valid: valid, synced: true, status: registry.PublishStatus{State: registry.Pending}},
			have:  readyBefore,
			want:  []string{"Valid=True Valid", "Ready=True Exported", "Conflict=False NoConflicts"},
		},
		{
			name:  "a change that is not shown for long",
			facts: exportFacts{valid: valid, synced: true, unshown: pendingGrace, status: registry.PublishStatus{State: registry.Pending}},
			have:  readyBefore,
			want:  []string{"Valid=True Valid", "Ready=False Pending", "Conflict=False NoConflicts"},
		},
		{
			name:  "not read for long, exported by a previous process",
			facts: exportFacts{valid: valid, unshown: pendingGrace, readProblem: errors.New("no answer")},
			have:  readyBefore,
			want:  []string{"Valid=True Valid", "Ready=False Failed"},
		},
		{
			name:  "a write of a change has failed a moment ago",
			facts: exportFacts{valid: valid, synced: true, status: registry.PublishStatus{State: registry.Pending, Err: errors.New("denied")}},
			have:  readyBefore,
			want:  []string{"Valid=True Valid", "Ready=True Exported", "Conflict=False NoConflicts"},
		},
		{
			name:  "a new export that cannot be written",
			facts: exportFacts{valid: valid, synced: true, status: registry.PublishStatus{State: registry.Pending, Err: errors.New("denied")}},
			want:  []string{"Valid=True Valid", "Ready=False Failed", "Conflict=False NoConflicts"},
		},
		{
			name:  "a change that cannot be written",
			facts: exportFacts{valid: valid, synced: true, unshown: problemGrace, status: registry.PublishStatus{State: registry.Pending, Err: errors.New("denied")}},
			have:  readyBefore,
			want:  []string{"Valid=True Valid", "Ready=False Failed", "Conflict=False NoConflicts"},
		},
		{
			name:  "exported, in conflict",
			facts: exportFacts{valid: valid, synced: true, status: registry.PublishStatus{State: registry.Exported}, conflicts: conflicts},
			want:  []string{"Valid=True Valid", "Ready=True Exported", "Conflict=True PortConflict"},
		},
		{
			name:  "no conflict among known exports, a cluster is unknown: the condition stays",
			facts: exportFacts{valid: valid, synced: true, status: registry.PublishStatus{State: registry.Exported}, unknown: true},
			want:  []string{"Valid=True Valid", "Ready=True Exported"},
		},
		{
			name:  "a conflict among known exports, a cluster is unknown",
			facts: exportFacts{valid: valid, synced: true, status: registry.PublishStatus{State: registry.Exported}, unknown: true, conflicts: conflicts},
			want:  []string{"Valid=True Valid", "Ready=True Exported", "Conflict=True PortConflict"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, c := range decideExportConditions(tt.facts, tt.have) {
				got = append(got, c.Type+"="+string(c.Status)+" "+c.Reason)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestReadyNamesWhatIsLeftOut: in each state in which the condition Ready is True.
func TestReadyNamesWhatIsLeftOut(t *testing.T) {
	left := mcs.LeftOuts{{Kind: mcs.LeftOutAnnotation, Names: []string{`"note"`}, Reason: "too long", Count: 1}}
	before := []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Exported"}}
	for name, facts := range map[string]exportFacts{
		"exported":      {synced: true, status: registry.PublishStatus{State: registry.Exported}},
		"being written": {synced: true, status: registry.PublishStatus{State: registry.Pending}},
		"not read yet":  {},
	} {
		facts.valid, facts.leftOut = mcs.ExportValid(&mcsv1beta1.ServiceExport{}, &corev1.Service{}), left
		ready := meta.FindStatusCondition(decideExportConditions(facts, before), "Ready")
		if ready.Status != metav1.ConditionTrue || !strings.HasSuffix(ready.Message, `; left out: annotation "note": too long`) {
			t.Errorf("%s: %+v", name, ready)
		}
	}
}

// TestUnreadRegistryIsLookedAtAgain: its problem is known some time after the first look, and no
// registry notifies of it.
func TestUnreadRegistryIsLookedAtAgain(t *testing.T) {
	var at []time.Duration
	f := exportFacts{}
	for f.unshown < pendingGrace {
		f.unshown += f.recheckAfter()
		at = append(at, f.unshown/time.Second)
	}
	if want := []time.Duration{3, 6, 12, 24, 48, 60}; !slices.Equal(at, want) {
		t.Errorf("looked at after %d s, want %d", at, want)
	}
	f = exportFacts{synced: true, unshown: 10 * time.Second}
	if got := f.recheckAfter(); got != 50*time.Second {
		t.Errorf("an export that a registry which was read does not show is looked at after %s", got)
	}
}

// TestFirstStatusWaitsForRegistry has the first status of a new export wait for the registry, and
// no other status.
func TestFirstStatusWaitsForRegistry(t *testing.T) {
	began := time.Unix(1000, 0)
	key := mcs.Key{Namespace: "a", Name: "b"}
	exp, withStatus := &mcsv1beta1.ServiceExport{}, &mcsv1beta1.ServiceExport{}
	withStatus.Status.Conditions = []metav1.Condition{{Type: "Ready"}}
	valid := mcs.ExportValid(&mcsv1beta1.ServiceExport{}, &corev1.Service{})
	pending, exported := registry.PublishStatus{State: registry.Pending}, registry.PublishStatus{State: registry.Exported}
	refused := registry.PublishStatus{State: registry.Pending, Err: errors.New("no room")}
	for name, c := range map[string]struct {
		age   time.Duration
		exp   *mcsv1beta1.ServiceExport
		facts exportFacts
		want  time.Duration
	}{
		"new and pending":                   {time.Second, exp, exportFacts{valid: valid, status: pending}, 2 * time.Second},
		"pending for longer than the delay": {4 * time.Second, exp, exportFacts{valid: valid, status: pending}, 0},
		"exported immediately":              {0, exp, exportFacts{valid: valid, status: exported}, 0},
		"existing status":                   {0, withStatus, exportFacts{valid: valid, status: pending}, 0},
		"rejected by AWS":                   {0, exp, exportFacts{valid: valid, status: refused}, 0},
		"the export cannot be published":    {0, exp, exportFacts{valid: valid, status: pending, problem: "left"}, 0},
		"the export is not allowed":         {0, exp, exportFacts{valid: valid, status: pending, denial: "namespace"}, 0},
		"no Service":                        {0, exp, exportFacts{valid: mcs.ExportValid(&mcsv1beta1.ServiceExport{}, nil), status: pending}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Controller{now: func() time.Time { return began.Add(c.age) }}
			r.published.Store(key, publishedExport{since: began})
			if got := r.statusDelay(key, c.exp, c.facts); got != c.want {
				t.Errorf("the ServiceExport's status waits %v, want %v", got, c.want)
			}
		})
	}
}

func TestRecordConditionsReportsNewProblems(t *testing.T) {
	going := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going", DeletionTimestamp: &metav1.Time{Time: time.Now()}, Finalizers: []string{"x/y"}}}
	c := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "stays"}}, going).Build()
	valid, noService := mcs.ExportValid(&mcsv1beta1.ServiceExport{}, &corev1.Service{}), mcs.ExportValid(&mcsv1beta1.ServiceExport{}, nil)
	failed := mcs.ExportReady(mcs.Progress{Problem: "denied"})
	conflict := mcs.ExportConflict([]mcs.Conflict{{Reason: mcsv1beta1.ServiceExportReasonPortConflict, Message: "ports"}})
	tests := []struct {
		name         string
		namespace    string
		valid        metav1.Condition
		before, news []metav1.Condition
		want         []string
	}{
		{
			name: "exported without conflict", namespace: "stays", valid: valid,
			before: []metav1.Condition{mcs.ExportReady(mcs.Progress{})},
			news:   []metav1.Condition{valid, mcs.ExportReady(mcs.Progress{Exported: true}), mcs.ExportConflict(nil)},
			want:   []string{"Normal Exported the other clusters of the clusterset can see the export"},
		},
		{
			name: "exported with another message", namespace: "stays", valid: valid, before: []metav1.Condition{mcs.ExportReady(mcs.Progress{Exported: true})},
			news: []metav1.Condition{mcs.ExportReady(mcs.Progress{Exported: true, LeftOut: mcs.LeftOuts{mcs.Note("a part")}})},
		},
		{name: "being written", namespace: "stays", valid: valid, news: []metav1.Condition{mcs.ExportReady(mcs.Progress{})}},
		{
			name: "no Service is reported once", namespace: "stays", valid: noService,
			news: []metav1.Condition{noService, mcs.ExportNotReady(noService)},
			want: []string{"Warning NoService " + noService.Message},
		},
		{
			name: "failure and conflict", namespace: "stays", valid: valid,
			news: []metav1.Condition{failed, conflict},
			want: []string{"Warning Failed denied", "Warning PortConflict ports"},
		},
		{
			name: "another message with the same reason", namespace: "stays", valid: valid,
			before: []metav1.Condition{mcs.ExportReady(mcs.Progress{Problem: "unreachable"})}, news: []metav1.Condition{failed},
		},
		{name: "the namespace is being deleted", namespace: "going", valid: noService, news: []metav1.Condition{noService}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fakeRecorder := events.NewFakeRecorder(10)
			r := &Controller{client: c, events: kube.EventRecorder{Recorder: fakeRecorder}}
			exp := controllertest.ServiceExport(mcs.Key{Namespace: tt.namespace, Name: "web"})
			if err := r.recordConditions(t.Context(), exp, tt.valid, tt.before, tt.news); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, controllertest.Recorded(fakeRecorder)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// A condition that changes its status or its reason is reported again; another type, status or
// reason is another condition.
func TestHasSameReason(t *testing.T) {
	before := []metav1.Condition{{Type: "Valid", Status: "True", Reason: "Valid"}, {Type: "Ready", Status: "False", Reason: "Failed"}}
	for name, tc := range map[string]struct {
		condition metav1.Condition
		want      bool
	}{
		"the same, another message": {metav1.Condition{Type: "Ready", Status: "False", Reason: "Failed", Message: "new"}, true},
		"another type":              {metav1.Condition{Type: "Conflict", Status: "False", Reason: "Failed"}, false},
		"another status":            {metav1.Condition{Type: "Ready", Status: "True", Reason: "Failed"}, false},
		"another reason":            {metav1.Condition{Type: "Ready", Status: "False", Reason: "Pending"}, false},
	} {
		if got := hasSameReason(before, tc.condition); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
