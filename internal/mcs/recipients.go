package mcs

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
)

// AnnotationExportTo is the annotation of a ServiceExport, or of its namespace, with the recipients
// of the export: RecipientsAll, cluster IDs such as "cls2,cls3", or the JSON of a list of cluster
// selectors, one of which must match.
const AnnotationExportTo = Domain + "/export-to"

// RecipientsAll stands for all clusters. It overrides the recipients of the namespace.
const RecipientsAll = "*"

// ReasonInvalidRecipients is the reason of condition Valid of an export whose recipients are not
// valid.
const ReasonInvalidRecipients mcsv1beta1.ServiceExportConditionReason = "InvalidRecipients"

// noRecipients selects no cluster.
const noRecipients ClusterSelectors = `[{"propertySelector":{"matchExpressions":[{"key":"` + aboutv1beta1.ClusterIDProperty + `","operator":"DoesNotExist"}]}}]`

// ParseRecipients returns the canonical form of the recipients that a user or another cluster
// wrote, "" for all clusters.
func ParseRecipients(text string) (ClusterSelectors, error) {
	text = strings.TrimSpace(text)
	if len(text) > maxAnnotationBytes {
		return "", fmt.Errorf("the list has more than %d bytes", maxAnnotationBytes)
	}
	switch {
	case text == RecipientsAll:
		return "", nil
	case strings.HasPrefix(text, "["):
		return parseRecipientSelectors(text)
	}
	var ids []string
	for id := range strings.SplitSeq(text, ",") {
		id = strings.TrimSpace(id)
		if err := ValidateClusterID(id); err != nil {
			return "", fmt.Errorf("%q is neither %s, nor a list of cluster IDs or of cluster selectors: %w", abbreviate(text), RecipientsAll, err)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return encodeClusterSelectors([]ClusterSelector{{PropertySelector: &PropertySelector{MatchExpressions: []PropertyRequirement{
		{Key: aboutv1beta1.ClusterIDProperty, Operator: metav1.LabelSelectorOpIn, Values: slices.Compact(ids)},
	}}}})
}

func parseRecipientSelectors(text string) (ClusterSelectors, error) {
	recipients, err := ParseClusterSelectors(text)
	switch {
	case err != nil:
		return "", err
	case recipients == "":
		return "", errors.New("the list is empty: delete the ServiceExport to export to no cluster")
	case strings.Contains(string(recipients), SameAsImporter):
		return "", errors.New(SameAsImporter + " selects all clusters: name properties of the recipients")
	}
	return recipients, nil
}

// Recipients returns the recipients of the export, "" for all clusters. With an error there are
// none: an export must not reach clusters that the user may have excluded.
func (src Source) Recipients() (ClusterSelectors, error) {
	key, text, ok := Annotation(src.ServiceExport.Annotations, AnnotationExportTo)
	of := ""
	if !ok {
		if key, text, ok = Annotation(src.NamespaceAnnotations, AnnotationExportTo); !ok {
			return "", nil
		}
		of = " of the namespace"
	}
	recipients, err := ParseRecipients(text)
	if err != nil {
		return noRecipients, fmt.Errorf("annotation %s%s: %w", key, of, err)
	}
	return recipients, nil
}

// IsFor reports whether e is for a cluster with these properties, those that identify it included.
func (e Export) IsFor(importer Properties) bool {
	if e.Recipients == "" {
		return true
	}
	tiers := e.Recipients.Tiers(importer, map[string]Properties{"": importer})
	return slices.ContainsFunc(tiers, func(t Tier) bool { return len(t.Clusters) > 0 })
}

// ConditionRecipients is the type of the ServiceExport condition that reports to which clusters a
// service is exported, until mcs-api has status.clusters. It is not part of mcs-api.
const ConditionRecipients = Domain + "/Recipients"

// Reasons of ConditionRecipients.
const (
	RecipientsReasonAll  = "AllClusters"
	RecipientsReasonSome = "SomeClusters"
	RecipientsReasonNone = "NoClusters"
)

// maxRecipientNames bounds the clusters in the message of ConditionRecipients.
const maxRecipientNames = 50

// ExportRecipients returns the ServiceExport condition ConditionRecipients. clusters are the other
// members that the export is for, sorted.
func ExportRecipients(recipients ClusterSelectors, clusters []string) metav1.Condition {
	c := metav1.Condition{Type: ConditionRecipients, Status: metav1.ConditionFalse, Reason: RecipientsReasonAll, Message: "exported to all clusters"}
	switch {
	case recipients == "":
	case len(clusters) == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, RecipientsReasonNone, "exported to no other member of the clusterset"
	default:
		c.Status, c.Reason = metav1.ConditionTrue, RecipientsReasonSome
		c.Message = "exported to cluster " + JoinClusters(clusters, maxRecipientNames)
	}
	return c
}
