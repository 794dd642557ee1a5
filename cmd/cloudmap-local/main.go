// Command cloudmap-local is a local server that speaks the AWS Cloud Map API. See
// docs/cloudmap-local.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cloudmap-local:", err)
		os.Exit(1) //nolint:gocritic // the process ends, so stop has no effect
	}
}
