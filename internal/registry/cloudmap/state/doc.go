// Package state is the state of one cluster in a clusterset on AWS Cloud Map: the pages read of
// each cluster, the claim of the own cluster ID, and the own pages to write. It decides what to
// read and to write, and does no I/O: package cloudmap makes the requests and records the results.
//
// catalogs.go has the other clusters and own.go the own records as they were read, claim.go the
// claim, draft.go and outbox.go the pages to write: plain data without locks and clocks. shared.go
// holds them under one mutex. reads.go and writes.go have the decisions about reads and writes, and
// state.go answers lookups.
package state
