package mcs

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// AnnotationService is the annotation of a ServiceExport with the name of the Service that it
// exports, which is in the same namespace. The name of the ServiceExport is the name in the
// clusterset.
const AnnotationService = Domain + "/service"

// ReasonInvalidServiceName is the reason of condition Valid of an export whose AnnotationService is
// not the name of a Service.
const ReasonInvalidServiceName mcsv1beta1.ServiceExportConditionReason = "InvalidServiceName"

// ExportedService returns the name of the Service that exp exports: that in AnnotationService, or
// else the name of exp. An error reports that no Service can have the name in the annotation.
func ExportedService(exp *mcsv1beta1.ServiceExport) (string, error) {
	name, ok := exp.Annotations[AnnotationService]
	if !ok {
		return exp.Name, nil
	}
	if len(validation.IsDNS1123Label(name)) > 0 {
		return "", fmt.Errorf("annotation %s is %q, which is not the name of a Service: use at most %d lower-case letters, digits and '-', "+
			"or remove the annotation to export Service %s", AnnotationService, abbreviate(name), validation.DNS1123LabelMaxLength, exp.Name)
	}
	return name, nil
}
