// Package cloudmaplocal is a local server that speaks the AWS Cloud Map API well enough that the
// AWS SDKs and the AWS CLI work with it unchanged.
//
// How a request travels:
//
//  1. [Server] reads the operation from X-Amz-Target and finds it in one table (handlers).
//  2. The credential determines the account and the Region; each pair has a region of its own. A
//     request for a resource that another account shares runs in the region of that account.
//  3. The fault plan may delay it, or answer it with an error or not at all; and a token bucket per
//     operation admits it, or it is throttled as AWS would.
//  4. The operation is decoded; with the region locked, it is authorized and its handler validates
//     and runs it.
//  5. The handler of an asynchronous operation only adds it to the region's operationLog. It
//     changes the store when it is due.
//  6. Every change of the store is also put into the log of the replica, which applies it one
//     consistency delay later. DiscoverInstances, DiscoverInstancesRevision and ListInstances read
//     the replica; all other operations read the store.
//
// Each part of the state has one type: store (resources), operationLog (asynchronous operations)
// and replica in each region; faults, shareList and credentialStore for the whole server. The files
// use each other in one direction only, from server.go (the top) by way of the handlers and
// region.go to resources.go.
//
// Only the saving of the state file runs in the background. Effects that are due are applied, in
// order, before the next request is answered, so a test with an injected clock controls exactly
// which effects are visible.
package cloudmaplocal
