package cloudmaplocal

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/google/uuid"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

const (
	targetPrefix = "Route53AutoNaming_v20170314."
	contentType  = "application/x-amz-json-1.1"

	// maxBody is far above the largest valid request: 30 service attributes of 255+1,024 characters
	// are 230 kB if JSON escapes each character as six (\u0041).
	maxBody = 1 << 20
)

func readBody(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		tooMuch := failure("RequestEntityTooLargeException", "The request is larger than %d bytes.", maxBody)
		tooMuch.status = http.StatusRequestEntityTooLarge
		return nil, tooMuch
	}
	if err != nil {
		return nil, failure("SerializationException", "Reading the request: %v", err)
	}
	return body, nil
}

// decode reads a request. An empty body means {}; unknown members are ignored.
func decode[In any](body []byte) (In, error) {
	var in In
	if len(body) == 0 {
		return in, nil
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return in, failure("SerializationException", "Reading the request: %v", err)
	}
	return in, nil
}

// writeResponse writes an answer or an error in AWS JSON 1.1.
func writeResponse(w http.ResponseWriter, status int, code string, body any) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("X-Amzn-Requestid", uuid.NewString())
	if status != http.StatusOK {
		header.Set("X-Amzn-Errortype", code)
	}
	if _, none := body.(wire.EmptyBody); none {
		w.WriteHeader(status)
		return
	}
	raw, err := json.Marshal(body)
	if err != nil { // does not happen: the types are plain data
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the client may have closed the connection
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
	_ = encoder.Encode(value) // the client may have closed the connection
}
