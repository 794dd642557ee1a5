package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// changesPerKind is the number of changes of each kind.
var changesPerKind = 200

const (
	// parallel is the number of services, and of concurrent changes unless the result has another
	// number.
	parallel = 8
	// calmDown is the pause before a row: polls are relaxed 30 s after a claim, and a peer whose
	// port is blocked is silent after 7 s.
	calmDown = time.Minute
	// changeTimeout is the timeout of one change.
	changeTimeout = 30 * time.Second
)

// kindsOf returns the changes of a service in a round. A round has two changes of readiness or
// none, so that there are as many of them as of the other kinds.
func kindsOf(round int) []string {
	if round%2 == 1 {
		return []string{"add", "remove"}
	}
	return []string{"add", "not ready", "ready", "remove"}
}

// propagation measures on real clusters: on Cloud Map for each consistency delay, with peer
// notifications and with their port blocked, and on etcd.
func propagation() (units []unit) {
	for _, on := range []struct {
		registry string
		delay    time.Duration
	}{{clusterset.CloudMap, 0}, {clusterset.CloudMap, 500 * time.Millisecond}, {clusterset.Etcd, 0}} {
		if !strings.Contains(registries, on.registry) {
			continue
		}
		name := Propagation{Registry: on.registry, DelayMS: int(on.delay.Milliseconds())}.unit()
		units = append(units, unit{name, func(ctx context.Context, rows *Rows) (err error) {
			rows.Propagation, err = propagationOn(ctx, on.registry, on.delay)
			return err
		}})
	}
	return units
}

func propagationOn(ctx context.Context, registry string, delay time.Duration) ([]Propagation, error) {
	c, err := bringUp(ctx, registry, "--consistency-delay", delay.String())
	defer c.down()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	im, err := c.follow(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.exportServices(ctx, im); err != nil {
		return nil, err
	}
	var list []Propagation
	for _, notifications := range []bool{true, false} {
		if !notifications && registry != clusterset.CloudMap {
			break // etcd has watches of its own
		}
		if !notifications {
			if err := c.blockPeerNotifications(ctx); err != nil {
				return nil, err
			}
		}
		for _, n := range atOnce(registry, delay, notifications) {
			p := Propagation{Registry: registry, DelayMS: int(delay.Milliseconds()), Notifications: notifications, AtOnce: n}
			three, err := c.measure(ctx, im, p)
			if err != nil {
				return nil, err
			}
			list = append(list, three...)
		}
	}
	return list, nil
}

// atOnce returns the numbers of services that change at the same time. One alone is also measured
// where most of the delay comes from the other changes.
func atOnce(registry string, delay time.Duration, notifications bool) []int {
	if registry == clusterset.CloudMap && delay == 0 && notifications {
		return []int{1, parallel}
	}
	return []int{parallel}
}

// measure returns p with the results of each kind of change.
func (c *clusters) measure(ctx context.Context, im *imports, p Propagation) (list []Propagation, err error) {
	if err := pause(ctx, calmDown); err != nil {
		return nil, err
	}
	alone, err := c.floor(ctx, im, p.AtOnce)
	if err != nil {
		return nil, fmt.Errorf("measuring the floor: %w", err)
	}
	p.FloorMS = spread(alone).P50
	samples, err := c.changes(ctx, im, p.AtOnce)
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"add", "remove", "ready flip"} {
		p.Change, p.Spread = kind, spread(samples[kind])
		fmt.Printf("%s, delay %d ms, notifications %v, %d at once, %s: p50 %v p90 %v p99 %v max %v ms, floor %v ms\n",
			p.Registry, p.DelayMS, p.Notifications, p.AtOnce, kind, p.P50, p.P90, p.P99, p.Max, p.FloorMS)
		list = append(list, p)
	}
	return list, nil
}

// floorChanges is the number of changes of the floor.
const floorChanges = 48

// floor returns the times that changes take without controllers: the EndpointSlice of a service
// that is not exported is written to the exporting cluster and then, as if it were imported, to the
// importing one, whose watch shows it.
func (c *clusters) floor(ctx context.Context, im *imports, atOnce int) (samples []time.Duration, err error) {
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	for i := range atOnce {
		group.Go(func() error {
			exported, imported := slice(fmt.Sprintf("floor-%d", i), i), slice(fmt.Sprintf("imported-floor-%d", i), i)
			imported.Labels[mcsv1beta1.LabelSourceCluster] = "cls1"
			if err := errors.Join(createOnce(ctx, c.exporter, exported), createOnce(ctx, c.importer, imported)); err != nil {
				return err
			}
			for n := range floorChanges / atOnce {
				took, err := c.changeAlone(ctx, im, exported, imported, endpoint(200_000+int(floors.Add(1))))
				if err != nil {
					return fmt.Errorf("change %d: %w", n, err)
				}
				mu.Lock()
				samples = append(samples, took)
				mu.Unlock()
			}
			return nil
		})
	}
	return samples, group.Wait()
}

// floors counts the changes of the floor: each adds an endpoint of its own.
var floors atomic.Int64

func createOnce(ctx context.Context, c client.Client, s *discoveryv1.EndpointSlice) error {
	return client.IgnoreAlreadyExists(c.Create(ctx, s.DeepCopy()))
}

// changeAlone makes a change of the floor.
func (c *clusters) changeAlone(ctx context.Context, im *imports, exported, imported *discoveryv1.EndpointSlice, added discoveryv1.Endpoint) (time.Duration, error) {
	if err := pause(ctx, rand.N(rest)); err != nil {
		return 0, err
	}
	with := func(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
		s = s.DeepCopy()
		s.Endpoints = append(s.Endpoints, added)
		return s
	}
	began := time.Now()
	if err := c.exporter.Update(ctx, with(exported)); err != nil {
		return 0, err
	}
	if err := c.importer.Update(ctx, with(imported)); err != nil {
		return 0, err
	}
	err := im.until(ctx, "the EndpointSlice "+imported.Name, changeTimeout, func(all map[string]*discoveryv1.EndpointSlice) bool {
		return shows(all, added.Addresses[0], "add")
	})
	return time.Since(began), err
}

// exportServices creates and exports the services that the measurement changes.
func (c *clusters) exportServices(ctx context.Context, im *imports) error {
	for i := range parallel {
		name := serviceName(i)
		for _, obj := range []client.Object{service(name), slice(name, i), serviceExport(name)} {
			if err := c.exporter.Create(ctx, obj); err != nil {
				return err
			}
		}
		if err := im.until(ctx, name+" is imported", time.Minute, hasEndpoints(name, endpointsPerExport)); err != nil {
			return err
		}
	}
	return nil
}

func serviceName(i int) string { return fmt.Sprintf("svc-%d", i) }

// hasEndpoints reports whether a service is imported with so many ready endpoints.
func hasEndpoints(name string, endpoints int) func(map[string]*discoveryv1.EndpointSlice) bool {
	return func(all map[string]*discoveryv1.EndpointSlice) bool {
		ready := 0
		for _, s := range all {
			if s.Labels[mcsv1beta1.LabelServiceName] == name {
				ready += len(s.Endpoints)
			}
		}
		return ready == endpoints
	}
}

// changes applies all kinds of changes to atOnce services in parallel, repeatedly, and returns the
// duration of each change by kind.
func (c *clusters) changes(ctx context.Context, im *imports, atOnce int) (map[string][]time.Duration, error) {
	var mu sync.Mutex
	samples := map[string][]time.Duration{}
	group, ctx := errgroup.WithContext(ctx)
	for i := range atOnce {
		group.Go(func() error {
			for round := range changesPerKind / atOnce {
				for _, kind := range kindsOf(round) {
					took, err := c.change(ctx, im, i, round, kind)
					if err != nil {
						return err
					}
					mu.Lock()
					samples[label(kind)] = append(samples[label(kind)], took)
					mu.Unlock()
				}
			}
			return nil
		})
	}
	return samples, group.Wait()
}

// label returns the kind in the results: both directions of readiness are one.
func label(kind string) string {
	if kind == "ready" || kind == "not ready" {
		return "ready flip"
	}
	return kind
}

// change applies one change at a time that is independent of polls, and returns the time until the
// importer shows it.
func (c *clusters) change(ctx context.Context, im *imports, number, round int, kind string) (time.Duration, error) {
	if err := pause(ctx, rand.N(rest)); err != nil {
		return 0, err
	}
	name := serviceName(number)
	wanted := slice(name, number)
	added := endpoint(100_000 + number*changesPerKind + round)
	address := added.Addresses[0]
	if kind != "remove" {
		ready := kind != "not ready"
		added.Conditions.Ready = &ready
		wanted.Endpoints = append(wanted.Endpoints, added)
	}
	began := time.Now()
	if err := c.exporter.Update(ctx, wanted); err != nil {
		return 0, err
	}
	err := im.until(ctx, fmt.Sprintf("%s of %s in %s", kind, address, name), changeTimeout, func(all map[string]*discoveryv1.EndpointSlice) bool {
		return shows(all, address, kind)
	})
	return time.Since(began), err
}

// shows reports whether the imported slices show address as it is after a change of the kind.
func shows(all map[string]*discoveryv1.EndpointSlice, address, kind string) bool {
	for _, s := range all {
		for _, e := range s.Endpoints {
			if slices.Contains(e.Addresses, address) {
				return kind != "remove" && (e.Conditions.Ready == nil || *e.Conditions.Ready) == (kind != "not ready")
			}
		}
	}
	return kind == "remove"
}
