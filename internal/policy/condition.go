package policy

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// ConditionRefused is the type of the ServiceImport condition that reports whether this cluster
// refuses a part of the exports. It is not part of mcs-api.
const ConditionRefused = mcs.Domain + "/Refused"

// ReasonNothingRefused is the reason of ConditionRefused while it is False.
const ReasonNothingRefused = "NothingRefused"

// maxMessages and maxMessageBytes bound the message of the condition.
const (
	maxMessages     = 5
	maxMessageBytes = 1024
)

// Condition returns the ServiceImport condition ConditionRefused. Its reasons are joined by commas,
// as those of mcs-api's Conflict.
func Condition(refusals []Refusal) metav1.Condition {
	if len(refusals) == 0 {
		return metav1.Condition{
			Type: ConditionRefused, Status: metav1.ConditionFalse, Reason: ReasonNothingRefused, Message: "this cluster imports all exports with all endpoints",
		}
	}
	sorted := Sorted(refusals)
	var reasons, messages []string
	for _, r := range sorted {
		reasons = append(reasons, string(r.Reason))
		messages = append(messages, r.Message)
	}
	slices.Sort(reasons)
	if more := len(messages) - maxMessages; more > 0 {
		messages = append(messages[:maxMessages:maxMessages], fmt.Sprintf("and %d more refusals", more))
	}
	message := strings.Join(messages, "; ")
	if len(message) > maxMessageBytes {
		message = strings.ToValidUTF8(message[:maxMessageBytes-3], "") + "..."
	}
	return metav1.Condition{
		Type: ConditionRefused, Status: metav1.ConditionTrue, Reason: strings.Join(slices.Compact(reasons), ","), Message: message,
	}
}

// Sorted returns refusals sorted by cluster and reason.
func Sorted(refusals []Refusal) []Refusal {
	return slices.SortedFunc(slices.Values(refusals), func(a, b Refusal) int {
		if c := strings.Compare(a.Cluster, b.Cluster); c != 0 {
			return c
		}
		return strings.Compare(string(a.Reason), string(b.Reason))
	})
}

// systemPrefixes begin the names of namespaces that platforms reserve for their own components:
// Kubernetes, OpenShift (github.com/openshift/openshift-docs/pull/21865) and Rancher
// (ranchermanager.docs.rancher.com, psa-restricted-exemptions).
var systemPrefixes = []string{"kube-", "openshift-", "cattle-"}

// IsSystemNamespace reports whether a cluster imports into namespace only if its administrator
// lists it: those of systemPrefixes, default and openshift, which exist in every cluster of a
// platform but are not the same namespace to its administrators, and the controller's own.
func IsSystemNamespace(namespace, own string) bool {
	return namespace == metav1.NamespaceDefault || namespace == "openshift" || own != "" && namespace == own ||
		slices.ContainsFunc(systemPrefixes, func(prefix string) bool { return strings.HasPrefix(namespace, prefix) })
}
