package imports

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Takeover replaces the imports of another controller by imports of this one, with the same
// clusterset IPs. Package legacy implements it.
type Takeover interface {
	// GatherObjects reads the objects that the other controller created for key's import. imp and
	// derived are the ServiceImport and the Service with a derived name of key, nil if they do not
	// exist.
	GatherObjects(ctx context.Context, key mcs.Key, imp *mcsv1beta1.ServiceImport, derived *corev1.Service) (TakeoverObjects, error)
	// RetireObjects deletes the objects that the other controller created for an import that is now
	// ours, and returns when it has to be called again, 0 if never.
	RetireObjects(ctx context.Context, o TakeoverObjects) (time.Duration, error)
	// DeleteServices deletes the superfluous derived Services of an import that is removed, and
	// their slices.
	DeleteServices(ctx context.Context, o TakeoverObjects) error
}

// TakeoverObjects are the objects of another controller's import.
type TakeoverObjects struct {
	// Derived is the derived Service, nil if it does not exist, and DerivedName its name.
	Derived     *corev1.Service
	DerivedName string
	// TakesImport and TakesDerived report that the other controller created the ServiceImport, or
	// Derived, and that this one may take it over.
	TakesImport, TakesDerived bool
	// Superfluous holds the import's other derived Services.
	Superfluous []*corev1.Service
	// Slices holds the other controller's EndpointSlices by Service, nil if there is nothing to
	// retire.
	Slices map[string][]*discoveryv1.EndpointSlice
	// NotOwnedMessage returns advice for a ServiceImport that must not be taken over: how to allow
	// it. "" if there is none.
	NotOwnedMessage string
}
