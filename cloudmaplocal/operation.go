package cloudmaplocal

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// Types, statuses and targets of operations, as the API spells them.
const (
	opCreateNamespace    = "CREATE_NAMESPACE"
	opDeleteNamespace    = "DELETE_NAMESPACE"
	opUpdateNamespace    = "UPDATE_NAMESPACE"
	opUpdateService      = "UPDATE_SERVICE"
	opRegisterInstance   = "REGISTER_INSTANCE"
	opDeregisterInstance = "DEREGISTER_INSTANCE"

	statusSubmitted = "SUBMITTED"
	statusPending   = "PENDING"
	statusSuccess   = "SUCCESS"
	statusFail      = "FAIL"

	// opDenied is the error code of an operation for which the caller lacks rights in other
	// services.
	opDenied = "ACCESS_DENIED"

	// opInternal is the error code of an operation that fails for a reason that has no code.
	opInternal = "INTERNAL_FAILURE"

	targetNamespace = "NAMESPACE"
	targetService   = "SERVICE"
	targetInstance  = "INSTANCE"
)

// Retention of completed operations. AWS publishes no figure; a day is more than any client waits,
// and 100 clusters with a heartbeat of 10s complete 10,000 in 17 minutes.
const (
	keptOperations     = 10_000
	keptOperationsTime = 24 * time.Hour
)

// operation is an asynchronous operation, in flight or over.
type operation struct {
	Seq     int64
	ID      string
	Type    string
	Created time.Time
	Due     time.Time // when it takes effect
	Done    bool
	Error   *operationError `json:",omitempty"` // why it failed
	Fails   *operationError `json:",omitempty"` // why it will fail
	Lost    bool            `json:",omitempty"` // by a fault: it has no effect and never ends
	Targets map[string]string

	// CreatorRequestID is the caller's; a request that is the same in everything gets the same
	// operation.
	CreatorRequestID string `json:",omitempty"`

	// The change to apply, nil when it is done. One of them, by Type; deletions need only the
	// targets.
	Namespace *namespace       `json:",omitempty"`
	Instance  *instance        `json:",omitempty"`
	Change    *operationChange `json:",omitempty"`
}

// operationError is the reason why an operation failed: one of the codes of GetOperation.
type operationError struct{ Code, Message string }

// operationChange is the change of an update.
type operationChange struct {
	Namespace *wire.NamespaceChange `json:",omitempty"`
	Service   *wire.ServiceChange   `json:",omitempty"`
}

// targetKey identifies the resource of the operation. Only one operation on a resource can be in
// flight.
func (op *operation) targetKey() string {
	if op.Type == opCreateNamespace {
		return op.Namespace.uniqueName()
	}
	return cmp.Or(op.Targets[targetService], op.Targets[targetNamespace]) + "/" + op.Targets[targetInstance]
}

// status returns the status at a time: an operation is submitted for the first half of its time and
// pending for the second. AWS promises only the order.
func (op *operation) status(now time.Time) string {
	switch {
	case op.Error != nil:
		return statusFail
	case op.Lost:
		return statusSubmitted
	case op.Done:
		return statusSuccess
	case now.Before(op.halfway()):
		return statusSubmitted
	}
	return statusPending
}

func (op *operation) halfway() time.Time { return op.Created.Add(op.Due.Sub(op.Created) / 2) }

// updated returns when the status last changed.
func (op *operation) updated(now time.Time) time.Time {
	switch op.status(now) {
	case statusSubmitted:
		return op.Created
	case statusPending:
		return op.halfway()
	}
	return op.Due
}

// isSameRequest reports whether other is the same request as op, sent again.
func (op *operation) isSameRequest(other *operation) bool {
	if op.CreatorRequestID == "" || op.CreatorRequestID != other.CreatorRequestID || op.Type != other.Type {
		return false
	}
	return op.Instance == nil || maps.Equal(op.Instance.Attributes, other.Instance.Attributes)
}

// operationLog holds the operations of a region.
type operationLog struct {
	all              []*operation // in the order of Seq
	byID             map[string]*operation
	queue            []*operation          // in flight, in the order of Due
	inFlightByTarget map[string]*operation // in flight, by targetKey
	lastSeq          int64
}

func newOperationLog() operationLog {
	return operationLog{byID: map[string]*operation{}, inFlightByTarget: map[string]*operation{}}
}

// startOperation adds a new operation. It gets a sequence number and an ID.
func (l *operationLog) startOperation(op *operation) {
	op.Seq = l.lastSeq + 1
	op.ID = random(lower, operationIDLen) + "-" + random(lower, operationIDTailLen)
	l.addOperation(op)
	l.dropExpired(op.Created)
}

// addOperation adds an operation. Operations may be due in another order than they were added.
func (l *operationLog) addOperation(op *operation) {
	l.all = append(l.all, op)
	l.byID[op.ID] = op
	l.lastSeq = max(l.lastSeq, op.Seq)
	if op.Done {
		return
	}
	l.inFlightByTarget[op.targetKey()] = op
	at := len(l.queue)
	for at > 0 && l.queue[at-1].Due.After(op.Due) {
		at--
	}
	l.queue = slices.Insert(l.queue, at, op)
}

// popDue removes the next operation that is due from the queue and returns it; nil if there is
// none.
func (l *operationLog) popDue(now time.Time) *operation {
	if len(l.queue) == 0 || l.queue[0].Due.After(now) {
		return nil
	}
	op := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	delete(l.inFlightByTarget, op.targetKey())
	return op
}

// dropExpired drops the oldest completed operations beyond the retention.
func (l *operationLog) dropExpired(now time.Time) {
	n := 0
	for n < len(l.all) && l.all[n].Done &&
		(len(l.all)-n > keptOperations || now.Sub(l.all[n].Due) > keptOperationsTime) {
		delete(l.byID, l.all[n].ID)
		l.all[n] = nil
		n++
	}
	l.all = l.all[n:]
}

// countInFlight returns the number of operations of a type that are in flight.
func (l *operationLog) countInFlight(kind string) int {
	n := 0
	for _, op := range l.queue {
		if op.Type == kind {
			n++
		}
	}
	return n
}

// isDeleting reports whether a deletion of the namespace is in flight.
func (l *operationLog) isDeleting(ns *namespace) bool {
	op := l.inFlightByTarget[ns.ID+"/"]
	return op != nil && op.Type == opDeleteNamespace
}
