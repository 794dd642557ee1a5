package docs

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

// recorder stands in for the programs of docs/eks.md and docs/migration.md, because there is no AWS
// here. It records its arguments, one call a line, fails if one of them lacks its value, and prints
// an answer for the commands whose output the page uses.
const recorder = `#!/bin/bash
program=$(basename "$0")
call=$(printf '\t%s' "$@")
echo "$program$call" >> "$CALLS" # one write: the programs of a pipe run beside each other
for argument in "$@"; do
  case "$argument" in
    "" | *= | *=,*) echo "$program $*: an argument has no value" >&2; exit 1;;
  esac
done
case "$program $*" in
  *--password-stdin*) cat > /dev/null;;
  "kubectl mcs dns enable"*) echo '{}'; grep -q "update-addon.*${!#}" "$CALLS" || exit 3;;
  *"spec.providerID"*) echo "aws:///eu-central-1a/i-$2";;
  *clusterSecurityGroupId*) echo "$4-nodes";;
  *"Subnets["* | *"RouteTables["*) printf 'first-id\tsecond-id\n';;
  "kubectl get serviceexports"*) printf 'shop web\nbilling api\n';;
  *list-namespaces*"Namespaces[0].Arn"*) echo "arn:aws:servicediscovery:eu-central-1:123456789012:namespace/ns-${4##*=}";;
  *list-services*"].Arn"*) echo "arn:aws:servicediscovery:eu-central-1:123456789012:service/srv-${4##*=}";;
  *create-repository*) echo 123456789012.dkr.ecr.example.com/cloud-map-mcs-controller;;
  *"--output text"* | *get-login-password*) echo an-id;;
esac
`

// consoleBlocks returns the commands of the blocks of a page that are fenced as console, without
// the prompts. Blocks that are fenced as sh are not among them.
func consoleBlocks(t *testing.T, text string) string {
	t.Helper()
	if blocks := CommandBlocks(text); len(blocks) > 0 {
		t.Errorf("line %d is in a block fenced as sh: fence it as console, so that the test runs it", blocks[0].Line)
	}
	var script strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "```"):
			inside = strings.TrimSpace(line) == "```console"
		case inside:
			script.WriteString(strings.TrimPrefix(line, "$ "))
		}
	}
	return script.String()
}

// TestEKSPage runs the commands of docs/eks.md, both ways where it has two, and checks the calls
// against the programs and files of this repository.
func TestEKSPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/eks.md"))
	if err != nil {
		t.Fatal(err)
	}
	calls := runWithRecorders(t, consoleBlocks(t, string(text)), "aws", "eksctl", "kubectl", "crane", "make")
	checkRules(t, calls)
	seen, templates := map[string]bool{}, []string(nil)
	for _, call := range calls {
		seen[strings.Join(call[:2], " ")] = true
		if line := strings.Join(call, " "); slices.Contains(call, "create-network-insights-path") && !strings.Contains(line, "--source i-blue --destination i-green") {
			t.Errorf("%s: want a path from a node of blue to one of green", line)
		}
		switch {
		case call[0] == "kubectl" && call[1] == "mcs":
			checkPluginCall(t, call[2:])
		case call[0] == "aws" && call[1] == "cloudformation" && call[2] == "deploy":
			file := call[slices.Index(call, "--template-file")+1]
			templates = append(templates, filepath.Base(file))
			parameters := templateParameters(t, file)
			at := slices.Index(call, "--parameter-overrides")
			for _, override := range call[at+1:] {
				if name, _, _ := strings.Cut(override, "="); parameters[name] == nil {
					t.Errorf("%s has no parameter %q", file, name)
				}
			}
		}
	}
	for _, want := range []string{"eksctl create", "eksctl delete", "aws cloudformation", "kubectl mcs", "crane auth", "make push", "aws servicediscovery"} {
		if !seen[want] {
			t.Errorf("the page never calls %q", want)
		}
	}
	if want := []string{"clusterset.yaml", "cloudformation.yaml", "cloudformation.yaml"}; !slices.Equal(templates, want) {
		t.Errorf("the page makes stacks of %v, want %v: those of the clusters import from that of the clusterset", templates, want)
	}
}

// runWithRecorders runs a script, in a folder with the files of the repository that the page uses,
// and returns the calls.
func runWithRecorders(t *testing.T, script string, programs ...string) (calls [][]string) {
	t.Helper()
	dir, bin := t.TempDir(), t.TempDir()
	for name, from := range map[string]string{"samples": filepath.Join(root, "samples"), "deploy": filepath.Join(root, "deploy"), "bin": bin} {
		from, err := filepath.Abs(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(from, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range programs {
		if err := os.WriteFile(filepath.Join(bin, program), []byte(recorder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	record := filepath.Join(bin, "calls")
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + bin + ":/usr/bin:/bin", "CALLS=" + record}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		calls = append(calls, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		for i, argument := range calls[len(calls)-1] {
			if i > 0 && calls[len(calls)-1][i-1] == "-f" && !strings.Contains(argument, "://") {
				checkManifest(t, filepath.Join(dir, argument))
			}
		}
	}
	return calls
}

// A rule of a security group admits a port of a protocol from a group or the CIDR of a VPC.
type rule struct{ group, source, protocol, port string }

// checkRules checks that each cluster admits the ports of the controller and of the sample from the
// other one, in both ways of the page, and that the clean-up revokes the rules that would keep a
// security group.
func checkRules(t *testing.T, calls [][]string) {
	t.Helper()
	rules := map[string]map[rule]bool{"authorize-security-group-ingress": {}, "revoke-security-group-ingress": {}}
	for _, call := range calls {
		value := func(flag string) string {
			if at := slices.Index(call, flag); at >= 0 {
				return call[at+1]
			}
			return ""
		}
		if known := rules[call[min(2, len(call)-1)]]; known != nil {
			known[rule{value("--group-id"), value("--source-group") + value("--cidr"), value("--protocol"), value("--port")}] = true
		}
	}
	allowed, revoked := map[rule]bool{}, map[rule]bool{}
	for _, port := range portsBetweenClusters(t) {
		protocol, number, _ := strings.Cut(port, ":")
		for group, sources := range map[string][]string{"blue-nodes": {"green-nodes", "10.2.0.0/16"}, "green-nodes": {"blue-nodes", "10.1.0.0/16"}} {
			for _, source := range sources {
				allowed[rule{group, source, protocol, number}] = true
			}
		}
		// the group of green is deleted first, and its rules with it
		revoked[rule{"blue-nodes", "green-nodes", protocol, number}] = true
	}
	if got := rules["authorize-security-group-ingress"]; !maps.Equal(got, allowed) {
		t.Errorf("the page allows %v, want %v", got, allowed)
	}
	if got := rules["revoke-security-group-ingress"]; !maps.Equal(got, revoked) {
		t.Errorf("the clean-up revokes %v, want %v", got, revoked)
	}
}

// portsBetweenClusters returns the ports that the controllers and the pods of the sample receive
// packets of other clusters on.
func portsBetweenClusters(t *testing.T) []string {
	t.Helper()
	options, err := config.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "samples/nginx-service.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var service corev1.Service
	if err := yaml.UnmarshalStrict(data, &service); err != nil {
		t.Fatal(err)
	}
	ports := []string{"udp" + options.PeerNotifications.Bind, "tcp" + options.Serving.Probes}
	for _, port := range service.Spec.Ports {
		ports = append(ports, "tcp:"+port.TargetPort.String())
	}
	return ports
}

// checkManifest checks a file that the page applies. eksctl needs the Region and names that the
// page uses.
func checkManifest(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return
	}
	if !bytes.Contains(data, []byte("eksctl.io")) {
		return
	}
	var cluster struct {
		Metadata struct{ Name, Region string }
	}
	if err := yaml.UnmarshalStrict(data, &map[string]any{}); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	if err := yaml.Unmarshal(data, &cluster); err != nil || cluster.Metadata.Region != "eu-central-1" ||
		cluster.Metadata.Name != "blue" && cluster.Metadata.Name != "green" {
		t.Errorf("%s: cluster %+v, %v; want blue or green in the Region of the page", path, cluster.Metadata, err)
	}
	if bytes.Contains(data, []byte("BLUE_VPC\n")) || bytes.Contains(data, []byte("SUBNET_")) {
		t.Errorf("%s: a placeholder is left:\n%s", path, data)
	}
}

// checkPluginCall checks command and flags against the plugin, and the controller's flags against
// the controller.
func checkPluginCall(t *testing.T, args []string) {
	t.Helper()
	flags := []string(nil)
	if at := slices.Index(args, "--"); at >= 0 {
		args, flags = args[:at], args[at+1:]
	}
	var stderr bytes.Buffer
	streams := genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &bytes.Buffer{}, ErrOut: &stderr}
	if code := cli.Main(t.Context(), append(slices.Clone(args), "--help"), "", streams); code != 0 {
		t.Errorf("kubectl mcs %s: %s", strings.Join(args, " "), stderr.String())
	}
	if _, err := config.Parse(flags); err != nil {
		t.Errorf("flags of the controller: %v", err)
	}
}

func templateParameters(t *testing.T, file string) map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	var template struct{ Parameters map[string]any }
	if err := yaml.Unmarshal(data, &template); err != nil {
		t.Fatal(err)
	}
	return template.Parameters
}
