// Command release makes a release and publishes it (RELEASE.md):
//
//	release build -version v0.1.0                 writes dist/release
//	release sign -key cosign.key                  signs its checksums; without -key keyless, in CI
//	release publish -to ghcr.io/cloud-map-mcs     pushes images and chart, signs them, and attaches SBOMs and provenance
//
// The same commit gives the same files, except for signatures. It runs helm, crane and cosign,
// which make puts into bin.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("expected build, sign or publish")
	}
	flags := flag.NewFlagSet("release "+args[0], flag.ContinueOnError)
	var o options
	flags.StringVar(&o.version, "version", "", "version of the release, such as v0.1.0")
	flags.StringVar(&o.out, "out", "dist/release", "folder of the release")
	flags.StringVar(&o.platforms, "platforms", "", "platforms of a rehearsal, such as linux/amd64; the default is all")
	flags.StringVar(&o.key, "key", "", "private key of cosign; without it cosign signs keyless")
	flags.StringVar(&o.to, "to", repository, "where publish pushes: registry and path")
	flags.BoolVar(&o.insecure, "insecure", false, "the registry of -to has no TLS")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "build":
		return o.build()
	case "sign":
		return o.signChecksums()
	case "publish":
		return o.publish()
	}
	return fmt.Errorf("unknown command %q: expected build, sign or publish", args[0])
}

// options are the flags.
type options struct {
	version, out, platforms, key, to string
	insecure                         bool
}

// semver is a version with a leading v, as krew and Helm require it.
var semver = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// source is the commit that a release is made from.
type source struct {
	commit string
	// date is the commit's time, which all files have.
	date time.Time
}

// readSource returns the commit of the working tree. With uncommitted changes the commit is marked,
// as a rehearsal.
func readSource() (source, error) {
	out, err := output("git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return source{}, err
	}
	changed, err := output("git", "status", "--porcelain")
	if err != nil {
		return source{}, err
	}
	commit, seconds, _ := strings.Cut(strings.TrimSpace(out), " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return source{}, fmt.Errorf("reading the time of commit %s: %w", commit, err)
	}
	if changed != "" {
		fmt.Fprintln(os.Stderr, "release: the working tree has uncommitted changes: no other machine can make this release")
		commit += "-dirty"
	}
	return source{commit: commit, date: time.Unix(unix, 0).UTC()}, nil
}

// command returns a command that finds the tools in bin.
func command(name string, args ...string) *exec.Cmd {
	if path, err := filepath.Abs(filepath.Join("bin", name)); err == nil {
		if _, err := os.Stat(path); err == nil {
			name = path
		}
	}
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	return cmd
}

// execute runs a command with further environment variables, and prints its output.
func execute(env []string, name string, args ...string) error {
	cmd := command(name, args...)
	cmd.Env, cmd.Stdout = append(os.Environ(), env...), os.Stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running %s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

// output runs a command and returns its standard output.
func output(name string, args ...string) (string, error) {
	out, err := command(name, args...).Output()
	if err != nil {
		return "", fmt.Errorf("running %s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), nil
}
