// Package cloudmap is the registry on AWS Cloud Map. Each cluster publishes its exports as pages
// and, with lower priority, as one instance per endpoint: a view for people and other AWS services.
//
//	Publish ─▶ state.Writes ─▶ writer ──pages, members──▶ Cloud Map ──members, pages──▶ reader ─▶ state.Reads ─▶ Lookup, notify
//	                └────▶ instance view ──instances──▶ Cloud Map
//
// Package state makes all decisions, on the pages and member records of package format. reader.go,
// writer.go and leave.go carry them out, control.go and resourceids.go find the namespace and
// services, peers.go schedules reads, package instances maintains the view, and registry.go
// connects them. Package api makes all requests. docs/proposals/001-cloud-map-record-format.md
// describes what is stored.
package cloudmap
