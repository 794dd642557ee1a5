package clusterset

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Diagnose prints the product's objects and the tails of the logs of every cluster.
func (s *Set) Diagnose(ctx context.Context, out io.Writer) {
	contexts, err := s.Output(ctx, "kubectl config get-contexts -o name")
	if err != nil {
		fmt.Fprintf(out, "no clusters: %s\n", contexts)
		return
	}
	for cluster := range strings.FieldsSeq(contexts) {
		for _, args := range []string{
			"get serviceexports,serviceimports -A -o wide",
			"get pods -A -o wide",
			"get events -A --sort-by=.lastTimestamp",
			"-n cloud-map-mcs-system logs -l app.kubernetes.io/component=manager --prefix --tail=60",
			"-n kube-system logs deployment/coredns --tail=20",
		} {
			line := "kubectl --context " + cluster + " " + args
			output, _ := s.Output(ctx, line+" 2>&1 | tail -120")
			fmt.Fprintf(out, "\n$ %s\n%s", line, output)
		}
	}
	if log, err := os.ReadFile(s.RegistryLog()); err == nil {
		lines := strings.Split(strings.TrimRight(string(log), "\n"), "\n")
		fmt.Fprintf(out, "\n%s, the last lines:\n%s\n", s.RegistryLog(), strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
}

// LookAround returns commands to use the clusters by hand.
func (s *Set) LookAround() string {
	var b strings.Builder
	for _, kv := range s.env {
		if name, value, _ := strings.Cut(kv, "="); name == "KUBECONFIG" {
			fmt.Fprintf(&b, "  export KUBECONFIG=%s\n", value)
		}
	}
	fmt.Fprintf(&b, "  export PATH=%s/bin:$(%s/bin/testbed assets):$PATH\n", s.Root, s.Root)
	b.WriteString("  kubectl --context cls2 -n demo get serviceimports,services,endpointslices\n")
	b.WriteString("  kubectl --context cls2 -n demo exec -it client-hello -- sh\n")
	return b.String()
}

// InstallTools installs the Debian packages of the command-line tools of the registry, if they are
// missing.
func InstallTools(ctx context.Context, registry string, out io.Writer) error {
	packages := map[string]string{"aws": "awscli"}
	if registry == Etcd {
		packages = map[string]string{"etcdctl": "etcd-client"}
	}
	for command, name := range packages {
		if err := install(ctx, command, name, out); err != nil {
			return err
		}
	}
	return nil
}

// InstallDig installs dig, if it is missing.
func InstallDig(ctx context.Context, out io.Writer) error {
	return install(ctx, "dig", "bind9-dnsutils", out)
}

func install(ctx context.Context, command, name string, out io.Writer) error {
	if _, err := exec.LookPath(command); err == nil {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s is missing: run apt-get install %s (as root), then try again", command, name)
	}
	fmt.Fprintf(out, "installing Debian's %s (about a minute)\n", name)
	cmd := exec.CommandContext(ctx, "bash", "-c", "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "+name)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("installing %s: %w: %s", name, err, output)
	}
	return nil
}
