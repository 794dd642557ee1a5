package status

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// The paths of the handler. They are between a controller and a plugin that may be one release older or newer: fields are
// added and never change their meaning.
const (
	PathStatus   = "/status"
	PathServices = "/services"
	pathReach    = "/reach/"
)

// ServicePath is where Service of key is.
func ServicePath(key mcs.Key) string { return PathServices + "/" + key.Namespace + "/" + key.Name }

// ProbePath is where Probe of key is. Asking for it makes the controller look the service up and connect to it.
func ProbePath(key mcs.Key) string { return ServicePath(key) + "/probe" }

// ReachPath asks the controller to connect to the health port of another cluster's controller at ip; the answer is a Connection.
func ReachPath(ip string) string { return pathReach + ip }

// A Source knows the answers. Its methods may be called from many goroutines.
type Source interface {
	Status(ctx context.Context) Status
	// Service is the key's, also when nobody exports it.
	Service(ctx context.Context, key mcs.Key) (Service, error)
	// Services are those of all keys of the clusterset, sorted by key.
	Services(ctx context.Context) ([]Service, error)
	Probe(ctx context.Context, key mcs.Key) (Probe, error)
	Reach(ctx context.Context, ip netip.Addr) Connection
}

// NewHandler answers from source.
func NewHandler(source Source) http.Handler {
	mux := http.NewServeMux()
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
			http.Error(w, fmt.Sprintf("%q is no IP address", r.PathValue("ip")), http.StatusBadRequest)
			return
		}
		write(w, source.Reach(r.Context(), ip), nil)
	})
	return mux
}

func keyIn(r *http.Request) mcs.Key {
	return mcs.Key{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

// write answers with a value, or with the reason why there is none yet.
func write(w http.ResponseWriter, value any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // whoever asked has gone
}
