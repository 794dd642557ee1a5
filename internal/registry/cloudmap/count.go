package cloudmap

import (
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// count tells the metrics what this cluster has in its catalog and what waits to get there. The caller holds r.mu.
func (r *Registry) count() {
	exports, pages := r.outbox.size()
	r.cfg.Metrics.SetObjects(r.client.Name(), "exports", exports)
	r.cfg.Metrics.SetObjects(r.client.Name(), "pages", pages)
	r.cfg.Metrics.SetPending(r.client.Name(), "pages", r.outbox.waiting())
	r.cfg.Metrics.SetLimitUsed(r.client.Name(), "page", r.outbox.largest(), format.MaxParts)
	r.cfg.Metrics.SetLimitUsed(r.client.Name(), "catalog", r.outbox.instances(), catalogRoom)
}

// countShared tells the metrics what all clusters of the clusterset have together, of which members records were read. The caller
// holds r.mu.
func (r *Registry) countShared(members int) {
	r.cfg.Metrics.SetLimitUsed(r.client.Name(), "members", members, api.MaxDiscovered)
	if !r.cfg.ReadOnly { // where it is only read, those who write see to the quota
		r.cfg.Metrics.SetLimitUsed(r.client.Name(), "namespace", members+r.catalogs.parts(), r.cfg.InstancesPerNamespace)
	}
}

// waiting is how many pages are to be written, now or when it is their time.
func (o *outbox) waiting() (pages int) {
	for i := range o.pages {
		if p := &o.pages[i]; p.adopted && (p.dirty || p.torn) {
			pages++
		}
	}
	return pages
}

// largest is how many instances the largest page is.
func (o *outbox) largest() (parts int) {
	for i := range o.pages {
		parts = max(parts, o.pages[i].parts)
	}
	return parts
}

// instances returns how many instances the catalog may have.
func (o *outbox) instances() (count int) {
	for i := range o.pages {
		count += o.pages[i].stored
	}
	return count
}

// parts are how many instances the pages of all clusters are, as they were last read.
func (c *catalogs) parts() (parts int) {
	for _, cluster := range c.clusters {
		for i := range cluster.pages {
			parts += cluster.pages[i].parts
		}
	}
	return parts
}
