package cloudmap

import (
	"context"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// readOthers reads the other clusters' pages for a registry that only reads.
//
// Where the clusterset's namespace is missing, no cluster has joined: a registry that was never there has no exports. One that
// was there and is gone, as AWS's lists say, has lost its last cluster, unless the clusters make it again within seconds.
func (r *Registry) readOthers(ctx context.Context, place controlPlace, notify func(mcs.Key)) error {
	if !place.missing {
		r.noteMissing(time.Time{})
		return r.readPages(ctx, place, notify)
	}
	now := time.Now()
	since := r.noteMissing(now)
	if now.Sub(since) < r.cfg.times.gone {
		return nil
	}
	changed := keySet{}
	r.mu.Lock()
	for id := range r.catalogs.clusters {
		r.catalogs.remove(time.Now(), id, changed)
	}
	r.mu.Unlock()
	r.tell(notify, changed)
	return nil
}

// noteMissing notes whether the namespace is missing, which a zero now says it is not, logs when that changes, and returns since
// when it is.
func (r *Registry) noteMissing(now time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !now.IsZero() && r.missingSince.IsZero():
		r.log.Info("No cluster of the clusterset is here, or none any more", "namespace", r.control.namespaceName())
		r.missingSince = now
	case now.IsZero() && !r.missingSince.IsZero():
		r.log.Info("A cluster of the clusterset is here now", "namespace", r.control.namespaceName())
		r.missingSince = now
	}
	return r.missingSince
}
