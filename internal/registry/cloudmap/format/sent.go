package format

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// sent is what a cluster sends to others beside the registry: the instances that it has written.
type sent struct {
	Record api.Instance
	Parts  []api.Instance `json:",omitempty"`
}

// maxUnpacked bounds the size of unpacked records, in bytes: packing halves text that is encoded as
// base64 and words that repeat, at most.
const maxUnpacked = 128 << 10

// PackRecords returns the bytes by which a member record and parts of pages are sent to other
// clusters.
func PackRecords(record api.Instance, parts []api.Instance) ([]byte, error) {
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.DefaultCompression)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(w).Encode(sent{Record: record, Parts: parts}); err != nil {
		return nil, fmt.Errorf("packing records: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing records: %w", err)
	}
	return packed.Bytes(), nil
}

// UnpackRecords is the inverse of PackRecords. Readers verify the signatures.
func UnpackRecords(packed []byte) (record api.Instance, parts []api.Instance, err error) {
	r := flate.NewReader(bytes.NewReader(packed))
	text, err := io.ReadAll(io.LimitReader(r, maxUnpacked+1))
	if err != nil {
		return record, nil, fmt.Errorf("unpacking records: %w", err)
	}
	if len(text) > maxUnpacked {
		return record, nil, errors.New("unpacking records: they are too large")
	}
	var unpacked sent
	if err := json.Unmarshal(text, &unpacked); err != nil {
		return record, nil, fmt.Errorf("unpacking records: %w", err)
	}
	return unpacked.Record, unpacked.Parts, nil
}
