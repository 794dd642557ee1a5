package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Reasons of events that no condition has.
const (
	// reasonPartlyExported: some endpoints cannot be exported.
	reasonPartlyExported = "PartlyExported"
	// reasonPartlyShown: endpoints are exported, but cannot be shown as Cloud Map instances.
	reasonPartlyShown = "PartlyShown"
	// reasonNotManaged: an object that we would need has the name but belongs to somebody else.
	reasonNotManaged = "NotManaged"
	// reasonStale: clusters that export the service have become stale, or show signs of life again.
	reasonStale = "StaleCluster"
)

// Actions of events: what the controller was doing.
const actionSync = "Sync"

// noteMax is how long the API allows an event's note to be.
const noteMax = 1024

// recorder writes events.
type recorder struct {
	events.EventRecorder
}

// warn records an event about obj that asks the user to do something.
func (r recorder) warn(obj runtime.Object, reason, message string) {
	r.record(obj, corev1.EventTypeWarning, reason, message)
}

// tell records an event about obj that says that a warning has no cause any more.
func (r recorder) tell(obj runtime.Object, reason, message string) {
	r.record(obj, corev1.EventTypeNormal, reason, message)
}

func (r recorder) record(obj runtime.Object, kind, reason, message string) {
	if len(message) > noteMax {
		message = message[:noteMax-3] + "..."
	}
	r.Eventf(obj, nil, kind, reason, actionSync, "%s", message)
}

// raceRetry is how soon to look again after losing a race. The cache catches up within a few milliseconds.
const raceRetry = 50 * time.Millisecond

// retryOnRace turns the loss of a race, a part of normal life, into another look: somebody else changed the object and
// the cache has not shown it yet. Other errors are logged and retried at a growing distance.
func retryOnRace(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: raceRetry}, nil
	}
	return reconcile.Result{}, err
}
