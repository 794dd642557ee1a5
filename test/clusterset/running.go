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

// Running returns the clusterset on Cloud Map that a previous Up of this checkout has brought up, or nil if there is
// none that answers.
func Running(ctx context.Context, out io.Writer) *Set {
	root, err := repositoryRoot()
	if err != nil {
		return nil
	}
	s := &Set{Root: root, Out: out, Registry: CloudMap}
	s.env = append(os.Environ(), "PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	if _, err := s.daemon(CloudMap).pid(); err != nil {
		return nil // another process may listen there
	}
	if err := s.useTestbed(ctx); err != nil {
		return nil
	}
	for _, cluster := range []string{"cls1", "cls2"} {
		if _, err := s.Kubectl(ctx, cluster, "get", "nodes", "--request-timeout=5s"); err != nil {
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
