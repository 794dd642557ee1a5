package instances

import (
	"context"
	"errors"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// A request takes minutes if AWS throttles. A caller whose context ends meanwhile does not wait for
// it.
func TestResourceCache_StopsWaitingWhenContextEnds(t *testing.T) {
	p := newResourceCache(nil, mcs.Identity{}, Settings{})
	if err := p.lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, findErr := p.find(ctx, mcs.Key{})
	_, ensureErr := p.ensure(ctx, mcs.Export{})
	_, listErr := p.list(ctx)
	for name, err := range map[string]error{
		"find": findErr, "ensure": ensureErr, "remove": p.remove(ctx, mcs.Key{}), "list": listErr,
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error = %v", name, err)
		}
	}
	p.busy.Release(1)
	p.namespaces = map[string]api.Namespace{"demo": {ID: "ns-1"}}
	p.invalidate()
	if err := p.lock(t.Context()); err != nil || p.namespaces != nil {
		t.Errorf("error %v, namespaces %v", err, p.namespaces)
	}
}
