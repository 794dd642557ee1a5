// Command controller is the Cloud Map MCS Controller. It makes Services that one cluster of a
// clusterset exports available in all of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	_ "golang.org/x/crypto/x509roots/fallback" // the image has no root certificates
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

func main() {
	os.Exit(start(os.Args[1:]))
}

// start runs the command and returns its exit code: 0 after a signal, 1 if the controller failed, 2
// if the flags are invalid.
func start(args []string) int {
	if len(args) > 0 && args[0] == probeCommand {
		return probe(args[1:], os.Stdout)
	}
	options, err := config.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 2
	case options.ShowVersion:
		fmt.Println(config.VersionText())
		return 0
	}
	log := options.Log.Logger(os.Stderr)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, options, log); err != nil {
		log.Error(err, "Failed to run the controller")
		return 1
	}
	return 0
}

// setLoggers makes the libraries write to log. The standard library's HTTP server logs each failed
// TLS handshake, which every pod can cause: debug.
func setLoggers(log logr.Logger) {
	ctrllog.SetLogger(log)
	klog.SetLogger(log)
	slog.SetLogLoggerLevel(-1) // logr's V(1)
	slog.SetDefault(slog.New(logr.ToSlogHandler(log)))
}

func run(ctx context.Context, options config.Options, log logr.Logger) error {
	setLoggers(log)
	cfg, err := options.Kubernetes.RESTConfig()
	if err != nil {
		return err
	}
	registryMetrics, err := registry.NewMetrics(metrics.Registry)
	if err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	kube, err := client.New(cfg, client.Options{})
	if err != nil {
		return fmt.Errorf("creating a Kubernetes client: %w", err)
	}
	tracer, err := newTracer(ctx, options.Tracing, log)
	if err != nil {
		return err
	}
	budgets := newBudgets(options)
	newRegistry, err := newRegistry(ctx, options, dependencies{
		metrics: registryMetrics, tracer: tracer, log: log, kube: kube, namespace: options.Election.OwnNamespace(), budgets: budgets,
	})
	if err != nil {
		return err
	}
	defer closeTracer(tracer, log)
	return controller.Run(ctx, cfg, controller.Setup{
		Options:         options,
		NewRegistry:     newRegistry,
		Registerer:      metrics.Registry,
		RegistryMetrics: registryMetrics,
		Namespaces:      budgets.namespaces,
		Tracer:          tracer,
		Logger:          log,
	})
}
