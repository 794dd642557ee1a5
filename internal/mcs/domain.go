package mcs

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Domain is the domain of the annotations and conditions that the project defines: its page on
// GitHub.
const Domain = "cloud-map-mcs.github.io"

// domainAWS is the domain of the legacy controller's annotations, which belongs to AWS. Before
// release 0.1.0, the annotations that users write and the conditions were in it too. Annotations
// that keep this controller's state stay in it, because an earlier version reads them after a
// downgrade.
const domainAWS = "multicluster.k8s.aws"

// deprecatedSince is the release since which annotations in domainAWS are deprecated.
const deprecatedSince = "0.1.0"

// DeprecatedKey returns the key in the domain of AWS of an annotation in Domain.
func DeprecatedKey(key string) string { return domainAWS + strings.TrimPrefix(key, Domain) }

// Annotation returns the value of an annotation that users write, under its key or else under its
// deprecated key. found is the one of them that annotations has.
func Annotation(annotations map[string]string, key string) (found, value string, ok bool) {
	for _, found := range []string{key, DeprecatedKey(key)} {
		if value, ok := annotations[found]; ok {
			return found, value, true
		}
	}
	return key, "", false
}

// Deprecation returns a sentence about those of the keys that annotations has under their
// deprecated keys only, "" for none. of is the object, such as " of the namespace".
func Deprecation(annotations map[string]string, of string, keys ...string) string {
	var sentences []string
	for _, key := range keys {
		if found, _, _ := Annotation(annotations, key); found != key {
			sentences = append(sentences, fmt.Sprintf("annotation %s%s is deprecated since %s: use %s with the same value", found, of, deprecatedSince, key))
		}
	}
	return strings.Join(sentences, "; ")
}

// Deprecation returns a sentence about each deprecated annotation of the export, "" for none.
func (src Source) Deprecation() string {
	exp := src.ServiceExport
	return strings.Join(slices.DeleteFunc([]string{
		Deprecation(exp.Annotations, "", AnnotationExportTo, AnnotationClusterPreference, AnnotationInstanceAttributes, AnnotationDrain),
		Deprecation(exp.Spec.ExportedAnnotations, " of spec.exportedAnnotations", AnnotationClusterSelectors, AnnotationMinimumReady),
		Deprecation(src.Service.Annotations, " of the Service", AnnotationInstanceAttributes),
		Deprecation(src.NamespaceAnnotations, " of the namespace", AnnotationExportTo, AnnotationClusterPreference, AnnotationInstanceDNS),
	}, func(sentence string) bool { return sentence == "" }), "; ")
}

// RenameConditions returns list with the types of Domain in place of those that a controller
// before release 0.1.0 wrote. If list has both, that controller wrote last. list is not changed.
func RenameConditions(list []metav1.Condition) []metav1.Condition {
	out := slices.Clone(list)
	for _, c := range list {
		kind, ok := strings.CutPrefix(c.Type, domainAWS+"/")
		if !ok {
			continue
		}
		meta.RemoveStatusCondition(&out, c.Type)
		c.Type = Domain + "/" + kind
		meta.RemoveStatusCondition(&out, c.Type)
		out = append(out, c)
	}
	return out
}
