package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Reasons of events beside those of conditions. docs/reference/conditions.md lists them.
const (
	// reasonExported: the other clusters can see an export.
	reasonExported = "Exported"
	// reasonImported: clients of this cluster can use an import.
	reasonImported = "Imported"
	// reasonPartlyExported: some endpoints cannot be exported.
	reasonPartlyExported = "PartlyExported"
	// reasonStatusRefused: the conditions of an export cannot be written.
	reasonStatusRefused = "StatusRefused"
	// reasonAutoExportRefused: the ServiceExport of --auto-export-selector cannot be created or
	// deleted.
	reasonAutoExportRefused = "AutoExportRefused"
	// reasonInstancesOmitted: endpoints are exported, but not all of them as Cloud Map instances.
	reasonInstancesOmitted = "InstancesOmitted"
	// reasonOverBudget: clusters with this cluster's budgets do not import the export as it is, or
	// this cluster does not import a service.
	reasonOverBudget = "OverBudget"
	// reasonNotManaged: an object with a name that the import needs was not created by this
	// controller.
	reasonNotManaged = "NotManaged"
	// reasonImportFailed: the objects of an import cannot be written.
	reasonImportFailed = "ImportFailed"
	// reasonIPChanged: a service could not get back the clusterset IPs that it had.
	reasonIPChanged = "ClusterSetIPChanged"
	// reasonIPReleased: clusterset IPs of an ended import are not held any more, because another
	// Service could not be created.
	reasonIPReleased = "ClusterSetIPReleased"
	// reasonStale: clusters that export the service have become stale, or send heartbeats again.
	reasonStale = "StaleCluster"
	// reasonUnreachable: pods of this cluster cannot reach clusters that export the service, or
	// reach them again.
	reasonUnreachable = "UnreachableCluster"
	// reasonSelection: other clusters serve the service than before, because of its cluster
	// selectors.
	reasonSelection = "ClusterSelectionChanged"
	// reasonDrained: clusters that export the service are drained, or not any more.
	reasonDrained = "ClusterDrained"
	// reasonDeprecatedAnnotation: an annotation of the user has a deprecated key.
	reasonDeprecatedAnnotation = "DeprecatedAnnotation"
	// reasonInvalidDrain: the drain of the cluster is not valid.
	reasonInvalidDrain = "InvalidDrain"
	// reasonExportRefused: the import policy, or the addresses of this cluster, exclude a part of
	// the exports.
	reasonExportRefused = "ExportRefused"
	// reasonIdentityKept: the cluster keeps its identity, although the ClusterProperties have
	// another one or none.
	reasonIdentityKept = "IdentityKept"
	// reasonKeyChanged: another cluster signs its records with another key.
	reasonKeyChanged = "KeyChanged"
	// reasonRecordRefused: records are refused, because the cluster under whose ID they are has not
	// signed them.
	reasonRecordRefused = "RecordRefused"
)

// actionSync is the action of all events.
const actionSync = "Sync"

// noteMax is the longest note that the API accepts.
const noteMax = 1024

// Event is an event about an object.
type Event struct {
	object                client.Object
	kind, reason, message string
}

// Exported reports that an export is Ready.
func Exported(exp client.Object, message string) Event {
	return Event{exp, corev1.EventTypeNormal, reasonExported, message}
}

// Imported reports that an import is Ready.
func Imported(imp client.Object, message string) Event {
	return Event{imp, corev1.EventTypeNormal, reasonImported, message}
}

// StatusRefused warns about conditions that the API server refuses to write.
func StatusRefused(exp client.Object, message string) Event {
	return Event{exp, corev1.EventTypeWarning, reasonStatusRefused, message}
}

// AutoExportRefused warns about a ServiceExport of --auto-export-selector that the API server
// refuses to create or delete. obj is the Service, or the ServiceExport if there is no Service.
func AutoExportRefused(obj client.Object, message string) Event {
	return Event{obj, corev1.EventTypeWarning, reasonAutoExportRefused, message}
}

// PartlyExported warns about an export that lacks parts of its Service.
func PartlyExported(exp client.Object, message string) Event {
	return Event{exp, corev1.EventTypeWarning, reasonPartlyExported, message}
}

// DeprecatedAnnotation warns about annotations with deprecated keys. obj is the ServiceExport that
// they are for, or the ConfigMap with the identity.
func DeprecatedAnnotation(obj client.Object, message string) Event {
	return Event{obj, corev1.EventTypeWarning, reasonDeprecatedAnnotation, message}
}

// InstancesOmitted warns about exported endpoints without a Cloud Map instance.
func InstancesOmitted(exp client.Object, message string) Event {
	return Event{exp, corev1.EventTypeWarning, reasonInstancesOmitted, message}
}

// OverBudget warns about an export that exceeds this cluster's budgets.
func OverBudget(exp client.Object, message string) Event {
	return Event{exp, corev1.EventTypeWarning, reasonOverBudget, message}
}

// ImportOverBudget warns about a service that is not imported because its namespace has too many
// imports. The event is in the namespace, about the ServiceImport that does not exist.
func ImportOverBudget(key mcs.Key, message string) Event {
	return Event{importOf(key), corev1.EventTypeWarning, reasonOverBudget, message}
}

// importOf returns a reference to the ServiceImport of key, which need not exist.
func importOf(key mcs.Key) client.Object {
	return &mcsv1beta1.ServiceImport{
		TypeMeta:   metav1.TypeMeta{APIVersion: mcsv1beta1.GroupVersion.String(), Kind: "ServiceImport"},
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
	}
}

// ConditionNeedsAction warns about a condition of a ServiceExport that the user must act upon.
func ConditionNeedsAction(exp client.Object, c metav1.Condition) Event {
	return Event{exp, corev1.EventTypeWarning, c.Reason, c.Message}
}

// NotManaged warns about obj, which prevents an import because another controller or the user
// created it.
func NotManaged(obj client.Object, message string) Event {
	return Event{obj, corev1.EventTypeWarning, reasonNotManaged, message}
}

// ImportFailed warns about an import whose objects cannot be written. Its ServiceImport need not
// exist.
func ImportFailed(key mcs.Key, message string) Event {
	return Event{importOf(key), corev1.EventTypeWarning, reasonImportFailed, message}
}

// ClusterSetIPChanged warns about an import with other IPs than before.
func ClusterSetIPChanged(imp client.Object, message string) Event {
	return Event{imp, corev1.EventTypeWarning, reasonIPChanged, message}
}

// HeldIPReleased reports that the clusterset IPs of an ended import, whose ServiceImport does not
// exist, were released early.
func HeldIPReleased(key mcs.Key, message string) Event {
	return Event{importOf(key), corev1.EventTypeNormal, reasonIPReleased, message}
}

// ClusterBecameStale warns about an import with a source cluster that has become stale.
func ClusterBecameStale(imp client.Object, message string) Event {
	return Event{imp, corev1.EventTypeWarning, reasonStale, message}
}

// ClusterRecovered reports that stale source clusters of an import send heartbeats again.
func ClusterRecovered(imp client.Object, message string) Event {
	return Event{imp, corev1.EventTypeNormal, reasonStale, message}
}

// ClusterBecameUnreachable warns about an import with a source cluster that this cluster cannot
// reach.
func ClusterBecameUnreachable(imp client.Object, message string) Event {
	return Event{imp, corev1.EventTypeWarning, reasonUnreachable, message}
}

// ClusterBecameReachable reports that this cluster reaches the source clusters of an import again.
func ClusterBecameReachable(imp client.Object, message string) Event {
	return Event{imp, corev1.EventTypeNormal, reasonUnreachable, message}
}

// ClusterSelectionChanged reports that other clusters serve an import than before.
func ClusterSelectionChanged(imp client.Object, message string) Event {
	return Event{imp, corev1.EventTypeNormal, reasonSelection, message}
}

// ClusterDrained reports which source clusters of an import are drained.
func ClusterDrained(imp client.Object, message string) Event {
	return Event{imp, corev1.EventTypeNormal, reasonDrained, message}
}

// ExportRefused warns about an import with exports that this cluster refuses, in full or in part.
func ExportRefused(imp client.Object, message string) Event {
	return Event{imp, corev1.EventTypeWarning, reasonExportRefused, message}
}

// IdentityKept warns that the cluster keeps its identity for now. obj is the ConfigMap with the
// identity.
func IdentityKept(obj client.Object, message string) Event {
	return Event{obj, corev1.EventTypeWarning, reasonIdentityKept, message}
}

// InvalidDrain warns that the drain of the cluster is not valid. obj is the ConfigMap with the
// identity.
func InvalidDrain(obj client.Object, message string) Event {
	return Event{obj, corev1.EventTypeWarning, reasonInvalidDrain, message}
}

// KeyChanged reports that another cluster has another key. obj is the ConfigMap with the identity.
func KeyChanged(obj client.Object, message string) Event {
	return Event{obj, corev1.EventTypeNormal, reasonKeyChanged, message}
}

// RecordRefused warns about records that are refused. obj is the ConfigMap with the identity.
func RecordRefused(obj client.Object, message string) Event {
	return Event{obj, corev1.EventTypeWarning, reasonRecordRefused, message}
}

// EventRecorder writes events to the API server.
type EventRecorder struct{ Recorder events.EventRecorder }

// Publish writes e, in the background.
func (r EventRecorder) Publish(e Event) {
	r.Recorder.Eventf(e.object, nil, e.kind, e.reason, actionSync, "%s", note(e.message))
}

// note returns a message that the API accepts as a note. A cut one ends after a word, so that no
// part of a URL or of a command looks like the whole.
func note(message string) string {
	if len(message) <= noteMax {
		return message
	}
	message = message[:noteMax-len(" ...")]
	if end := strings.LastIndexByte(message, ' '); end > 0 {
		message = message[:end]
	}
	return strings.ToValidUTF8(message, "") + " ..."
}
