package mcs

import (
	"fmt"
	"net/netip"
	"testing"
)

// tenClusters exports one service with 100 endpoints each.
func tenClusters() []Export {
	var exports []Export
	for c := range 10 {
		e := webExport(fmt.Sprintf("cls%d", c), c)
		e.Backends[0].Endpoints = nil
		for i := range 100 {
			e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, Endpoint{
				Address: netip.AddrFrom4([4]byte{10, byte(c), 0, byte(i)}), Ready: true, Serving: true, Zone: "us-west-2a",
			})
		}
		exports = append(exports, e.Canonical())
	}
	return exports
}

func BenchmarkMerge(b *testing.B) {
	exports := tenClusters()
	b.ReportAllocs()
	for b.Loop() {
		m := Merge(exports)
		for _, e := range exports {
			m.Backends(e)
		}
	}
}

func BenchmarkSanitize(b *testing.B) {
	e := tenClusters()[0]
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Sanitize(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEqual(b *testing.B) {
	e, other := tenClusters()[0], tenClusters()[0]
	b.ReportAllocs()
	for b.Loop() {
		if !e.Equal(other) {
			b.Fatal("they differ")
		}
	}
}
