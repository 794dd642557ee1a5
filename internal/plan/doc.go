// Package plan turns what the clusterset decided (mcs.Merged) into the objects that make it true: the ServiceImport and
// its status, the derived Service, the imported EndpointSlices, and the instances that Cloud Map shows.
//
// Every function is pure. It takes what is there, never changes it, and returns what should be there, keeping what
// others wrote; with nothing to do it returns what it was given, so that comparing the two (apiequality.Semantic) tells
// whether to write. Outputs are sorted.
package plan
