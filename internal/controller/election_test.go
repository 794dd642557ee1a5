package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// candidates compete for one Lease, each with a lock of its own.
type candidates struct {
	t      *testing.T
	client *fake.Clientset
	// leads receives the name of each candidate that becomes the leader.
	leads chan string
}

// start starts a candidate as the manager does. The result ends it, and it releases the Lease.
func (c *candidates) start(name string) (end context.CancelFunc) {
	leases := c.client.CoordinationV1().Leases(installNamespace)
	lock := &electionLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: installNamespace, Name: leaseName}, Client: c.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		},
		leases: leases, name: leaseName, logger: logr.Discard(),
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: renewInterval, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { c.leads <- name }, OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, end := context.WithCancel(c.t.Context())
	go elector.Run(ctx)
	return end
}

// next returns the next leader, and the time until it leads.
func (c *candidates) next() (name string, after time.Duration) {
	c.t.Helper()
	began := time.Now()
	select {
	case name = <-c.leads:
		return name, time.Since(began)
	case <-time.After(time.Minute):
		c.t.Fatal("no candidate leads")
		return "", 0
	}
}

// expect fails unless a candidate leads next, after at least and at most a time.
func (c *candidates) expect(want string, least, most time.Duration) {
	c.t.Helper()
	if name, after := c.next(); name != want || after < least || after > most {
		c.t.Errorf("%s leads after %v, want %s after %v to %v", name, after, want, least, most)
	}
}

// count returns the number of requests with a verb.
func (c *candidates) count(verb string) (n int) {
	for _, a := range c.client.Actions() {
		if a.Matches(verb, "leases") {
			n++
		}
	}
	return n
}

// compete runs a test with a leader "a", and a standby "b" that has begun to wait.
func compete(t *testing.T, refusesWatch bool, test func(c *candidates, endLeader context.CancelFunc)) {
	synctest.Test(t, func(t *testing.T) {
		c := &candidates{t: t, client: fake.NewClientset(), leads: make(chan string)}
		if refusesWatch {
			c.client.PrependWatchReactor("leases", func(clienttesting.Action) (bool, watch.Interface, error) {
				return true, nil, errors.New("forbidden")
			})
		}
		end := c.start("a")
		c.expect("a", 0, 0)
		endStandby := c.start("b")
		time.Sleep(30*time.Second + renewInterval/2)
		test(c, end)
		end()
		endStandby()
		synctest.Wait()
	})
}

// TestElection_Release: a standby leads at once when the leader has released the Lease, and reads
// and writes nothing until then.
func TestElection_Release(t *testing.T) {
	compete(t, false, func(c *candidates, endLeader context.CancelFunc) {
		reads, writes := c.count("get"), c.count("update")
		time.Sleep(30 * time.Second)
		if n := c.count("get") - reads; n > 0 {
			t.Errorf("%d reads in 30 s while nothing happens", n)
		}
		if n := c.count("update") - writes; n != 30 {
			t.Errorf("%d writes in 30 s, want one a second", n)
		}
		endLeader()
		c.expect("b", 0, 10*time.Millisecond)
	})
}

// TestElection_Expiry: a standby leads when the Lease of a leader that is lost has expired, and not
// before.
func TestElection_Expiry(t *testing.T) {
	compete(t, false, func(c *candidates, _ context.CancelFunc) {
		c.loseLeader()
		c.expect("b", leaseDuration-renewInterval, leaseDuration)
	})
}

// TestElection_Deleted: a standby leads when the Lease was deleted, unless the leader was faster.
func TestElection_Deleted(t *testing.T) {
	compete(t, false, func(c *candidates, _ context.CancelFunc) {
		c.loseLeader()
		if err := c.client.CoordinationV1().Leases(installNamespace).Delete(t.Context(), leaseName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.expect("b", 0, 10*time.Millisecond)
	})
}

// TestElection_WithoutWatch: a standby that may not watch the Lease reads it at intervals, as with
// a role of an earlier release.
func TestElection_WithoutWatch(t *testing.T) {
	compete(t, true, func(c *candidates, endLeader context.CancelFunc) {
		endLeader()
		c.expect("b", 0, 3*renewInterval)
	})
	compete(t, true, func(c *candidates, _ context.CancelFunc) {
		c.loseLeader()
		c.expect("b", leaseDuration-renewInterval, leaseDuration+3*renewInterval)
	})
}

// loseLeader makes the writes of the leader fail, like those of a lost node.
func (c *candidates) loseLeader() {
	refuse := func(action clienttesting.Action) (bool, runtime.Object, error) {
		lease := action.(interface{ GetObject() runtime.Object }).GetObject().(*coordinationv1.Lease)
		return lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != "b", nil, errors.New("the node is lost")
	}
	c.client.PrependReactor("update", "leases", refuse)
	c.client.PrependReactor("create", "leases", refuse)
}
