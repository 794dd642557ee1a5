// Testbed brings real Kubernetes clusters up on this machine and takes them down again. See
// testbed/README.md.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/build"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testbed:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	t := &testbed.Testbed{Out: os.Stderr}
	cmd := &cobra.Command{
		Use:   "testbed",
		Short: "Real Kubernetes clusters on one Linux machine, without Docker and without a registry",
		Long: `Real Kubernetes clusters on one Linux machine, without Docker and without a registry.

Results go to standard output, progress to standard error.`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return complete(t) },
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&t.StateDir, "state-dir", env("TESTBED_STATE", testbed.DefaultStateDir), "where the running testbed keeps kubeconfigs and logs (TESTBED_STATE)")
	flags.StringVar(&t.CacheDir, "cache-dir", os.Getenv("TESTBED_CACHE"), "where built programs and images are kept (TESTBED_CACHE; default below the user's cache directory)")
	flags.StringVar(&t.Source, "source", os.Getenv("TESTBED_SOURCE"), "the testbed's sources (TESTBED_SOURCE; default: found from the working directory)")
	cmd.AddCommand(upCommand(t), downCommand(t), statusCommand(t), kubeconfigCommand(t), loadImageCommand(t), buildCommand(t),
		assetsCommand(t), kubectlCommand(t), execCommand(t), runCommand(t), enforceCommand(t))
	return cmd
}

func env(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// complete fills in the directories that were not given.
func complete(t *testbed.Testbed) (err error) {
	if t.CacheDir == "" {
		if t.CacheDir, err = testbed.DefaultCacheDir(); err != nil {
			return err
		}
	}
	for _, dir := range []*string{&t.StateDir, &t.CacheDir} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return fmt.Errorf("resolving a directory: %w", err)
		}
	}
	return nil
}

// withSource runs do after finding the testbed's sources.
func withSource(t *testbed.Testbed, do func(*cobra.Command) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		if t.Source == "" {
			working, err := os.Getwd()
			if err != nil {
				return fmt.Errorf("finding the working directory: %w", err)
			}
			program, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding this program: %w", err)
			}
			if t.Source, err = build.FindSource(working, filepath.Dir(program)); err != nil {
				return err
			}
		}
		return do(cmd)
	}
}

func upCommand(t *testbed.Testbed) *cobra.Command {
	var cfg cluster.Config
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring clusters up and wait until they are ready (root)",
		Args:  cobra.NoArgs,
		RunE:  withSource(t, func(cmd *cobra.Command) error { return t.Up(cmd.Context(), cfg) }),
	}
	cmd.Flags().IntVar(&cfg.Clusters, "clusters", 2, fmt.Sprintf("number of clusters, 1 to %d", cluster.MaxClusters))
	cmd.Flags().IntVar(&cfg.Nodes, "nodes", 1, fmt.Sprintf("nodes of each cluster, 1 to %d, each in a zone of its own", cluster.MaxNodes))
	cmd.Flags().BoolVar(&cfg.DualStack, "dual-stack", false, "IPv6 besides IPv4")
	softwareFlags(cmd, &cfg)
	return cmd
}

// softwareFlags are the versions and modes of single clusters.
func softwareFlags(cmd *cobra.Command, cfg *cluster.Config) {
	cmd.Flags().StringSliceVar(&cfg.Kubernetes, "kubernetes", nil, "minor version of each cluster's Kubernetes, such as 1.36,1.37 (default: the newest)")
	cmd.Flags().StringSliceVar(&cfg.CoreDNS, "coredns", nil, "minor version of each cluster's CoreDNS, such as 1.12,1.15 (default: the newest)")
	cmd.Flags().StringSliceVar(&cfg.ProxyModes, "proxy-mode", nil, "mode of each cluster's kube-proxy, iptables or nftables (default: nftables)")
}

func downCommand(t *testbed.Testbed) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the clusters without a trace (root)",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return t.Down() },
	}
}

func buildCommand(t *testbed.Testbed) *cobra.Command {
	cfg := cluster.Config{Clusters: cluster.MaxClusters, Nodes: 1}
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build programs and images that are not cached yet",
		Args:  cobra.NoArgs,
		RunE: withSource(t, func(cmd *cobra.Command) error {
			if err := cfg.Validate(); err != nil {
				return err
			}
			return t.Build(cmd.Context(), cfg)
		}),
	}
	softwareFlags(cmd, &cfg)
	return cmd
}

func assetsCommand(t *testbed.Testbed) *cobra.Command {
	return &cobra.Command{
		Use:   "assets",
		Short: "Print a directory with etcd, kube-apiserver and kubectl (for KUBEBUILDER_ASSETS)",
		Args:  cobra.NoArgs,
		RunE: withSource(t, func(cmd *cobra.Command) error {
			dir, err := t.Assets(cmd.Context())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), dir)
			return nil
		}),
	}
}

func kubeconfigCommand(t *testbed.Testbed) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the kubeconfig; its contexts are cls1, cls2, …",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := os.ReadFile(t.Kubeconfig())
			if os.IsNotExist(err) {
				return testbed.ErrNotUp
			}
			if err != nil {
				return fmt.Errorf("reading the kubeconfig: %w", err)
			}
			if !raw {
				text = []byte(t.Kubeconfig() + "\n")
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print its content instead")
	return cmd
}

func loadImageCommand(t *testbed.Testbed) *cobra.Command {
	var only string
	cmd := &cobra.Command{
		Use:   "load-image ARCHIVE...",
		Short: "Import OCI archives into every node (root)",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.LoadImage(cmd.Context(), only, args...)
		},
	}
	cmd.Flags().StringVar(&only, "cluster", "", "only this cluster's nodes")
	return cmd
}

func statusCommand(t *testbed.Testbed) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say what runs",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := t.Status(cmd.Context())
			if err != nil {
				return err
			}
			switch output {
			case "json":
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(status)
			case "":
				printStatus(cmd.OutOrStdout(), status)
				return nil
			default:
				return fmt.Errorf("--output %s: expected json", output)
			}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json for scripts")
	return cmd
}

func printStatus(w io.Writer, s testbed.Status) {
	if len(s.Clusters) == 0 {
		fmt.Fprintln(w, "not up")
		return
	}
	if !s.Up {
		fmt.Fprintln(w, "crashed: testbed up repairs it, testbed down removes it")
	}
	fmt.Fprintf(w, "%s; host %s; kubeconfig %s\n", s.Config, s.HostIP, s.Kubeconfig)
	for _, c := range s.Clusters {
		fmt.Fprintf(w, "%s  %s  API server %s  pods %v  services %v\n", c.Name, c.Server, word(c.Ready, "ready", "NOT READY"), c.PodCIDRs, c.ServiceCIDRs)
		for _, n := range c.Nodes {
			fmt.Fprintf(w, "  %s  %v  %s  %s, pid %d, logs %s\n", n.Name, n.IPs, n.Zone, word(n.Running, "running", "GONE"), n.PID, n.Logs)
		}
	}
}

func word(ok bool, yes, no string) string {
	if ok {
		return yes
	}
	return no
}

func kubectlCommand(t *testbed.Testbed) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [--context cls1] ...",
		Short:              "Run kubectl on the clusters",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			program, err := t.Kubectl()
			if err != nil {
				return err
			}
			if len(args) > 0 && args[0] == "--" {
				args = args[1:]
			}
			if err := os.Setenv("KUBECONFIG", t.Kubeconfig()); err != nil {
				return fmt.Errorf("setting KUBECONFIG: %w", err)
			}
			return replaceBy(append([]string{program}, args...))
		},
	}
}

func execCommand(t *testbed.Testbed) *cobra.Command {
	return &cobra.Command{
		Use:     "exec NODE -- COMMAND...",
		Short:   "Run a command inside a node (root)",
		Example: "  testbed exec cls1-node1 -- nft list ruleset\n  testbed exec cls1-node1 -- pkill kubelet",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			command, err := t.NodeCommand(args[0], args[1:]...)
			if err != nil {
				return err
			}
			return replaceBy(command)
		},
	}
}

func runCommand(t *testbed.Testbed) *cobra.Command {
	return &cobra.Command{
		Use:     "run -- COMMAND...",
		Short:   "Run a command on the host as part of the testbed: testbed down ends it (root)",
		Example: "  testbed run -- cloudmap-local --listen 172.30.0.1:8080",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := t.AddProcess(os.Getpid()); err != nil {
				return err
			}
			return replaceBy(args)
		},
	}
}

func enforceCommand(t *testbed.Testbed) *cobra.Command {
	return &cobra.Command{
		Use:     "enforce",
		Short:   "Enforce the NetworkPolicies of all clusters until it is interrupted (root)",
		Example: "  testbed run -- testbed enforce",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return t.EnforcePolicies(cmd.Context(), func() { fmt.Fprintln(cmd.OutOrStdout(), "enforcing NetworkPolicies") })
		},
	}
}

// replaceBy runs a command instead of this program, so that its terminal, signals and exit code are
// the command's.
func replaceBy(command []string) error {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("finding %s: %w", command[0], err)
	}
	return fmt.Errorf("running %s: %w", path, syscall.Exec(path, command, os.Environ()))
}
