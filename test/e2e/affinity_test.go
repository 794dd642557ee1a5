package e2e

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// TestSessionAffinity: for 10 seconds a client stays with one of the pods of both clusters, and
// later may get another.
func TestSessionAffinity(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	const timeout = 10
	for _, c := range []cluster{cls1, cls2} {
		apply(t, c, servers(c, ns, "web", 2))
		svc := service(ns, "web")
		svc.Spec.Selector = map[string]string{"app": "web"}
		sticky(timeout)(svc, nil)
		create(t, c, svc)
		export(t, c, ns, "web")
	}
	startClient(t, cls2, ns)
	eventually(t, started, func() error {
		return errors.Join(sameEndpoints(t.Context(), cls1, cls2, ns, "web", 2), sameEndpoints(t.Context(), cls2, cls2, ns, "web", 2))
	})
	for _, c := range []cluster{cls1, cls2} {
		derived, err := derivedService(t.Context(), c, ns, "web")
		if err != nil {
			t.Fatal(err)
		}
		imp, err := serviceImport(t.Context(), c, ns, "web")
		if err != nil {
			t.Fatal(err)
		}
		for _, affinity := range []*corev1.SessionAffinityConfig{derived.Spec.SessionAffinityConfig, imp.Spec.SessionAffinityConfig} {
			if derived.Spec.SessionAffinity != corev1.ServiceAffinityClientIP || imp.Spec.SessionAffinity != corev1.ServiceAffinityClientIP ||
				*affinity.ClientIP.TimeoutSeconds != timeout {
				t.Errorf("%s: affinity of the import %+v, of the derived Service %+v", c.name, imp.Spec, derived.Spec)
			}
		}
	}
	// Ask, wait until kube-proxy has forgotten, and ask again, until another pod has answered, and
	// pods of both clusters.
	seen := map[string]int{}
	var from []string
	wait := ""
	eventually(t, started+started, func() error {
		got, _, err := answers(t.Context(), cls2, ns, 1, wait+"for j in 1 2 3 4 5 6 7 8; do "+curl("http://"+fqdn(ns, "web"))+"; done")
		if err != nil {
			return err
		}
		for pod, n := range got {
			if len(got) != 1 {
				t.Fatalf("8 requests within seconds were answered by %v, want one pod", got)
			}
			if n != 8 { // kube-proxy has only begun
				return fmt.Errorf("%d of 8 requests were answered", n)
			}
			seen[pod]++
			from = append(from, pod[:len("cls1")])
		}
		if len(got) == 0 {
			return errors.New("no answer")
		}
		wait = fmt.Sprintf("sleep %d; ", timeout+1)
		slices.Sort(from)
		if from = slices.Compact(from); len(from) != 2 {
			return fmt.Errorf("answered by %v until now", slices.Collect(maps.Keys(seen)))
		}
		return nil
	})
}

// TestSingleStackIPv6: a Service with IPv6 alone is imported with IPv6 alone.
func TestSingleStackIPv6(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, servers(cls1, ns, "web", 1))
	svc := service(ns, "web")
	svc.Spec.Selector = map[string]string{"app": "web"}
	svc.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol}
	create(t, cls1, svc)
	export(t, cls1, ns, "web")
	startClient(t, cls2, ns)
	url := "http://" + fqdn(ns, "web")
	eventually(t, started, func() error { return answeredBy(t.Context(), cls2, ns, curl(url), "cls1") })
	imp, err := serviceImport(t.Context(), cls2, ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(imp.Spec.IPFamilies, svc.Spec.IPFamilies) || len(imp.Spec.IPs) != 1 || imp.Spec.Type != mcsv1beta1.ClusterSetIP {
		t.Fatalf("the import is %+v, want one IPv6 address", imp.Spec)
	}
	if err := errors.Join(
		finds(t.Context(), cls2, ns, fqdn(ns, "web"), "AAAA", imp.Spec.IPs...),
		finds(t.Context(), cls2, ns, fqdn(ns, "web"), "A")); err != nil {
		t.Error(err)
	}
}
