package ui

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/clitest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/doctor"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/show"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

const testToken = "TOKEN"

func TestGuard(t *testing.T) {
	tests := map[string]struct {
		method, host, path string
		header             map[string]string
		want               int
	}{
		"the page":                        {},
		"the page by localhost":           {host: "localhost:1234"},
		"the page, typed by the user":     {header: map[string]string{"Sec-Fetch-Site": "none"}},
		"data":                            {path: pathClusterset, header: map[string]string{"Authorization": "Bearer TOKEN", "Sec-Fetch-Site": "same-origin"}},
		"data of the page's origin":       {path: pathClusterset, header: map[string]string{"Authorization": "Bearer TOKEN", "Origin": "http://127.0.0.1:1234"}},
		"data without token":              {path: pathClusterset, want: http.StatusUnauthorized},
		"data with another token":         {path: pathEvents, header: map[string]string{"Authorization": "Bearer TOKEM"}, want: http.StatusUnauthorized},
		"data with a part of the token":   {path: pathEvents, header: map[string]string{"Authorization": "Bearer TOKE"}, want: http.StatusUnauthorized},
		"data with the token in the path": {path: pathEvents + "?token=TOKEN", want: http.StatusUnauthorized},
		"a path of data that has no data": {path: pathData + "other", want: http.StatusUnauthorized},
		"another host":                    {host: "attacker.example:1234", want: http.StatusForbidden},
		"another port":                    {host: "127.0.0.1:1235", want: http.StatusForbidden},
		"no port":                         {host: "127.0.0.1", want: http.StatusForbidden},
		"another loopback address":        {host: "127.0.0.2:1234", want: http.StatusForbidden},
		"another origin":                  {path: pathClusterset, header: map[string]string{"Authorization": "Bearer TOKEN", "Origin": "http://attacker.example"}, want: http.StatusForbidden},
		"another server of this computer": {header: map[string]string{"Origin": "http://127.0.0.1:80"}, want: http.StatusForbidden},
		"no origin":                       {header: map[string]string{"Origin": "null"}, want: http.StatusForbidden},
		"a request of another site":       {header: map[string]string{"Sec-Fetch-Site": "cross-site"}, want: http.StatusForbidden},
		"a request of the same site":      {header: map[string]string{"Sec-Fetch-Site": "same-site"}, want: http.StatusForbidden},
		"POST":                            {method: http.MethodPost, want: http.StatusMethodNotAllowed},
		"OPTIONS":                         {method: http.MethodOptions, path: pathClusterset, want: http.StatusMethodNotAllowed},
	}
	handler := newHandler("127.0.0.1:1234", testToken, source{clusterset: func(context.Context) Clusterset { return three().clusterset() }})
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			method, path, host, want := tt.method, tt.path, tt.host, tt.want
			if method == "" {
				method = http.MethodGet
			}
			if path == "" {
				path = "/"
			}
			if host == "" {
				host = "127.0.0.1:1234"
			}
			if want == 0 {
				want = http.StatusOK
			}
			r := httptest.NewRequestWithContext(t.Context(), method, "http://"+host+path, nil)
			for k, v := range tt.header {
				r.Header.Set(k, v)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("status %d, want %d: %s", w.Code, want, w.Body)
			}
			if w.Header().Get("Content-Security-Policy") != policy || w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("headers %v", w.Header())
			}
			if w.Code != http.StatusOK && strings.Contains(w.Body.String(), "frankfurt") {
				t.Errorf("a refused request has data: %s", w.Body)
			}
		})
	}
}

// The files of the page refer to no other server, have no script or style within HTML, and do not
// interpret text as HTML or code.
func TestPageIsSelfContained(t *testing.T) {
	for _, name := range []string{"index.html", "app.js", "dom.js", "history.js", "map.js", "style.css", "icon.svg"} {
		text, err := page.ReadFile("page/" + name)
		if err != nil {
			t.Fatal(err)
		}
		rest := bytes.ReplaceAll(text, []byte(`xmlns="http://www.w3.org/2000/svg"`), nil)
		// the pages that a remedy may link, which load nothing before the user selects one
		rest = bytes.ReplaceAll(rest, []byte(`https:\/\/github\.com\/cloud-map-mcs\/cloud-map-mcs-controller\/blob\/`), nil)
		for _, forbidden := range []string{"http:", "https:", "//cdn", "<style", " style=", "onclick=", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "@import", "url("} {
			if bytes.Contains(rest, []byte(forbidden)) {
				t.Errorf("%s has %q", name, forbidden)
			}
		}
	}
}

func TestPause(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{0: 2 * time.Second, 100 * time.Millisecond: 2 * time.Second, time.Second: 9 * time.Second} {
		if got := pause(2*time.Second, took); got != want {
			t.Errorf("after a reading of %s it waits for %s, want %s", took, got, want)
		}
	}
}

// Several pages cause one reading, and a page that is closed while it reads leaves no document.
func TestFeed(t *testing.T) {
	reads := 0
	f := &feed{interval: time.Hour, read: func(context.Context) Clusterset {
		reads++
		return Clusterset{Problems: []show.Problem{}}
	}}
	closed, cancel := context.WithCancel(t.Context())
	cancel()
	if text, _, err := f.latest(closed); err == nil || text != nil {
		t.Errorf("a closed page has %s, %v", text, err)
	}
	for range 3 {
		text, wait, err := f.latest(t.Context())
		if err != nil || !json.Valid(text) || wait <= 0 || wait > time.Hour {
			t.Errorf("got %s, %s, %v", text, wait, err)
		}
	}
	if reads != 2 {
		t.Errorf("%d readings, want one of the closed page and one of the others", reads)
	}
}

// A changingSource serves a clusterset that a test changes.
type changingSource struct {
	mu    sync.Mutex
	fleet *fleet
}

func (c *changingSource) change(change func(*fleet)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c.fleet)
}

// start serves the fleet and returns the address.
func (c *changingSource) start(t *testing.T) string {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.Config.Handler = newHandler(server.Listener.Addr().String(), testToken, source{
		interval: 100 * time.Millisecond,
		clusterset: func(context.Context) Clusterset {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.fleet.clusterset()
		},
		history: func(context.Context) History {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.fleet.history()
		},
		diagnose: func(_ context.Context, key mcs.Key, probe bool) doctor.Diagnosis { return diagnosis(key, probe) },
	})
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

// request requests a path with the token.
func request(t *testing.T, url string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+testToken)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestEvents(t *testing.T) {
	c := &changingSource{fleet: three()}
	resp := request(t, c.start(t)+pathEvents)
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("content type %s", got)
	}
	lines := bufio.NewReader(resp.Body)
	next := func() Clusterset {
		var text strings.Builder
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if line == "\n" {
				break
			}
			data, ok := strings.CutPrefix(line, "data: ")
			if !ok {
				t.Fatalf("line %q", line)
			}
			text.WriteString(data)
		}
		var document Clusterset
		if err := json.Unmarshal([]byte(text.String()), &document); err != nil {
			t.Fatal(err)
		}
		return document
	}
	if d := cmp.Diff(three().clusterset(), next(), cmpopts.IgnoreUnexported(show.Problem{})); d != "" {
		t.Errorf("the first event (-want +got):\n%s", d)
	}
	c.change(func(f *fleet) { f.members[0].Stale = true })
	for next().Clusters[1].State != "stale" { // the cluster frankfurt
	}
}

func TestDiagnose(t *testing.T) {
	url := (&changingSource{fleet: three()}).start(t)
	for path, want := range map[string]int{
		"shop/cart": http.StatusOK, "shop/cart?probe=true": http.StatusOK, "shop/..%2f..%2fstatus": http.StatusBadRequest, "Shop/cart": http.StatusBadRequest,
		"shop/a%0ab": http.StatusBadRequest, "shop": http.StatusNotFound,
	} {
		resp := request(t, url+pathDiagnose+path)
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: status %d, want %d: %s", path, resp.StatusCode, want, body)
		}
		if isProbe := strings.Contains(string(body), "DNS answer"); isProbe != strings.Contains(path, "probe") {
			t.Errorf("%s: %s", path, body)
		}
	}
}

// TestCommand runs the command on clusters and compares its JSON with that of the other commands.
func TestCommand(t *testing.T) {
	clusters := clitest.NewClusters()
	clitest.ExportWeb(clusters)
	clusters["cls2"].ControllerStatus.Members[0].Stale = true
	connections := clusters.Start(t)
	out, printed := io.Pipe()
	var errOut bytes.Buffer
	s := &session.Session{
		IOStreams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: printed, ErrOut: &errOut}, Version: "v1.2.3",
		Connect: func(contexts []string) (chosen []*session.Cluster, err error) {
			for _, name := range contexts {
				chosen = append(chosen, connections[name])
			}
			return chosen, nil
		},
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() { ended <- s.Run(ctx, s.Root(Command(s)), []string{"ui", "--context", "cls1,cls2"}) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url, token, found := strings.Cut(strings.TrimSpace(line), "/#token=")
	if !found || !strings.HasPrefix(url, "http://127.0.0.1:") || len(token) < 26 {
		t.Fatalf("it prints %q", line)
	}
	get := func(path string) (document map[string]any) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&document); err != nil {
			t.Fatal(err)
		}
		return document
	}
	document := get(pathClusterset)
	for part, line := range map[string]string{"status": "status", "clusters": "get clusters", "services": "get services -A"} {
		if d := cmp.Diff(printedJSON(t, show.Commands, connections, line), document[part]); d != "" {
			t.Errorf("%q differs from kubectl mcs %s -o json (-command +page):\n%s", part, line, d)
		}
	}
	wantProblems := []any{map[string]any{
		"context": "cls2", "clusterSetID": "set1", "cluster": "cls1",
		"text": "member cls1 is stale: its last heartbeat was 2s ago", "remedy": "if it does not exist any more, run kubectl mcs forget cls1",
	}}
	if d := cmp.Diff(any(wantProblems), document["problems"]); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
	for path, line := range map[string]string{"demo/web": "diagnose web --no-probe", "demo/web?probe=true": "diagnose web"} {
		var got any = get(pathDiagnose + path)
		if d := cmp.Diff(printedJSON(t, doctor.Commands, connections, line), got); d != "" {
			t.Errorf("the diagnosis differs from kubectl mcs %s -o json (-command +page):\n%s", line, d)
		}
	}
	stop()
	if code := <-ended; code != session.ExitOK {
		t.Errorf("exit code %d: %s", code, errOut.String())
	}
}

// printedJSON returns what a command prints with -o json.
func printedJSON(t *testing.T, commands func(*session.Session) []*cobra.Command, connections map[string]*session.Cluster, line string) (value any) {
	t.Helper()
	transcript, _ := clitest.Run(t, commands, connections, line+" -o json --context cls1,cls2")
	_, text, _ := strings.Cut(transcript, "\n")
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %s", err, transcript)
	}
	return value
}

// kinds records the kinds of objects that a command reads.
type kinds struct {
	client.Client
	mu   *sync.Mutex
	read map[string]bool
}

func (k kinds) record(verb string, object any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.read[fmt.Sprintf("%s %T", verb, object)] = true
}

func (k kinds) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	k.record("get", into)
	return k.Client.Get(ctx, key, into, opts...)
}

func (k kinds) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	k.record("list", into)
	return k.Client.List(ctx, into, opts...)
}

// The page needs the permissions of status: it reads the controller's pods and its Lease, and
// connects to the status port.
func TestReadClusterset_Permissions(t *testing.T) {
	clusters := clitest.NewClusters()
	clitest.ExportWeb(clusters)
	k := *clusters.Start(t)["cls1"]
	recorder := kinds{mu: &sync.Mutex{}, read: map[string]bool{}}
	objects := k.Objects
	k.Objects = func() (client.Client, error) {
		var err error
		recorder.Client, err = objects()
		return recorder, err
	}
	s := &session.Session{ControllerNamespace: session.DefaultNamespace}
	if c := readClusterset(t.Context(), s, []*session.Cluster{&k}); len(c.Problems) != 0 || len(c.Services) != 1 {
		t.Errorf("got %+v", c)
	}
	if d := cmp.Diff(map[string]bool{"get *v1.Lease": true, "list *v1.PodList": true}, recorder.read); d != "" {
		t.Errorf("it reads (-want +got):\n%s", d)
	}
}

// A controller that does not respond, and a standby, are problems of the document.
func TestReadClusterset(t *testing.T) {
	clusters := clitest.NewClusters()
	clitest.ExportWeb(clusters)
	clusters["cls1"].Unreachable = true
	connections := clusters.Start(t)
	s := &session.Session{ControllerNamespace: session.DefaultNamespace}
	got := readClusterset(t.Context(), s, []*session.Cluster{connections["cls1"], connections["cls2"]})
	if len(got.Problems) != 1 || !strings.Contains(got.Problems[0].Text, "connection refused") || len(got.Clusters) != 2 || len(got.Services) != 1 {
		t.Errorf("got %+v", got)
	}
	check := "find the reason: kubectl mcs check --context "
	want := []show.Problem{{Context: "cls1", Text: got.Problems[0].Text, Remedy: check + "cls1"}, {Context: "cls2", Text: "cls2: no answer", Remedy: check + "cls2"}}
	lists := []show.ContextServices{{Context: "cls1"}, {Context: "cls2", Problem: "no answer"}}
	isJoint := cmpopts.IgnoreUnexported(show.Problem{})
	if d := cmp.Diff(want, newClusterset(today, got.Status, lists).Problems, isJoint); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
	got.Status[1].Status.DNS = &status.DNS{State: status.DNSNotServed, Problem: "no such host"}
	want = slices.Insert(want, 1, show.Problem{Context: "cls2", Text: "cls2: no such host", Remedy: check + "cls2"})
	if d := cmp.Diff(want, newClusterset(today, got.Status, lists).Problems, isJoint); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}
