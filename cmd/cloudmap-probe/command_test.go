package main

import (
	"bytes"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
)

// probe runs the command in an account without resources, with an answer to its question.
func probe(t *testing.T, server *cloudmaplocal.Server, answer string, args ...string) (out string, err error) {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": "AKIDTEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
	} {
		t.Setenv(name, value)
	}
	listener := httptest.NewServer(server)
	defer listener.Close()
	var printed bytes.Buffer
	cmd := newCommand()
	cmd.SetArgs(append([]string{"--endpoint", listener.URL, "--region", "us-east-1"}, args...))
	cmd.SetIn(strings.NewReader(answer))
	cmd.SetOut(&printed)
	err = cmd.ExecuteContext(t.Context())
	return printed.String(), err
}

func newServer(t *testing.T) *cloudmaplocal.Server {
	t.Helper()
	server, err := cloudmaplocal.New(cloudmaplocal.Options{
		Behaviors: cloudmaplocal.Behaviors{StrictHosts: true}, AccessKeys: []cloudmaplocal.AccessKey{{ID: "AKIDTEST", Secret: "secret"}}})
	if err != nil {
		t.Fatal(err)
	}
	return server
}

// TestCommand_Asks: without y it creates nothing and writes no report, but says what it would cost.
func TestCommand_Asks(t *testing.T) {
	server, dir := newServer(t), t.TempDir()
	out, err := probe(t, server, "n\n", "--output", dir)
	if err == nil || !strings.Contains(err.Error(), "nothing was done") {
		t.Errorf("error = %v", err)
	}
	if !strings.Contains(out, "requests ($0.00") || !strings.Contains(out, "Begin?") {
		t.Errorf("printed %q", out)
	}
	if n := server.Requests()["CreateHttpNamespace"]; n != 0 {
		t.Errorf("%d namespaces", n)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("%v, %v", files, err)
	}
}

// TestCommand runs it over a network, with signatures and the names of AWS's hosts. It takes some
// 20 seconds.
func TestCommand(t *testing.T) {
	if testing.Short() {
		t.Skip("CI runs the probes in virtual time: NIGHTLY=1 runs this one too")
	}
	dir := t.TempDir()
	out, err := probe(t, newServer(t), "", "--yes", "--output", dir+"/new")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found, err := cloudmaplocal.ReadBehaviors(dir+"/new/behaviors.json", cloudmaplocal.Behaviors{})
	if err != nil || !found.StrictHosts {
		t.Errorf("%+v, %v", found, err)
	}
	report, err := os.ReadFile(dir + "/new/report.md")
	if err != nil || !bytes.Contains(report, []byte("not AWS")) || !bytes.Contains(report, []byte("skipped: needs --vpc")) {
		t.Errorf("%s, %v", report, err)
	}
}

func TestCommand_Errors(t *testing.T) {
	for args, want := range map[string]string{
		"--endpoint nowhere":   "expected a URL such as http://127.0.0.1:8080",
		"--output /dev/null/x": "/dev/null",
		"--role x":             "nothing was done",
		"more":                 "unknown command",
	} {
		if _, err := probe(t, newServer(t), "", strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want one that contains %q", args, err, want)
		}
	}
	if _, err := probe(t, newServer(t), "", "--sweep"); err != nil {
		t.Errorf("nothing to sweep: %v", err)
	}
}

func TestEveryFlagIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/aws-behavior.md")
	if err != nil {
		t.Fatal(err)
	}
	newCommand().Flags().VisitAll(func(flag *pflag.Flag) {
		if !strings.Contains(string(doc), "| `--"+flag.Name) {
			t.Errorf("docs/aws-behavior.md has no row for --%s", flag.Name)
		}
	})
}
