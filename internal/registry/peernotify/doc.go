// Package peernotify lets the controllers of a clusterset notify each other of new content in the
// registry, so that none of them has to poll it often, and send each other the records that they
// have written, so that none of them has to wait until the registry shows them. Pod networks are
// routable between the clusters, so controllers send each other small UDP datagrams.
//
//	cls1 writes ──▶ the records, sealed for cls2 ──▶ cls2 verifies and uses them
//	            ──▶ "cls1 is at generation 4711" ──▶ cls2 reads the registry, if it lacks that
//
// Nothing depends on the arrival of a datagram. A notification carries no data. It is repeated
// every SendInterval, which makes up for lost datagrams and reveals peers that went silent: while
// notifications arrive from every peer, the poll is slow, otherwise it is fast. Records are sent
// once: what gets lost is read from the registry.
//
// Message and Records are what is sent, Keys authenticate and encrypt it, Scheduler decides when
// the registry is read, and Transport does the I/O.
package peernotify
