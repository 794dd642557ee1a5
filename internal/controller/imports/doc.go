// Package imports makes the services of the clusterset usable in this cluster: it reconciles ServiceImports, derived Services
// and imported EndpointSlices with what the registry and this cluster export.
//
// Each reconcile gathers everything about one service, decides without I/O, and applies the smallest set of writes.
package imports
