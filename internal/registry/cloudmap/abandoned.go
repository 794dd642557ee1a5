package cloudmap

import (
	"context"
	"fmt"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// aliveAfter is for how many times the silence of a dead cluster a record must go on to change to be somebody's who lives: what
// changes at first may be the last writes of an earlier life, shown late.
const aliveAfter = 2

// abandoned says whether what is stored under our identity was left by an earlier life of this cluster, and makes it ours to
// remove. It is not when its record goes on to change while we watch: a cluster that was cloned has the same UID.
func (r *Registry) abandoned(ctx context.Context) (bool, error) {
	namespaces, err := r.client.ListNamespaces(ctx)
	if err != nil {
		return false, err
	}
	in, ok := namespaces[r.control.namespaceName()]
	if !ok {
		return false, nil
	}
	var last *format.Member
	began := time.Now()
	for changed := began; time.Since(changed) < r.claim.silence; {
		shown, err := r.readRecord(ctx, in)
		switch {
		case err != nil:
			return false, err
		case shown == nil, !shown.IsOf(r.cfg.Identity):
			return false, nil
		case last == nil:
			last = shown
		case shown.IsLaterThan(*last):
			last, changed = shown, time.Now()
		}
		if changed.Sub(began) >= aliveAfter*r.claim.silence {
			r.log.Info("What is stored under an earlier identity of this cluster is left alone: a clone of the cluster, with the same "+
				"UID of namespace kube-system, uses it", "cluster", r.cfg.Identity.ClusterID, "clusterSet", r.cfg.Identity.ClusterSetID)
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("watching the record of an earlier identity: %w", ctx.Err())
		case <-time.After(r.cfg.PollInterval):
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ours = *last
	r.ours.Heartbeat = r.ours.NextHeartbeat(time.Now())
	return true, nil
}

// readRecord reads the record with our ID, nil if there is none.
func (r *Registry) readRecord(ctx context.Context, in api.Namespace) (*format.Member, error) {
	query := map[string]string{format.AttrClusterID: r.cfg.Identity.ClusterID}
	instances, _, err := r.client.DiscoverInstances(ctx, in.HTTPName, format.MembersService, query)
	if api.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record of an earlier identity: %w", err)
	}
	return format.FindMember(instances, r.cfg.Identity), nil
}
