package e2e

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// TestImportPolicy changes the import policy of cls2 while its controller runs: what the policy
// refuses is not imported, and is shown.
func TestImportPolicy(t *testing.T) {
	const configMap, file = "policy-of-the-test", "/etc/policy-of-the-test/policy.yaml"
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, web(ns, "web", 2))
	export(t, cls1, ns, "web")
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "web", 2) })

	write := func(t *testing.T, text string) {
		t.Helper()
		writeFile(t, cls2, configMap, path.Base(file), text)
	}
	t.Cleanup(func() {
		if _, err := suite.Kubectl(context.Background(), "cls2", "-n", system, "delete", "configmap", configMap); err != nil {
			t.Error(err)
		}
	})
	write(t, "default: allow\nclusters: {cls1: {namespaces: [another]}}\n")
	diagnose := "diagnose web -n " + ns + " --context cls1,cls2"
	t.Cleanup(func() {
		err := clusterset.Eventually(context.Background(), started, func() error {
			_, err := plugin(context.Background(), 0, diagnose)
			return err
		})
		if err != nil {
			t.Errorf("without the policy: %v", err)
		}
	})
	usePolicy(t, cls2, configMap, file)
	check := "check --context cls2"

	eventually(t, started, func() error { return noImport(t.Context(), cls2, ns, "web") })
	eventually(t, soon, func() error { return refuses(t.Context(), cls2, policy.ReasonNamespace, 1) })
	says(t, 0, check, "√ import policy: "+file+" is in use", "‼ refused exports: "+ns+"/web: --import-policy does not allow cluster cls1 to export services of namespace "+ns)
	eventually(t, started, func() error { // the new process of cls2 may rebuild its pages first
		out, err := plugin(t.Context(), 3, diagnose)
		if err != nil {
			return err
		}
		for _, want := range []string{"Failed in cls2 at ServiceImport: does not exist", "; refused: --import-policy does not allow cluster cls1"} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("kubectl mcs %s does not say %q:\n%s", diagnose, want, out)
			}
		}
		return nil
	})

	write(t, fmt.Sprintf("default: deny\nclusters: {cls1: {namespaces: [%s], podNetworks: [192.0.2.0/24]}}\n", ns))
	eventually(t, started, func() error { return refusal(t.Context(), cls2, ns, "web", string(policy.ReasonNetwork)) })
	if addresses, err := imported(t.Context(), cls2, ns, "web", "", false); err != nil || len(addresses) > 0 {
		t.Errorf("endpoints %v of refused networks are imported: %v", addresses, err)
	}
	eventually(t, soon, func() error {
		return errors.Join(exporters(t.Context(), cls2, ns, "web", "cls1"), refuses(t.Context(), cls2, policy.ReasonNetwork, 1),
			refuses(t.Context(), cls2, policy.ReasonNamespace, 0), warned(t.Context(), cls2, ns, "ExportRefused"))
	})

	write(t, "default: perhaps\n")
	eventually(t, started, func() error {
		out, err := plugin(t.Context(), 3, check)
		if err == nil && !strings.Contains(out, `stays in use: default: "perhaps" must be allow or deny`) {
			err = fmt.Errorf("kubectl mcs %s does not report the file:\n%s", check, out)
		}
		return err
	})
	if err := refusal(t.Context(), cls2, ns, "web", string(policy.ReasonNetwork)); err != nil {
		t.Errorf("a policy that is not valid changes an import: %v", err)
	}

	pods, err := podIPs(t.Context(), cls1, ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	write(t, fmt.Sprintf("default: deny\nclusters: {cls1: {namespaces: [%s*], podNetworks: [%s/32]}}\n", ns[:3], strings.Join(pods, "/32, ")))
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "web", 2) })
	eventually(t, soon, func() error {
		return errors.Join(refusal(t.Context(), cls2, ns, "web", ""), refuses(t.Context(), cls2, policy.ReasonNetwork, 0))
	})
	says(t, 0, diagnose, "No step failed")
}

// writeFile writes a ConfigMap that useFile gives to a cluster's controller, now or before. The
// kubelet writes the file when it synchronizes a pod: within about a minute, or when the pod has
// changed.
func writeFile(t *testing.T, c cluster, configMap, name, text string) {
	t.Helper()
	apply(t, c, fmt.Sprintf("{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: %s}, data: {%s: %q}}", configMap, system, name, text))
	eventually(t, soon, func() error { // a pod of an earlier rollout may end meanwhile
		_, err := suite.Kubectl(t.Context(), c.name, "-n", system, "annotate", "pods", "--all", "--overwrite", "e2e/file-written="+time.Now().Format(time.RFC3339Nano))
		return err
	})
}

// usePolicy gives a cluster's controller the import policy in a ConfigMap, in one rollout, until
// the test ends.
func usePolicy(t *testing.T, c cluster, configMap, file string) {
	t.Helper()
	// the API server's proxy forwards no token
	useFile(t, c, configMap, file, "--import-policy="+file, "--metrics-secure=false")
}

// useFile gives a cluster's controller a ConfigMap with the file and further flags, in one rollout,
// until the test ends.
func useFile(t *testing.T, c cluster, configMap, file string, flags ...string) {
	t.Helper()
	d := &appsv1.Deployment{}
	d.Namespace, d.Name = system, strings.TrimPrefix(manager, "deployment/")
	var before corev1.PodSpec
	change(t, c, d, func(d *appsv1.Deployment) {
		spec := &d.Spec.Template.Spec
		before = *spec.DeepCopy()
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: configMap, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}},
		}})
		container := &spec.Containers[0]
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: configMap, MountPath: path.Dir(file), ReadOnly: true})
		container.Args = append(container.Args, flags...)
	})
	t.Cleanup(func() { // as with startRollout, the next scenario waits if it must
		err := clusterset.Eventually(context.Background(), soon, func() error {
			if err := c.Get(context.Background(), client.ObjectKeyFromObject(d), d); err != nil {
				return err
			}
			d.Spec.Template.Spec = before
			return c.Update(context.Background(), d)
		})
		if err != nil {
			t.Error(err)
		}
	})
	kubectl(t, c, "-n", system, "rollout", "status", manager, "--timeout=90s")
}

// refusal checks the reason of condition Refused of an import, "" for False.
func refusal(ctx context.Context, c cluster, ns, name, want string) error {
	imp, err := serviceImport(ctx, c, ns, name)
	if err != nil {
		return err
	}
	got := ""
	condition := meta.FindStatusCondition(imp.Status.Conditions, policy.ConditionRefused)
	if meta.IsStatusConditionTrue(imp.Status.Conditions, policy.ConditionRefused) {
		got = condition.Reason
	}
	if condition == nil || got != want {
		return fmt.Errorf("%s: the import of %s/%s has condition %+v, want reason %q", c.name, ns, name, condition, want)
	}
	return nil
}

// refuses checks the number of refused exports of cls1 in the metrics of a cluster's controller.
func refuses(ctx context.Context, c cluster, reason policy.Reason, want int) error {
	pods, err := controllers(ctx, c)
	if err != nil {
		return err
	}
	line := fmt.Sprintf("cloud_map_mcs_exports_refused{reason=%q,source_cluster=\"cls1\"} %d", reason, want)
	if want == 0 {
		line = fmt.Sprintf("cloud_map_mcs_exports_refused{reason=%q,", reason)
	}
	found := false
	for _, pod := range pods {
		out, err := suite.Kubectl(ctx, c.name, "get", "--raw", "/api/v1/namespaces/"+system+"/pods/"+pod.Name+":8080/proxy/metrics")
		if err != nil {
			return err
		}
		found = found || strings.Contains(out, line)
	}
	if found != (want > 0) {
		return fmt.Errorf("%s: whether the metrics of %d controllers contain %q: %t", c.name, len(pods), line, found)
	}
	return nil
}

// warned checks that a namespace has a warning with a reason.
func warned(ctx context.Context, c cluster, ns, reason string) error {
	var events corev1.EventList
	if err := c.List(ctx, &events, client.InNamespace(ns)); err != nil {
		return err
	}
	for _, e := range events.Items {
		if e.Reason == reason && e.Type == corev1.EventTypeWarning {
			return nil
		}
	}
	return fmt.Errorf("%s: none of the %d events in %s has reason %s", c.name, len(events.Items), ns, reason)
}
