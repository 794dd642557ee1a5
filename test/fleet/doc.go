// Package fleet measures one controller in a clusterset of up to a thousand clusters: a real
// program on a real API server, a real registry, and members that write what the controllers of so
// many clusters would write. test/bench prints the results.
package fleet
