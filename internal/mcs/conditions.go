package mcs

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// The functions below decide one condition each. They leave LastTransitionTime and ObservedGeneration to SetCondition.

// ExportValid is the ServiceExport condition Valid: svc is the Service of the same name, nil if there is none.
func ExportValid(svc *corev1.Service) metav1.Condition {
	switch {
	case svc == nil:
		return exportCondition(mcsv1beta1.ServiceExportConditionValid, false, mcsv1beta1.ServiceExportReasonNoService,
			"there is no Service of this name in this namespace: create it, or delete the ServiceExport")
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return exportCondition(mcsv1beta1.ServiceExportConditionValid, false, mcsv1beta1.ServiceExportReasonInvalidServiceType,
			"the Service is of type ExternalName, which has no endpoints to export: "+
				"export a Service of type ClusterIP, NodePort or LoadBalancer")
	}
	return exportCondition(mcsv1beta1.ServiceExportConditionValid, true, mcsv1beta1.ServiceExportReasonValid,
		"the Service can be exported")
}

// Progress is how far this cluster's export of a service has got.
type Progress struct {
	// Exported: the registry has shown the export as it is now.
	Exported bool
	// Problem says why it gets no further, "" while all is well.
	Problem string
}

// ExportReady is the ServiceExport condition Ready of a valid export.
func ExportReady(p Progress) metav1.Condition {
	switch {
	case p.Exported:
		return exportCondition(mcsv1beta1.ServiceExportConditionReady, true, mcsv1beta1.ServiceExportReasonExported,
			"the other clusters of the clusterset can see the export")
	case p.Problem != "":
		return exportCondition(mcsv1beta1.ServiceExportConditionReady, false, mcsv1beta1.ServiceExportReasonFailed, p.Problem)
	}
	return exportCondition(mcsv1beta1.ServiceExportConditionReady, false, mcsv1beta1.ServiceExportReasonPending,
		"the export is being written to the registry")
}

// ExportNotReady is the ServiceExport condition Ready when nothing is exported for the reason that condition valid gives.
func ExportNotReady(valid metav1.Condition) metav1.Condition {
	return exportCondition(mcsv1beta1.ServiceExportConditionReady, false, mcsv1beta1.ServiceExportReasonFailed,
		"nothing is exported: "+valid.Message)
}

// ExportConflict is the ServiceExport condition Conflict: the reasons joined by commas, as mcs-api wants it.
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

// ImportReady is the ServiceImport condition Ready. supported are the families in which this cluster gives Services
// IPs, nil if that is not known; ips are the IPs that the import has been given.
func ImportReady(m Merged, supported []corev1.IPFamily, ips []string) metav1.Condition {
	switch {
	case m.Type == mcsv1beta1.Headless:
		return importCondition(true, mcsv1beta1.ServiceImportReasonReady, "the service can be used by its DNS name")
	case len(supported) > 0 && len(m.IPFamilies) > 0 && !slices.ContainsFunc(m.IPFamilies, func(f corev1.IPFamily) bool {
		return slices.Contains(supported, f)
	}):
		return importCondition(false, mcsv1beta1.ServiceImportReasonIPFamilyNotSupported, fmt.Sprintf(
			"the service has IP families %s and this cluster has only %s: export it with one of these",
			strings.Join(toStrings(m.IPFamilies), ","), strings.Join(toStrings(supported), ",")))
	case len(ips) == 0:
		return importCondition(false, mcsv1beta1.ServiceImportReasonPending, "waiting for the derived Service to be given a cluster IP")
	}
	return importCondition(true, mcsv1beta1.ServiceImportReasonReady, "the service can be used by its DNS name and its clusterset IP")
}

// SetCondition is list with c in the place of the condition of its type, and whether that changes anything. c becomes
// observed at generation, and its LastTransitionTime, which must be set to now, moves only when the status does. list
// is not changed.
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
	return metav1.Condition{Type: string(t), Status: status(ok), Reason: string(reason), Message: message}
}

func importCondition(ok bool, reason mcsv1beta1.ServiceImportConditionReason, message string) metav1.Condition {
	return metav1.Condition{
		Type: string(mcsv1beta1.ServiceImportConditionReady), Status: status(ok), Reason: string(reason), Message: message,
	}
}

func status(ok bool) metav1.ConditionStatus {
	if ok {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}
