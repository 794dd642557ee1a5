package docs

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// TestCloudMapLocalPage runs docs/cloudmap-local.md as it is typed, with the AWS CLI and dig. It
// has a network of its own, where the ports of the page are free, and a PID namespace, with whose
// shell the servers end. make e2e runs it, because it needs root and these tools.
func TestCloudMapLocalPage(t *testing.T) {
	if os.Getenv("E2E") == "" {
		t.Skip("set E2E=1 to run the AWS CLI, which is installed if it is missing (root)")
	}
	const page, build = "docs/cloudmap-local.md", "make build\n" // which make e2e has done
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	for _, install := range []error{clusterset.InstallTools(t.Context(), clusterset.CloudMap, t.Output()), clusterset.InstallDig(t.Context(), t.Output())} {
		if install != nil {
			t.Fatal(install)
		}
	}
	dir := t.TempDir()
	bin, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(bin, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	blocks := CommandBlocks(string(text))
	script, found := strings.CutPrefix(blocks[0].Script, build)
	if !found {
		t.Fatalf("the page begins with %q, want %q", script, build)
	}
	blocks[0].Script = script
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", "ip link set lo up\n"+Script(page, blocks))
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	out, err := cmd.CombinedOutput()
	t.Logf("%s printed:\n%s", page, out)
	if err != nil {
		t.Fatal(err)
	}
	if err := Compare(page, blocks, string(out)); err != nil {
		t.Error(err)
	}
}
