package awsprobe

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// probeProduct is probe 12: two registries of the product, and how long AWS counts what was removed
// as used.
func probeProduct(ctx context.Context, p *prober) error {
	var inUse, clusters error
	var both sync.WaitGroup
	both.Go(func() { inUse = p.probeInUse(ctx) })
	both.Go(func() { clusters = p.probeClusters(ctx) })
	both.Wait()
	return errors.Join(inUse, clusters)
}

// probeInUse measures how long a service cannot be deleted after its last instance, and a namespace
// after its last service.
func (p *prober) probeInUse(ctx context.Context) error {
	ns, err := p.createNamespace(ctx, p.shared.name+"-c")
	if err != nil {
		return err
	}
	s, err := p.createServiceIn(ctx, ns, "in-use", api.ServiceConfig{})
	if err != nil {
		return err
	}
	if err := p.register(ctx, s, "a", map[string]string{}); err != nil {
		return err
	}
	operation, err := p.api.StartDeregistration(ctx, s.ID, "a")
	if err != nil {
		return err
	}
	if _, err := within(ctx, visibleLimit, "the instance is deregistered", func() (bool, error) {
		_, done, err := p.api.GetOperation(ctx, operation)
		return done, err
	}); err != nil {
		return err
	}
	urgent := p.api.WithPriority(api.PriorityHigh) // the clusters that leave delete as well
	service, err := p.until(ctx, "the service can be deleted", func() error { return urgent.DeleteService(ctx, s) })
	if err != nil {
		return err
	}
	p.row("DeleteService", "time of ResourceInUse after the last instance left", "seconds", seconds(service))
	namespace, err := p.until(ctx, "the namespace can be deleted", func() error { return urgent.DeleteNamespace(ctx, ns) })
	if err != nil {
		return err
	}
	p.row("DeleteNamespace", "time of ResourceInUse after the last service was deleted", "seconds", seconds(namespace))
	p.report.found("inUseFor", roundDelay(max(service, namespace)))
	return nil
}

// until repeats a deletion until it succeeds, and returns for how long the resource was in use: the
// time of the last answer that says so, because AWS may throttle the attempts after it.
func (p *prober) until(ctx context.Context, what string, remove func() error) (inUse time.Duration, err error) {
	began := time.Now()
	_, err = within(ctx, sweepTime, what, func() (bool, error) {
		err := remove()
		if api.IsInUse(err) {
			inUse = time.Since(began)
		}
		return err == nil, ignore(ignore(err, api.IsInUse), api.IsThrottled)
	})
	return inUse, err
}

// joinLimit leaves two minutes of the time of all probes for the others. Clusters that read 20 s
// late joined within it.
const joinLimit = 4 * time.Minute

// clusterUID is the number of random characters of a UID.
const clusterUID = 16

// cluster is a registry of the product that runs.
type cluster struct {
	*cloudmap.Registry
	id string
	// leave and stop end it.
	leave func() error
	stop  func()
}

// startCluster runs a registry with the default intervals, and neither the instance view nor peer
// notifications.
func (p *prober) startCluster(ctx context.Context, id string) (cluster, error) {
	identity := mcs.Identity{ClusterSetID: p.shared.name, ClusterID: id, UID: rand.Text()[:clusterUID]}
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // never fails
	signer, err := trust.NewSigner(seed, nil)
	if err != nil {
		return cluster{}, err
	}
	defaults := config.Default()
	settings := defaults.Registry
	keyring, err := trust.Load(ctx, trust.Config{ClusterSetID: identity.ClusterSetID, StaleAfter: settings.StaleAfter, Logger: logr.Discard()})
	if err != nil {
		return cluster{}, err
	}
	reg, err := cloudmap.New(p.api, cloudmap.Config{
		Identity: identity, Version: config.Version, Signer: signer, Keyring: keyring, Logger: logr.Discard(),
		PollInterval: settings.PollInterval, PollIntervalWithNotifications: settings.PollIntervalWithNotifications,
		HeartbeatInterval: settings.HeartbeatInterval, StaleAfter: settings.StaleAfter, InstancesPerNamespace: defaults.AWS.InstancesPerNamespace,
	})
	if err != nil {
		return cluster{}, err
	}
	running, end := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() { ended <- reg.Run(running, func(mcs.Key) {}) }()
	await := sync.OnceValue(func() error { return <-ended })
	return cluster{
		Registry: reg, id: id,
		leave: func() error { end(registry.ErrLeave); return await() },
		stop:  func() { end(nil); _ = await() },
	}, nil
}

// leaving lets a cluster leave, and returns the function that reports it.
func (p *prober) leaving(c cluster) (report func()) {
	begin := time.Now()
	err := c.leave()
	took := time.Since(begin)
	return func() { p.row("", fmt.Sprintf("cluster %s leaves", c.id), "10 s", orCode(err, seconds(took))) }
}

func (p *prober) probeClusters(ctx context.Context) error {
	var clusters []cluster
	for _, id := range []string{"probe-1", "probe-2"} {
		c, err := p.startCluster(ctx, id)
		if err != nil {
			return err
		}
		defer c.stop()
		clusters = append(clusters, c)
	}
	a, b := clusters[0], clusters[1]
	if err := p.await(ctx, joinLimit, "two clusters join", "1 min", func() bool { return sees(ctx, a, b) && sees(ctx, b, a) }); err != nil {
		return err
	}
	key := mcs.Key{Namespace: p.shared.name, Name: "web"}
	for i, step := range []string{"an export is imported", "a change of its endpoints is imported"} {
		exp := export(key, a.id, i+1)
		if err := a.Publish(ctx, exp); err != nil {
			return err
		}
		if err := p.await(ctx, visibleLimit, step, "5 s", func() bool {
			view, err := b.Lookup(ctx, key)
			exports := view.Exports()
			return err == nil && len(exports) == 1 && len(exports[0].Backends[0].Endpoints) == i+1
		}); err != nil {
			return err
		}
	}
	// The second one waits for the farewell of the first one, and not until AWS has deleted its
	// catalog: each deletion may take a minute.
	first := make(chan func(), 1)
	go func() { first <- p.leaving(a) }()
	err := p.await(ctx, visibleLimit, "the farewell of a cluster is read", "5 s", func() bool { return !sees(ctx, b, a) })
	report := p.leaving(b)
	(<-first)()
	report()
	if err != nil {
		return err
	}
	return p.probeLeft(ctx)
}

// await adds a row with the time until something of the product is so.
func (p *prober) await(ctx context.Context, limit time.Duration, what, expected string, isSo func() bool) error {
	took, ok, err := poll(ctx, limit, func() (bool, error) { return isSo(), nil })
	if err == nil && !ok {
		err = fmt.Errorf("not within %s: %s", limit, what)
	}
	p.row("", "time until "+what, expected, orCode(err, seconds(took)))
	return err
}

// sees reports whether a cluster shows another one as a member.
func sees(ctx context.Context, c, other cluster) bool {
	members, err := c.Members(ctx)
	for _, m := range members {
		if err == nil && m.ClusterID == other.id {
			return true
		}
	}
	return false
}

// export returns an export with n endpoints.
func export(key mcs.Key, clusterID string, n int) mcs.Export {
	exp := mcs.Export{
		Key: key, Cluster: clusterID, Created: time.Now().Truncate(time.Second), Type: mcsv1beta1.ClusterSetIP,
		Ports:      []mcs.Port{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "8080"}},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Backends:   []mcs.Backends{{Ports: []mcs.BackendPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 8080}}}},
	}
	for i := range n {
		exp.Backends[0].Endpoints = append(exp.Backends[0].Endpoints, mcs.Endpoint{
			Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Ready: true, Serving: true})
	}
	return exp.Canonical()
}

// probeLeft reports what the clusters have left.
func (p *prober) probeLeft(ctx context.Context) error {
	found, err := p.leftovers(ctx)
	if err != nil {
		return err
	}
	left := "nothing"
	for _, ns := range found {
		if aws.ToString(ns.Name) == format.ControlNamespace(p.shared.name) {
			left = "namespace " + aws.ToString(ns.Name)
		}
	}
	p.row("", "left by the clusters", "nothing", left)
	return nil
}
