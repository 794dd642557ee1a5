package clusterset

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// Running returns the clusterset on Cloud Map that a previous Up of this checkout, with Sealed, has
// brought up with that many clusters, or nil if there is none that answers.
func Running(ctx context.Context, clusters int, out io.Writer) *Set {
	root, err := repositoryRoot()
	if err != nil {
		return nil
	}
	s := &Set{Root: root, Out: out, Registry: CloudMap, clusters: clusters, sealed: true}
	s.env = append(os.Environ(), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	if _, err := s.daemon(CloudMap).pid(); err != nil {
		return nil // another process may listen there
	}
	if err := s.useTestbed(ctx); err != nil {
		return nil
	}
	for i := range clusters {
		if _, err := s.Kubectl(ctx, clusterName(i), "get", "nodes", "--request-timeout=5s"); err != nil {
			return nil
		}
	}
	resp, err := http.Get(Endpoint + "/healthz")
	if err != nil {
		return nil
	}
	_ = resp.Body.Close()
	return s
}

// Repair writes missing credentials, which are always the same, and loads the image of the product,
// as Up does. Both may be missing if the clusters have been up since before a clean checkout or
// another build.
func (s *Set) Repair(ctx context.Context) error {
	if !s.hasCredentials() {
		if _, err := s.writeCredentials(s.clusters); err != nil {
			return fmt.Errorf("writing the credentials of the clusters: %w", err)
		}
	}
	return s.loadImage(ctx)
}

func (s *Set) hasCredentials() bool {
	for i := range s.clusters {
		if _, err := os.Stat(filepath.Join(s.credentialsDir(), clusterName(i)+".env")); err != nil {
			return false
		}
	}
	return true
}

// WriteEnv writes a file for shells to source: kubectl and kubectl mcs on the PATH, and KUBECONFIG.
func (s *Set) WriteEnv(name string) error {
	var b strings.Builder
	for _, kv := range s.env {
		if name, value, _ := strings.Cut(kv, "="); name == "KUBECONFIG" {
			fmt.Fprintf(&b, "export KUBECONFIG=%q\n", value)
		}
	}
	fmt.Fprintf(&b, "export PATH=%q:$(%q assets):$PATH\n", filepath.Join(s.Root, "bin"), filepath.Join(s.Root, "bin/testbed"))
	return os.WriteFile(filepath.Join(s.Root, name), []byte(b.String()), 0o644)
}
