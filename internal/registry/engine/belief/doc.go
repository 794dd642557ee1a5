// Package belief decides what the records of the other clusters mean: which of their exports are
// imported, unknown or ended. It has tables (a) and (b) of docs/proposals/031-engine.md and the
// rules that they use. Packages memory, etcd and cloudmap/state use it.
//
// State.Step is deterministic: it does no I/O, has no clock and no goroutine, and the same events
// give the same actions. Package engine/model explores it.
//
// # Files
//
//	event.go      the events and actions, and the records and units that they have
//	rules.go      the rules: later, accepted, add first, early
//	cluster.go    table (a): another cluster
//	unit.go       table (b): a unit of a cluster
//	signed.go     the record of a cluster with its units
//	manifest.go   the two ways in which a record names units
//	view.go       the result: a key as each cluster has it
//	reads.go      what a driver asks about its reads
//	index.go      finds the clusters that a View looks at
//
// # How a store uses it
//
// A driver verifies signatures and decodes without its lock, and calls Step with it. A record is
// verified with the key that it presents; whether that is the key of the cluster is decided here. A
// unit is verified with the key of State.RecordOf. What the budgets do not admit is
// Content.Unusable: State.Counts says before whether a read would count.
//
//   - cloudmap: a poll of service members is a RecordRead, RecordRefused or RecordMissing for each
//     cluster, and a Tick. The catalog of a cluster is its own place: ReadProofs reads the copy of
//     the record there, with the tag as the seal. ByUnit has the digests of the pages. The driver
//     limits the catalogs of unknown clusters that it reads in a poll.
//   - etcd: the prefix of a cluster is its own place, so each record is of Own, and Sealed with a
//     user for each cluster. The changes that a watch shows at one revision are the events
//     RecordRead and UnitsRead, and then a Tick. AsSet has the digest of the exports.
//   - memory: each record is of Own, and there is one key for all. Each export is a unit, and
//     ByUnit has its version, which a counter makes.
//
// The keyring, which all registries of a controller share, decides about keys, and saves what the
// next process has to know. What waits for that counts with the Tick after it. Notify and Decided
// go to engine.PendingLookups, and a View to registry.View: each ClusterView has the state and the
// liveness of one cluster.
package belief
