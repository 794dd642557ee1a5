// Package clitest runs commands of kubectl-mcs in tests against fake clusters and compares the
// output with golden files.
package clitest

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/golden"
)

// Commands returns the commands under test.
type Commands func(*session.Session) []*cobra.Command

// Run runs one command line. Clusters are by context, that of the current context under "". It
// returns a transcript, in which lines of standard error begin with "! ", and the exit code.
func Run(t *testing.T, commands Commands, clusters map[string]*session.Cluster, line string) (string, int) {
	t.Helper()
	var out, errOut bytes.Buffer
	args := strings.Fields(line)
	if strings.HasSuffix(line, " ") { // completion of a new word
		args = append(args, "")
	}
	s := &session.Session{
		IOStreams:        genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errOut},
		Version:          Version,
		ContextNamespace: func() (string, error) { return "demo", nil },
		ContextNames:     func() []string { return slices.Sorted(maps.Keys(clusters)) },
		Connect: func(contexts []string) ([]*session.Cluster, error) {
			if len(contexts) == 0 {
				contexts = []string{""}
			}
			var chosen []*session.Cluster
			for _, name := range contexts {
				if clusters[name] == nil {
					return nil, fmt.Errorf("context %q does not exist", name)
				}
				chosen = append(chosen, clusters[name])
			}
			return chosen, nil
		},
	}
	code := s.Run(t.Context(), s.Root(commands(s)...), args)
	var transcript strings.Builder
	fmt.Fprintf(&transcript, "$ kubectl mcs %s\n%s", line, out.String())
	for l := range strings.Lines(errOut.String()) {
		transcript.WriteString("! " + l)
	}
	return transcript.String(), code
}

// A TerminalSession is a sequence of commands. Its transcript is in testdata/<Name>.txt.
type TerminalSession struct {
	Name  string
	Setup func(Clusters)
	Lines []string
}

// RunSessions runs each session on its own clusters and compares the transcripts with the golden
// files.
func RunSessions(t *testing.T, commands Commands, sessions []TerminalSession) {
	t.Helper()
	for _, s := range sessions {
		t.Run(s.Name, func(t *testing.T) {
			clusters := NewClusters()
			if s.Setup != nil {
				s.Setup(clusters)
			}
			connections := clusters.Start(t)
			var got strings.Builder
			for _, line := range s.Lines {
				transcript, code := Run(t, commands, connections, line)
				fmt.Fprintf(&got, "%s[exit %d]\n\n", dropManifests(transcript), code)
			}
			golden.Check(t, filepath.Join("testdata", s.Name+".txt"), got.String())
		})
	}
}

// dropManifests removes most objects of deploy/base from a transcript, so that a change of
// deploy/base does not change the goldens.
func dropManifests(transcript string) string {
	var out strings.Builder
	for l := range strings.Lines(transcript) {
		_, rest, _ := strings.Cut(l, ": ")
		kind, _, _ := strings.Cut(rest, " ")
		listed := strings.HasSuffix(l, " applied\n") || strings.HasSuffix(l, " is deleted\n")
		if !listed || slices.Contains([]string{"Namespace", "CustomResourceDefinition", "Deployment"}, kind) {
			out.WriteString(l)
		}
	}
	return out.String()
}

// pipe connects use with serve.
func pipe(use, serve func(io.ReadWriter) error) error {
	client, server := net.Pipe()
	defer func() { _ = client.Close() }()
	go func() {
		defer func() { _ = server.Close() }()
		_ = serve(server) // use sees the closed connection
	}()
	return use(client)
}
