package mcs

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Each function below decides one condition. SetCondition sets LastTransitionTime and
// ObservedGeneration.

// ExportValid returns the ServiceExport condition Valid. svc is the ExportedService of exp, nil if
// there is none.
func ExportValid(exp *mcsv1beta1.ServiceExport, svc *corev1.Service) metav1.Condition {
	name, err := ExportedService(exp)
	switch {
	case err != nil:
		return exportCondition(mcsv1beta1.ServiceExportConditionValid, false, ReasonInvalidServiceName, err.Error())
	case svc == nil && name != exp.Name:
		return exportCondition(mcsv1beta1.ServiceExportConditionValid, false, mcsv1beta1.ServiceExportReasonNoService, fmt.Sprintf(
			"there is no Service %s in this namespace, which annotation %s names: create it, or change the annotation", name, AnnotationService))
	case svc == nil:
		return exportCondition(mcsv1beta1.ServiceExportConditionValid, false, mcsv1beta1.ServiceExportReasonNoService,
			"there is no Service of this name in this namespace: create it, or delete the ServiceExport")
	case ImportOf(svc) != "":
		return exportCondition(mcsv1beta1.ServiceExportConditionValid, false, mcsv1beta1.ServiceExportReasonInvalidServiceType, fmt.Sprintf(
			"the Service is the derived Service of ServiceImport %s, whose endpoints other clusters export: export Service %[1]s, or delete the ServiceExport", ImportOf(svc)))
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return exportCondition(mcsv1beta1.ServiceExportConditionValid, false, mcsv1beta1.ServiceExportReasonInvalidServiceType,
			"the Service is of type ExternalName, which has no endpoints to export: "+
				"export a Service of type ClusterIP, NodePort or LoadBalancer")
	}
	return exportCondition(mcsv1beta1.ServiceExportConditionValid, true, mcsv1beta1.ServiceExportReasonValid,
		"the Service can be exported")
}

// ExportSelection returns the condition Valid of a valid export whose recipients or cluster
// selectors are not, nil if there is nothing to report. Without valid recipients the service is
// exported to no other cluster. It is exported without cluster selectors that are not valid: a
// preference that cannot be used must not end the traffic of all clusters.
func ExportSelection(src Source) *metav1.Condition {
	selection, err := src.Selection()
	_, recipientsErr := src.Recipients()
	var c metav1.Condition
	switch {
	case recipientsErr != nil:
		c = exportCondition(mcsv1beta1.ServiceExportConditionValid, false, ReasonInvalidRecipients,
			"the service is exported to no other cluster: "+recipientsErr.Error())
	case err != nil:
		c = exportCondition(mcsv1beta1.ServiceExportConditionValid, false, ReasonInvalidClusterSelector,
			"the service is exported without cluster selectors: "+err.Error())
	case selection.IsOwn && selection.Selectors != "" && exportType(src.Service) == mcsv1beta1.Headless:
		c = exportCondition(mcsv1beta1.ServiceExportConditionValid, false, mcsv1beta1.ServiceExportReasonInvalidServiceType,
			"the service is exported without cluster selectors: it is headless, and its clients use the addresses of all clusters")
	default:
		return nil
	}
	return &c
}

// Progress is the progress of publishing this cluster's export of a service.
type Progress struct {
	// Exported: the registry has shown the current export.
	Exported bool
	// Unread: the registry has not been read since the controller started, so nothing is written.
	Unread bool
	// Problem is the reason why publishing does not progress, "" if there is none.
	Problem string
	// LeftOut are the parts that are not exported.
	LeftOut LeftOuts
}

// ExportReady returns the ServiceExport condition Ready of a valid export.
func ExportReady(p Progress) metav1.Condition {
	switch {
	case p.Exported:
		message := "the other clusters of the clusterset can see the export"
		if left := p.LeftOut.Summary(); left != "" {
			message += "; left out: " + left
		}
		return exportCondition(mcsv1beta1.ServiceExportConditionReady, true, mcsv1beta1.ServiceExportReasonExported, message)
	case p.Problem != "":
		return exportCondition(mcsv1beta1.ServiceExportConditionReady, false, mcsv1beta1.ServiceExportReasonFailed, p.Problem)
	}
	message := "the export is being written to the registry"
	if p.Unread {
		message = "the registry has not been read yet: that takes a few seconds after the controller has started"
	}
	return exportCondition(mcsv1beta1.ServiceExportConditionReady, false, mcsv1beta1.ServiceExportReasonPending, message)
}

// ExportNotReady returns the ServiceExport condition Ready of an export that is not valid.
func ExportNotReady(valid metav1.Condition) metav1.Condition {
	return exportCondition(mcsv1beta1.ServiceExportConditionReady, false, mcsv1beta1.ServiceExportReasonFailed,
		"nothing is exported: "+valid.Message)
}

// ExportTerminating returns the ServiceExport condition Ready of an object that is being deleted
// and that finalizers keep.
func ExportTerminating(finalizers []string) metav1.Condition {
	return exportCondition(mcsv1beta1.ServiceExportConditionReady, false, mcsv1beta1.ServiceExportReasonPending,
		"the ServiceExport is being deleted, and the service is withdrawn from the other clusters; the object exists until its finalizers are removed: "+enumerate(finalizers))
}

// ExportConflict returns the ServiceExport condition Conflict. Its reasons are joined by commas, as
// mcs-api requires.
func ExportConflict(conflicts []Conflict) metav1.Condition {
	if len(conflicts) == 0 {
		return exportCondition(mcsv1beta1.ServiceExportConditionConflict, false, mcsv1beta1.ServiceExportReasonNoConflicts,
			"all exports of the service agree")
	}
	var reasons, messages []string
	for _, c := range conflicts {
		reasons = append(reasons, string(c.Reason))
		messages = append(messages, c.Message)
	}
	return exportCondition(mcsv1beta1.ServiceExportConditionConflict, true,
		mcsv1beta1.ServiceExportConditionReason(strings.Join(reasons, ",")), strings.Join(messages, "; "))
}

// ImportReady returns the ServiceImport condition Ready. supported are the IP families of this
// cluster's Services, nil if unknown; ips are the clusterset IPs. An import without endpoints is
// Ready, as a Service without endpoints is, and so is one whose name does not resolve: the message
// has that.
func ImportReady(m Merged, supported []corev1.IPFamily, ips []string, reach Reach, names Resolution) metav1.Condition {
	by := "its DNS name and its clusterset IP"
	if names == NotResolvable {
		by = "its clusterset IP, but not by its DNS name: see condition NotResolvable"
	}
	switch {
	case m.Type == mcsv1beta1.Headless && names == NotResolvable:
		return importCondition(true, mcsv1beta1.ServiceImportReasonReady, "the import exists, but clients cannot use its DNS name: see condition NotResolvable")
	case m.Type == mcsv1beta1.Headless:
		return importCondition(true, mcsv1beta1.ServiceImportReasonReady, reach.describe("its DNS name"))
	case len(supported) > 0 && len(m.IPFamilies) > 0 && !slices.ContainsFunc(m.IPFamilies, func(f corev1.IPFamily) bool {
		return slices.Contains(supported, f)
	}):
		return importCondition(false, mcsv1beta1.ServiceImportReasonIPFamilyNotSupported, fmt.Sprintf(
			"the service has IP families %s and this cluster has only %s: export it with one of these",
			strings.Join(toStrings(m.IPFamilies), ","), strings.Join(toStrings(supported), ",")))
	case len(ips) == 0:
		return importCondition(false, mcsv1beta1.ServiceImportReasonPending, "waiting for a cluster IP of the derived Service")
	}
	return importCondition(true, mcsv1beta1.ServiceImportReasonReady, reach.describe(by))
}

// describe returns the message of an import that exists; by names what clients use.
func (r Reach) describe(by string) string {
	switch r {
	case ReachNone:
		return "the import exists, but no endpoint of any cluster is ready: clients reach none until one is"
	case ReachOwnNode:
		return "internalTrafficPolicy is Local: by " + by + ", clients reach only the endpoints on their own node"
	case ReachNoNode:
		return "internalTrafficPolicy is Local: clients reach only the endpoints on their own node, and no endpoint of this cluster is ready, so they reach none"
	}
	return "the service can be used by " + by
}

// ImportNotReady returns the ServiceImport condition Ready of an import that cannot be written,
// with the reason.
func ImportNotReady(message string) metav1.Condition {
	return importCondition(false, mcsv1beta1.ServiceImportReasonPending, message)
}

// SetCondition returns list with c in place of the condition of its type, and reports whether that
// is a change. It sets ObservedGeneration to generation. The caller sets LastTransitionTime to now;
// SetCondition keeps the old time unless the status changes. list is not changed.
func SetCondition(list []metav1.Condition, c metav1.Condition, generation int64) ([]metav1.Condition, bool) {
	c.ObservedGeneration = generation
	out := slices.Clone(list)
	i := slices.IndexFunc(out, func(o metav1.Condition) bool { return o.Type == c.Type })
	if i < 0 {
		return append(out, c), true
	}
	if out[i].Status == c.Status {
		c.LastTransitionTime = out[i].LastTransitionTime
	}
	if out[i] == c {
		return out, false
	}
	out[i] = c
	return out, true
}

func exportCondition(t mcsv1beta1.ServiceExportConditionType, ok bool, reason mcsv1beta1.ServiceExportConditionReason, message string) metav1.Condition {
	return metav1.Condition{Type: string(t), Status: conditionStatus(ok), Reason: string(reason), Message: message}
}

func importCondition(ok bool, reason mcsv1beta1.ServiceImportConditionReason, message string) metav1.Condition {
	return metav1.Condition{
		Type: string(mcsv1beta1.ServiceImportConditionReady), Status: conditionStatus(ok), Reason: string(reason), Message: message,
	}
}

func conditionStatus(ok bool) metav1.ConditionStatus {
	if ok {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}
