// Package plan computes the Kubernetes objects of an import from the merge of its exports
// (mcs.Merged): the ServiceImport and its status, the derived Service and the imported
// EndpointSlices.
//
// Every function is pure. It takes the existing objects, does not change them, and returns the
// desired ones, which keep what users and other controllers wrote. Without a change the two are
// equal (apiequality.Semantic), so the caller compares them to decide whether to write. Outputs are
// sorted.
package plan
