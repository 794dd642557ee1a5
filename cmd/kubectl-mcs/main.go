// The kubectl plugin: `kubectl mcs …` when the binary kubectl-mcs is on the PATH.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	code := cli.Main(ctx, os.Args[1:], config.Version, streams)
	stop()
	os.Exit(code)
}
