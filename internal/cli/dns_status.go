package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// A dnsStatus is what `dns status -o json` prints.
type dnsStatus struct {
	State          coredns.State `json:"state"`
	ClusterDomain  string        `json:"clusterDomain"`
	CoreDNSVersion string        `json:"coreDNSVersion,omitempty"`
	Checks         []check       `json:"checks"`
}

func (a *app) dnsStatusCommand() *cobra.Command {
	var clusterDomain, output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Tell whether " + coredns.Zone + " is enabled and what is missing",
		Long: "Checks CoreDNS's version, the ServiceImport API, CoreDNS's permission and Corefile, and asks every CoreDNS pod.\n" +
			"Changes nothing. Exit code 0: enabled; 3: disabled or partly.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.dnsStatus(cmd.Context(), clusterDomain, output) },
	}
	cmd.Flags().StringVar(&clusterDomain, "cluster-domain", "", "the zone of the cluster's own Services; found in the Corefile when empty")
	outputFlag(cmd, &output, "table", "json")
	return cmd
}

func (a *app) dnsStatus(ctx context.Context, clusterDomain, output string) error {
	k, err := a.oneCluster()
	if err != nil {
		return err
	}
	status, err := inspectDNS(ctx, k, clusterDomain)
	if err != nil {
		return err
	}
	if err := status.print(a.Out, output); err != nil {
		return err
	}
	if status.State != coredns.Enabled {
		return exitError(ExitIncomplete)
	}
	return nil
}

// inspectDNS finds out how DNS stands in a cluster.
func inspectDNS(ctx context.Context, k *cluster, clusterDomain string) (dnsStatus, error) {
	c, err := gather(ctx, k, clusterDomain)
	if err != nil {
		return dnsStatus{}, err
	}
	asked, err := askPods(ctx, k, c.deployment)
	if err != nil {
		return dnsStatus{}, err
	}
	checks := c.checks(asked)
	return dnsStatus{
		State: overall(c, checks), ClusterDomain: c.inspection.ClusterDomain, CoreDNSVersion: c.version, Checks: checks,
	}, nil
}

func (s dnsStatus) print(out io.Writer, format string) error {
	if format == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(s)
	}
	if _, err := fmt.Fprintf(out, "%s is %s (cluster domain %s)\n\n", coredns.Zone, s.State, s.ClusterDomain); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "CHECK\tRESULT\tDETAIL")
	for _, c := range s.Checks {
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", c.Name, c.Result, c.Detail)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, hint := range hints(s.Checks) {
		if _, err := fmt.Fprintf(out, "\n%s", hint); err != nil {
			return err
		}
	}
	return nil
}

// hints are the things to do, each once, in the order of the checks.
func hints(checks []check) []string {
	var found []string
	seen := map[string]bool{}
	for _, c := range checks {
		if c.Hint != "" && !seen[c.Hint] {
			seen[c.Hint] = true
			found = append(found, strings.TrimSuffix(c.Name, ":")+": "+c.Hint+"\n")
		}
	}
	return found
}
