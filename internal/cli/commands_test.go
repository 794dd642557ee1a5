package cli

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
)

// The scope of a command: objects of one namespace, the whole cluster, or no cluster.
const (
	namespaced  = "namespaced"
	clusterWide = "cluster-wide"
	local       = "local"
)

// commandTable has all commands.
var commandTable = map[string]struct{ scope, args string }{
	"describe":     {namespaced, "web"},
	"diagnose":     {namespaced, "web"},
	"drain":        {namespaced, "web"},
	"export":       {namespaced, "web"},
	"get exports":  {namespaced, ""},
	"get imports":  {namespaced, ""},
	"get services": {namespaced, ""},
	"registry get": {namespaced, "web"},
	"release":      {namespaced, "web"},
	"undrain":      {namespaced, "web"},
	"unexport":     {namespaced, "web"},

	"check":         {clusterWide, ""},
	"dns disable":   {clusterWide, ""},
	"dns enable":    {clusterWide, ""},
	"dns status":    {clusterWide, ""},
	"forget":        {clusterWide, "cls3"},
	"gather":        {clusterWide, ""},
	"get clusters":  {clusterWide, ""},
	"graph":         {clusterWide, ""},
	"install":       {clusterWide, ""},
	"join":          {clusterWide, "--cluster-id=a --clusterset-id=b"},
	"leave":         {clusterWide, "--yes"},
	"registry dump": {clusterWide, ""},
	"registry seal": {clusterWide, ""},
	"status":        {clusterWide, ""},
	"trust":         {clusterWide, "cls3"},
	"ui":            {clusterWide, ""},
	"uninstall":     {clusterWide, "--yes"},

	"dns":      {local, ""},
	"get":      {local, ""},
	"options":  {local, ""},
	"registry": {local, ""},
	"version":  {local, ""},
}

// kubectlFlags are the names of kubectl's flags without those that the plugin has itself.
func kubectlFlags() (names []string) {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags := genericclioptions.NewConfigFlags(false)
	flags.Context, flags.Namespace = nil, nil
	flags.AddFlags(set)
	set.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// runMain runs the plugin and returns what it prints.
func runMain(t *testing.T, line string) (output string, code int) {
	t.Helper()
	var out bytes.Buffer
	code = Main(t.Context(), strings.Fields(line), "v1.2.3", genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out})
	return out.String(), code
}

// TestCommands checks that the flags, the help and the exit code of invalid usage are the same in
// all commands.
func TestCommands(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	_, root := newProgram("v1.2.3", genericiooptions.NewTestIOStreamsDiscard())
	var found []string
	var walk func(prefix string, parent *cobra.Command)
	walk = func(prefix string, parent *cobra.Command) {
		for _, c := range parent.Commands() {
			found = append(found, prefix+c.Name())
			walk(prefix+c.Name()+" ", c)
		}
	}
	walk("", root)
	slices.Sort(found)
	if d := cmp.Diff(slices.Sorted(maps.Keys(commandTable)), found); d != "" {
		t.Fatalf("the table has other commands than the plugin (-table +plugin):\n%s", d)
	}
	for name, row := range commandTable {
		scope := row.scope
		t.Run(name, func(t *testing.T) {
			help, code := runMain(t, name+" --help")
			if code != session.ExitOK {
				t.Errorf("--help: exit code %d", code)
			}
			for _, flag := range kubectlFlags() {
				if strings.Contains(help, "--"+flag+" ") {
					t.Errorf("--help has --%s, a flag of kubectl", flag)
				}
			}
			for text, want := range map[string]bool{
				"kubectl mcs options": true, "--context": true, "--controller-namespace": true, "-n, --namespace ": scope == namespaced, "takes no --namespace": scope == clusterWide,
			} {
				if strings.Contains(help, text) != want {
					t.Errorf("--help has %q: %t, want %t:\n%s", text, !want, want, help)
				}
			}
			for _, line := range []string{name + " -n shop", name + " --namespace=shop"} {
				out, code := runMain(t, line)
				if scope != namespaced && code != session.ExitUsage || scope == clusterWide && !strings.Contains(out, "takes no --namespace") {
					t.Errorf("%s: exit code %d, want %d:\n%s", line, code, session.ExitUsage, out)
				}
			}
			line := strings.TrimSpace(name + " " + row.args)
			if out, code := runMain(t, line+" --context nowhere"); scope == local && code != session.ExitOK || scope != local && (code != session.ExitError || !strings.Contains(out, "Error: ")) {
				t.Errorf("%s with a context that does not exist: exit code %d:\n%s", line, code, out)
			}
			for _, line := range []string{name + " --nonsense", name + " --context", name + " Not.Valid b c d"} {
				if out, code := runMain(t, line); code != session.ExitUsage || !strings.Contains(out, "Error: ") {
					t.Errorf("%s: exit code %d, want %d:\n%s", line, code, session.ExitUsage, out)
				}
			}
		})
	}
}

func TestOptions(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	out, code := runMain(t, "options")
	if code != session.ExitOK {
		t.Errorf("exit code %d", code)
	}
	for _, flag := range kubectlFlags() {
		if !strings.Contains(out, "--"+flag) {
			t.Errorf("options lacks --%s:\n%s", flag, out)
		}
	}
}

func TestUnknownCommands(t *testing.T) {
	for line, want := range map[string]string{
		"exprt web": `unknown command "exprt" for "kubectl mcs": did you mean export? See kubectl mcs --help`,
		"get svc":   `unknown command "svc" for "kubectl mcs get": see kubectl mcs get --help`,
		"dns on":    `unknown command "on" for "kubectl mcs dns": see kubectl mcs dns --help`,
	} {
		if out, code := runMain(t, line); code != session.ExitUsage || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", line, code, session.ExitUsage, want, out)
		}
	}
}

// TestNamespace: the default is the namespace of the context, as with kubectl.
func TestNamespace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	t.Setenv("KUBECONFIG", path)
	config := `{apiVersion: v1, kind: Config, current-context: a, clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}],
  contexts: [{name: a, context: {cluster: none, namespace: shop}}, {name: b, context: {cluster: none, namespace: blog}}, {name: c, context: {cluster: none}}]}`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	for flags, want := range map[string]string{"": "shop", "--context b": "blog", "--context c": "default", "-n x": "x", "--context b --namespace=x": "x", "--context b,a": "blog"} {
		if out, _ := runMain(t, "export web "+flags); !strings.Contains(out, "reading Service "+want+"/web") {
			t.Errorf("export web %s does not read Service %s/web:\n%s", flags, want, out)
		}
	}
	if out, code := runMain(t, "drain -n shop"); code != session.ExitUsage || !strings.Contains(out, "name the Service") {
		t.Errorf("drain of the cluster with a namespace: exit code %d:\n%s", code, out)
	}
}
