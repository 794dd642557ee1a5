// Package mcs is the domain of multi-cluster services, without I/O: the export of a cluster
// (Export), the merge of all exports of one service (Merge), and the names and conditions that
// users see.
//
// No function takes a context, a client, a clock or a logger. Functions do not change their inputs
// and sort their outputs, so that every cluster computes the same result from the same exports in
// any order.
package mcs
