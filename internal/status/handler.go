package status

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// The paths of the handler. The controller may be one release older or newer than the plugin that
// reads them: fields are added, and never change their meaning.
const (
	PathStatus   = "/status"
	PathServices = "/services"
	PathMetrics  = "/metrics"
	pathReach    = "/reach/"
)

// ServicePath returns the path of the Service of key.
func ServicePath(key mcs.Key) string { return PathServices + "/" + key.Namespace + "/" + key.Name }

// ProbePath returns the path of the Probe of key. A request makes the controller resolve the name
// of the service and connect to it.
func ProbePath(key mcs.Key) string { return ServicePath(key) + "/probe" }

// ReachPath returns the path of a Connection to the health port of another cluster's controller at
// ip.
func ReachPath(ip string) string { return pathReach + ip }

// A Source returns the responses. Its methods may be called concurrently.
type Source interface {
	Status(ctx context.Context) Status
	// Service returns the service of key, also if no cluster exports it.
	Service(ctx context.Context, key mcs.Key) (Service, error)
	// Services returns the services of all keys of the clusterset, sorted by key.
	Services(ctx context.Context) ([]Service, error)
	Probe(ctx context.Context, key mcs.Key) (Probe, error)
	Reach(ctx context.Context, ip netip.Addr) Connection
}

// NewHandler returns a handler that serves source and the metrics.
func NewHandler(source Source, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+PathMetrics, metrics)
	mux.HandleFunc("GET "+PathStatus, func(w http.ResponseWriter, r *http.Request) {
		write(w, source.Status(r.Context()), nil)
	})
	mux.HandleFunc("GET "+PathServices, func(w http.ResponseWriter, r *http.Request) {
		services, err := source.Services(r.Context())
		write(w, services, err)
	})
	mux.HandleFunc("GET "+PathServices+"/{namespace}/{name}", func(w http.ResponseWriter, r *http.Request) {
		service, err := source.Service(r.Context(), keyIn(r))
		write(w, service, err)
	})
	mux.HandleFunc("GET "+PathServices+"/{namespace}/{name}/probe", func(w http.ResponseWriter, r *http.Request) {
		probe, err := source.Probe(r.Context(), keyIn(r))
		write(w, probe, err)
	})
	mux.HandleFunc("GET "+pathReach+"{ip}", func(w http.ResponseWriter, r *http.Request) {
		ip, err := netip.ParseAddr(r.PathValue("ip"))
		if err != nil {
			http.Error(w, fmt.Sprintf("%q is not an IP address", r.PathValue("ip")), http.StatusBadRequest)
			return
		}
		write(w, source.Reach(r.Context(), ip), nil)
	})
	return mux
}

func keyIn(r *http.Request) mcs.Key {
	return mcs.Key{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

// write responds with a value, or with the error if there is no value yet.
func write(w http.ResponseWriter, value any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, fmt.Sprintf("encoding the response: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // an error means that the client has closed the connection
}
