// Command cloudmap-probe finds out how AWS Cloud Map behaves in an account and Region. See
// docs/aws-behavior.md.
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
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "cloudmap-probe:", err)
		os.Exit(1) //nolint:gocritic // the process ends, so stop has no effect
	}
}
