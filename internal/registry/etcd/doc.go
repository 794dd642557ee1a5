// Package etcd is the registry on an etcd cluster. The keys, with the default prefix /mcs:
//
//	/mcs/<clusterset>/<cluster>/member                the member record, as JSON; stays when the cluster dies
//	/mcs/<clusterset>/<cluster>/alive                 the UID of the cluster, with a lease that its controller renews
//	/mcs/<clusterset>/<cluster>/exports/<ns>/<name>   one export in the encoding of package record
//
// All keys of a cluster have one prefix, so one write permission limits its etcd user to them.
//
// The reader lists all keys at one revision and watches from the next, so it sees every change in order, or finds that it cannot
// and lists again. It updates the mirror, which answers lookups. The exports of a cluster that dies stay; its key alive expires
// and its heartbeats end, which makes it stale.
//
// The writer compares the desired exports with the mirror. Its writes are fenced: every transaction demands that the key alive is
// as this process wrote it last. So a process that was displaced, or whose lease expired, writes nothing, however late its
// requests arrive. After a request of unknown outcome, the writer writes alive again, so that a late request fails.
package etcd
