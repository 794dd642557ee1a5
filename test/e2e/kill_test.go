package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// killController kills a cluster's controller as a crash does. No new one starts until restart is
// called, or the test ends. When it returns, no process of the controller is left. Kubernetes alone
// cannot do that: a pod that is deleted by force is removed from the API at once, while its process
// receives SIGTERM and continues until it has ended.
func killController(t *testing.T, c cluster) (restart func()) {
	t.Helper()
	var pods []corev1.Pod
	eventually(t, soon, func() (err error) { // those that a rollout has replaced may still end
		pods, err = controllers(t.Context(), c)
		if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }) {
			err = errors.Join(err, fmt.Errorf("%s: a controller is ending", c.name))
		}
		return err
	})
	if len(pods) == 0 {
		t.Fatalf("%s: no controller runs", c.name)
	}
	// A stopped process does not handle SIGTERM, and the kubelet would restart a killed one while
	// its pod exists.
	for _, pod := range pods {
		if n, err := signalPod(pod, syscall.SIGSTOP); err != nil || n == 0 {
			t.Fatalf("%s: stopped %d processes of pod %s: %v", c.name, n, pod.Name, err)
		}
	}
	restart = func() {
		if _, err := suite.Kubectl(context.Background(), c.name, "-n", system, "scale", manager, "--replicas=2"); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(restart)
	kubectl(t, c, "-n", system, "scale", manager, "--replicas=0")
	eventually(t, soon, func() error {
		now, err := controllers(t.Context(), c)
		for _, pod := range now {
			if pod.DeletionTimestamp == nil {
				err = errors.Join(err, fmt.Errorf("%s: pod %s is still wanted", c.name, pod.Name))
			}
		}
		return err
	})
	for _, pod := range pods {
		if _, err := signalPod(pod, syscall.SIGKILL); err != nil {
			t.Fatalf("%s: killing pod %s: %v", c.name, pod.Name, err)
		}
	}
	kubectl(t, c, "-n", system, "delete", "pods", "--all", "--force", "--grace-period=0")
	eventually(t, soon, func() error {
		for _, pod := range pods {
			n, err := signalPod(pod, syscall.Signal(0))
			if err == nil && n > 0 {
				err = fmt.Errorf("%s: %d processes of pod %s are left", c.name, n, pod.Name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return restart
}

// controllers returns the pods of a cluster's controller.
func controllers(ctx context.Context, c cluster) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	err := c.List(ctx, list, client.InNamespace(system))
	return list.Items, err
}

// signalPod sends a signal to every process of a pod and returns their number.
func signalPod(pod corev1.Pod, sig syscall.Signal) (n int, err error) {
	return signalGroup("pod"+string(pod.UID), sig)
}

// signalGroup sends a signal to every process whose cgroup's path contains a text, and returns
// their number. Nodes of the testbed are on this machine, and so are their processes.
func signalGroup(path string, sig syscall.Signal) (n int, err error) {
	return signalProcesses(path, sig, 0)
}

// killNode kills everything on a node, as a crash of the machine does. The node starts again when
// start is called, or the test ends.
func killNode(t *testing.T, node string) (start func()) {
	t.Helper()
	first, err := nodePID(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	// The first process would start the others again at once.
	if err := syscall.Kill(first, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	start = func() {
		if err := syscall.Kill(first, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(start)
	if n, err := killBut(node, first); err != nil || n == 0 {
		t.Fatalf("killed %d processes of the node %s: %v", n, node, err)
	}
	return start
}

// killBut kills every process of a node but one, and returns their number.
func killBut(node string, kept int) (n int, err error) {
	return signalProcesses("/cloud-map-mcs-testbed/"+node, syscall.SIGKILL, kept)
}

func signalProcesses(path string, sig syscall.Signal, kept int) (n int, err error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	for _, p := range all {
		if p.PID == kept {
			continue
		}
		groups, err := p.Cgroups()
		if err != nil || len(groups) == 0 {
			continue // it has just ended
		}
		for _, g := range groups {
			if !strings.Contains(g.Path, path) {
				continue
			}
			switch err := syscall.Kill(p.PID, sig); {
			case err == nil:
				n++
			case !errors.Is(err, syscall.ESRCH):
				return n, err
			}
			break
		}
	}
	return n, nil
}
