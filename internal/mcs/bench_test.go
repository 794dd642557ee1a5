package mcs

import (
	"fmt"
	"net/netip"
	"testing"
)

// tenClusters exports one service with 100 endpoints each.
func tenClusters() []Export { return manyClusters(10, 100) }

// manyClusters exports one service from each cluster.
func manyClusters(clusters, endpoints int) []Export {
	var exports []Export
	for c := range clusters {
		e := webExport(fmt.Sprintf("cls%d", c), c)
		e.Backends[0].Endpoints = nil
		for i := range endpoints {
			e.Backends[0].Endpoints = append(e.Backends[0].Endpoints, Endpoint{
				Address: netip.AddrFrom4([4]byte{10, byte(c >> 8), byte(c), byte(i)}), Ready: true, Serving: true, Zone: "us-west-2a",
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

// BenchmarkMergeClusters merges one service that many clusters export with 10 endpoints each.
func BenchmarkMergeClusters(b *testing.B) {
	for _, clusters := range []int{10, 100, 300, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", clusters), func(b *testing.B) {
			exports := manyClusters(clusters, 10)
			b.ReportAllocs()
			for b.Loop() {
				m := Merge(exports)
				for _, e := range exports {
					m.Backends(e)
				}
			}
		})
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

// BenchmarkOwnAddresses decides to which of many clusters the addresses of one service belong.
func BenchmarkOwnAddresses(b *testing.B) {
	for _, clusters := range []int{100, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", clusters), func(b *testing.B) {
			exports := manyClusters(clusters, 10_000/clusters)
			b.ReportAllocs()
			for b.Loop() {
				if _, shared := OwnAddresses(exports[0].Type, exports, nil); len(shared) > 0 {
					b.Fatal(shared)
				}
			}
		})
	}
}

// BenchmarkKeepShare drains half of a cluster's 10,000 endpoints, the maximum of an export.
func BenchmarkKeepShare(b *testing.B) {
	var endpoints []Endpoint
	for i := range 10_000 {
		endpoints = append(endpoints, Endpoint{Address: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Ready: true, Serving: true})
	}
	b.ReportAllocs()
	for b.Loop() {
		keepShare(endpoints, 50)
	}
}
