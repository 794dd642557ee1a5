package format

import (
	"bytes"
	"compress/flate"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

var (
	sentRecord = api.Instance{ID: "cls1", Attributes: map[string]string{"CLUSTER_ID": "cls1", "PAGES": "00.abc"}}
	sentPart   = api.Instance{ID: "page-00-0", Attributes: map[string]string{"DATA0": "eJw"}}
)

func TestPackRecords(t *testing.T) {
	for name, parts := range map[string][]api.Instance{"no part": nil, "one": {sentPart}, "two": {sentPart, {ID: "page-01-0"}}} {
		packed, err := PackRecords(sentRecord, parts)
		if err != nil {
			t.Fatal(err)
		}
		record, unpacked, err := UnpackRecords(packed)
		if diff := cmp.Diff(sentRecord, record) + cmp.Diff(parts, unpacked); err != nil || diff != "" {
			t.Errorf("%s: %v, differs (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestUnpackRecordsRefuses(t *testing.T) {
	deflate := func(text string) []byte {
		var packed bytes.Buffer
		w, err := flate.NewWriter(&packed, flate.BestCompression)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return packed.Bytes()
	}
	for name, packed := range map[string][]byte{
		"nothing": nil, "garbage": []byte("garbage"), "no JSON": deflate("x"), "another shape": deflate(`{"Record":[1]}`),
		"a bomb": deflate(`{"Parts":[` + strings.Repeat(" ", 10<<20) + `]}`), "cut": deflate(`{}`)[:3],
	} {
		if record, parts, err := UnpackRecords(packed); err == nil {
			t.Errorf("%s: %v, %v, want an error", name, record, parts)
		}
	}
}

// FuzzUnpackRecords checks that no bytes make a receiver fail.
func FuzzUnpackRecords(f *testing.F) {
	packed, err := PackRecords(sentRecord, []api.Instance{sentPart})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(packed)
	f.Add([]byte("garbage"))
	f.Fuzz(func(t *testing.T, data []byte) {
		record, parts, err := UnpackRecords(data)
		if err != nil {
			return
		}
		if _, err := PackRecords(record, parts); err != nil {
			t.Errorf("%v, %v cannot be packed: %v", record, parts, err)
		}
	})
}
