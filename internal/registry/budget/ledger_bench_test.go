package budget

import (
	"fmt"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// spreadOffers returns n offers of one endpoint, in that many namespaces.
func spreadOffers(n, namespaces int) []Offer {
	offers := make([]Offer, n)
	for i := range offers {
		offers[i] = Offer{Key: mcs.Key{Namespace: fmt.Sprint("ns-", i%namespaces), Name: fmt.Sprint("svc-", i)}, Wanted: cost(1)}
	}
	return offers
}

// roomFor returns limits for n exports of one endpoint in any namespaces, and no more.
func roomFor(n int) Limits {
	limit := Amounts{}
	for range reserved * n {
		limit = limit.Plus(cost(1))
	}
	return Limits{Member: limit, Total: limit.Plus(limit).Plus(limit)}
}

// BenchmarkAdmit admits all exports of a member at once, as Cloud Map's pages show them.
func BenchmarkAdmit(b *testing.B) {
	for _, namespaces := range []int{10, 500, 5000, 20000} {
		b.Run(fmt.Sprintf("namespaces=%d", namespaces), func(b *testing.B) {
			offers, limits := spreadOffers(max(5000, namespaces), namespaces), roomFor(5000)
			for b.Loop() {
				account := NewLedger(limits).Open(Owner{})
				account.Preview(offers)
				account.Admit(offers)
			}
		})
	}
}

// BenchmarkAdmitOne admits the exports of a member one by one, as etcd shows them.
func BenchmarkAdmitOne(b *testing.B) {
	for _, namespaces := range []int{10, 500, 1000, 5000} {
		b.Run(fmt.Sprintf("namespaces=%d", namespaces), func(b *testing.B) {
			offers, limits := spreadOffers(max(1000, namespaces), namespaces), roomFor(5000)
			for b.Loop() {
				account := NewLedger(limits).Open(Owner{})
				for i := range offers {
					account.Preview(offers[i : i+1])
					account.Admit(offers[i : i+1])
				}
			}
		})
	}
}

// BenchmarkExplain explains exports of a member without room, one by one, as etcd does for the
// status.
func BenchmarkExplain(b *testing.B) {
	account := NewLedger(roomFor(5000)).Open(Owner{})
	account.Admit(spreadOffers(5000, 5000))
	offer := Offer{Key: mcs.Key{Namespace: "ns-1", Name: "another"}, Wanted: cost(5000)}
	for b.Loop() {
		account.Explain([]Offer{offer})
	}
}

// BenchmarkLedger changes an export of one of many members: Preview, Admit and Explain, as a read
// of a page does.
func BenchmarkLedger(b *testing.B) {
	for _, members := range []int{10, 100, 300, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", members), func(b *testing.B) {
			ledger := NewLedger(roomFor(20 * members))
			accounts := make([]*Account, members)
			for i := range accounts {
				accounts[i] = ledger.Open(Owner{ClusterID: fmt.Sprint("cls-", i)})
				accounts[i].Admit(spreadOffers(10, 10))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				offers := []Offer{{Key: mcs.Key{Namespace: "ns-1", Name: "svc-1"}, Wanted: cost(1 + i%2)}}
				account := accounts[i%members]
				account.Preview(offers)
				if admitted, _ := account.Admit(offers); !admitted[0] {
					b.Fatal("an export that fits is not admitted")
				}
				account.Explain(offers)
			}
		})
	}
}
