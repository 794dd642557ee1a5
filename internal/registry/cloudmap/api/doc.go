// Package api is the client for AWS Cloud Map: one method per request, with a client-side rate
// limit for each operation, credentials of an assumed role, errors that name the remedy, and the
// tags that mark what the controllers create.
package api
