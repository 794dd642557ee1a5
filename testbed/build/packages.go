package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
)

// requirement is a command that comes from the distribution, and the Debian package that has it.
type requirement struct{ command, pkg string }

var requirements = []requirement{
	{"runc", "runc"},    // a runc from Go modules lacks libseccomp, and then fails
	{"nft", "nftables"}, // kube-proxy
	{"mount", "mount"},  // kubelet
	// to find the libraries of the tools of the client image, which are the rest of this list
	{"ldd", "libc-bin"},
	{"busybox", "busybox-static"},
	{"dash", "dash"},
	{"nc.openbsd", "netcat-openbsd"},
	{"nslookup", "bind9-dnsutils"},
	{"dig", "bind9-dnsutils"},
	{"curl", "curl"},
}

// iptablesRequirements are the commands of kube-proxy in iptables mode.
var iptablesRequirements = []requirement{{"iptables", "iptables"}, {"conntrack", "conntrack"}}

// lookCommand finds a command also in the directories of root's PATH.
func lookCommand(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.EvalSymlinks(path)
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("command %s is not installed", name)
}

// missingPackages lists the packages of the requirements that find does not find.
func missingPackages(reqs []requirement, find func(string) (string, error)) []string {
	var out []string
	for _, r := range reqs {
		if _, err := find(r.command); err != nil {
			out = append(out, r.pkg)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Packages installs the missing packages of the distribution that kube-proxy in these modes and the
// rest of the testbed need, or returns an error that lists them if it cannot.
func Packages(ctx context.Context, out io.Writer, proxyModes []string) error {
	required := requirements
	if slices.Contains(proxyModes, cluster.ProxyIPTables) {
		required = append(slices.Clip(required), iptablesRequirements...)
	}
	missing := missingPackages(required, lookCommand)
	if len(missing) == 0 {
		return nil
	}
	list := strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("packages are missing and there is no apt-get: install the equivalents of these Debian packages: %s", list)
	}
	if os.Geteuid() != 0 {
		return errors.New("packages are missing: run sudo apt-get install " + list)
	}
	fmt.Fprintf(out, "installing Debian packages: %s\n", list)
	for _, args := range [][]string{
		{"update", "-q"},
		append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("running apt-get %s: %w; the last lines of its output:\n%s", args[0], err, tail(string(output), 10))
		}
	}
	if still := missingPackages(required, lookCommand); len(still) > 0 {
		return errors.New("commands are missing although their packages are installed: " + strings.Join(still, " "))
	}
	return nil
}
