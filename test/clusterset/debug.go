package clusterset

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Diagnose prints what a person would look at first when something does not work: the product's objects and the tails of
// the logs, of every cluster.
func (s *Set) Diagnose(ctx context.Context, out io.Writer) {
	contexts, err := s.Output(ctx, "kubectl config get-contexts -o name")
	if err != nil {
		fmt.Fprintf(out, "no clusters to look at: %s\n", contexts)
		return
	}
	for cluster := range strings.FieldsSeq(contexts) {
		for _, args := range []string{
			"get serviceexports,serviceimports -A -o wide",
			"get pods -A -o wide",
			"get events -A --sort-by=.lastTimestamp",
			"-n cloud-map-mcs-system logs deployment/cloud-map-mcs-controller-manager --tail=60",
			"-n kube-system logs deployment/coredns --tail=20",
		} {
			line := "kubectl --context " + cluster + " " + args
			output, _ := s.Output(ctx, line+" 2>&1 | tail -60")
			fmt.Fprintf(out, "\n$ %s\n%s", line, output)
		}
	}
	if log, err := os.ReadFile(s.CloudMapLog()); err == nil {
		lines := strings.Split(strings.TrimRight(string(log), "\n"), "\n")
		fmt.Fprintf(out, "\n%s, the last lines:\n%s\n", s.CloudMapLog(), strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
}

// LookAround is what to type to use the clusters by hand.
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

// InstallAWSCLI installs Debian's awscli where there is no aws command yet.
func InstallAWSCLI(ctx context.Context, out io.Writer) error {
	if _, err := exec.LookPath("aws"); err == nil {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("the AWS CLI is missing: run apt-get install awscli (as root), then try again")
	}
	fmt.Fprintln(out, "installing Debian's awscli (about a minute)")
	cmd := exec.CommandContext(ctx, "bash", "-c", "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends awscli")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("installing awscli: %w: %s", err, output)
	}
	return nil
}
