package testbed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/netpolicy"
)

const (
	// settle is the pause in the events of a cluster after which its rules are computed; a burst of
	// events is one change.
	settle = 50 * time.Millisecond
	// cleanupTimeout limits the removal of the rules.
	cleanupTimeout = 10 * time.Second
)

// EnforcePolicies enforces the NetworkPolicies of all clusters in their nodes until ctx ends, and
// removes the rules then. enforced is called when every node has rules.
func (t *Testbed) EnforcePolicies(ctx context.Context, enforced func()) error {
	s, err := t.loadState()
	if err != nil {
		return err
	}
	clusters := cluster.NewPlan(s.Config).Clusters
	errs := make([]error, len(clusters))
	var running, first sync.WaitGroup
	first.Add(len(clusters))
	for i, c := range clusters {
		running.Go(func() { errs[i] = t.enforceIn(ctx, t.kubectl(s, c.Name), c, sync.OnceFunc(first.Done)) })
	}
	go func() {
		first.Wait()
		enforced()
	}()
	running.Wait()
	return errors.Join(errs...)
}

// enforceIn enforces the policies of one cluster.
func (t *Testbed) enforceIn(ctx context.Context, k kubectl, c cluster.Cluster, enforced func()) error {
	w := &policyWatch{kubectl: k, changed: make(chan struct{}, 1)}
	var watches sync.WaitGroup
	defer watches.Wait() // no kubectl outlives this process
	watches.Go(func() { watchKind(ctx, w, "namespaces", &w.namespaces) })
	watches.Go(func() { watchKind(ctx, w, "pods", &w.pods) })
	watches.Go(func() { watchKind(ctx, w, "networkpolicies", &w.policies) })
	applied := map[string]string{}
	for w.wait(ctx) {
		state := w.state()
		for _, n := range c.Nodes {
			ruleset, err := state.Ruleset(n.Name)
			if err == nil && ruleset != applied[n.Name] {
				err = t.nft(ctx, n.Name, ruleset)
			}
			if err != nil {
				// the next event tries again
				t.logf("%s: enforcing the NetworkPolicies: %v", n.Name, err)
				continue
			}
			applied[n.Name] = ruleset
		}
		if len(applied) == len(c.Nodes) {
			enforced()
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, t.nft(end, n.Name, netpolicy.Remove))
	}
	return errors.Join(errs...)
}

// nft runs an nft script in the network of a node.
func (t *Testbed) nft(ctx context.Context, node, script string) error {
	command, err := t.NodeCommand(node, "nft", "-f", "-")
	if err != nil {
		return err
	}
	return runProgram(ctx, script, command[0], command[1:]...)
}

// policyWatch follows the objects of a cluster that its rules depend on.
type policyWatch struct {
	kubectl kubectl
	changed chan struct{}

	mu         sync.Mutex
	namespaces map[string]*corev1.Namespace
	pods       map[string]*corev1.Pod
	policies   map[string]*networkingv1.NetworkPolicy
}

// wait waits for an event and the end of the burst that it belongs to. It returns false when ctx
// ends.
func (w *policyWatch) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-w.changed:
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.changed:
		case <-time.After(settle):
			return true
		}
	}
}

func (w *policyWatch) state() netpolicy.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return netpolicy.State{Namespaces: values(w.namespaces), Pods: values(w.pods), Policies: values(w.policies)}
}

func values[T any](objects map[string]T) (out []T) {
	for _, o := range objects {
		out = append(out, o)
	}
	return out
}

// watchKind keeps the objects of a kind in target, and begins again when a watch ends: the API
// server ends each within an hour.
func watchKind[T metav1.Object](ctx context.Context, w *policyWatch, kind string, target *map[string]T) {
	for ctx.Err() == nil {
		// The previous objects stay in use until the new watch has shown its first one.
		if err := watchOnce(ctx, w, kind, target); err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "watching %s: %v\n", kind, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
	}
}

func watchOnce[T metav1.Object](ctx context.Context, w *policyWatch, kind string, target *map[string]T) error {
	cmd := exec.CommandContext(ctx, w.kubectl.program, "--kubeconfig", w.kubectl.kubeconfig,
		"get", kind, "--all-namespaces", "--watch", "--output-watch-events", "--output=json")
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	objects := map[string]T{}
	for decoder := json.NewDecoder(events); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		if err := decoder.Decode(&event); err != nil {
			return err
		}
		if event.Type == "ERROR" { // the object is a Status
			return fmt.Errorf("%s", event.Object)
		}
		var object T
		if err := json.Unmarshal(event.Object, &object); err != nil {
			return err
		}
		key := object.GetNamespace() + "/" + object.GetName()
		w.mu.Lock()
		if event.Type == "DELETED" {
			delete(objects, key)
		} else {
			objects[key] = object
		}
		*target = objects
		w.mu.Unlock()
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}
