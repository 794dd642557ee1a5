package kube

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Requests of one namespace that take 30 s, in any number, delay those of another namespace by a
// second at most.
func TestSlowRequestsGiveTheirSlotsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const concurrency, slowness = 4, 30 * time.Second
		var r Requeuer
		queue := r.newQueue("test", workqueue.DefaultTypedControllerRateLimiter[reconcile.Request](), concurrency)
		if err := r.Source().Start(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
		done := make(chan time.Time, 100)
		slowest, inProcess := 0, make(chan int, 1)
		inProcess <- 0
		count := func(n int) {
			now := <-inProcess + n
			slowest = max(slowest, now)
			inProcess <- now
		}
		for range concurrency * slowFactor {
			go func() {
				for {
					req, _, shutdown := queue.GetWithPriority()
					if shutdown {
						return
					}
					if req.Namespace == "slow" {
						count(1)
						time.Sleep(slowness)
						count(-1)
					} else {
						done <- time.Now()
					}
					queue.Done(req)
				}
			}()
		}
		for i := range 50 {
			r.Requeue(mcs.Key{Namespace: "slow", Name: fmt.Sprint(i)})
		}
		time.Sleep(time.Millisecond)
		for range 100 { // all the time while the others are in process
			begin := time.Now()
			r.Requeue(mcs.Key{Namespace: "fast", Name: "web"})
			if took := (<-done).Sub(begin); took > slowAfter {
				t.Fatalf("a request of another namespace waited for %s", took)
			}
			time.Sleep(time.Second)
		}
		now := <-inProcess
		if slowest > concurrency+concurrency/2 {
			t.Errorf("%d slow requests were in process at the same time", slowest)
		}
		inProcess <- now
		queue.ShutDown()
		time.Sleep(10 * time.Minute)
	})
}
