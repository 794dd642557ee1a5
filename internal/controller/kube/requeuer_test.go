package kube

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

func TestRequeuerKeepsKeysFromBeforeTheStart(t *testing.T) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	var r Requeuer
	r.Requeue(mcs.Key{Namespace: "a", Name: "early"})
	r.Requeue(mcs.Key{Namespace: "a", Name: "early"})
	if err := r.Source().Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	r.Requeue(mcs.Key{Namespace: "a", Name: "late"})
	var got []string
	for queue.Len() > 0 {
		req, _ := queue.Get()
		got = append(got, req.String())
		queue.Done(req)
	}
	if d := cmp.Diff([]string{"a/early", "a/late"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestDeferredKeysComeAfterAllOthers(t *testing.T) {
	var r Requeuer
	queue := r.newQueue("test", workqueue.DefaultTypedControllerRateLimiter[reconcile.Request](), 1)
	defer queue.ShutDown()
	if err := r.Source().Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	a, b := mcs.Key{Namespace: "n", Name: "a"}, mcs.Key{Namespace: "n", Name: "b"}
	r.Requeue(a)
	r.Requeue(b)
	for _, want := range []struct {
		key      mcs.Key
		deferred bool
	}{{a, true}, {b, true}, {a, false}, {b, false}} {
		req, _, _ := queue.GetWithPriority()
		if key := KeyOf(req.NamespacedName); key != want.key {
			t.Fatalf("%v is next, want %v", key, want.key)
		}
		if got := r.Defer(want.key); got != want.deferred {
			t.Errorf("%v is deferred: %t, want %t", want.key, got, want.deferred)
		}
		queue.Done(req)
	}
}

func TestRequeuer_LowPriorityComesAfterAllOthers(t *testing.T) {
	var r Requeuer
	early := mcs.Key{Namespace: "n", Name: "early"}
	r.RequeueAtLowPriority(early)
	queue := r.newQueue("test", workqueue.DefaultTypedControllerRateLimiter[reconcile.Request](), 1)
	defer queue.ShutDown()
	if err := r.Source().Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	low, urgent := mcs.Key{Namespace: "n", Name: "low"}, mcs.Key{Namespace: "n", Name: "urgent"}
	r.RequeueAtLowPriority(low)
	r.Requeue(urgent)
	var got []mcs.Key
	for range 3 {
		req, _, _ := queue.GetWithPriority()
		got = append(got, KeyOf(req.NamespacedName))
		queue.Done(req)
	}
	if slices.Index(got, low) != 2 {
		t.Errorf("the order is %v, want %v last", got, low)
	}
}
