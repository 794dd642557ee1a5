// Package mcs is the domain of multi-cluster services, without I/O: what a cluster exports (Export), what the
// clusterset makes of all exports of one service (Merge), and the names and conditions users see.
//
// Nothing here takes a context, a client, a clock or a logger. Inputs are never changed, outputs are sorted, so that
// every cluster computes the same from the same exports whatever order they arrived in.
package mcs
