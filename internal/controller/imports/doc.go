// Package imports makes the services of the clusterset usable in this cluster: it reconciles
// ServiceImports, derived Services and imported EndpointSlices with the exports of all clusters.
//
// Each reconcile gathers everything about one service, decides without I/O, and applies the
// smallest set of writes.
package imports
