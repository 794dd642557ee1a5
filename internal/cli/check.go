package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// A checkup is how the checks of one context came out.
type checkup struct {
	Context string  `json:"context"`
	Checks  []check `json:"checks"`
}

func (a *app) checkCommand() *cobra.Command {
	var o output
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check everything that the clusterset needs",
		Long: "Checks, in the cluster of each context, the API server, the CRDs, the controller with its permissions and identity,\n" +
			"the registry, CoreDNS, kube-proxy, the clocks, and whether pods reach the other contexts' clusters. Changes nothing.\n" +
			"A failed check is fatal, a warning is not, and what you may not look at is unknown.\n" +
			"Exit code 3 when a check failed.",
		Example: "  kubectl mcs check --context cls1,cls2\n  kubectl mcs check --wait 2m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := a.clusters()
			if err != nil {
				return err
			}
			return a.check(cmd.Context(), clusters, o, timeout)
		},
	}
	o.bind(cmd)
	cmd.Flags().DurationVar(&timeout, "wait", 0, "how long to repeat the checks until none fails")
	return cmd
}

func (a *app) check(ctx context.Context, clusters []*cluster, o output, timeout time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	deadline := time.Now().Add(timeout)
	for {
		checkups := a.checkups(ctx, clusters)
		failed := slices.ContainsFunc(checkups, checkup.failed)
		if failed && time.Now().Before(deadline) {
			select {
			case <-time.After(clusters[0].poll):
				continue
			case <-ctx.Done():
			}
		}
		if err := printCheckups(a.Out, o, checkups, newPaint(a.Out)); err != nil {
			return err
		}
		if failed {
			return exitError(ExitIncomplete)
		}
		return nil
	}
}

// checkups gathers facts of all clusters, then lets each one's pods try to reach the others', then decides.
func (a *app) checkups(ctx context.Context, clusters []*cluster) []checkup {
	facts := eachCluster(clusters, func(k *cluster) *clusterFacts { return a.gatherCluster(ctx, k) })
	eachCluster(clusters, func(k *cluster) error {
		i := slices.Index(clusters, k)
		facts[i].reached = a.reachOthers(ctx, k, facts[i], slices.Concat(facts[:i], facts[i+1:]))
		return nil
	})
	out := make([]checkup, len(clusters))
	for i, f := range facts {
		out[i] = checkup{f.context, f.checks(a.version)}
	}
	return out
}

func (c checkup) failed() bool {
	return slices.ContainsFunc(c.Checks, func(c check) bool { return c.Result == broken || c.Result == failed })
}

func printCheckups(out io.Writer, o output, checkups []checkup, paint paint) error {
	if o == "json" || o == "yaml" {
		return o.print(out, checkups, nil)
	}
	counts := map[result]int{}
	for _, c := range checkups {
		if _, err := fmt.Fprintf(out, "%s\n", printable(c.Context)); err != nil {
			return err
		}
		for _, check := range c.Checks {
			counts[check.Result]++
			check.print(out, paint, o == "wide")
		}
		_, _ = fmt.Fprintln(out)
	}
	_, err := fmt.Fprintf(out, "%d ok, %d warnings, %d failed, %d unknown\n",
		counts[passed], counts[warned], counts[broken]+counts[failed], counts[skipped])
	return err
}

// print prints a check with its hint, if there is something to do. Wide shows hints of what is well too.
func (c check) print(out io.Writer, paint paint, wide bool) {
	marks := map[result]string{passed: paint("√", green), warned: paint("‼", yellow), broken: paint("×", red), failed: paint("×", red), skipped: "?"}
	_, _ = fmt.Fprintf(out, "%s %s: %s\n", marks[c.Result], c.Name, printable(c.Detail))
	if c.Hint != "" && (c.Result != passed || wide) {
		_, _ = fmt.Fprintf(out, "    %s\n", printable(c.Hint))
	}
}

// A paint colours text, or does not.
type paint func(text string, colour int) string

// The colours are those of ANSI terminals.
const (
	red    = 31
	green  = 32
	yellow = 33
)

// newPaint colours on a terminal, unless NO_COLOR is set (no-color.org).
func newPaint(out io.Writer) paint {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || os.Getenv("NO_COLOR") != "" {
		return func(text string, _ int) string { return text }
	}
	return func(text string, colour int) string { return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text) }
}
