package cloudmaplocal

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// operationHandler has the operations on operations.
type operationHandler struct{ *apiCall }

func (h operationHandler) getOperation(in wire.OperationInput) (struct{ Operation wire.Operation }, error) {
	var out struct{ Operation wire.Operation }
	if err := (textConstraint{"OperationId", 1, maxReferenceLen, nil}).check(in.OperationId); err != nil {
		return out, err
	}
	op := h.operations.byID[in.OperationId]
	if op == nil || !h.isOwnerAccount(in.OwnerAccount) || !h.showsOperation(op) {
		return out, operationNotFound(in.OperationId)
	}
	out.Operation = wire.Operation{
		CreateDate: wire.Timestamp(op.Created), Id: op.ID, OwnerAccount: h.key.account, Status: op.status(h.now),
		Targets: op.Targets, Type: op.Type, UpdateDate: wire.Timestamp(op.updated(h.now)),
	}
	if op.Error != nil {
		out.Operation.ErrorCode, out.Operation.ErrorMessage = op.Error.Code, op.Error.Message
	}
	return out, nil
}

// showsOperation reports whether the caller may see an operation: one of its own account, or one on
// a shared resource.
func (h operationHandler) showsOperation(op *operation) bool {
	if h.isOwner() {
		return true
	}
	ns := h.store.namespaces[op.Targets[targetNamespace]]
	if svc := h.store.services[op.Targets[targetService]]; svc != nil {
		ns = h.store.namespaceOf(svc)
	}
	return ns != nil && h.isVisible(ns)
}

var operationFilters = allowedFilters{
	"NAMESPACE_ID": {"EQ"}, "SERVICE_ID": {"EQ"}, "STATUS": {"EQ", "IN"}, "TYPE": {"EQ", "IN"}, "UPDATE_DATE": {"BETWEEN"},
}

func (h operationHandler) listOperations(in wire.ListInput) (wire.ListOperationsOutput, error) {
	var out wire.ListOperationsOutput
	matches, err := h.operationMatcher(in.Filters)
	if err != nil {
		return out, err
	}
	var found []*operation
	for _, op := range h.operations.all {
		if matches(op) {
			found = append(found, op)
		}
	}
	bySeq := func(op *operation) string { return fmt.Sprintf("%020d", op.Seq) }
	found, out.NextToken, err = page(found, bySeq, in.Paging)
	out.Operations = mapSlice(found, func(op *operation) wire.OperationSummary {
		return wire.OperationSummary{Id: op.ID, Status: op.status(h.now)}
	})
	return out, err
}

// operationMatcher checks the filters and joins them with AND.
func (h operationHandler) operationMatcher(filters []wire.Filter) (func(*operation) bool, error) {
	if err := operationFilters.check(filters); err != nil {
		return nil, err
	}
	var tests []func(*operation) bool
	for _, f := range filters {
		test, err := h.operationTest(f)
		if err != nil {
			return nil, err
		}
		tests = append(tests, test)
	}
	return func(op *operation) bool {
		return !slices.ContainsFunc(tests, func(test func(*operation) bool) bool { return !test(op) })
	}, nil
}

func (h operationHandler) operationTest(f wire.Filter) (func(*operation) bool, error) {
	switch f.Name {
	case "NAMESPACE_ID":
		id := h.store.resourceID("namespace", f.Values[0])
		return func(op *operation) bool { return op.Targets[targetNamespace] == id }, nil
	case "SERVICE_ID":
		id := h.store.resourceID("service", f.Values[0])
		return func(op *operation) bool { return op.Targets[targetService] == id }, nil
	case "STATUS":
		// The documentation lists SUCCEED here and SUCCESS everywhere else.
		statuses := mapSlice(f.Values, func(s string) string { return strings.Replace(s, "SUCCEED", statusSuccess, 1) })
		return func(op *operation) bool { return slices.Contains(statuses, op.status(h.now)) }, nil
	case "TYPE":
		return func(op *operation) bool { return slices.Contains(f.Values, op.Type) }, nil
	}
	from, errFrom := parseDate(f.Values[0])
	to, errTo := parseDate(f.Values[1])
	return func(op *operation) bool {
		updated := op.updated(h.now)
		return !updated.Before(from) && !updated.After(to)
	}, cmp.Or(errFrom, errTo)
}

// parseDate reads a filter's date: seconds since 1970, or milliseconds when the number is too large
// for that (11 digits of seconds end in the year 5138).
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
