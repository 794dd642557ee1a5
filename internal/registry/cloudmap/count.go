package cloudmap

// count tells the metrics what this cluster has in its catalog and what waits to get there. The caller holds r.mu.
func (r *Registry) count() {
	exports, pages := r.outbox.size()
	r.cfg.Metrics.Stored(r.client.name, "exports", exports)
	r.cfg.Metrics.Stored(r.client.name, "pages", pages)
	dirty, torn := r.outbox.pending()
	r.cfg.Metrics.Pending(r.client.name, "pages", dirty+torn)
	parts, largest := r.outbox.parts()
	r.cfg.Metrics.LimitUsed(r.client.name, "catalog", parts, maxInstances)
	r.cfg.Metrics.LimitUsed(r.client.name, "page", largest, maxParts)
}

// parts are how many instances the pages are, and those of the largest page.
func (o *outbox) parts() (all, largest int) {
	for i := range o.pages {
		all += o.pages[i].parts
		largest = max(largest, o.pages[i].parts)
	}
	return all, largest
}
