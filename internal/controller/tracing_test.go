package controller

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/tracing/tracingtest"
)

// TestTrace_FollowsChange shows the trace of a change of one endpoint, from the EndpointSlice in
// one cluster to that in the other. It prints it with -v.
func TestTrace_FollowsChange(t *testing.T) {
	a, b := twoClusters(t)
	receiver, err := tracingtest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(receiver.Close)
	url, keyrings, key := localCloudMap(t, cloudmaplocal.Options{}), newKeyrings(), newKey("trace")
	for id, k := range map[string]*cluster{"cls1": a, "cls2": b} {
		k.namespace(t, key.Namespace)
		tracer, err := tracing.New(t.Context(), tracing.Config{Endpoint: receiver.Address, Insecure: true, Ratio: 1, Version: "test", Logger: ctrllog.Log})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tracer.Close(context.Background()) })
		address := testprocess.FreeAddress(t)
		runSetup(t, k.cfg, Setup{Options: testOptions(flags(id)), Tracer: tracer, NewRegistry: func(ctx context.Context, identity mcs.Identity) (registry.Registry, error) {
			client, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{Region: "ap-southeast-2", Endpoint: url})
			if err != nil {
				return nil, err
			}
			cfg := cloudMapConfig(t, keyrings, identity)
			cfg.Trace = tracer.Of(identity)
			cfg.PeerNotifications = &peernotify.Config{
				Listen: func() (net.PacketConn, error) { return peernotify.ListenUDP(address) }, Address: netip.MustParseAddrPort(address),
			}
			return cloudmap.New(client, cfg)
		}})
	}
	slice := a.export(t, key, 1, 2)
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1", "10.1.0.2"}})
	change(t, a, slice, func(e *discoveryv1.EndpointSlice) { e.Endpoints[0].Conditions.Ready = new(false) })
	b.imported(t, key, map[string][]string{"cls1": {"10.1.0.1 not ready", "10.1.0.2"}})

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	has := func(trace []tracingtest.Span, cluster string, steps ...string) bool {
		return !slices.ContainsFunc(steps, func(step string) bool {
			return !slices.ContainsFunc(trace, func(s tracingtest.Span) bool {
				return s.Name == step && s.Attributes["cluster"] == cluster && s.Attributes["k8s.service.name"] == key.Name
			})
		})
	}
	trace, err := receiver.Await(ctx, func(trace []tracingtest.Span) bool {
		// AwaitRead is missing if a poll came before the notification
		isRead := has(trace, "cls2", tracing.ReadMembers, tracing.ReadPage, tracing.Decode)
		return has(trace, "cls1", tracing.Export, tracing.EncodePage, tracing.WritePage, tracing.WriteRecord) &&
			has(trace, "cls2", tracing.Import, tracing.WriteSlices) && (isRead || has(trace, "cls2", tracing.ReceivePage))
	})
	if err != nil {
		t.Fatalf("%v; the spans are:\n%s", err, tracingtest.Print(trace))
	}
	t.Logf("the trace of one change:\n%s", tracingtest.Print(trace))
}
