package cloudmap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// memberServices are the services with member records: members, and further ones of clusters that
// found no room in those before (docs/proposals/023-more-members.md). The record of a cluster stays
// in its service. It is safe for concurrent use.
type memberServices struct {
	// known is the number of services that exist as far as is known; 0 is unknown.
	known atomic.Int32

	mu sync.Mutex
	// shown are the numbers of records that the last read of each service showed.
	shown [format.MaxMembersServices]int
	// full are the services that have refused a record of this cluster.
	full [format.MaxMembersServices]bool
}

// number is the number of services that a poll reads, at least 1.
func (m *memberServices) number() int { return max(1, int(m.known.Load())) }

// toSearch is the number of services that a record may be in: all that are possible while none was
// read.
func (m *memberServices) toSearch() int {
	if m.known.Load() == 0 {
		return format.MaxMembersServices
	}
	return m.number()
}

// observe records that n services exist. One that is missing in a later read may exist: the records
// in it would be no evidence for anything.
func (m *memberServices) observe(n int) {
	if n > int(m.known.Load()) {
		m.known.Store(int32(n)) //nolint:gosec // at most MaxMembersServices
	}
}

// observeRead records the number of records that a read of service n showed.
func (m *memberServices) observeRead(n, records int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shown[n-1] = records
}

// refused records that a service refused this cluster's record because of a quota. It reports
// whether another service may have room: the other quota, of instances of the namespace, holds for
// all of them.
func (m *memberServices) refused(name string) bool {
	n, ok := format.ParseMembersService(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !ok || m.shown[n-1] < format.FullMembersService {
		return false
	}
	m.full[n-1] = true
	return true
}

// withRoom returns the number of the first service that has not refused a record, 0 if all have:
// then all are tried again.
func (m *memberServices) withRoom() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := slices.Index(m.full[:], false) + 1
	if n == 0 {
		clear(m.full[:])
	}
	return n
}

// countServices returns how many services with member records are among all services of the control
// namespace.
func countServices(services map[string]api.Service) int {
	n := 0
	for n < format.MaxMembersServices {
		if _, ok := services[format.MembersServiceName(n+1)]; !ok {
			break
		}
		n++
	}
	return n
}

// errNoRoom means that all services with member records are full.
var errNoRoom = fmt.Errorf("the clusterset has no room for another cluster: each of its %d services with member records has 1,000 instances, the maximum of AWS Cloud Map. "+
	"The records of clusters that have left stay for a week", format.MaxMembersServices)

// findMembers returns the service for this cluster's record: the one that has a record with its ID,
// else the first one with room, which it creates if it does not exist.
func (c *control) findMembers(ctx context.Context, in api.Namespace, services map[string]api.Service) (api.Service, error) {
	count := countServices(services)
	c.services.observe(count)
	if count > 1 {
		n, err := c.findRecord(ctx, in, count)
		if err != nil {
			return api.Service{}, err
		}
		if n > 0 {
			return services[format.MembersServiceName(n)], nil
		}
	}
	n := c.services.withRoom()
	if n == 0 {
		return api.Service{}, errNoRoom
	}
	name := format.MembersServiceName(n)
	if found, ok := services[name]; ok {
		return found, nil
	}
	created, err := c.client.CreateService(ctx, in, name, c.identity, api.PartMembers)
	if err == nil {
		c.services.observe(n)
	}
	return created, err
}

// findRecord returns the number of the service that has a record with this cluster's ID, 0 for
// none.
func (c *control) findRecord(ctx context.Context, in api.Namespace, count int) (int, error) {
	for n := 1; n <= count; n++ {
		found, err := c.recordsOf(ctx, in, n)
		if err != nil && !api.IsNotFound(err) {
			return 0, fmt.Errorf("looking for this cluster's record: %w", err)
		}
		if len(found) > 0 {
			return n, nil
		}
	}
	return 0, nil
}

// recordsOf reads the records with this cluster's ID in service n.
func (c *control) recordsOf(ctx context.Context, in api.Namespace, n int) ([]api.Instance, error) {
	found, _, err := c.client.DiscoverInstances(ctx, in.HTTPName, format.MembersServiceName(n), map[string]string{format.AttrClusterID: c.identity.ClusterID})
	return found, err
}

// membersServices lists the services with member records.
func (c *control) membersServices(ctx context.Context, in api.Namespace) (found []api.Service, err error) {
	services, err := c.client.ListServices(ctx, in)
	if err != nil {
		return nil, err
	}
	for n := range countServices(services) {
		found = append(found, services[format.MembersServiceName(n+1)])
	}
	return found, nil
}

// moveRecord makes the next search find another service for this cluster's record if its service is
// full.
func (c *control) moveRecord(place controlPlace, err error) {
	if !api.IsQuota(err) || !c.services.refused(place.members.Name) {
		return
	}
	c.log.Info("The service with member records is full; looking for another one", "service", place.members.Name)
	c.last.Store(nil)
	c.known.Store(nil)
}

// recordReader reads the services with member records. It belongs to the reader's goroutine.
type recordReader struct {
	*components
	// askedAt is the time at which the service after the known ones was asked for; zero is never,
	// or before a read that failed.
	askedAt time.Time
}

// askAgain is the time after which the service after the known ones is asked for again while the
// last one is full.
const askAgain = 30 * time.Second

// isAskDue reports whether the service after the known ones has to be asked for: at first, and at
// intervals if the last one showed so many records that a further one may have been created.
func (r *recordReader) isAskDue(now time.Time, shown int) bool {
	return r.askedAt.IsZero() || shown >= format.FullMembersService && now.Sub(r.askedAt) >= askAgain
}

// read reads the records of all members. Either all services are read, or it fails.
func (r *recordReader) read(ctx context.Context, in api.Namespace) ([]api.Instance, error) {
	records, err := r.readKnown(ctx, in)
	now := time.Now()
	if err == nil && r.isAskDue(now, len(records[len(records)-1])) {
		if records, err = r.readFurther(ctx, in, records); err == nil {
			r.askedAt = now
		}
	}
	if err != nil {
		r.askedAt = time.Time{}
		return nil, err
	}
	for i, found := range records {
		r.control.services.observeRead(i+1, len(found))
	}
	r.control.services.observe(len(records))
	if len(records) == 1 {
		return records[0], nil
	}
	return r.state.Reads.OneRecordEach(slices.Concat(records...)), nil
}

// readKnown reads the services that are known, all at once.
func (r *recordReader) readKnown(ctx context.Context, in api.Namespace) ([][]api.Instance, error) {
	records := make([][]api.Instance, r.control.services.number())
	var group errgroup.Group
	for i := range records {
		group.Go(func() (err error) {
			records[i], err = r.readService(ctx, in, i+1)
			if i > 0 && api.IsNotFound(err) {
				return nil // the records in it are missing, which is no evidence
			}
			return err
		})
	}
	err := group.Wait()
	return records, err
}

// readFurther adds the services after the known ones.
func (r *recordReader) readFurther(ctx context.Context, in api.Namespace, records [][]api.Instance) ([][]api.Instance, error) {
	for len(records) < format.MaxMembersServices {
		found, err := r.readService(ctx, in, len(records)+1)
		switch {
		case api.IsNotFound(err) || api.IsDenied(err): // a policy may name the services that exist
			return records, nil
		case err != nil:
			return nil, err
		}
		records = append(records, found)
	}
	return records, nil
}

// readService reads service n.
func (r *recordReader) readService(ctx context.Context, in api.Namespace, n int) ([]api.Instance, error) {
	// A service has at most as many instances as one read shows. If AWS allowed more, a record that
	// is not shown would be as one that is missing: its cluster's catalog has a copy.
	instances, _, err := r.client.WithPriority(api.PriorityHigh).DiscoverInstances(ctx, in.HTTPName, format.MembersServiceName(n), nil)
	return instances, err
}

// removeFarewells removes the last records of clusters that left.
func (r *recordReader) removeFarewells(ctx context.Context, place controlPlace, ids []string) error {
	services := []api.Service{place.members}
	if r.control.services.number() > 1 {
		var err error
		if services, err = r.control.membersServices(ctx, place.namespace); err != nil {
			return err
		}
	}
	var failed []error
	for _, s := range services {
		for _, id := range ids {
			// one that is not there is removed
			failed = append(failed, r.client.WithPriority(api.PriorityLow).DeregisterInstance(ctx, s.ID, id))
		}
	}
	return errors.Join(failed...)
}
