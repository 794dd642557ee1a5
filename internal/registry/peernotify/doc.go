// Package peernotify lets the controllers of a clusterset notify each other of new content in the
// registry, so that none of them has to poll it often. Pod networks are routable between the
// clusters, so controllers send each other small UDP datagrams.
//
//	cls1 writes the registry ──▶ "cls1 is at generation 4711" ──▶ cls2 reads the registry now, not at its next poll
//
// A notification carries no data and is not trusted; nothing depends on its arrival. It is repeated
// every SendInterval, which makes up for lost datagrams and reveals peers that went silent: while
// notifications arrive from every peer, the poll is slow, otherwise it is fast.
//
// Message is the datagram, Keys authenticate it, Scheduler decides when the registry is read, and
// Transport does the I/O.
package peernotify
