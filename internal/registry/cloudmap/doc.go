// Package cloudmap is the registry on AWS Cloud Map. Each cluster publishes its exports as pages, the truth, and, beside
// them and with less haste, as one instance per endpoint, a view for people and for AWS-native consumers.
//
//	Publish ─▶ outbox ─▶ writer ──pages, members──▶ Cloud Map ──members, pages──▶ reader ─▶ catalogs ─▶ Look, notify
//	              └────▶ instance view ──instances──▶ Cloud Map
//
// What is decided is decided in plain data without I/O, locks or clocks: page.go (a page as instances), members.go (a
// member's record), claim.go (whose the cluster ID is), catalogs.go (what was read), outbox.go (what is to be written).
// reader.go and writer.go do what was decided; package instances mirrors endpoints as Cloud Map instances; registry.go wires them; every request goes through package api.
// docs/proposals/001-cloud-map-record-format.md describes what is stored.
package cloudmap
