package state

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
