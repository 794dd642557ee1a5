package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// drainTime is the time that requests in progress may take after SIGTERM: the longest needs
// milliseconds.
const drainTime = 5 * time.Second

// flags is the command line as it was typed.
type flags struct {
	listen     string
	dataListen string
	dnsListen  string
	verbose    bool
	accessKeys []string
	limits     []string
	config     string
	options    cloudmaplocal.Options
}

func newCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:           names.CloudMapLocal,
		Short:         "A local server that speaks the AWS Cloud Map API",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.run(cmd.Context(), cmd.ErrOrStderr())
		},
	}
	f.bind(cmd)
	return cmd
}

func (f *flags) bind(cmd *cobra.Command) {
	set, o := cmd.Flags(), &f.options
	set.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address to listen on")
	set.StringVar(&f.dataListen, "data-listen", "", "further address, which counts as a host with the prefix data- (default: none)")
	set.StringVar(&f.dnsListen, "dns-listen", "", "address to answer DNS on, by UDP and TCP, for the DNS namespaces (default: no DNS)")
	set.BoolVar(&f.verbose, "verbose", false, "log each request")
	set.StringVar(&o.StateFile, "state", "", "file that keeps everything over restarts (default: in memory only)")
	set.StringVar(&o.Account, "account", cloudmaplocal.DefaultAccount, "account id that owns what callers create")
	set.StringVar(&o.Region, "region", cloudmaplocal.DefaultRegion, "Region of unsigned requests; signed ones name theirs")
	set.StringArrayVar(&f.accessKeys, "access-key", nil,
		"`ID[:SECRET[:ACCOUNT]]` that may call; repeatable. With a secret, signatures are verified (default: everybody may call)")
	b := &o.Behaviors
	set.Func("behaviors", "`FILE` (JSON or YAML) of behaviors, as cloudmap-probe writes it, which amends the flags before it",
		func(path string) (err error) {
			*b, err = cloudmaplocal.ReadBehaviors(path, *b)
			return err
		})
	set.BoolFunc("pessimistic", "behave in the worst way that is plausible of AWS", func(string) error {
		*b = cloudmaplocal.Pessimistic()
		return nil
	})
	set.DurationVar((*time.Duration)(&b.ConsistencyDelay), "consistency-delay", 0,
		"age of what DiscoverInstances, DiscoverInstancesRevision and ListInstances show; AWS: around 500ms")
	set.DurationVar((*time.Duration)(&b.OperationDelay), "operation-delay", 0, "duration of asynchronous operations; AWS: a second and more")
	set.DurationVar((*time.Duration)(&b.HealthDelay), "health-delay", 0, "time until UpdateInstanceCustomHealthStatus shows; AWS: around 30s")
	set.BoolVar(&o.Unthrottled, "unthrottled", false, "switch off the request quotas")
	set.StringVar(&f.config, "config", "", "`FILE` (YAML or JSON) with further access keys, roles and shared namespaces")
	set.BoolVar(&b.DenyAtOnce, "deny-at-once", false, "deny requests without rights in Route 53 or EC2, instead of accepting them and failing their operations")
	set.StringArrayVar(&f.limits, "limit", nil, "`OPERATION=RATE:BURST`, replaces an operation's request quota; repeatable")
	set.IntVar(&o.NamespaceQuota, "namespaces", 50, "quota of namespaces per account and Region")
	set.IntVar(&o.InstancesPerNamespace, "instances-per-namespace", 2000, "quota of instances per namespace")
}

// run serves until ctx ends.
func (f *flags) run(ctx context.Context, stderr io.Writer) error {
	if err := f.parse(); err != nil {
		return err
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	f.options.Logger = log
	handler, err := cloudmaplocal.New(f.options)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return errors.Join(listenError(f.listen, err), handler.Close())
	}
	stopDNS, err := f.startDNS(handler, log)
	if err != nil {
		return errors.Join(err, listener.Close(), handler.Close())
	}
	stopData, err := f.startDataPlane(handler, log)
	if err != nil {
		return errors.Join(err, stopDNS(), listener.Close(), handler.Close())
	}
	log.Info("listening", "endpoint", "http://"+listener.Addr().String())
	return errors.Join(serve(ctx, listener, handler), stopData(), stopDNS(), handler.Close())
}

// startDataPlane serves the data plane if the flag says where, until stop is called.
func (f *flags) startDataPlane(server *cloudmaplocal.Server, log *slog.Logger) (stop func() error, err error) {
	if f.dataListen == "" {
		return func() error { return nil }, nil
	}
	listener, err := net.Listen("tcp", f.dataListen)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: choose another address with --data-listen: %w", f.dataListen, err)
	}
	log.Info("listening for the data plane", "address", listener.Addr().String())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, server.DataPlane()) }()
	return func() error { cancel(); return <-ended }, nil
}

// startDNS answers DNS if the flag says where, until stop is called.
func (f *flags) startDNS(server *cloudmaplocal.Server, log *slog.Logger) (stop func() error, err error) {
	if f.dnsListen == "" {
		return func() error { return nil }, nil
	}
	listener, err := server.ListenDNS(f.dnsListen)
	if err != nil {
		return nil, fmt.Errorf("%w: choose another address with --dns-listen", err)
	}
	log.Info("listening for DNS", "address", listener.Addr())
	return listener.Close, nil
}

// listenError explains how to free the address if another process listens on it.
func listenError(address string, err error) error {
	if _, port, splitErr := net.SplitHostPort(address); splitErr == nil && errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listening on %s: another process listens there already: stop it (fuser -k %s/tcp) or choose another address with --listen: %w",
			address, port, err)
	}
	return fmt.Errorf("listening on %s: %w", address, err)
}

// serve ends with ctx, after the requests in progress.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return fmt.Errorf("ending the requests in progress: %w", err)
	}
	return nil
}

// parse converts the text of flags and files to options.
func (f *flags) parse() error {
	for _, typed := range f.accessKeys {
		parts := append(strings.SplitN(typed, ":", 3), "", "")
		f.options.AccessKeys = append(f.options.AccessKeys,
			cloudmaplocal.AccessKey{ID: parts[0], Secret: parts[1], Account: parts[2]})
	}
	if f.config != "" {
		config, err := cloudmaplocal.ReadConfig(f.config)
		if err != nil {
			return err
		}
		f.options.AccessKeys = append(f.options.AccessKeys, config.AccessKeys...)
		f.options.Roles, f.options.Shares = config.Roles, config.Shares
	}
	f.options.Limits = map[string]cloudmaplocal.Limit{}
	for _, typed := range f.limits {
		operation, limit, err := parseLimit(typed)
		if err != nil {
			return err
		}
		f.options.Limits[operation] = limit
	}
	return nil
}

// parseLimit reads OPERATION=RATE:BURST.
func parseLimit(typed string) (operation string, limit cloudmaplocal.Limit, err error) {
	operation, numbers, _ := strings.Cut(typed, "=")
	perSecond, burst, _ := strings.Cut(numbers, ":")
	limit.PerSecond, err = strconv.ParseFloat(perSecond, 64)
	if err == nil {
		limit.Burst, err = strconv.Atoi(burst)
	}
	if err != nil {
		err = fmt.Errorf("reading --limit %s: want OPERATION=RATE:BURST, for example RegisterInstance=50:100: %w", typed, err)
	}
	return operation, limit, err
}
