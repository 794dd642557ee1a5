package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
)

// kubectl runs kubectl on a cluster. The testbed has the program anyway.
type kubectl struct{ program, kubeconfig string }

func (k kubectl) run(ctx context.Context, stdin string, args ...string) error {
	return runProgram(ctx, stdin, k.program, append([]string{"--kubeconfig", k.kubeconfig}, args...)...)
}

func runProgram(ctx context.Context, stdin, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// pollInterval is too short for users to notice.
const pollInterval = 200 * time.Millisecond

// ready asks the API server whether it is.
func (k kubectl) ready(ctx context.Context) error {
	return k.run(ctx, "", "get", "--raw", "/readyz", "--request-timeout=2s")
}

// untilReady waits until the API server at address is ready. kubectl is not started before the
// server listens, since that would take CPU time from it.
func (k kubectl) untilReady(ctx context.Context, address string) error {
	return poll(ctx, func() error {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return errors.Join(conn.Close(), k.ready(ctx))
	})
}

// poll tries until it succeeds or ctx ends, and returns the last error then.
func poll(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pollInterval):
		}
	}
}

// createMissing creates missing objects. It does not change existing ones, which may have been
// edited.
func (k kubectl) createMissing(ctx context.Context, manifests string) error {
	err := k.run(ctx, manifests, "create", "-f", "-")
	if err != nil && isOnlyExisting(err.Error()) {
		return nil
	}
	return err
}

// isOnlyExisting reports whether creating failed only because objects exist.
func isOnlyExisting(message string) bool {
	_, causes, _ := strings.Cut(message, ": exit status 1: ")
	for line := range strings.Lines(causes) {
		if !strings.Contains(line, "already exists") && !strings.Contains(line, "already allocated") {
			return false
		}
	}
	return causes != ""
}

// waitFor waits until the objects have the condition. They may not exist yet, which kubectl does
// not wait for.
func (k kubectl) waitFor(ctx context.Context, namespace, condition string, objects ...string) error {
	args := append([]string{"--namespace", namespace, "wait", "--timeout=" + remaining(ctx), "--for=condition=" + condition}, objects...)
	return poll(ctx, func() error { return k.run(ctx, "", args...) })
}

func (k kubectl) rolledOut(ctx context.Context, namespace, object string) error {
	return k.run(ctx, "", "--namespace", namespace, "rollout", "status", object, "--timeout="+remaining(ctx))
}

// setPodNetworks writes the networks of the pods into the nodes, as kube-controller-manager does
// with --allocate-node-cidrs. Those of the testbed are in its CNI configuration.
func (k kubectl) setPodNetworks(ctx context.Context, nodes []cluster.Node) error {
	for _, n := range nodes {
		networks := texts(n.PodNetworks)
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"podCIDR": networks[0], "podCIDRs": networks}})
		if err != nil {
			return err
		}
		if err := k.run(ctx, "", "patch", "node", n.Name, "--type=merge", "--patch="+string(patch)); err != nil {
			return err
		}
	}
	return nil
}

func remaining(ctx context.Context) string {
	end, ok := ctx.Deadline()
	if !ok {
		return readyTimeout.String()
	}
	return max(time.Until(end).Round(time.Second), time.Second).String()
}

// setZones writes the zones of the nodes, as the controller of a cloud does after the kubelet has
// registered them. Nothing else tells kube-proxy for certain: it drops the zone that the node has
// when it starts if the informer shows the node before kube-proxy has registered the handler of its
// proxier (NewNodeTopologyConfig in v1.37.2), and then ignores hints for zones until the label
// changes. So this comes after kube-proxy runs, without which CoreDNS is not ready.
func (k kubectl) setZones(ctx context.Context, nodes []cluster.Node) error {
	for _, n := range nodes {
		if err := k.run(ctx, "", "label", "node", n.Name, "topology.kubernetes.io/zone="+n.Zone, "--overwrite"); err != nil {
			return err
		}
	}
	return nil
}
