// Package peernotify lets the clusters of a clusterset tell one another that the registry has something new, so that nobody has to
// poll it often. Pod networks are routable between the clusters, so they send each other small UDP datagrams.
//
//	cls1 writes the registry ──▶ "cls1 is at generation 4711" ──▶ cls2 looks at the registry now, not at its next poll
//
// A hint carries no data and proves nothing; nothing depends on its arrival. It is repeated every BeatInterval, so that a lost
// one is made up for and silence is noticed: while hints from every cluster arrive, the poll is slow, otherwise it is fast.
//
// Message is the datagram, Watch decides when the registry is looked at, and Line does the I/O.
package peernotify
