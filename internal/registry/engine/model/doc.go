// Package model explores small worlds: every order of what clusters, a reader and a third party may
// do with a store, up to a number of states. It checks the promises that rules about records have
// to keep, in each state, and that everything converges when the faults end.
//
// A world has one or two exporting clusters with two keys each, the store, one reading cluster
// whose process restarts or is killed, and a third party: another member, an administrator with a
// backup, or a late read. The reader is belief.State, so this is a search of the code and not of a
// model of it.
//
// A publisher's world has a process with two exports, another process of its cluster, the store,
// and a third party. It explores desired.State: no record ends an export that is desired, or names
// an earlier version again.
//
// States that differ in the length of the time between records only, or by a permutation of units
// or clusters, are one state. The pauses between reads that fail are not explored: a read that is
// due later may come at once.
package model
