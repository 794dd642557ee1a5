package build

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// progress reads the output of `go build -v`: it counts the packages and keeps everything else,
// which is errors.
type progress struct {
	mu sync.Mutex
	// packages to compile, false once they were; nil until all modules are there
	stale   map[string]bool
	started int
	line    []byte // incomplete
	errors  bytes.Buffer
}

// expect sets the packages to compile.
func (p *progress) expect(stale []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stale = map[string]bool{}
	for _, name := range stale {
		p.stale[name] = true
	}
}

// Write takes the next part of the output.
func (p *progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = append(p.line, text...)
	for {
		line, rest, complete := bytes.Cut(p.line, []byte("\n"))
		if !complete {
			return len(text), nil
		}
		if name := string(line); p.stale[name] {
			p.stale[name] = false
			p.started++
		} else {
			p.errors.Write(line)
			p.errors.WriteByte('\n')
		}
		p.line = rest
	}
}

// String returns how much is done.
func (p *progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stale == nil {
		return "downloading modules"
	}
	return fmt.Sprintf("%d of %d packages", p.started, len(p.stale))
}

// output returns everything but the names of packages.
func (p *progress) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.errors.String() + string(p.line)
}

// stalePackages returns the packages that a build with these flags compiles.
func stalePackages(ctx context.Context, dir string, flags, packages []string) ([]string, error) {
	args := append([]string{"list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"}, flags...)
	cmd := goCommand(ctx, dir, append(args, packages...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages: %w; the last lines of its output:\n%s", err, tail(stderr.String(), 15))
	}
	return strings.Fields(string(out)), nil
}

// goCommand returns a command of the Go toolchain for a module, for static Linux binaries.
func goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Clean(dir)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOWORK=off")
	return cmd
}
