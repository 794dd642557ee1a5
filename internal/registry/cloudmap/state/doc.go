// Package state is the state of one cluster in a clusterset on AWS Cloud Map: what was read of each
// cluster, the claim of the own cluster ID, and the own pages to write. It decides what to read and
// to write, and does no I/O: package cloudmap makes the requests and records the results. Package
// engine/belief decides what the records of the other clusters mean, and engine/desired which of
// the own pages are written.
//
// catalogs.go passes the records of the other clusters to belief, pageread.go and pages.go their
// pages, and members.go lists the clusters for users. own.go has the own records as they were read,
// claim.go the claim, outbox.go, draft.go and shares.go the instances of the pages to write: plain
// data without locks and clocks. shared.go holds them under one mutex. reads.go and writes.go have
// the decisions about reads and writes, and state.go answers lookups.
package state
