// Package desired decides about the exports of this cluster on their way to a store: which units
// have to be written now, what the record of the cluster says of each, and which status users see.
// It has table (c) of docs/proposals/031-engine.md. Packages etcd and cloudmap/state use it.
//
// State is deterministic: it does no I/O, has no clock and no goroutine, and the same calls give
// the same results. Package engine/model explores it.
//
// # Files
//
//	unit.go     table (c): the states of a unit and their events
//	state.go    all units of the cluster: the events about more than one
//	due.go      the rules: when a unit may be written
//	answers.go  the results: the status of an export, and the name of a unit in the record
//
// # How a store uses it
//
// A driver adopts what the store shows once its process holds the ID. Then it takes the drafts that
// are due, and ends each of them with Keep, Refuse, Postpone or Begin. Begin is followed by one End
// with the result of the write. Each read of the store is an Observe of the units that were read.
//
//   - cloudmap: a unit is a page. Each page is written by itself, and the store shows it seconds
//     later: it is written again if it is not shown for Patience.
//   - etcd: a unit is the key of an export. The units of a transaction are written together. The
//     watch shows a write by its revision, so that Patience is zero.
package desired
