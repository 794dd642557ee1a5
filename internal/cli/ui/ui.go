// Package ui has the command ui: a page about the clusterset, for the browser on the user's
// computer.
//
// The page is HTML, CSS and one JavaScript module, embedded in the program. It uses no front-end
// library: a grid, a table and a dialog are elements of HTML, the state is one document that the
// server sends again when it has read the controllers, and a few hundred lines draw it. So there is
// no build step, no dependency to keep patched, and everything that runs in the browser is in this
// directory.
//
// Names of clusters and services are untrusted: members of the clusterset write them into the
// registry. The page sets all of them as text, and its Content-Security-Policy refuses every other
// script, style and destination.
package ui

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/doctor"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// loopback is the only address that the page is served on.
const loopback = "127.0.0.1"

// Command returns the command ui.
func Command(s *session.Session) *cobra.Command {
	var port uint16
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show the clusterset on a page in the browser",
		Long: "Serves a page about the clusterset on a loopback address of this computer until you press Ctrl-C, and prints its URL: clusters with\n" +
			"heartbeats and paths, services with the clusters that export and import them, conflicts, and one service step by step as diagnose\n" +
			"does. The page is updated while it is open. It changes nothing, and loads nothing from the network.",
		Example: "  kubectl mcs ui --context cls1,cls2",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clusters, err := s.Clusters()
			if err != nil {
				return err
			}
			return serve(cmd.Context(), s, clusters, port)
		},
	}
	cmd.Flags().Uint16Var(&port, "port", 0, "TCP port of the page (default: any free port)")
	return cmd
}

// serve serves the page until ctx ends.
func serve(ctx context.Context, s *session.Session, clusters []*session.Cluster, port uint16) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("listening for the browser: %w; choose another --port", err)
	}
	token := rand.Text()
	handler := newHandler(listener.Addr().String(), token, source{
		clusterset: func(ctx context.Context) Clusterset { return readClusterset(ctx, s, clusters) },
		history:    func(ctx context.Context) History { return readHistory(ctx, clusters) },
		diagnose: func(ctx context.Context, key mcs.Key, probe bool) doctor.Diagnosis {
			return doctor.Diagnose(key, doctor.GatherServiceIn(ctx, s, clusters, key, probe))
		},
		interval: interval(clusters[0].PollInterval),
	})
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	// The fragment of a URL is not sent to servers, so it is in no log and no Referer. The program
	// starts no browser: other users of the computer could read the token in the browser's command
	// line.
	s.Printf("http://%s/#token=%s", listener.Addr(), token)
	s.Progressf("Open this URL in a browser of this computer. Press Ctrl-C to end.")
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the page: %w", err)
	}
	return nil
}
