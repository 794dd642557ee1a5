package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
)

// countingRegistry counts the exports that are published before Run.
type countingRegistry struct {
	registry.Registry
	published atomic.Int64
	all       atomic.Int64
}

func (r *countingRegistry) Publish(ctx context.Context, exp mcs.Export) error {
	r.published.Add(1)
	return r.Registry.Publish(ctx, exp)
}

func (r *countingRegistry) Run(ctx context.Context, notify func(mcs.Key)) error {
	r.all.Store(r.published.Load())
	return r.Registry.Run(ctx, notify)
}

// A registry withdraws the exports that are not published before Run. An admission
// webhook that refuses the writes of one namespace must not delay that.
func TestExports_RefusedWritesDoNotDelayTheStart(t *testing.T) {
	k, _ := twoClusters(t)
	refused, other := newKey("refusing-webhook"), newKey("start")
	for _, key := range []mcs.Key{refused, other} {
		k.namespace(t, key.Namespace)
		k.export(t, key, 1, 1)
	}
	withFinalizer := &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: refused.Namespace, Name: refused.Name}}
	change(t, k, withFinalizer, func(e *mcsv1beta1.ServiceExport) { e.Finalizers = []string{legacy.Finalizer} })
	cfg := rest.CopyConfig(k.cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodGet && strings.Contains(req.URL.Path, "/namespaces/"+refused.Namespace+"/") {
				return nil, errors.New("admission webhook denied the request")
			}
			return next.RoundTrip(req)
		})
	})
	reg := &countingRegistry{}
	hub := memory.NewHub()
	options := testOptions(flags("cls1"))
	options.Migration.ImportFromAWSController = true
	runConfig(t, cfg, func(_ context.Context, identity mcs.Identity) (registry.Registry, error) {
		reg.Registry = hub.Registry(identity)
		return reg, nil
	}, options)
	eventually(t, "all exports are published", func() error {
		if n := reg.all.Load(); n < 2 {
			return fmt.Errorf("%d exports", n)
		}
		return nil
	})
}
