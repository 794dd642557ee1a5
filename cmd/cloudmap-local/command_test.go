package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
)

func TestFlags_Parse(t *testing.T) {
	f := flags{
		accessKeys: []string{"AKID", "AKID2:se/cr+et=", "AKID3:secret:111111111111"},
		limits:     []string{"RegisterInstance=50:100", "ListNamespaces=0.5:5"},
	}
	if err := f.parse(); err != nil {
		t.Fatal(err)
	}
	wantKeys := []cloudmaplocal.AccessKey{
		{ID: "AKID"}, {ID: "AKID2", Secret: "se/cr+et="}, {ID: "AKID3", Secret: "secret", Account: "111111111111"},
	}
	wantLimits := map[string]cloudmaplocal.Limit{
		"RegisterInstance": {PerSecond: 50, Burst: 100}, "ListNamespaces": {PerSecond: 0.5, Burst: 5},
	}
	if diff := cmp.Diff(wantKeys, f.options.AccessKeys); diff != "" {
		t.Errorf("access keys (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantLimits, f.options.Limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

func TestFlags_ConfigFile(t *testing.T) {
	dir := t.TempDir()
	path := dir + "/config.yaml"
	const content = `
accessKeys:
- {id: AKIDTWO, secret: s, account: "222222222222", user: cls2}
roles:
- arn: arn:aws:iam::111111111111:role/registry
  trust: [arn:aws:iam::222222222222:user/cls2]
  externalId: x
  policyFiles: [policy.json]
shares:
- {owner: "111111111111", namespace: mcs.set1, with: ["222222222222"]}
`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	const document = `{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "servicediscovery:Get*", "Resource": "*"}}`
	if err := os.WriteFile(dir+"/policy.json", []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	f := flags{accessKeys: []string{"AKIDONE"}, config: path}
	if err := f.parse(); err != nil {
		t.Fatal(err)
	}
	if n := len(f.options.Roles[0].Policies); n != 1 {
		t.Errorf("%d policies of the role, want 1", n)
	}
	f.options.Roles[0].Policies = nil
	want := cloudmaplocal.Options{
		Limits: map[string]cloudmaplocal.Limit{},
		AccessKeys: []cloudmaplocal.AccessKey{
			{ID: "AKIDONE"}, {ID: "AKIDTWO", Secret: "s", Account: "222222222222", User: "cls2"}},
		Roles: []cloudmaplocal.Role{{
			ARN: "arn:aws:iam::111111111111:role/registry", Trust: []string{"arn:aws:iam::222222222222:user/cls2"}, ExternalID: "x"}},
		Shares: []cloudmaplocal.Share{{Owner: "111111111111", Namespace: "mcs.set1", With: []string{"222222222222"}}},
	}
	if diff := cmp.Diff(want, f.options); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	for content, want := range map[string]string{
		"users: []": "users",
		"accessKeys: [{id: A, policyFiles: [nowhere.json]}]": dir + "/nowhere.json",
		"accessKeys: [{id: A, policyFiles: [config.yaml]}]":  "config.yaml: ",
		"accessKeys: [{id: A, policies: [{Version: x}]}]":    "Version",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := (&flags{config: path}).parse(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want one that contains %q", content, err, want)
		}
	}
}

func TestCommand_RejectsInvalidFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--limit RegisterInstance":          "OPERATION=RATE:BURST",
		"--limit Register=1:1":              "no such operation",
		"--account 1":                       "12 digits",
		"--access-key :secret":              "access key",
		"--listen nowhere:x":                "listening on nowhere:x",
		"--dns-listen nowhere:x":            "--dns-listen",
		"--data-listen nowhere:x":           "--data-listen",
		"--consistency-delay -1s":           "consistencyDelay",
		"--config /nowhere.yaml":            "/nowhere.yaml",
		"--state /dev/null/state.json":      "/dev/null/state.json",
		"--listen 127.0.0.1:0 unused-value": "unknown command",
	} {
		cmd := newCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetErr(io.Discard)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := cmd.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want one that contains %q", args, err, want)
		}
		cancel()
	}
}

func TestListen_AddressInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	address := listener.Addr().String()
	cmd := newCommand()
	cmd.SetArgs([]string{"--listen", address})
	cmd.SetErr(io.Discard)
	err = cmd.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "fuser -k") {
		t.Errorf("error = %v, want one that names %s and how to stop the process there", err, address)
	}
}

// TestServe_RestartKeepsState runs the command with a state file, stops it, and checks that the
// next process has the state.
func TestServe_RestartKeepsState(t *testing.T) {
	state := t.TempDir() + "/state.json"
	first := start(t, "--state", state)
	first.call("CreateHttpNamespace", `{"Name":"demo"}`)
	first.stop()
	second := start(t, "--state", state)
	if got := second.call("ListNamespaces", `{}`); !strings.Contains(got, `"Name":"demo"`) {
		t.Errorf("after the restart: %s", got)
	}
	second.stop()
}

// TestServe_DNS: the command answers DNS where the flag says, and frees the address when it stops.
func TestServe_DNS(t *testing.T) {
	p := start(t, "--dns-listen", "127.0.0.1:0")
	p.call("CreatePrivateDnsNamespace", `{"Name":"demo.example","Vpc":"vpc-1"}`)
	match := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(p.log.String())
	if match == nil {
		t.Fatalf("no address for DNS in the log: %s", p.log.String())
	}
	reply, err := dns.Exchange(new(dns.Msg).SetQuestion("demo.example.", dns.TypeSOA), match[1])
	if err != nil || len(reply.Answer) != 1 {
		t.Errorf("answer %v, error %v", reply, err)
	}
	p.stop()
	listener, err := net.Listen("tcp", match[1])
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
}

// TestServe_DataPlane: under strict hosts, one address answers discovery and the other one the
// rest; --behaviors amends --pessimistic.
func TestServe_DataPlane(t *testing.T) {
	file := t.TempDir() + "/behaviors.json"
	if err := os.WriteFile(file, []byte(`{"operationDelay": "0s", "consistencyDelay": "0s"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "--pessimistic", "--behaviors", file, "--data-listen", "127.0.0.1:0")
	p.call("CreateHttpNamespace", `{"Name":"demo"}`)
	match := regexp.MustCompile(`data plane" address=(\S+)`).FindStringSubmatch(p.log.String())
	if match == nil {
		t.Fatalf("no address in the log: %s", p.log.String())
	}
	id := regexp.MustCompile(`"Id":"([^"]*)"`).FindStringSubmatch(p.call("ListNamespaces", `{}`))[1]
	p.call("CreateService", `{"Name":"web","NamespaceId":"`+id+`"}`)
	p.endpoint = "http://" + match[1]
	p.call("DiscoverInstances", `{"NamespaceName":"demo","ServiceName":"web"}`)
	p.stop()
	listener, err := net.Listen("tcp", match[1])
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
}

// process is a running command.
type process struct {
	t        *testing.T
	log      *lockedBuffer
	endpoint string
	cancel   context.CancelFunc
	done     chan error
}

var endpointInLog = regexp.MustCompile(`endpoint=(\S+)`)

func start(t *testing.T, args ...string) *process {
	t.Helper()
	var log lockedBuffer
	cmd := newCommand()
	cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0"}, args...))
	cmd.SetErr(&log)
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{t: t, log: &log, cancel: cancel, done: make(chan error, 1)}
	go func() { p.done <- cmd.ExecuteContext(ctx) }()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if m := endpointInLog.FindStringSubmatch(log.String()); m != nil {
			p.endpoint = m[1]
			return p
		}
	}
	t.Fatalf("no endpoint after 10s: %s", log.String())
	return nil
}

func (p *process) call(operation, body string) string {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, p.endpoint, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	request.Header.Set("X-Amz-Target", "Route53AutoNaming_v20170314."+operation)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		p.t.Fatalf("%s: %s %s, %v", operation, response.Status, raw, err)
	}
	return string(raw)
}

func (p *process) stop() {
	p.t.Helper()
	p.cancel()
	if err := <-p.done; err != nil {
		p.t.Error(err)
	}
}

// lockedBuffer is written by the command while the test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestEveryFlagIsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/cloudmap-local.md")
	if err != nil {
		t.Fatal(err)
	}
	newCommand().Flags().VisitAll(func(flag *pflag.Flag) {
		if !strings.Contains(string(doc), "| `--"+flag.Name) {
			t.Errorf("docs/cloudmap-local.md has no row for --%s", flag.Name)
		}
	})
}
