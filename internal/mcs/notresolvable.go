package mcs

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Resolution is whether the names of clusterset.local resolve in this cluster, for the pod of the
// controller.
type Resolution int

const (
	// ResolutionUnknown means that nothing has been found out, or not for long enough.
	ResolutionUnknown Resolution = iota
	// Resolvable means that the DNS serves the names.
	Resolvable
	// NotResolvable means that it has not served them for some time.
	NotResolvable
)

// ConditionNotResolvable is the type of the ServiceImport condition that reports whether the DNS
// name of the service does not resolve in this cluster. It is not part of mcs-api.
const ConditionNotResolvable = Domain + "/NotResolvable"

// Reasons of ConditionNotResolvable.
const (
	NotResolvableReasonServed    = "DNSServed"
	NotResolvableReasonNotServed = "DNSNotServed"
)

// ImportNotResolvable returns the ServiceImport condition ConditionNotResolvable, nil if it stays
// as it is. Its message is constant: the answer of the DNS may be another one each time.
func ImportNotResolvable(names Resolution) *metav1.Condition {
	switch names {
	case ResolutionUnknown:
		return nil
	case Resolvable:
		return &metav1.Condition{
			Type: ConditionNotResolvable, Status: metav1.ConditionFalse, Reason: NotResolvableReasonServed,
			Message: "the DNS that the controller's pod uses serves clusterset.local",
		}
	case NotResolvable:
	}
	return &metav1.Condition{
		Type: ConditionNotResolvable, Status: metav1.ConditionTrue, Reason: NotResolvableReasonNotServed,
		Message: "the DNS that the controller's pod uses does not serve clusterset.local, so pods that use it cannot resolve the name of the service: kubectl mcs dns status shows the reason",
	}
}

// ResolutionOf returns names, or if that is unknown, the one that conditions of a ServiceImport
// report.
func ResolutionOf(names Resolution, conditions []metav1.Condition) Resolution {
	if names != ResolutionUnknown {
		return names
	}
	for _, c := range conditions {
		if c.Type == ConditionNotResolvable && c.Status == metav1.ConditionTrue {
			return NotResolvable
		}
	}
	return ResolutionUnknown
}
