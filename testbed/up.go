package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/build"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/host"
)

// Up brings the clusters up and returns when their nodes and their CoreDNS are Ready; the clusters
// keep running without this process. Missing programs are built first. Calling it again with the
// same configuration changes nothing; leftovers of a crashed testbed are removed; a running one of
// another configuration is an error.
func (t *Testbed) Up(ctx context.Context, cfg cluster.Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	unlock, err := t.lock()
	if err != nil {
		return err
	}
	defer unlock()
	software, err := t.buildAll(ctx, cfg)
	if err != nil {
		return err
	}
	start := time.Now()
	running, err := t.alreadyUp(cfg)
	if err != nil {
		return err
	}
	if running {
		t.logf("already up: %s", cfg)
	} else if err := t.create(cfg, software); err != nil {
		return errors.Join(err, t.clean())
	}
	if err := t.waitReady(ctx, cfg, software, start); err != nil {
		return fmt.Errorf("%w; logs are in %s", err, t.logDir("*"))
	}
	t.logf("up in %.1f s: %s; kubeconfig %s", time.Since(start).Seconds(), cfg, t.Kubeconfig())
	return nil
}

// alreadyUp reports whether a testbed of this configuration runs; leftovers of a crashed one are
// removed.
func (t *Testbed) alreadyUp(cfg cluster.Config) (bool, error) {
	if err := t.refuseSecond(); err != nil {
		return false, err
	}
	s, err := t.loadState()
	if err == nil && len(s.dead()) == 0 {
		if !s.Config.Equal(cfg) {
			return false, fmt.Errorf("the testbed is up with %s, not %s: run testbed down first", s.Config, cfg)
		}
		return true, nil
	}
	if err == nil {
		t.logf("nodes are gone (%v): cleaning up what is left", s.dead())
	}
	return false, t.clean()
}

// create starts every node. Nothing here waits for Kubernetes.
func (t *Testbed) create(cfg cluster.Config, software build.Result) error {
	if err := os.MkdirAll(t.StateDir, 0o755); err != nil {
		return fmt.Errorf("creating the state directory (choose another with --state-dir or TESTBED_STATE): %w", err)
	}
	plan := cluster.NewPlan(cfg)
	if err := host.CreateNetwork(t.switchFile(), plan.Host, plan.PodRoutes("")); err != nil {
		return err
	}
	s := state{Config: cfg, Processes: map[string]host.Process{}, Kubernetes: software.Kubernetes, Runtime: software.Runtime}
	var access []cluster.Access
	for _, c := range plan.Clusters {
		pki, err := cluster.NewPKI(c, time.Now())
		if err != nil {
			return fmt.Errorf("making the credentials of %s: %w", c.Name, err)
		}
		admin := c.Access(pki, pki.Admin)
		access = append(access, admin)
		if err := writeKubeconfig(t.kubeconfig(c.Name), admin); err != nil {
			return err
		}
		for i, n := range c.Nodes {
			if s.Processes[n.Name], err = t.startNode(plan, c, i, pki, software); err != nil {
				return err
			}
		}
	}
	if err := writeKubeconfig(t.Kubeconfig(), access...); err != nil {
		return err
	}
	return t.saveState(s)
}

func (t *Testbed) startNode(plan cluster.Plan, c cluster.Cluster, i int, pki cluster.PKI, software build.Result) (host.Process, error) {
	n := c.Nodes[i]
	logs := t.logDir(n.Name)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return host.Process{}, fmt.Errorf("creating the log directory of %s: %w", n.Name, err)
	}
	spec, err := plan.NodeSpec(c, i, pki, software.Clusters[c.Versions].Software, host.CgroupPath(n.Name), logs)
	if err != nil {
		return host.Process{}, err
	}
	return host.StartNode(software.NodeProgram, t.switchFile(), n.Port, spec)
}

func writeKubeconfig(path string, access ...cluster.Access) error {
	text, err := cluster.Kubeconfig(access...)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return nil
}

// readyTimeout is several times the duration on the slowest machine seen.
const readyTimeout = 3 * time.Minute

// waitReady finishes every cluster, all at the same time.
func (t *Testbed) waitReady(ctx context.Context, cfg cluster.Config, software build.Result, start time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	plan := cluster.NewPlan(cfg)
	errs := make([]error, len(plan.Clusters))
	var wg sync.WaitGroup
	for i, c := range plan.Clusters {
		wg.Go(func() {
			errs[i] = t.finish(ctx, c, software, func(what string) {
				t.logf("%5.1f s  %s: %s", time.Since(start).Seconds(), c.Name, what)
			})
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// finish waits for the API server, installs CoreDNS, and waits for it and for the nodes.
func (t *Testbed) finish(ctx context.Context, c cluster.Cluster, software build.Result, progress func(string)) error {
	k := kubectl{program: filepath.Join(software.Kubernetes, "kubectl"), kubeconfig: t.kubeconfig(c.Name)}
	coredns, err := c.CoreDNS(software.Clusters[c.Versions].CoreDNSImage)
	if err != nil {
		return err
	}
	nodes := make([]string, 0, len(c.Nodes))
	for _, n := range c.Nodes {
		nodes = append(nodes, "node/"+n.Name)
	}
	for _, step := range []struct {
		what, done string
		do         func() error
	}{
		{"waiting for the API server", "API server ready", func() error { return k.untilReady(ctx, c.APIAddress()) }},
		{"installing CoreDNS", "", func() error { return k.createMissing(ctx, coredns) }},
		{"waiting for its nodes", "nodes Ready", func() error { return k.waitFor(ctx, "", "Ready", nodes...) }},
		{"writing the networks of its pods", "", func() error { return k.setPodNetworks(ctx, c.Nodes) }},
		{"waiting for CoreDNS", "CoreDNS Ready", func() error { return k.rolledOut(ctx, "kube-system", "deployment/coredns") }},
		{"writing the zones of its nodes", "", func() error { return k.setZones(ctx, c.Nodes) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %s: %w", c.Name, step.what, err)
		}
		if step.done != "" {
			progress(step.done)
		}
	}
	return nil
}
