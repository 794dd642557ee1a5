package cloudmaplocal

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
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

	targetNamespace = "NAMESPACE"
	targetService   = "SERVICE"
	targetInstance  = "INSTANCE"
)

// Retention of completed operations. AWS publishes no figure; a day is more than any client waits, and 100 clusters with a
// heartbeat of 10s complete 10,000 in 17 minutes.
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
	Fails   *operationError `json:",omitempty"` // why it will fail, by a fault
	Lost    bool            `json:",omitempty"` // by a fault: it has no effect and never ends
	Targets map[string]string

	// CreatorRequestID is the caller's; a request that is the same in everything gets the same operation.
	CreatorRequestID string `json:",omitempty"`

	// The change to apply, nil when it is done. One of them, by Type; deletions need only the targets.
	Namespace *namespace       `json:",omitempty"`
	Instance  *instance        `json:",omitempty"`
	Change    *operationChange `json:",omitempty"`
}

// operationError is why an operation failed: one of the codes of GetOperation.
type operationError struct{ Code, Message string }

// operationChange is the change of an update.
type operationChange struct {
	Namespace *wire.NamespaceChange `json:",omitempty"`
	Service   *wire.ServiceChange   `json:",omitempty"`
}

// targetKey identifies the resource of the operation. Only one operation on a resource can be in flight.
func (op *operation) targetKey() string {
	if op.Type == opCreateNamespace {
		return op.Namespace.uniqueName()
	}
	return cmp.Or(op.Targets[targetService], op.Targets[targetNamespace]) + "/" + op.Targets[targetInstance]
}

// status returns the status at a time: an operation is submitted for the first half of its time and pending for the
// second. AWS promises only the order.
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

// add adds an operation. Operations may be due in another order than they were added.
func (l *operationLog) add(op *operation) {
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

// popDue removes the next operation that is due from the queue and returns it; nil if there is none.
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

// submit queues an operation and returns its ID. If one on the same resource is in flight, the caller gets the ID of
// that one if the request is the same, and DuplicateRequest otherwise.
func (r *region) submit(op *operation) (string, error) {
	if other := r.operations.inFlightByTarget[op.targetKey()]; other != nil {
		if other.isSameRequest(op) {
			return other.ID, nil
		}
		return "", duplicateRequest(other.ID)
	}
	op.Seq = r.operations.lastSeq + 1
	op.ID = random(lower, operationIDLen) + "-" + random(lower, operationIDTailLen)
	op.Created = r.now
	op.Due = r.now.Add(r.opts.OperationDelay)
	r.req.fault.applyTo(op)
	r.operations.add(op)
	r.operations.dropExpired(r.now)
	return op.ID, nil
}

// isSameRequest reports whether other is the same request as op, sent again.
func (op *operation) isSameRequest(other *operation) bool {
	if op.CreatorRequestID == "" || op.CreatorRequestID != other.CreatorRequestID || op.Type != other.Type {
		return false
	}
	return op.Instance == nil || maps.Equal(op.Instance.Attributes, other.Instance.Attributes)
}

// started returns the response of every asynchronous operation.
func started(id string, err error) (wire.OperationStarted, error) {
	return wire.OperationStarted{OperationId: id}, err
}

// finishOperation completes an operation: it takes effect, unless a fault prevents that.
func (r *region) finishOperation(op *operation) {
	if op.Fails != nil || op.Lost {
		r.releaseReservation(op)
		op.Error, op.Fails = op.Fails, nil
	} else {
		r.applyOperation(op)
	}
	op.Done, op.Namespace, op.Instance, op.Change = true, nil, nil, nil
}

// applyOperation applies the effect of an operation.
func (r *region) applyOperation(op *operation) {
	switch op.Type {
	case opCreateNamespace:
		r.addNamespace(op.Namespace, op.ID)
	case opUpdateNamespace:
		r.namespaces[op.Targets[targetNamespace]].applyChange(op.Change.Namespace)
	case opDeleteNamespace:
		r.removeNamespace(op.Targets[targetNamespace])
	case opUpdateService:
		r.services[op.Targets[targetService]].applyChange(op.Change.Service)
	case opRegisterInstance:
		r.setInstance(op.Targets[targetService], op.Instance, op.ID)
	case opDeregisterInstance:
		r.removeInstance(op.Targets[targetService], op.Targets[targetInstance])
	}
}

// releaseReservation releases the quota that an operation without effect reserved.
func (r *region) releaseReservation(op *operation) {
	svc := r.services[op.Targets[targetService]]
	if svc == nil || op.Targets[targetInstance] == "" {
		return
	}
	svc.inFlight--
	if op.Type == opRegisterInstance && svc.Instances[op.Targets[targetInstance]] == nil {
		svc.reservedInstances--
		r.namespaces[svc.NamespaceID].reservedInstances--
	}
}

func (r *region) getOperation(in wire.OperationInput) (struct{ Operation wire.Operation }, error) {
	var out struct{ Operation wire.Operation }
	if err := (text{"OperationId", 1, maxReferenceLen, nil}).check(in.OperationId); err != nil {
		return out, err
	}
	op := r.operations.byID[in.OperationId]
	if op == nil || !r.isOwnerAccount(in.OwnerAccount) || !r.showsOperation(op) {
		return out, operationNotFound(in.OperationId)
	}
	out.Operation = wire.Operation{
		CreateDate: wire.Timestamp(op.Created), Id: op.ID, OwnerAccount: r.key.account, Status: op.status(r.now),
		Targets: op.Targets, Type: op.Type, UpdateDate: wire.Timestamp(op.updated(r.now)),
	}
	if op.Error != nil {
		out.Operation.ErrorCode, out.Operation.ErrorMessage = op.Error.Code, op.Error.Message
	}
	return out, nil
}

// showsOperation reports whether the caller may see an operation: one of its own account, or one on a shared resource.
func (r *region) showsOperation(op *operation) bool {
	if r.isOwner() {
		return true
	}
	ns := r.namespaces[op.Targets[targetNamespace]]
	if svc := r.services[op.Targets[targetService]]; svc != nil {
		ns = r.namespaces[svc.NamespaceID]
	}
	return ns != nil && r.isVisible(ns)
}

// isOwnerAccount reports whether OwnerAccount, which is optional, is the account of this region.
func (r *region) isOwnerAccount(ownerAccount string) bool {
	return ownerAccount == "" || ownerAccount == r.key.account
}

var operationFilters = allowedFilters{
	"NAMESPACE_ID": {"EQ"}, "SERVICE_ID": {"EQ"}, "STATUS": {"EQ", "IN"}, "TYPE": {"EQ", "IN"}, "UPDATE_DATE": {"BETWEEN"},
}

func (r *region) listOperations(in wire.ListInput) (wire.ListOperationsOutput, error) {
	var out wire.ListOperationsOutput
	matches, err := r.operationMatcher(in.Filters)
	if err != nil {
		return out, err
	}
	var found []*operation
	for _, op := range r.operations.all {
		if matches(op) {
			found = append(found, op)
		}
	}
	bySeq := func(op *operation) string { return fmt.Sprintf("%020d", op.Seq) }
	found, out.NextToken, err = page(found, bySeq, in.Paging)
	out.Operations = mapSlice(found, func(op *operation) wire.OperationSummary {
		return wire.OperationSummary{Id: op.ID, Status: op.status(r.now)}
	})
	return out, err
}

// operationMatcher checks the filters and joins them with AND.
func (r *region) operationMatcher(filters []wire.Filter) (func(*operation) bool, error) {
	if err := operationFilters.check(filters); err != nil {
		return nil, err
	}
	var tests []func(*operation) bool
	for _, f := range filters {
		test, err := r.operationTest(f)
		if err != nil {
			return nil, err
		}
		tests = append(tests, test)
	}
	return func(op *operation) bool {
		return !slices.ContainsFunc(tests, func(test func(*operation) bool) bool { return !test(op) })
	}, nil
}

func (r *region) operationTest(f wire.Filter) (func(*operation) bool, error) {
	switch f.Name {
	case "NAMESPACE_ID":
		id := r.id("namespace", f.Values[0])
		return func(op *operation) bool { return op.Targets[targetNamespace] == id }, nil
	case "SERVICE_ID":
		id := r.id("service", f.Values[0])
		return func(op *operation) bool { return op.Targets[targetService] == id }, nil
	case "STATUS":
		// The documentation lists SUCCEED here and SUCCESS everywhere else.
		statuses := mapSlice(f.Values, func(s string) string { return strings.Replace(s, "SUCCEED", statusSuccess, 1) })
		return func(op *operation) bool { return slices.Contains(statuses, op.status(r.now)) }, nil
	case "TYPE":
		return func(op *operation) bool { return slices.Contains(f.Values, op.Type) }, nil
	}
	from, errFrom := parseDate(f.Values[0])
	to, errTo := parseDate(f.Values[1])
	return func(op *operation) bool {
		updated := op.updated(r.now)
		return !updated.Before(from) && !updated.After(to)
	}, cmp.Or(errFrom, errTo)
}

// parseDate reads a filter's date: seconds since 1970, or milliseconds when the number is too large for that (11 digits
// of seconds end in the year 5138).
func parseDate(s string) (time.Time, error) {
	seconds, err := strconv.ParseFloat(s, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, invalidInput("UPDATE_DATE: '%s' is not a time in seconds since 1970", s)
	}
	if seconds >= 1e11 {
		seconds /= 1000
	}
	return time.UnixMilli(int64(seconds * 1000)), nil
}
