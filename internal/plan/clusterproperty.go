package plan

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// AnnotationDerivedValue is the annotation of a ClusterProperty with the value that this controller
// has derived from the nodes. A user who writes another value takes the object over.
const AnnotationDerivedValue = "multicluster.k8s.aws/derived-value"

// derivedProperties are the names of the ClusterProperties that this controller creates, sorted.
// deploy/rbac has them too.
var derivedProperties = []string{mcs.PropertyRegion, mcs.PropertyZone}

// IsDerivedProperty reports whether a ClusterProperty is this controller's, with the value that it
// has derived. Every other one is a user's.
func IsDerivedProperty(p *aboutv1beta1.ClusterProperty) bool {
	return slices.Contains(derivedProperties, p.Name) && IsManaged(p) && p.Spec.Value != "" && p.Annotations[AnnotationDerivedValue] == p.Spec.Value
}

// PropertyWrite is a write of a ClusterProperty. Updates and deletions have its resource version.
type PropertyWrite struct {
	Verb     Verb
	Property *aboutv1beta1.ClusterProperty
}

// PropertyWrites returns the writes after which the ClusterProperties of this controller have the
// derived values, in the order of their names. existing are all ClusterProperties: what a user has
// written stays as it is.
func PropertyWrites(derived mcs.Properties, existing []aboutv1beta1.ClusterProperty) (out []PropertyWrite) {
	for _, name := range derivedProperties {
		value := derived[name]
		i := slices.IndexFunc(existing, func(p aboutv1beta1.ClusterProperty) bool { return p.Name == name })
		switch {
		case i < 0 && value != "":
			out = append(out, PropertyWrite{VerbCreate, withDerivedValue(&aboutv1beta1.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}}, value)})
		case i < 0 || !IsDerivedProperty(&existing[i]) || existing[i].Spec.Value == value:
		case value == "":
			out = append(out, PropertyWrite{VerbDelete, existing[i].DeepCopy()})
		default:
			out = append(out, PropertyWrite{VerbUpdate, withDerivedValue(existing[i].DeepCopy(), value)})
		}
	}
	return out
}

// withDerivedValue sets the value of p.
func withDerivedValue(p *aboutv1beta1.ClusterProperty, value string) *aboutv1beta1.ClusterProperty {
	p.Labels = withKeys(p.Labels, map[string]string{LabelAppManagedBy: ManagedBy})
	p.Annotations = withKeys(p.Annotations, map[string]string{AnnotationDerivedValue: value})
	p.Spec.Value = value
	return p
}
