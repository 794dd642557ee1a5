package ui

import (
	"bytes"
	"context"
	"crypto/subtle"
	"embed"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/doctor"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

//go:embed page
var page embed.FS

// A source has the data of the page.
type source struct {
	clusterset func(context.Context) Clusterset
	history    func(context.Context) History
	diagnose   func(ctx context.Context, key mcs.Key, probe bool) doctor.Diagnosis
	// interval is the shortest time between two readings.
	interval time.Duration
}

// The paths of the data. They require the token; the files of the page contain no data.
const (
	pathData       = "/api/"
	pathClusterset = pathData + "clusterset"
	pathEvents     = pathData + "events"
	pathHistory    = pathData + "history"
	pathDiagnose   = pathData + "diagnose/"
)

// policy allows what the page consists of and nothing else. Trusted Types make the browser refuse
// text that is set as HTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// newHandler returns the handler of a server that listens on address, a loopback address with its
// port.
func newHandler(address, token string, data source) http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the directory is embedded
	}
	f := &feed{read: data.clusterset, interval: data.interval}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET "+pathClusterset, func(w http.ResponseWriter, r *http.Request) { writeClusterset(w, r, f) })
	mux.HandleFunc("GET "+pathEvents, func(w http.ResponseWriter, r *http.Request) { writeEvents(w, r, f) })
	mux.HandleFunc("GET "+pathHistory, func(w http.ResponseWriter, r *http.Request) { writeJSON(w, data.history(r.Context())) })
	mux.HandleFunc("GET "+pathDiagnose+"{namespace}/{name}", func(w http.ResponseWriter, r *http.Request) { writeDiagnosis(w, r, data) })
	g := newGuard(address, token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
		} {
			w.Header().Set(name, value)
		}
		if code, reason := g.refuse(r); code != 0 {
			http.Error(w, reason, code)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// A guard decides which requests are served.
type guard struct {
	hosts []string
	token string
}

// newGuard returns the guard of a server on address.
func newGuard(address, token string) guard {
	port := address[strings.LastIndex(address, ":"):]
	return guard{hosts: []string{address, "localhost" + port}, token: token}
}

// refuse returns the status code and the reason for which a request is refused, or 0.
func (g guard) refuse(r *http.Request) (int, string) {
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	switch {
	case r.Method != http.MethodGet:
		return http.StatusMethodNotAllowed, "this server only answers GET"
	// a page of another site whose name was changed to resolve to this computer (DNS rebinding)
	case !slices.Contains(g.hosts, r.Host):
		return http.StatusForbidden, "this server only answers requests to " + strings.Join(g.hosts, " and ")
	case origin != "" && origin != "http://"+r.Host, site != "" && site != "same-origin" && site != "none":
		return http.StatusForbidden, "this server does not answer requests of other sites: open the URL that kubectl mcs ui printed"
	case strings.HasPrefix(r.URL.Path, pathData) && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+g.token)) != 1:
		return http.StatusUnauthorized, "the token is not valid: open the URL that kubectl mcs ui printed"
	}
	return 0, ""
}

func writeClusterset(w http.ResponseWriter, r *http.Request, f *feed) {
	text, _, err := f.latest(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // an error means that the browser has closed the connection
}

// writeEvents sends the document each time that it was read, until the browser closes the
// connection.
func writeEvents(w http.ResponseWriter, r *http.Request, f *feed) {
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		text, wait, err := f.latest(r.Context())
		if err != nil {
			return
		}
		event := slices.Concat([]byte("data: "), bytes.ReplaceAll(bytes.TrimSpace(text), []byte("\n"), []byte("\ndata: ")), []byte("\n\n"))
		if _, err := w.Write(event); err != nil {
			return
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
			return
		}
	}
}

func writeDiagnosis(w http.ResponseWriter, r *http.Request, data source) {
	key := mcs.Key{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	if len(validation.IsDNS1123Label(key.Namespace))+len(validation.IsDNS1123Label(key.Name)) > 0 {
		http.Error(w, "the namespace or the name of the Service is not valid", http.StatusBadRequest)
		return
	}
	writeJSON(w, data.diagnose(r.Context(), key, r.URL.Query().Get("probe") == "true"))
}

func writeJSON(w http.ResponseWriter, document any) {
	var text bytes.Buffer
	if err := session.PrintJSON(&text, document); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text.Bytes()) // an error means that the browser has closed the connection
}
