package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// side changes the Service and the ServiceExport of one cluster.
type side func(svc *corev1.Service, e *mcsv1beta1.ServiceExport)

func asIs(*corev1.Service, *mcsv1beta1.ServiceExport) {}

func headless(svc *corev1.Service, _ *mcsv1beta1.ServiceExport) {
	svc.Spec.ClusterIP = corev1.ClusterIPNone
	// Kubernetes assigns both families to a headless Service without a selector
	svc.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
}

func dualStack(svc *corev1.Service, _ *mcsv1beta1.ServiceExport) {
	svc.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
}

func sticky(seconds int32) side {
	return func(svc *corev1.Service, _ *mcsv1beta1.ServiceExport) {
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func labeled(value string) side {
	return func(_ *corev1.Service, e *mcsv1beta1.ServiceExport) {
		e.Spec.ExportedLabels = map[string]string{"tier": value}
	}
}

func otherPort(svc *corev1.Service, _ *mcsv1beta1.ServiceExport) { svc.Spec.Ports[0].Port = 8080 }

func both(a, b side) side {
	return func(svc *corev1.Service, e *mcsv1beta1.ServiceExport) { a(svc, e); b(svc, e) }
}

// TestConflicts gives two clusters Services that differ. Both ServiceExports have the reason, both
// clusters use the properties of the older one, nothing changes for clients, and the conflict ends
// when the Services agree.
func TestConflicts(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	for i, tc := range []struct {
		name           string
		older, younger side
		reason         string
		says           []string // field and value used
	}{
		{"port", asIs, otherPort, "PortConflict", []string{"port: using http 80/TCP"}},
		{"type headless younger", asIs, headless, "TypeConflict", []string{"type: using ClusterSetIP"}},
		{"type headless older", headless, asIs, "TypeConflict", []string{"type: using Headless"}},
		{"affinity", asIs, sticky(100), "SessionAffinityConflict", []string{"sessionAffinity: using None"}},
		{"affinity config", sticky(100), sticky(200), "SessionAffinityConfigConflict", []string{"sessionAffinityConfig.clientIP.timeoutSeconds: using 100"}},
		{"labels", labeled("gold"), labeled("iron"), "LabelsConflict", []string{`exportedLabels: using "tier"="gold"`}},
		{"annotations", func(_ *corev1.Service, e *mcsv1beta1.ServiceExport) {
			e.Spec.ExportedAnnotations = map[string]string{"owner": "me"}
		}, asIs, "AnnotationsConflict", []string{`exportedAnnotations: using "owner"="me"`}},
		{"internal traffic", asIs, func(svc *corev1.Service, _ *mcsv1beta1.ServiceExport) {
			svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		}, "InternalTrafficPolicyConflict", []string{"internalTrafficPolicy: using Cluster"}},
		{"traffic distribution", func(svc *corev1.Service, _ *mcsv1beta1.ServiceExport) {
			svc.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameZone)
		}, asIs, "TrafficDistributionConflict", []string{"trafficDistribution: using PreferSameZone"}},
		{"ip family", dualStack, asIs, "IPFamilyConflict", []string{"ipFamilies: using IPv4,IPv6"}},
		{"several", asIs, both(otherPort, both(sticky(100), labeled("iron"))), "PortConflict,SessionAffinityConflict,LabelsConflict",
			[]string{"port: using http 80/TCP", "sessionAffinity: using None", "exportedLabels: using none"}},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			// The age of the export decides, not the cluster ID, and not the cluster of the client.
			first, second := cls1, cls2
			if i%2 == 1 {
				first, second = cls2, cls1
			}
			ns := namespace(t, cls1, cls2)
			e := publish(t, first, ns, 1, tc.older)
			var before [2]view
			for i, c := range []cluster{cls1, cls2} {
				before[i] = eventualView(t, c, ns, first)
			}
			nextSecond(t, second, e)
			publish(t, second, ns, 2, tc.younger)

			for _, says := range tc.says {
				says += fmt.Sprintf(" from cluster %s, 1 of 2 clusters disagree: %s", first.name, second.name)
				for _, c := range []cluster{cls1, cls2} {
					eventually(t, soon, func() error {
						return condition(t.Context(), c, ns, "web", "Conflict", metav1.ConditionTrue, tc.reason, says)
					})
				}
			}
			for i, c := range []cluster{cls1, cls2} {
				eventually(t, soon, func() error { return exporters(t.Context(), c, ns, "web", "cls1", "cls2") })
				now, err := viewOf(t.Context(), c, ns, first)
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(before[i], now); d != "" {
					t.Errorf("in %s the younger export changed something for clients (-before +after):\n%s", c.name, d)
				}
			}
			agree(t, second, ns, tc.older)
			for _, c := range []cluster{cls1, cls2} {
				eventually(t, soon, func() error {
					return condition(t.Context(), c, ns, "web", "Conflict", metav1.ConditionFalse, "NoConflicts", "")
				})
				eventually(t, soon, func() error { return exporters(t.Context(), c, ns, "web", "cls1", "cls2") })
			}
		})
	}
}

// publish exports Service web, changed by s, from c, and waits until it is exported. Its only
// endpoint is 10.10.250.1 for number 1, and 10.12.250.1 for number 2.
func publish(t *testing.T, c cluster, ns string, number int, s side) *mcsv1beta1.ServiceExport {
	t.Helper()
	svc := service(ns, "web")
	e := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}}
	s(svc, e)
	create(t, c, svc)
	create(t, c, endpoints(ns, "web", "by-hand", svc.Spec.Ports, endpoint(fmt.Sprintf("10.1%d.250.1", 2*(number-1)), "")))
	create(t, c, e)
	eventually(t, soon, func() error { return exported(t.Context(), c, ns, "web") })
	return e
}

// agree replaces the Service and the ServiceExport in c by those of s. It creates the Service
// again, because a Service cannot become headless.
func agree(t *testing.T, c cluster, ns string, s side) {
	t.Helper()
	svc := service(ns, "web")
	e := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}}
	s(svc, e)
	want := e.Spec
	change(t, c, e, func(e *mcsv1beta1.ServiceExport) { e.Spec = want })
	remove(t, c, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web"}})
	create(t, c, svc)
	eventually(t, soon, func() error {
		return condition(t.Context(), c, ns, "web", "Valid", metav1.ConditionTrue, "Valid", "")
	})
	eventually(t, soon, func() error { return exported(t.Context(), c, ns, "web") })
}

// view has the properties that CoreDNS and kube-proxy use for a service.
type view struct {
	Import  mcsv1beta1.ServiceImportSpec
	Derived *corev1.ServiceSpec
	// Versions are the resource versions of the slices from the older cluster: same version, not
	// written.
	Versions []string
}

func viewOf(ctx context.Context, c cluster, ns string, source cluster) (view, error) {
	imp, err := serviceImport(ctx, c, ns, "web")
	if err != nil {
		return view{}, err
	}
	v := view{Import: imp.Spec}
	if imp.Spec.Type == mcsv1beta1.ClusterSetIP {
		svc, err := derivedService(ctx, c, ns, "web")
		if err != nil {
			return view{}, err
		}
		v.Derived = &svc.Spec
	}
	list, err := importedSlices(ctx, c, ns, "web", source.name)
	for _, s := range list {
		v.Versions = append(v.Versions, s.Name+" "+s.ResourceVersion)
	}
	slices.Sort(v.Versions)
	return v, err
}

// eventualView waits until the import is complete, with an endpoint, and returns its view. The
// controller may know of an export before it knows of its endpoints.
func eventualView(t *testing.T, c cluster, ns string, source cluster) (v view) {
	t.Helper()
	eventually(t, soon, func() (err error) {
		if err := exporters(t.Context(), c, ns, "web", source.name); err != nil {
			return err
		}
		addresses, err := imported(t.Context(), c, ns, "web", source.name, true)
		if err != nil {
			return err
		}
		if len(addresses) == 0 {
			return fmt.Errorf("%s: the import of %s/web has no endpoints", c.name, ns)
		}
		v, err = viewOf(t.Context(), c, ns, source)
		return err
	})
	return v
}

// TestConflictLeavesTrafficAlone is step 12 of the walk-through, while a client connects.
func TestConflictLeavesTrafficAlone(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	for _, c := range []cluster{cls1, cls2} {
		apply(t, c, servers(c, ns, "web", 1))
		svc := service(ns, "web")
		svc.Spec.Selector = map[string]string{"app": "web"}
		if c.name == "cls2" {
			otherPort(svc, nil)
			svc.Spec.Ports[0].TargetPort.IntVal = 80
			sticky(100)(svc, nil)
		}
		create(t, c, svc)
	}
	startClient(t, cls2, ns)
	e := export(t, cls1, ns, "web")
	url := "http://" + fqdn(ns, "web")
	eventually(t, started, func() error { return answeredBy(t.Context(), cls2, ns, curl(url), "cls1") })

	loop := "(while [ ! -e /tmp/stop ]; do " + curl(url) + " || echo FAILED; sleep 0.1; done; echo DONE) >/tmp/log 2>&1 &"
	if _, err := ask(t.Context(), cls2, ns, "sh", "-c", loop); err != nil {
		t.Fatal(err)
	}
	nextSecond(t, cls2, e)
	export(t, cls2, ns, "web")
	for _, c := range []cluster{cls1, cls2} {
		eventually(t, started, func() error {
			return condition(t.Context(), c, ns, "web", "Conflict", metav1.ConditionTrue, "PortConflict,SessionAffinityConflict", "from cluster cls1")
		})
		eventually(t, soon, func() error { return exporters(t.Context(), c, ns, "web", "cls1", "cls2") })
	}
	// The port of cls2 is not a port of the import, so no request reaches its pods.
	if err := answeredBy(t.Context(), cls2, ns, curl(url), "cls1"); err != nil {
		t.Error(err)
	}
	var log string
	eventually(t, soon, func() (err error) {
		if log, err = ask(t.Context(), cls2, ns, "sh", "-c", "touch /tmp/stop; cat /tmp/log"); err == nil && !strings.Contains(log, "DONE") {
			err = fmt.Errorf("the client has not stopped")
		}
		return err
	})
	if strings.Contains(log, "FAILED") || strings.Contains(log, "cls2-") || strings.Count(log, "cls1-") < 5 {
		t.Errorf("during the conflict the client in cls2 saw\n%s\nwant only answers from cls1, at least five", log)
	}
}
