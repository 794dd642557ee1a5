// Package cloudmaplocal is a local server that speaks the AWS Cloud Map API well enough that the AWS SDKs and the AWS
// CLI work with it unchanged.
//
// How a request travels:
//
//  1. [Server] reads the operation from X-Amz-Target and finds it in one table (operations).
//  2. The credential determines the account and the Region; each pair has a store of its own (region). A request
//     for a resource that another account shares runs in that account's store.
//  3. The fault plan may delay it, or answer it with an error or not at all; and a token bucket per operation admits it,
//     or it is throttled as AWS would.
//  4. The operation is decoded, validated and run with the region locked and its clock advanced.
//  5. Asynchronous operations only enter a queue there. They take effect when their time comes.
//  6. Every effect is also put into the log of the replica, which applies it one consistency delay later.
//     DiscoverInstances, DiscoverInstancesRevision and ListInstances read the replica; all other operations read the region itself.
//
// Only the saving of the state file runs in the background. Effects that are due are applied, in order, before the next
// request is answered, so a test with an injected clock controls exactly which effects are visible.
package cloudmaplocal
