// Package etcd is the registry on an etcd cluster. The keys, below a prefix that is /mcs unless set otherwise:
//
//	/mcs/<clusterset>/<cluster>/member                who the cluster is, as JSON; stays when the cluster dies
//	/mcs/<clusterset>/<cluster>/alive                 the UID of the cluster, under a lease that its controller keeps alive
//	/mcs/<clusterset>/<cluster>/exports/<ns>/<name>   one export in the encoding of package record
//
// Everything that a cluster writes has one prefix, so one grant of write permission limits its etcd user to it.
//
// Reading is a list at one revision and a watch from the next, so a reader sees every change in order, or notices that it
// cannot and lists again. An export is there as long as its key is; a cluster that dies leaves its exports and loses its
// key alive, which makes it stale.
//
// Writing is fenced: every transaction demands that the key alive is as this process wrote it last. A process that was
// displaced, or whose lease ran out, therefore writes nothing, however late its requests arrive; and a request of which
// the outcome is unknown is overtaken by writing alive anew.
package etcd
