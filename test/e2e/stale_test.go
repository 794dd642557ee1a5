package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// addArgs gives a cluster's controller further arguments until the test ends.
func addArgs(t *testing.T, c cluster, args ...string) {
	t.Helper()
	startRollout(t, c, args...)
	rolledOut(t, c)
}

// rolledOut waits until the controllers of clusters run as their Deployments say, and no others:
// one that ends has the previous arguments, and may be the leader for some seconds more.
func rolledOut(t *testing.T, in ...cluster) {
	t.Helper()
	for _, c := range in {
		kubectl(t, c, "-n", system, "rollout", "status", manager, "--timeout=90s")
		eventually(t, started, func() error {
			pods, err := controllers(t.Context(), c)
			if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }); err == nil && i >= 0 {
				return fmt.Errorf("%s: pod %s has not ended", c.name, pods[i].Name)
			}
			return err
		})
	}
}

// startRollout is addArgs without waiting for the processes that have the arguments.
func startRollout(t *testing.T, c cluster, args ...string) {
	t.Helper()
	set := func(edit func([]string) []string) {
		d := &appsv1.Deployment{}
		d.Namespace, d.Name = system, strings.TrimPrefix(manager, "deployment/")
		change(t, c, d, func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Args = edit(d.Spec.Template.Spec.Containers[0].Args)
		})
	}
	set(func(have []string) []string { return append(have, args...) })
	t.Cleanup(func() {
		d := &appsv1.Deployment{}
		key := client.ObjectKey{Namespace: system, Name: strings.TrimPrefix(manager, "deployment/")}
		if err := c.Get(context.Background(), key, d); err != nil {
			t.Error(err)
			return
		}
		container := &d.Spec.Template.Spec.Containers[0]
		container.Args = slices.DeleteFunc(container.Args, func(a string) bool { return slices.Contains(args, a) })
		if err := c.Update(context.Background(), d); err != nil {
			t.Error(err)
		}
	})
}

// staleIs checks the status of the import's condition Stale, "" for no condition, and that its
// message contains text.
func staleIs(ctx context.Context, c cluster, ns, name, want, text string) error {
	imp, err := serviceImport(ctx, c, ns, name)
	if err != nil {
		return err
	}
	got := ""
	condition := meta.FindStatusCondition(imp.Status.Conditions, mcs.ConditionStale)
	if condition != nil {
		got = string(condition.Status) + " " + condition.Reason
	}
	if got != want || condition != nil && !strings.Contains(condition.Message, text) {
		return fmt.Errorf("%s: the import of %s/%s has condition %+v, want %q with %q", c.name, ns, name, condition, want, text)
	}
	return nil
}

// TestStaleCluster kills the controller of cls1, and changes objects while none runs there. Its
// endpoints are withdrawn in cls2 where cls2 has some itself, connections all succeed, and the last
// endpoints of a service stay as they were. Once a controller runs again, all endpoints are back
// and the changes are exported.
func TestStaleCluster(t *testing.T) {
	cls1, cls2 := installed(t)
	startRollout(t, cls1, "--heartbeat-interval=2s")
	startRollout(t, cls2, "--heartbeat-interval=2s", "--stale-after=10s")
	ns, command, ip := exportWebAndAlone(t, cls1, cls2)
	ends := service(ns, "ends")
	create(t, cls1, ends)
	create(t, cls1, endpoints(ns, ends.Name, "by-hand", ends.Spec.Ports, endpoint("10.10.250.1", "")))
	endsWith := export(t, cls1, ns, ends.Name)
	rolledOut(t, cls1, cls2)
	eventually(t, soon, func() error { return exporters(t.Context(), cls2, ns, ends.Name, "cls1") })
	last, err := imported(t.Context(), cls2, ns, "alone", "cls1", true)
	if err != nil {
		t.Fatal(err)
	}

	restart := killController(t, cls1)
	remove(t, cls1, endsWith)
	kubectl(t, cls1, "-n", ns, "scale", "deployment/alone", "--replicas=2")
	gone := func() error {
		from, err := imported(t.Context(), cls2, ns, "web", "cls1", false)
		if err == nil && len(from) > 0 {
			err = fmt.Errorf("cls2 still has endpoints %v of cls1", from)
		}
		return err
	}
	eventually(t, started, gone)
	eventually(t, soon, func() error {
		return errors.Join(
			staleIs(t.Context(), cls2, ns, "web", "True Withdrawn", "for more than 10s from cluster cls1"),
			staleIs(t.Context(), cls2, ns, "alone", "True LastEndpointsKept", "cls1 (endpoints kept)"),
			exporters(t.Context(), cls2, ns, "web", "cls1", "cls2"))
	})
	eventually(t, soon, func() error { return answeredBy(t.Context(), cls2, ns, command, "cls2") })
	if out, err := ask(t.Context(), cls2, ns, "sh", "-c", curl("http://"+fqdn(ns, "alone"))); err != nil {
		t.Errorf("the last endpoints do not answer: %v: %s", err, out)
	}

	// A restart brings nothing back, and takes nothing away.
	kubectl(t, cls2, "-n", system, "rollout", "restart", manager)
	kubectl(t, cls2, "-n", system, "rollout", "status", manager, "--timeout=90s")
	kubectl(t, cls1, "-n", ns, "rollout", "status", "deployment/alone", "--timeout=90s")
	always(t, quiet, func() error {
		now, err := imported(t.Context(), cls2, ns, "alone", "cls1", true)
		if err == nil && !slices.Equal(now, last) {
			err = fmt.Errorf("cls2 has the endpoints %v of alone, want still %v", now, last)
		}
		return errors.Join(err, gone(), exporters(t.Context(), cls2, ns, ends.Name, "cls1"))
	})

	restart()
	eventually(t, started, func() error { return answeredBy(t.Context(), cls2, ns, command, "cls1", "cls2") })
	eventually(t, soon, func() error {
		return errors.Join(staleIs(t.Context(), cls2, ns, "web", "False NoneStale", ""), staleIs(t.Context(), cls2, ns, "alone", "False NoneStale", ""))
	})
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "alone", 2) })
	eventually(t, started, func() error { return noImport(t.Context(), cls2, ns, ends.Name) })
	if now, err := importIP(t.Context(), cls2, ns, "web"); err != nil || now != ip {
		t.Errorf("the clusterset IP is %q (%v), want still %q", now, err, ip)
	}
}
