// Package dns has the commands dns enable, disable and status: they edit the Corefile and the
// permissions of the cluster's CoreDNS, restart it, and check that its pods answer for
// clusterset.local. Package coredns decides on the edits.
package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// defaultWait covers a rolling restart of a few CoreDNS pods, image pull included. Without a
// restart, a changed Corefile needs up to about 60 s to reach the pods (the kubelet's sync) and up
// to 45 s until the reload plugin reads it (30 s and 15 s jitter).
const defaultWait = 2 * time.Minute

// options are the flags of dns enable and dns disable.
type options struct {
	clusterDomain string
	dryRun        bool
	force         bool
	noRestart     bool
	wait          time.Duration

	// of dns enable only:
	beside, print bool
	image         string
}

func (o *options) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	addClusterDomainFlag(cmd, &o.clusterDomain)
	flags.BoolVar(&o.dryRun, "dry-run", false, "print the edit of the Corefile as a unified diff, without changing anything")
	flags.BoolVar(&o.force, "force", false, "on EKS: edit the Corefile even though the CoreDNS add-on may overwrite it")
	flags.BoolVar(&o.noRestart, "no-restart", false, "do not restart CoreDNS; its reload plugin reads the Corefile later")
	flags.DurationVar(&o.wait, "wait", defaultWait, "how long to wait until every CoreDNS pod uses the new Corefile; 0 does not wait")
}

func addClusterDomainFlag(cmd *cobra.Command, value *string) {
	cmd.Flags().StringVar(value, "cluster-domain", "", "DNS zone of the cluster's own Services (default: read from the Corefile)")
}

// Command returns the command dns.
func Command(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dns",
		Short: "Enable, disable or check " + coredns.Zone + " in CoreDNS",
		Long: "CoreDNS " + coredns.MinVersion + " and newer resolves <service>.<namespace>.svc." + coredns.Zone + " from ServiceImports. It needs an option in the\n" +
			"Corefile and permission to read ServiceImports. These commands manage both.",
	}
	cmd.AddCommand(enableCommand(s), disableCommand(s), statusCommand(s))
	return cmd
}

func enableCommand(s *session.Session) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "enable",
		Short: "Enable " + coredns.Zone + " in the cluster's CoreDNS",
		Long: "Adds the zone " + coredns.Zone + " and the option \"multicluster " + coredns.Zone + "\" to CoreDNS's kubernetes plugin,\n" +
			"grants CoreDNS permission to read ServiceImports, performs a rolling restart and waits until every pod answers for the zone.\n" +
			"Nothing else in the Corefile changes; \"kubectl mcs dns disable\" restores it byte for byte.\n\n" +
			"With --beside, deploys a second CoreDNS that serves " + coredns.Zone + " and makes the cluster's DNS forward the zone to it. This is for\n" +
			"clusters whose own CoreDNS is older than " + coredns.MinVersion + " (EKS 1.30 to 1.32) or cannot be edited (AKS, EKS Auto Mode, GKE).",
		Args: func(cmd *cobra.Command, args []string) error {
			if !o.beside && (o.print || cmd.Flags().Changed("image")) {
				return errors.New("--print and --image require --beside")
			}
			return cobra.NoArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.beside {
				return runEnableBeside(cmd.Context(), s, o)
			}
			return runEnable(cmd.Context(), s, o)
		},
	}
	o.addFlags(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&o.beside, "beside", false, "deploy a CoreDNS for "+coredns.Zone+" beside the cluster's own, which forwards the zone to it")
	flags.StringVar(&o.image, "image", coredns.BesideImage, "with --beside: the image of CoreDNS")
	flags.BoolVar(&o.print, "print", false, "with --beside: print the manifests for GitOps, without changing anything")
	return cmd
}

func disableCommand(s *session.Session) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "disable",
		Short: "Undo dns enable",
		Long: "Removes the zone and the option from the Corefile, performs a rolling restart of CoreDNS and waits, then deletes the permission\n" +
			"that dns enable granted. After dns enable --beside, removes the server block that forwards the zone, and deletes the second CoreDNS.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			k, err := s.OneCluster()
			if err != nil {
				return err
			}
			return disable(cmd.Context(), s, k, o)
		},
	}
	o.addFlags(cmd)
	return cmd
}

// Disable does what dns disable does without flags.
func Disable(ctx context.Context, s *session.Session, k *session.Cluster) error {
	return disable(ctx, s, k, options{wait: defaultWait})
}

func runEnable(ctx context.Context, s *session.Session, o options) error {
	k, err := s.OneCluster()
	if err != nil {
		return err
	}
	d, err := readClusterDNS(ctx, k, o.clusterDomain)
	if err != nil {
		return err
	}
	c := d.own
	if err := d.validateOwn(); err != nil {
		return err
	}
	edit := func(corefile string) (string, error) { return coredns.Enable(corefile, o.clusterDomain) }
	edited, err := edit(c.corefile())
	if err != nil {
		return err
	}
	printWarnings(s, c, true)
	if o.dryRun {
		s.Progressf("Would create ClusterRole and ClusterRoleBinding %s, which let CoreDNS read ServiceImports.", coredns.RoleName)
		return printDiff(s, c.corefile(), edited)
	}
	granted, err := grantPermission(ctx, k, c.serviceAccount())
	if err != nil {
		return err
	}
	if granted {
		s.Progressf("Applied ClusterRole and ClusterRoleBinding %s: CoreDNS can list and watch ServiceImports.", coredns.RoleName)
	}
	if c.isOnEKS() && !o.force && edited != c.corefile() {
		return printAddOnConfiguration(s, edited)
	}
	written, err := writeCorefile(ctx, k, edit)
	if err != nil {
		return err
	}
	return applyChange(ctx, s, k, c, o, change{edited: written, permission: granted, enable: true})
}

// disable undoes dns enable, with or without --beside.
func disable(ctx context.Context, s *session.Session, k *session.Cluster, o options) error {
	d, err := readClusterDNS(ctx, k, o.clusterDomain)
	switch {
	case err != nil:
		return err
	case d.usesBeside():
		return disableBeside(ctx, s, k, d, o)
	case d.own == nil:
		return errNoCoreDNS
	}
	return disableZone(ctx, s, k, d.own, o)
}

func disableZone(ctx context.Context, s *session.Session, k *session.Cluster, c *coreDNS, o options) error {
	edit := func(corefile string) (string, error) { return coredns.Disable(corefile, o.clusterDomain) }
	edited, err := edit(c.corefile())
	if err != nil {
		return err
	}
	printWarnings(s, c, edited != c.corefile())
	if o.dryRun {
		s.Progressf("Would then delete ClusterRole and ClusterRoleBinding %s.", coredns.RoleName)
		return printDiff(s, c.corefile(), edited)
	}
	if c.isOnEKS() && !o.force && edited != c.corefile() {
		return printAddOnConfiguration(s, edited)
	}
	written, err := writeCorefile(ctx, k, edit)
	if err != nil {
		return err
	}
	// The permission is deleted last: a CoreDNS pod that still has the option must be able to read
	// ServiceImports.
	if err := applyChange(ctx, s, k, c, o, change{edited: written}); err != nil {
		return err
	}
	revoked, err := revokePermission(ctx, k)
	if revoked {
		s.Progressf("Deleted ClusterRole and ClusterRoleBinding %s.", coredns.RoleName)
	}
	return err
}

// A change is a change of the Corefile that CoreDNS has to apply.
type change struct {
	edited     string // the ConfigMap that was edited, or ""
	permission bool   // the permission was granted
	enable     bool   // CoreDNS is to answer for the zone
}

// applyChange restarts CoreDNS if necessary and waits until its pods have applied the change.
func applyChange(ctx context.Context, s *session.Session, k *session.Cluster, c *coreDNS, o options, ch change) error {
	outdated, err := isOutdated(ctx, s, k, c, ch)
	if err != nil {
		return err
	}
	if outdated && o.noRestart && !c.inspection.Reload {
		s.Progressf("The Corefile has no reload plugin: CoreDNS applies the change at its next restart.")
		return nil
	}
	if outdated && !o.noRestart {
		if err := restartDeployment(ctx, k); err != nil {
			return err
		}
		s.Progressf("Restarted Deployment %s/%s (rolling restart).", namespace, name)
	}
	if o.wait <= 0 || !outdated && !ch.permission {
		return nil
	}
	return waitForChange(ctx, s, k, ch.enable, o.wait)
}

// waitForChange waits until every CoreDNS pod has applied the change, and prints the result.
func waitForChange(ctx context.Context, s *session.Session, k *session.Cluster, enable bool, timeout time.Duration) error {
	s.Progressf("Waiting up to %s until every CoreDNS pod has applied the change.", timeout)
	found, err := waitForPods(ctx, k, enable, timeout)
	if err != nil {
		undo := ""
		if enable {
			undo = "; to undo it, run \"kubectl mcs dns disable\""
		}
		return fmt.Errorf("%w\nThe Corefile stays edited. Check again with \"kubectl mcs dns status\"%s", err, undo)
	}
	s.Progressf("Done: %s.", found.describe(enable))
	return nil
}

// isOutdated reports whether CoreDNS runs with another Corefile than that of the ConfigMap: this
// command edited it, or CoreDNS has not applied an earlier edit.
func isOutdated(ctx context.Context, s *session.Session, k *session.Cluster, c *coreDNS, ch change) (bool, error) {
	state := coredns.Disabled
	if ch.enable {
		state = coredns.Enabled
	}
	if ch.edited != "" {
		s.Progressf("Edited ConfigMap %s: %s is %s.", ch.edited, coredns.Zone, state)
		return true, nil
	}
	found, err := probePods(ctx, k, c.deployment)
	if err != nil {
		return false, err
	}
	s.Progressf("%s is already %s in the Corefile: %s.", coredns.Zone, state, found.describe(ch.enable))
	return found.isComplete() && !found.allAgree(ch.enable), nil
}

// printAddOnConfiguration prints the configuration of the EKS add-on, which would overwrite an edit
// of the ConfigMap.
func printAddOnConfiguration(s *session.Session, edited string) error {
	s.Progressf("EKS manages this cluster's CoreDNS and may overwrite the Corefile, so the ConfigMap was not edited.\n" +
		"Standard output has the configuration of the add-on with the new Corefile. Merge it with your configuration\n" +
		"(aws eks describe-addon), save it as coredns.json and apply it:\n" +
		"  aws eks update-addon --cluster-name NAME --addon-name coredns --configuration-values file://coredns.json --resolve-conflicts PRESERVE\n" +
		"Then run this command again: it checks the result. If CoreDNS is not an add-on in this cluster, edit the ConfigMap with --force.")
	if err := session.PrintJSON(s.Out, map[string]string{"corefile": edited}); err != nil {
		return err
	}
	return session.ErrIncomplete
}

// printWarnings prints side effects and risks before anything is changed.
func printWarnings(s *session.Session, c *coreDNS, edits bool) {
	if v := c.versionCheck(); v.Result == check.Warning {
		s.Progressf("Warning: %s; %s.", v.Detail, v.Remedy)
	}
	if edits {
		printOwnerWarning(s, c)
		printRestartWarnings(s, c)
	}
}

// printOwnerWarning prints a warning about another owner of the Corefile.
func printOwnerWarning(s *session.Session, c *coreDNS) {
	if owner := c.ownerWarning(); owner != "" {
		s.Progressf("Warning: %s.", owner)
	}
}

// printRestartWarnings prints side effects of a restart, and what it does not change.
func printRestartWarnings(s *session.Session, c *coreDNS) {
	if c.restartInterrupts() {
		s.Progressf("Warning: the rolling restart may stop all CoreDNS pods at once, and DNS may fail for some seconds. " +
			"Run two or more replicas to avoid this.")
	}
	if c.bypassed != "" {
		s.Progressf("Warning: the node-local DNS cache sends queries for %s to the upstream resolvers: "+docs.URL("dns.md#nodelocal-dnscache")+".", coredns.Zone)
	}
}

func printDiff(s *session.Session, before, after string) error {
	diff, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(before), FromFile: "a/Corefile",
		B: difflib.SplitLines(after), ToFile: "b/Corefile",
		Context: 3,
	})
	if err != nil {
		return fmt.Errorf("comparing the Corefiles: %w", err)
	}
	_, err = io.WriteString(s.Out, session.PrintableLines(diff))
	return err
}
