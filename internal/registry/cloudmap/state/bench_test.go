package state

import (
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// benchPage is a page as 1,000 exports of 20 endpoints make it: 16 exports.
func benchPage() map[mcs.Key]mcs.Export {
	exports := map[mcs.Key]mcs.Export{}
	for i := range 1000 / format.PageCount {
		exp := webExport("cls1", i, 20)
		exports[exp.Key] = exp
	}
	return exports
}

func BenchmarkPageEncode(b *testing.B) {
	exports := benchPage()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := EncodePage(cls1, signerOf(cls1.UID), 7, time.Now().UnixMilli(), exports); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPageDecode(b *testing.B) {
	w, err := EncodePage(cls1, signerOf(cls1.UID), 7, time.Now().UnixMilli(), benchPage())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		img, err := format.JoinPage(7, w.Instances, testOutbox().author())
		if err != nil {
			b.Fatal(err)
		}
		if decoded, err := record.Decode(img.Data, "cls1"); err != nil || len(decoded.Exports) != len(w.exports) {
			b.Fatal(err)
		}
	}
}
