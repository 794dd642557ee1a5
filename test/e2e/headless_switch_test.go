package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// checkHeadless returns an error unless an import is headless, without IPs, derived Service and
// slices for it.
func checkHeadless(ctx context.Context, c cluster, ns, name string) error {
	imp, err := serviceImport(ctx, c, ns, name)
	if err != nil {
		return err
	}
	if imp.Spec.Type != mcsv1beta1.Headless || len(imp.Spec.IPs) > 0 {
		return fmt.Errorf("%s: the import is %s with IPs %v, want Headless without", c.name, imp.Spec.Type, imp.Spec.IPs)
	}
	for key, value := range imp.Annotations {
		if strings.HasSuffix(key, "/derived-service") {
			return fmt.Errorf("%s: the import has annotation %s=%s", c.name, key, value)
		}
	}
	if err := noDerivedService(ctx, c, ns, name); err != nil {
		return err
	}
	list, err := importedSlices(ctx, c, ns, name, "cls1")
	for _, s := range list {
		if of := s.Labels[discoveryv1.LabelServiceName]; of == mcs.DerivedName(mcs.Key{Namespace: ns, Name: name}) {
			return fmt.Errorf("%s: slice %s still belongs to Service %q", c.name, s.Name, of)
		}
	}
	return err
}

// hasClusterSetIP checks that an import is of type ClusterSetIP and complete.
func hasClusterSetIP(ctx context.Context, c cluster, ns, name string) error {
	imp, err := serviceImport(ctx, c, ns, name)
	if err != nil {
		return err
	}
	derived, err := derivedService(ctx, c, ns, name)
	if err != nil {
		return err
	}
	if imp.Spec.Type != mcsv1beta1.ClusterSetIP || len(imp.Spec.IPs) != 1 || imp.Spec.IPs[0] != derived.Spec.ClusterIP {
		return fmt.Errorf("%s: the import is %s with IPs %v, want ClusterSetIP with %s", c.name, imp.Spec.Type, imp.Spec.IPs, derived.Spec.ClusterIP)
	}
	list, err := importedSlices(ctx, c, ns, name, "cls1")
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%s: no slices", c.name)
	}
	for _, s := range list {
		if s.Labels[discoveryv1.LabelServiceName] != mcs.DerivedName(mcs.Key{Namespace: ns, Name: name}) {
			return fmt.Errorf("%s: slice %s has labels %v, which kube-proxy does not find", c.name, s.Name, s.Labels)
		}
	}
	return err
}

// TestSwitchToHeadlessAndBack replaces the exported Service with a headless one and the other way
// round.
func TestSwitchToHeadlessAndBack(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, servers(cls1, ns, "web", 1))
	startClient(t, cls2, ns)
	export(t, cls1, ns, "web")
	for i, edit := range []side{asIs, headless, asIs} {
		if i > 0 {
			remove(t, cls1, service(ns, "web"))
		}
		svc := service(ns, "web")
		svc.Spec.Selector = map[string]string{"app": "web"}
		edit(svc, nil)
		create(t, cls1, svc)
		is := hasClusterSetIP
		if svc.Spec.ClusterIP == corev1.ClusterIPNone {
			is = checkHeadless
		}
		for _, c := range []cluster{cls1, cls2} {
			eventually(t, started, func() error { return is(t.Context(), c, ns, "web") })
		}
		eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "web", 1) })
		eventually(t, soon, func() error {
			want, err := imported(t.Context(), cls2, ns, "web", "cls1", true)
			if svc.Spec.ClusterIP != corev1.ClusterIPNone {
				want = make([]string, 1)
				want[0], err = importIP(t.Context(), cls2, ns, "web")
			}
			return errors.Join(err, finds(t.Context(), cls2, ns, fqdn(ns, "web"), "A", want...))
		})
		eventually(t, soon, func() error { return answeredBy(t.Context(), cls2, ns, curl("http://"+fqdn(ns, "web")), "cls1") })
	}
}

// TestPublishNotReadyAddresses: pods that are not ready have names where the Service says so, and
// only there.
func TestPublishNotReadyAddresses(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	// No process listens on port 9, so the pod never becomes ready.
	apply(t, cls1, strings.Replace(servers(cls1, ns, "db", 1), "path: /ready, port: web", "path: /ready, port: 9", 1))
	for _, name := range []string{"all", "ready"} {
		svc := service(ns, name)
		svc.Spec.Selector = map[string]string{"app": "db"}
		svc.Spec.PublishNotReadyAddresses = name == "all"
		headless(svc, nil)
		create(t, cls1, svc)
		export(t, cls1, ns, name)
	}
	startClient(t, cls2, ns)
	eventually(t, started, func() error {
		want, err := imported(t.Context(), cls2, ns, "all", "cls1", true)
		if err == nil && len(want) != 1 {
			err = fmt.Errorf("cls2 has imported %v as ready, want the one that is not", want)
		}
		return errors.Join(err, finds(t.Context(), cls2, ns, fqdn(ns, "all"), "A", want...))
	})
	eventually(t, started, func() error {
		got, err := imported(t.Context(), cls2, ns, "ready", "cls1", false)
		if err == nil && len(got) != 1 {
			err = fmt.Errorf("cls2 has imported %v, want one endpoint, not ready", got)
		}
		return err
	})
	if err := unknown(t.Context(), cls2, ns, fqdn(ns, "ready")); err != nil {
		t.Error(err)
	}
}
