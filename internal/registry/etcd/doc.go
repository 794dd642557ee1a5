// Package etcd is the registry on an etcd cluster. The keys, with the default prefix /mcs:
//
//	/mcs/<clusterset>/<cluster>/member                the signed member record, as JSON; stays when the cluster dies
//	/mcs/<clusterset>/<cluster>/alive                 the UID of the cluster and the number of the process, with a lease that its controller renews
//	/mcs/<clusterset>/<cluster>/exports/<ns>/<name>   one signed export in the encoding of package record
//
// All keys of a cluster have one prefix, so one write permission limits its etcd user to them.
//
// The reader reads a head, the own keys and the member records of the known clusters at one
// revision, and watches from the latest change on, so it sees every change in order, or finds that
// it cannot and begins again. Beside the watch it reads the clusters that have changed since the
// previous process, and lists all keys. A watch ends with its connection, and the next one begins
// when etcd has shown that it still has the latest change. The reader updates
// the mirror, which answers lookups. The mirror verifies every record and export with the key of
// its cluster, and passes what etcd shows to package engine/belief, which decides what it means:
// the member record has a digest of all exports of its cluster, and an export ends only when etcd
// shows exactly the exports of that digest, without it. The exports of a cluster that dies stay;
// its key alive expires and its heartbeats end, which makes it stale. A cluster that leaves
// replaces its keys by a farewell, which etcd removes after a week.
//
// The writer writes the desired exports as package engine/desired decides, and the member record in
// the transaction of every change. A new process leaves the digest out until each export in etcd
// was compared with the desired one: some may be missing in etcd. Its writes are fenced: every
// transaction demands that the key alive is as this process wrote it last. So a process that was
// displaced, or whose lease expired, writes nothing, however late its requests arrive. After a
// request of unknown outcome, the writer writes alive again, so that a late request fails.
//
// # Files
//
//	reader.go, listing.go    the head, the watch, and the list of all keys beside it
//	mirror.go                the copy of the keys that they keep current
//	state.go                 each change of a key as an event of package belief
//	verify.go, budgets.go    the signatures and the budgets of the exports
//	reads.go                 the reads beside the list and the watch: of exports, or all of a cluster
//	members.go               the clusters with the problems of their keys
//	signed.go, values.go     the values of the keys; keys.go, member.go their names and records
//	store.go, client.go      the requests to etcd
//	writer.go, outbox.go     the own exports; shares.go the room of each namespace
//	session.go, claim.go     the own ID; leave.go gives it up
package etcd
