package state

// waiting returns the number of pages that are to be written or being written.
func (o *outbox) waiting() (pages int) {
	for i := range o.pages {
		if p := &o.pages[i]; p.writing != 0 || p.adopted && (p.dirty || p.torn) {
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

// instances returns the number of instances in the catalog of another cluster: its pages as they
// were last read, and the copy of the record.
func (c *catalog) instances() (count int) {
	if c.record != nil {
		count++
	}
	for i := range c.pages {
		count += c.pages[i].parts
	}
	return count
}
