package imports

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// TestNamespaceBudget: imports that exist count and stay, new ones wait, and the oldest comes first
// when there is room.
func TestNamespaceBudget(t *testing.T) {
	key := func(i int) mcs.Key { return mcs.Key{Namespace: "n", Name: fmt.Sprint("svc-", i)} }
	at := func(seconds int64) time.Time { return time.Unix(1_790_000_000+seconds, 0) }
	existing := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: key(0).Name, Labels: map[string]string{plan.LabelAppManagedBy: plan.ManagedBy},
	}}
	foreign := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "foreign"}}
	reader := fake.NewClientBuilder().WithScheme(controllertest.Scheme()).WithObjects(existing, foreign).Build()
	b := newNamespaceBudget(2)
	for range 2 {
		if err := b.ensureListed(t.Context(), reader, "n"); err != nil {
			t.Fatal(err)
		}
	}
	admit := func(what string, i int, exists bool, created int64, want bool) {
		t.Helper()
		if got, _ := b.admit(key(i), exists, at(created)); got != want {
			t.Errorf("%s: admitted %v, want %v", what, got, want)
		}
	}
	admit("the second", 1, false, 5, true)
	admit("the third", 2, false, 4, false)
	admit("the fourth, older", 3, false, 3, false)
	admit("the second again", 1, false, 5, true)
	admit("one that exists above the limit", 4, true, 9, true)
	if used, limit, waiting := b.usage(); used != 3 || limit != 2 || !slices.Equal(waiting, []mcs.Key{key(2), key(3)}) {
		t.Errorf("%d of %d used, %v wait", used, limit, waiting)
	}
	if next := b.release(key(4)); len(next) != 0 {
		t.Errorf("%v have room at the limit", next)
	}
	if next := b.release(key(0)); !slices.Equal(next, []mcs.Key{key(3)}) {
		t.Errorf("%v have room, want the oldest", next)
	}
	admit("the younger one", 2, false, 4, false)
	admit("the oldest", 3, false, 3, true)
	if next := b.release(key(9)); next != nil {
		t.Errorf("%v have room after nothing changed", next)
	}
	if next := b.release(key(2)); len(next) != 0 {
		t.Errorf("%v have room after one that waited has ended", next)
	}
	if admitted, _ := newNamespaceBudget(0).admit(key(1), false, at(0)); !admitted {
		t.Error("an import is refused without a limit")
	}
}

// TestNamespaceBudget_UnknownCreationTimeIsLast: an export without a creation time does not come
// before those with one.
func TestNamespaceBudget_UnknownCreationTimeIsLast(t *testing.T) {
	known := mcs.Export{Created: time.Unix(1_790_000_000, 0)}
	for name, tt := range map[string]struct {
		exports []mcs.Export
		want    time.Time
	}{
		"one known":            {[]mcs.Export{known}, known.Created},
		"one unknown":          {[]mcs.Export{{}}, time.Time{}},
		"unknown after known":  {[]mcs.Export{known, {}}, known.Created},
		"unknown before known": {[]mcs.Export{{}, known}, known.Created},
	} {
		if got := oldest(tt.exports); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	unknown, younger := mcs.Key{Namespace: "n", Name: "a"}, mcs.Key{Namespace: "n", Name: "b"}
	b := newNamespaceBudget(1)
	b.imports["n"] = map[mcs.Key]struct{}{{Namespace: "n", Name: "first"}: {}}
	b.admit(unknown, false, time.Time{})
	b.admit(younger, false, known.Created)
	if next := b.release(mcs.Key{Namespace: "n", Name: "first"}); !slices.Equal(next, []mcs.Key{younger}) {
		t.Errorf("%v have room, want %v", next, younger)
	}
}

// TestLimitImports_RecordsEvents: the first imports of a namespace that wait have an event in it,
// once.
func TestLimitImports_RecordsEvents(t *testing.T) {
	recorder := events.NewFakeRecorder(100)
	r := &Controller{
		client: fake.NewClientBuilder().WithScheme(controllertest.Scheme()).Build(), budget: newNamespaceBudget(1), events: kube.EventRecorder{Recorder: recorder},
	}
	for range 2 {
		for i := range maxBudgetEvents + 3 {
			f := importFacts{key: mcs.Key{Namespace: "n", Name: fmt.Sprint("svc-", i)}, namespace: true}
			d, err := r.limitImports(t.Context(), f, importDecision{verdict: verdictApply, exports: []mcs.Export{{Created: time.Unix(1_790_000_000+int64(i), 0)}}})
			if err != nil || (d.verdict == verdictApply) != (i == 0) {
				t.Errorf("service %d: verdict %v, %v", i, d.verdict, err)
			}
		}
	}
	if n := len(recorder.Events); n != maxBudgetEvents {
		t.Fatalf("%d events, want %d", n, maxBudgetEvents)
	}
	if got := <-recorder.Events; !strings.Contains(got, "Warning OverBudget service svc-1 is not imported: the namespace has 1 imports, the maximum for a namespace (--budget-scale)") {
		t.Errorf("event %q", got)
	}
}
