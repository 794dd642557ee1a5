// Package format is the format of a cluster's records in AWS Cloud Map: pages as instances of a
// catalog, and member records as instances of service members. It is pure: no I/O, locks or clocks.
// docs/proposals/001-cloud-map-record-format.md describes it.
package format
