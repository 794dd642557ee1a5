package dns

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// Status is the output of dns status -o json.
type Status struct {
	State          coredns.State `json:"state"`
	ClusterDomain  string        `json:"clusterDomain"`
	CoreDNSVersion string        `json:"coreDNSVersion,omitempty"`
	// Beside is the image of the CoreDNS beside the cluster's own, which serves clusterset.local,
	// or "".
	Beside string        `json:"beside,omitempty"`
	Checks []check.Check `json:"checks"`
}

func statusCommand(s *session.Session) *cobra.Command {
	var clusterDomain, output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether " + coredns.Zone + " is enabled and what is missing",
		Long: "Checks the version of CoreDNS, the ServiceImport API, the permission and the Corefile of CoreDNS, and queries every CoreDNS pod.\n" +
			"After dns enable --beside, checks the second CoreDNS as well.\n" +
			"Changes nothing. Exit code 0: enabled; 3: disabled or partially enabled.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runStatus(cmd.Context(), s, clusterDomain, output) },
	}
	addClusterDomainFlag(cmd, &clusterDomain)
	session.AddOutputFlag(cmd, &output, "table", "json")
	return cmd
}

func runStatus(ctx context.Context, s *session.Session, clusterDomain, output string) error {
	k, err := s.OneCluster()
	if err != nil {
		return err
	}
	status, err := readStatus(ctx, k, clusterDomain)
	if err != nil {
		return err
	}
	if err := status.print(s.Out, session.Format(output)); err != nil {
		return err
	}
	if status.State != coredns.Enabled {
		return session.ErrIncomplete
	}
	return nil
}

// ReadStatus reads and checks the DNS configuration of a cluster.
func ReadStatus(ctx context.Context, k *session.Cluster) (Status, error) {
	return readStatus(ctx, k, "")
}

func readStatus(ctx context.Context, k *session.Cluster, clusterDomain string) (Status, error) {
	d, err := readClusterDNS(ctx, k, clusterDomain)
	if err != nil {
		return Status{}, err
	}
	c := d.own
	if d.usesBeside() {
		return readBesideStatus(ctx, k, d)
	}
	if c == nil {
		return Status{}, errNoCoreDNS
	}
	found, err := probePods(ctx, k, c.deployment)
	if err != nil {
		return Status{}, err
	}
	checks := c.checks(found)
	return Status{
		State: c.overallState(checks), ClusterDomain: c.inspection.ClusterDomain, CoreDNSVersion: c.version, Checks: checks,
	}, nil
}

// readBesideStatus checks a cluster with a CoreDNS beside its own.
func readBesideStatus(ctx context.Context, k *session.Cluster, d *clusterDNS) (Status, error) {
	status := Status{State: coredns.Enabled, ClusterDomain: coredns.DefaultClusterDomain}
	var own, second responses
	var err error
	if d.own != nil {
		status.ClusterDomain, status.CoreDNSVersion = d.own.inspection.ClusterDomain, d.own.version
		own, err = probePods(ctx, k, d.own.deployment)
	} else {
		own, err = probeServers(ctx, k)
	}
	if err == nil && d.beside.deployment != nil {
		status.Beside = imageOf(d.beside.deployment)
		second, err = probePods(ctx, k, d.beside.deployment)
	}
	if err != nil {
		return Status{}, err
	}
	status.Checks = d.checks(own, second)
	if check.AnyFailure(status.Checks) {
		status.State = coredns.Partial
	}
	return status, nil
}

// EnableRemedy returns the remedy for a cluster of this status in which clusterset.local is not
// enabled.
func (s Status) EnableRemedy(context string) string {
	if s.CoreDNSVersion != "" && !coredns.Supports(s.CoreDNSVersion) {
		return BesideRemedy(context)
	}
	return EnableRemedy(context)
}

func (s Status) print(out io.Writer, format session.Format) error {
	return format.Print(out, s, func(t *session.Table, _ bool) {
		t.Line(fmt.Sprintf("%s: %s (cluster domain %s)", coredns.Zone, s.State, s.ClusterDomain))
		t.Line("")
		t.Row("CHECK", "RESULT", "DETAIL")
		for _, c := range s.Checks {
			t.Row(c.Name, c.Result, c.Detail)
		}
		for _, remedy := range remedies(s.Checks) {
			t.Line("")
			t.Line(remedy)
		}
	})
}

// remedies returns the remedies of the checks, each once.
func remedies(checks []check.Check) []string {
	var found []string
	seen := map[string]bool{}
	for _, c := range checks {
		if c.Remedy != "" && !seen[c.Remedy] {
			seen[c.Remedy] = true
			found = append(found, c.Name+": "+c.Remedy)
		}
	}
	return found
}
