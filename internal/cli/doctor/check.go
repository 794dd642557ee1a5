// Package doctor has the commands check and diagnose. They gather facts about clusters and
// services, and decide with pure functions which requirement is not met and which command repairs
// it.
package doctor

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
)

// Commands returns the commands check and diagnose.
func Commands(s *session.Session) []*cobra.Command {
	return []*cobra.Command{checkCommand(s), diagnoseCommand(s)}
}

// A contextReport has the checks of one context.
type contextReport struct {
	Context string        `json:"context"`
	Checks  []check.Check `json:"checks"`
}

func (r contextReport) hasFailure() bool { return check.AnyFailure(r.Checks) }

func checkCommand(s *session.Session) *cobra.Command {
	var format session.Format
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check all requirements of the clusterset",
		Long: "Checks, in the cluster of each context, the API server, the CRDs, the controller with its permissions and identity,\n" +
			"the registry, CoreDNS, kube-proxy, the clocks, and the pod network to the clusters of the other contexts. Changes nothing.\n" +
			"A check that you do not have permission for is unknown. Exit code 3 when a check failed; warnings and unknown results do\n" +
			"not count.",
		Example: "  kubectl mcs check --context cls1,cls2\n  kubectl mcs check --wait 2m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := s.Clusters()
			if err != nil {
				return err
			}
			reports := waitForChecks(cmd.Context(), clusters[0].PollInterval, timeout, func(ctx context.Context) []contextReport {
				return gatherReports(ctx, s, clusters)
			})
			return printReports(s.Out, format, reports, newColorizer(s.Out))
		},
	}
	format.AddFlag(cmd)
	cmd.Flags().DurationVar(&timeout, "wait", 0, "how long to repeat the checks until none fails")
	return cmd
}

// waitForChecks repeats the checks until none fails, the timeout expires or ctx ends, and returns
// the last reports.
func waitForChecks(ctx context.Context, interval, timeout time.Duration, gather func(context.Context) []contextReport) []contextReport {
	deadline := time.Now().Add(timeout)
	for {
		reports := gather(ctx)
		if !slices.ContainsFunc(reports, contextReport.hasFailure) || !time.Now().Before(deadline) {
			return reports
		}
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return reports
		}
	}
}

// gatherReports gathers the facts of all clusters, then lets each controller connect to the others,
// then decides.
func gatherReports(ctx context.Context, s *session.Session, clusters []*session.Cluster) []contextReport {
	facts := session.ForEachCluster(clusters, func(k *session.Cluster) *clusterFacts { return gatherCluster(ctx, s, k) })
	session.ForEachCluster(clusters, func(k *session.Cluster) error {
		i := slices.Index(clusters, k)
		others := slices.Concat(facts[:i], facts[i+1:])
		facts[i].reached, facts[i].seenByOthers = reachOthers(ctx, s, k, facts[i], others), facts[i].problemsSeenBy(others)
		return nil
	})
	out := make([]contextReport, len(clusters))
	for i, f := range facts {
		out[i] = contextReport{f.context, f.checks(s.Version)}
	}
	return out
}

// printReports prints the reports and returns session.ErrIncomplete if a check failed.
func printReports(out io.Writer, format session.Format, reports []contextReport, colorize colorizer) error {
	var err error
	if format == "json" || format == "yaml" {
		err = format.Print(out, reports, nil)
	} else {
		err = printReportsAsText(out, reports, colorize, format == "wide")
	}
	if err == nil && slices.ContainsFunc(reports, contextReport.hasFailure) {
		err = session.ErrIncomplete
	}
	return err
}

func printReportsAsText(out io.Writer, reports []contextReport, colorize colorizer, wide bool) error {
	counts := map[check.Result]int{}
	for _, r := range reports {
		if _, err := fmt.Fprintf(out, "%s\n", session.Printable(r.Context)); err != nil {
			return err
		}
		for _, c := range r.Checks {
			counts[c.Result]++
			printCheck(out, c, colorize, wide)
		}
		_, _ = fmt.Fprintln(out)
	}
	warnings := "warnings"
	if counts[check.Warning] == 1 {
		warnings = "warning"
	}
	_, err := fmt.Fprintf(out, "%d ok, %d %s, %d failed, %d unknown\n",
		counts[check.OK], counts[check.Warning], warnings, counts[check.Failed]+counts[check.Missing], counts[check.Unknown])
	return err
}

// printCheck prints a check with its remedy. With wide, it also prints the remedy of a check that
// is ok.
func printCheck(out io.Writer, c check.Check, colorize colorizer, wide bool) {
	marks := map[check.Result]string{
		check.OK: colorize("√", green), check.Warning: colorize("‼", yellow),
		check.Failed: colorize("×", red), check.Missing: colorize("×", red), check.Unknown: "?",
	}
	_, _ = fmt.Fprintf(out, "%s %s: %s\n", marks[c.Result], session.Printable(c.Name), session.Printable(c.Detail))
	if c.Remedy != "" && (c.Result != check.OK || wide) {
		_, _ = fmt.Fprintf(out, "    %s\n", session.Printable(c.Remedy))
	}
}

// A colorizer returns text in a colour, or unchanged.
type colorizer func(text string, colour int) string

// The colours of ANSI terminals.
const (
	red    = 31
	green  = 32
	yellow = 33
)

// newColorizer returns a colorizer that uses colours on a terminal, unless NO_COLOR is set
// (no-color.org).
func newColorizer(out io.Writer) colorizer {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || os.Getenv("NO_COLOR") != "" {
		return func(text string, _ int) string { return text }
	}
	return func(text string, colour int) string { return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text) }
}
