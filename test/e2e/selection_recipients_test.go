package e2e

import (
	"context"
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestExportToSome exports a service of cls1 to one cluster after the other, and at last to none.
// Each time the recipient has the import and its name, and the others have no ServiceImport, no
// derived Service and no name. Service differs is exported by the last cluster too, to itself, with
// another port: it conflicts with the export of cls1 while that one reaches the last cluster, and
// only there. With three clusters (E2E_CLUSTERS=3) a third one watches both.
func TestExportToSome(t *testing.T) {
	t.Parallel()
	all := installedAll(t)
	cls1, others, last := all[0], all[1:], all[len(all)-1]
	ns := namespace(t, all...)
	for _, c := range all {
		startClient(t, c, ns)
	}
	services := []string{"web", "differs"}
	for i, name := range services {
		create(t, cls1, service(ns, name))
		create(t, cls1, endpoints(ns, name, name, service(ns, name).Spec.Ports, endpoint("10.10.250.1", "")))
		create(t, cls1, exportTo(ns, name, others[0].name))
		if i == 0 {
			continue
		}
		other := service(ns, name)
		other.Spec.Ports[0].Port = 81
		create(t, last, other)
		create(t, last, exportTo(ns, name, last.name))
	}

	for _, recipient := range append(slices.Clone(others), cls1) {
		for _, name := range services {
			change(t, cls1, exportTo(ns, name, ""), func(e *mcsv1beta1.ServiceExport) {
				e.Annotations = map[string]string{mcs.AnnotationExportTo: recipient.name}
			})
		}
		t.Logf("exported to %s", recipient.name)
		isReached := func(c cluster) bool { return c.name == cls1.name || c.name == recipient.name }
		for _, c := range all {
			if isReached(c) {
				eventually(t, soon, func() error {
					return errors.Join(exporters(t.Context(), c, ns, "web", cls1.name), hasName(t.Context(), c, ns, "web"))
				})
			}
		}
		for _, c := range all {
			if isReached(c) {
				continue
			}
			isAbsent := func() error {
				return errors.Join(noImport(t.Context(), c, ns, "web"), noDerivedService(t.Context(), c, ns, "web"))
			}
			eventually(t, soon, isAbsent)
			eventually(t, soon, func() error { return unknown(t.Context(), c, ns, fqdn(ns, "web")) })
			always(t, quiet, isAbsent)
		}
		inConflict := []string{last.name}
		status, reason := metav1.ConditionFalse, "NoConflicts"
		if recipient.name == last.name {
			inConflict, status, reason = []string{"cls1", last.name}, metav1.ConditionTrue, "PortConflict"
		}
		eventually(t, soon, func() error {
			return errors.Join(exporters(t.Context(), last, ns, "differs", inConflict...),
				exporters(t.Context(), cls1, ns, "differs", "cls1"),
				condition(t.Context(), last, ns, "differs", "Conflict", status, reason, ""),
				condition(t.Context(), cls1, ns, "differs", "Conflict", metav1.ConditionFalse, "NoConflicts", ""))
		})
	}
}

// exportTo returns a ServiceExport for one cluster.
func exportTo(ns, name, recipient string) *mcsv1beta1.ServiceExport {
	return &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: name, Annotations: map[string]string{mcs.AnnotationExportTo: recipient},
	}}
}

// hasName checks that the name of an import resolves to its clusterset IP.
func hasName(ctx context.Context, c cluster, ns, name string) error {
	ip, err := importIP(ctx, c, ns, name)
	if err != nil {
		return err
	}
	return finds(ctx, c, ns, fqdn(ns, name), "A", ip)
}
