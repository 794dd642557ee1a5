package fleet

import (
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// TestView_CountsWrites: a watch that follows an earlier one shows all objects as added, which is
// no write.
func TestView_CountsWrites(t *testing.T) {
	v := &view{imports: map[string]bool{}, clusters: map[string]int{}, versions: map[types.UID]string{}, markers: map[netip.Addr]time.Time{}, changed: make(chan struct{})}
	observe := func(kind watch.EventType, name, version string) {
		v.record(watch.Event{Type: kind, Object: &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}})
	}
	observe(watch.Added, "a", "1")
	observe(watch.Added, "b", "2")
	observe(watch.Modified, "a", "3")
	observe(watch.Added, "a", "3")
	observe(watch.Added, "b", "2")
	observe(watch.Deleted, "b", "4")
	v.record(watch.Event{Type: watch.Error, Object: &metav1.Status{}})
	if n := v.writeCount(); n != 4 {
		t.Errorf("%d writes are counted, want 4", n)
	}
}
