package cloudmaplocal

import (
	"encoding/json"
	"io"
	"net/http"

	"sigs.k8s.io/yaml"
)

// The endpoints that are not AWS's. They need no credentials.

// faultStatus is the answer to GET /faults: the plan, and the number of hits of each rule.
type faultStatus struct {
	FaultPlan
	Hits []int `json:"hits"`
}

func (s *Server) serveFaults(mux *http.ServeMux) {
	mux.HandleFunc("GET /faults", func(w http.ResponseWriter, _ *http.Request) {
		plan, hits := s.Faults()
		writeJSON(w, faultStatus{FaultPlan: plan, Hits: hits})
	})
	mux.HandleFunc("PUT /faults", func(w http.ResponseWriter, r *http.Request) { putYAML(w, r, s.SetFaults) })
	mux.HandleFunc("DELETE /faults", func(w http.ResponseWriter, _ *http.Request) {
		_ = s.SetFaults(FaultPlan{}) // the empty plan is valid
		w.WriteHeader(http.StatusNoContent)
	})
}

func (s *Server) serveShares(mux *http.ServeMux) {
	mux.HandleFunc("GET /shares", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Shares()) })
	mux.HandleFunc("PUT /shares", func(w http.ResponseWriter, r *http.Request) { putYAML(w, r, s.SetShares) })
}

// putYAML passes the body, YAML or JSON, to set. An unknown field is an error.
func putYAML[T any](w http.ResponseWriter, r *http.Request, set func(T) error) {
	var value T
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = yaml.UnmarshalStrict(body, &value)
	}
	if err == nil {
		err = set(value)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(value) // a client that went away needs no answer
}
