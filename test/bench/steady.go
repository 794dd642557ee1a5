package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"maps"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

const (
	endpointsPerExport = 10
	// window is two minutes: it includes the audit of the own pages, one call in that time.
	window = 2 * time.Minute
	// settle is the duration of calls that follow from the start: the last confirmation, the first
	// round of peer notifications, polls that are not relaxed for 30 s after a claim, and the tags
	// of 50 catalogs, five a poll, which are 30 s apart.
	settle = 6 * time.Minute
)

// steady counts the calls of clustersets of several sizes while nothing changes: real registries
// with the real SDK and their default settings against cloudmap-local, all in this process. One
// cluster exports everything.
func steady(ctx context.Context, rows *Rows) error {
	// The SDK needs credentials; cloudmap-local accepts any.
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIDBENCH", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_EC2_METADATA_DISABLED": "true"} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	var list []Steady
	for _, notifications := range []bool{true, false} {
		for _, clusters := range []int{2, 10, 50} {
			for _, exports := range []int{1, 50, 300, 3000} {
				list = append(list, Steady{Exports: exports, Clusters: clusters, Notifications: notifications})
			}
		}
	}
	// They use little CPU in steady state, so all are measured concurrently.
	group, ctx := errgroup.WithContext(ctx)
	for i := range list {
		group.Go(func() error { return list[i].measure(ctx) })
	}
	err := group.Wait()
	rows.Steady = list
	return err
}

func (s *Steady) measure(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	running, ctx := errgroup.WithContext(ctx)
	defer func() { cancel(); _ = running.Wait() }()
	server, err := cloudmaplocal.New(cloudmaplocal.Options{})
	if err != nil {
		return err
	}
	defer server.Close()
	listener := httptest.NewServer(server)
	defer listener.Close()
	var members []*cloudmap.Registry
	for i := range s.Clusters {
		member, err := s.join(ctx, listener.URL, i)
		if err != nil {
			return err
		}
		members = append(members, member)
		running.Go(func() error { return member.Run(ctx, func(mcs.Key) {}) })
	}
	for i := range s.Exports {
		if err := members[0].Publish(ctx, export(i)); err != nil {
			return err
		}
	}
	if err := s.await(ctx, members); err != nil {
		return err
	}
	if err := pause(ctx, settle); err != nil {
		return err
	}
	before := maps.Clone(server.Requests())
	if err := pause(ctx, window); err != nil {
		return err
	}
	s.ByOperation = map[string]float64{}
	for operation, count := range server.Requests() {
		if perMinute := float64(count-before[operation]) / window.Minutes() / float64(s.Clusters); perMinute > 0 {
			s.ByOperation[operation] = perMinute
			s.PerMinute += perMinute
		}
	}
	fmt.Printf("%4d exports, %2d clusters, notifications %-5v: %.1f calls per minute and cluster %v\n", s.Exports, s.Clusters, s.Notifications, s.PerMinute, s.ByOperation)
	return nil
}

// join returns the registry of one cluster.
func (s *Steady) join(ctx context.Context, url string, number int) (*cloudmap.Registry, error) {
	client, err := cloudmapapi.NewClient(ctx, cloudmapapi.Config{Region: "us-east-1", Endpoint: url})
	if err != nil {
		return nil, err
	}
	defaults := config.Default()
	keyring, err := newKeyring(ctx, "bench", defaults.Registry.StaleAfter)
	if err != nil {
		return nil, err
	}
	signer, err := trust.NewSigner(bytes.Repeat([]byte{byte(number)}, ed25519.SeedSize), nil)
	if err != nil {
		return nil, err
	}
	cfg := cloudmap.Config{
		Signer: signer, Keyring: keyring,
		Identity: mcs.Identity{ClusterID: fmt.Sprintf("cls%d", number+1), ClusterSetID: "bench", UID: fmt.Sprintf("uid-%d", number+1)},
		Version:  "bench", Logger: logr.Discard(),
		PollInterval: defaults.Registry.PollInterval, PollIntervalWithNotifications: defaults.Registry.PollIntervalWithNotifications,
		HeartbeatInterval: defaults.Registry.HeartbeatInterval, StaleAfter: defaults.Registry.StaleAfter,
		InstancesPerNamespace: defaults.AWS.InstancesPerNamespace,
	}
	if s.Notifications {
		conn, err := peernotify.ListenUDP("127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		cfg.PeerNotifications = &peernotify.Config{
			Listen:  func() (net.PacketConn, error) { return conn, nil },
			Address: conn.LocalAddr().(*net.UDPAddr).AddrPort(),
		}
	}
	return cloudmap.New(client, cfg)
}

// newKeyring returns a keyring that has seen no cluster.
func newKeyring(ctx context.Context, clusterSetID string, staleAfter time.Duration) (*trust.Keyring, error) {
	return trust.Load(ctx, trust.Config{ClusterSetID: clusterSetID, StaleAfter: staleAfter, Logger: logr.Discard()})
}

// await waits until the exporter has everything confirmed and every importer has all exports.
func (s *Steady) await(ctx context.Context, members []*cloudmap.Registry) error {
	for i := range s.Exports {
		key := export(i).Key
		for _, member := range members[1:] {
			for !sees(ctx, member, key) {
				if err := pause(ctx, 20*time.Millisecond); err != nil {
					return err
				}
			}
		}
	}
	for i := range s.Exports {
		for {
			view, err := members[0].Lookup(ctx, export(i).Key)
			if err == nil && view.Local.State == registry.Exported {
				break
			}
			if err := pause(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

func sees(ctx context.Context, member *cloudmap.Registry, key mcs.Key) bool {
	view, err := member.Lookup(ctx, key)
	return err == nil && len(view.Exports()) == 1
}

// export returns the first cluster's export number i.
func export(i int) mcs.Export {
	e := mcs.Export{
		Key: mcs.Key{Namespace: "bench", Name: fmt.Sprintf("svc-%d", i)}, Cluster: "cls1",
		Created: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC), Type: "ClusterSetIP",
		Ports: []mcs.Port{{Name: "http", Protocol: "TCP", Port: 80}},
	}
	group := mcs.Backends{Ports: []mcs.BackendPort{{Name: "http", Protocol: "TCP", Port: 8080}}}
	for j := range endpointsPerExport {
		number := i*endpointsPerExport + j
		group.Endpoints = append(group.Endpoints, mcs.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, 10, byte(number >> 8), byte(number)}), Ready: true, Serving: true, Zone: "us-east-1a",
		})
	}
	e.Backends = append(e.Backends, group)
	return e.Canonical()
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
