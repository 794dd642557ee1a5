package cloudmap

import (
	"context"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// readOthers reads the other clusters' pages for a registry that only reads.
//
// Where the clusterset's namespace is missing, no cluster has joined: a registry that was never there has no exports. One that
// was there and is gone, as AWS says itself, may come back within seconds, for its clusters make it again; what was read of
// it goes when it has been away for StaleAfter.
func (r *Registry) readOthers(ctx context.Context, place controlPlace, notify func(mcs.Key)) error {
	if !place.missing {
		r.noteMissing(time.Time{})
		return r.readPages(ctx, place, notify)
	}
	now := time.Now()
	since := r.noteMissing(now)
	if now.Sub(since) < r.cfg.StaleAfter {
		return nil
	}
	changed := keySet{}
	r.mu.Lock()
	for id := range r.catalogs.clusters {
		r.catalogs.remove(id, changed)
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
		r.log.Info("No cluster of the clusterset is here yet, or any more: imports from here stay for a while, and new ones come when one joins",
			"namespace", r.control.namespaceName(), "staleAfter", r.cfg.StaleAfter.String())
		r.missingSince = now
	case now.IsZero() && !r.missingSince.IsZero():
		r.log.Info("The clusterset is here now", "namespace", r.control.namespaceName())
		r.missingSince = now
	}
	return r.missingSince
}
