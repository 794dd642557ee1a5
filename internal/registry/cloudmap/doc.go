// Package cloudmap is the registry on AWS Cloud Map. Each cluster publishes its exports as pages and, with lower priority, as one instance
// per endpoint: a view for people and other AWS services.
//
//	Publish ─▶ outbox ─▶ writer ──pages, members──▶ Cloud Map ──members, pages──▶ reader ─▶ catalogs ─▶ Lookup, notify
//	              └────▶ instance view ──instances──▶ Cloud Map
//
// Decisions are made on plain data without I/O, locks or clocks: package format (pages and member records), claim.go (the cluster ID),
// catalogs.go (what was read), outbox.go and draft.go (what is to be written). state.go holds them under one mutex; state_read.go and
// state_write.go are what follows from reads and writes. reader.go, writer.go and leave.go carry decisions out, control.go and resourceids.go
// find the namespace and services, peers.go schedules reads, package instances maintains the view, and registry.go connects them. Package api makes all requests. docs/proposals/001-cloud-map-record-format.md
// describes what is stored.
package cloudmap
