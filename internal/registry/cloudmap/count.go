package cloudmap

// count tells the metrics what this cluster has in its catalog and what waits to get there. The caller holds r.mu.
func (r *Registry) count() {
	exports, pages := r.outbox.size()
	r.cfg.Metrics.Stored(r.client.name, "exports", exports)
	r.cfg.Metrics.Stored(r.client.name, "pages", pages)
	r.cfg.Metrics.Pending(r.client.name, "pages", r.outbox.waiting())
	parts, largest := r.outbox.parts()
	r.cfg.Metrics.LimitUsed(r.client.name, "catalog", parts, pageCount*maxParts)
	r.cfg.Metrics.LimitUsed(r.client.name, "page", largest, maxParts)
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

// parts are how many instances the pages are, and those of the largest page.
func (o *outbox) parts() (all, largest int) {
	for i := range o.pages {
		all += o.pages[i].parts
		largest = max(largest, o.pages[i].parts)
	}
	return all, largest
}
