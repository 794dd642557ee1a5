package cloudmap

import (
	"context"
	"errors"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// TestPlacesWaitNoLongerThanTheirContext: who looks waits for AWS, minutes if it throttles. Who stops meanwhile does not wait.
func TestPlacesWaitNoLongerThanTheirContext(t *testing.T) {
	p := newPlaces(nil, mcs.Identity{})
	if err := p.lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, findErr := p.find(ctx, mcs.Key{})
	_, _, ensureErr := p.ensure(ctx, mcs.Key{})
	_, candidatesErr := p.candidates(ctx)
	for name, err := range map[string]error{
		"find": findErr, "ensure": ensureErr, "remove": p.remove(ctx, mcs.Key{}), "candidates": candidatesErr,
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error = %v", name, err)
		}
	}
	p.looking.Release(1)
	p.namespaces = map[string]api.Namespace{"demo": {ID: "ns-1"}}
	p.forget()
	if err := p.lock(t.Context()); err != nil || p.namespaces != nil {
		t.Errorf("error %v, remembered %v", err, p.namespaces)
	}
}
