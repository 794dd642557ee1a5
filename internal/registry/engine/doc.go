// Package engine holds the parts that the backends of package registry share: the checks of Publish
// and Withdraw, wake-up signals, retries with backoff, the log lines and notifications when a
// problem begins or ends, pending lookups, and the order of running and leaving. Each part is a
// small type of its own; a backend composes those that it needs.
package engine
