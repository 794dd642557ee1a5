package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// dnsWait covers a rolling restart of a few CoreDNS pods, image pull included. Without a restart, a changed Corefile
// needs up to about 60 s to reach the pods (the kubelet's sync) and 45 s until the reload plugin looks (30 s and 15 s jitter).
const dnsWait = 2 * time.Minute

// dnsOptions are the flags of dns enable and dns disable.
type dnsOptions struct {
	clusterDomain string
	dryRun        bool
	force         bool
	noRestart     bool
	wait          time.Duration
}

func (o *dnsOptions) bind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.clusterDomain, "cluster-domain", "", "the zone of the cluster's own Services; found in the Corefile when empty")
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the edit of the Corefile as a unified diff and change nothing")
	flags.BoolVar(&o.force, "force", false, "on EKS: edit the Corefile although the CoreDNS add-on may write its own back")
	flags.BoolVar(&o.noRestart, "no-restart", false, "leave it to CoreDNS's reload plugin to pick the Corefile up")
	flags.DurationVar(&o.wait, "wait", dnsWait, "how long to wait until every CoreDNS pod has it; 0 does not wait")
}

func (a *app) dnsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dns",
		Short: "Make " + coredns.Zone + " resolvable, or undo it",
		Long: "Stock CoreDNS " + coredns.MinVersion + " and newer answers <service>.<namespace>.svc." + coredns.Zone + " itself once its Corefile says so\n" +
			"and it may read ServiceImports. These commands see to both.",
	}
	cmd.AddCommand(a.dnsEnableCommand(), a.dnsDisableCommand(), a.dnsStatusCommand())
	return cmd
}

func (a *app) dnsEnableCommand() *cobra.Command {
	var o dnsOptions
	cmd := &cobra.Command{
		Use:   "enable",
		Short: "Make " + coredns.Zone + " resolvable in this cluster",
		Long: "Adds the zone " + coredns.Zone + " and the option \"multicluster " + coredns.Zone + "\" to CoreDNS's kubernetes plugin,\n" +
			"lets CoreDNS read ServiceImports, restarts it pod by pod and waits until every pod answers for the zone.\n" +
			"Nothing else in the Corefile changes; \"kubectl mcs dns disable\" restores it byte for byte.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.enableDNS(cmd.Context(), o) },
	}
	o.bind(cmd)
	return cmd
}

func (a *app) dnsDisableCommand() *cobra.Command {
	var o dnsOptions
	cmd := &cobra.Command{
		Use:   "disable",
		Short: "Undo enable",
		Long:  "Takes out of CoreDNS's Corefile and permissions what enable put in, restarts CoreDNS pod by pod and waits.",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return a.disableDNS(cmd.Context(), o) },
	}
	o.bind(cmd)
	return cmd
}

func (a *app) enableDNS(ctx context.Context, o dnsOptions) error {
	k, err := a.oneCluster()
	if err != nil {
		return err
	}
	c, err := gather(ctx, k, o.clusterDomain)
	if err != nil {
		return err
	}
	if err := c.blocker(); err != nil {
		return err
	}
	edit := func(corefile string) (string, error) { return coredns.Enable(corefile, o.clusterDomain) }
	edited, err := edit(c.corefile())
	if err != nil {
		return err
	}
	a.warn(c, true)
	if o.dryRun {
		a.note("Would let CoreDNS read ServiceImports with ClusterRole and ClusterRoleBinding %s.", coredns.RoleName)
		return a.printDiff(c.corefile(), edited)
	}
	granted, err := grant(ctx, k, c.serviceAccount())
	if err != nil {
		return err
	}
	if granted {
		a.note("ClusterRole and ClusterRoleBinding %s written: CoreDNS may list and watch ServiceImports.", coredns.RoleName)
	}
	if c.onEKS() && !o.force && edited != c.corefile() {
		return a.handOver(edited)
	}
	changed, err := writeCorefile(ctx, k, edit)
	if err != nil {
		return err
	}
	return a.takeUp(ctx, k, c, o, change{corefile: changed, granted: granted, want: true})
}

func (a *app) disableDNS(ctx context.Context, o dnsOptions) error {
	k, err := a.oneCluster()
	if err != nil {
		return err
	}
	return a.disableDNSIn(ctx, k, o)
}

func (a *app) disableDNSIn(ctx context.Context, k *cluster, o dnsOptions) error {
	c, err := gather(ctx, k, o.clusterDomain)
	if err != nil {
		return err
	}
	edit := func(corefile string) (string, error) { return coredns.Disable(corefile, o.clusterDomain) }
	edited, err := edit(c.corefile())
	if err != nil {
		return err
	}
	a.warn(c, edited != c.corefile())
	if o.dryRun {
		a.note("Would then delete ClusterRole and ClusterRoleBinding %s.", coredns.RoleName)
		return a.printDiff(c.corefile(), edited)
	}
	if c.onEKS() && !o.force && edited != c.corefile() {
		return a.handOver(edited)
	}
	changed, err := writeCorefile(ctx, k, edit)
	if err != nil {
		return err
	}
	// The permission goes last: a CoreDNS that still has the option must be able to read ServiceImports.
	if err := a.takeUp(ctx, k, c, o, change{corefile: changed}); err != nil {
		return err
	}
	revoked, err := revoke(ctx, k)
	if revoked {
		a.note("ClusterRole and ClusterRoleBinding %s deleted.", coredns.RoleName)
	}
	return err
}

// A change is what a command did before CoreDNS has to take it up.
type change struct {
	corefile bool // the Corefile is another than before
	granted  bool // the permission is new
	want     bool // CoreDNS is to answer for the zone
}

// takeUp makes CoreDNS take the change up and waits until it has.
func (a *app) takeUp(ctx context.Context, k *cluster, c *coreDNS, o dnsOptions, did change) error {
	stale, err := a.stale(ctx, k, c, did)
	if err != nil {
		return err
	}
	if stale && o.noRestart && !c.inspection.Reload {
		a.note("The Corefile has no reload plugin: CoreDNS takes the change up when it restarts next.")
		return nil
	}
	if stale && !o.noRestart {
		if err := restart(ctx, k); err != nil {
			return err
		}
		a.note("Deployment %s/%s restarted, pod by pod.", coreDNSNamespace, coreDNSName)
	}
	if o.wait <= 0 || !stale && !did.granted {
		return nil
	}
	a.note("Waiting up to %s for every CoreDNS pod to take it up.", o.wait)
	said, err := await(ctx, k, did.want, o.wait)
	if err != nil {
		return fmt.Errorf("%w\nThe edit stays in place; look again with \"kubectl mcs dns status\"%s", err, undoHint(did.want))
	}
	a.note("Done: %s.", outcome(said, did.want))
	return nil
}

// stale tells whether CoreDNS runs with another Corefile than the one in place: it was just edited, or was before and
// never taken up.
func (a *app) stale(ctx context.Context, k *cluster, c *coreDNS, did change) (bool, error) {
	if did.corefile {
		a.note("ConfigMap %s/%s edited: %s %s.", coreDNSNamespace, coreDNSName, coredns.Zone, word(did.want))
		return true, nil
	}
	said, err := askPods(ctx, k, c.deployment)
	if err != nil {
		return false, err
	}
	a.note("The Corefile is %s already: %s.", word(did.want), outcome(said, did.want))
	return said.known() && !said.agree(did.want), nil
}

func word(enabled bool) string {
	if enabled {
		return string(coredns.Enabled)
	}
	return string(coredns.Disabled)
}

func undoHint(enabled bool) string {
	if enabled {
		return ", or undo it with \"kubectl mcs dns disable\""
	}
	return ""
}

// outcome says what the pods answered.
func outcome(said answers, want bool) string {
	switch {
	case said.skipped != "":
		return "whether the CoreDNS pods answer was not checked, " + said.skipped
	case said.problem != nil:
		return "whether the CoreDNS pods answer could not be checked, " + said.problem.Error()
	case want:
		return fmt.Sprintf("%d of %d CoreDNS pods answer for %s", said.yes, said.pods, coredns.Zone)
	default:
		return fmt.Sprintf("%d of %d CoreDNS pods still answer for %s", said.yes, said.pods, coredns.Zone)
	}
}

// handOver prints the EKS add-on's configuration instead of writing what the add-on would write back.
func (a *app) handOver(edited string) error {
	a.note("EKS installed this cluster's CoreDNS. Its add-on may write its own Corefile back, so the ConfigMap was not edited.\n" +
		"Standard output has the add-on's configuration with the new Corefile. Merge it with the configuration you have\n" +
		"(aws eks describe-addon), save it as coredns.json and apply it:\n" +
		"  aws eks update-addon --cluster-name NAME --addon-name coredns --configuration-values file://coredns.json --resolve-conflicts PRESERVE\n" +
		"Then run this command again: it checks the rest. If CoreDNS is not an add-on here, add --force to edit the ConfigMap.")
	encoder := json.NewEncoder(a.Out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(map[string]string{"corefile": edited}); err != nil {
		return err
	}
	return exitError(ExitIncomplete)
}

// warn tells what may surprise, before anything is changed.
func (a *app) warn(c *coreDNS, edits bool) {
	if v := c.versionCheck(); v.Result == warned {
		a.note("Warning: %s; %s.", v.Detail, v.Hint)
	}
	if !edits {
		return
	}
	if owner := c.owner(); owner != "" {
		a.note("Warning: %s.", owner)
	}
	if c.restartInterrupts() {
		a.note("Warning: CoreDNS's rolling update may take all its pods away at once: names may not resolve for some seconds. " +
			"Two replicas or more avoid that.")
	}
	if c.bypassed {
		a.note("Warning: a node-local DNS cache sends %s past CoreDNS: docs/dns.md#nodelocal-dnscache.", coredns.Zone)
	}
}

// note tells the user what happens. It goes to standard error: standard output is for diffs, configuration and tables.
func (a *app) note(format string, args ...any) {
	_, _ = fmt.Fprintf(a.ErrOut, format+"\n", args...)
}

func (a *app) printDiff(before, after string) error {
	diff, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(before), FromFile: "a/Corefile",
		B: difflib.SplitLines(after), ToFile: "b/Corefile",
		Context: 3,
	})
	if err != nil {
		return fmt.Errorf("comparing the Corefiles: %w", err)
	}
	_, err = io.WriteString(a.Out, diff)
	return err
}
