package engine

import "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"

// Keys is a set of keys, in general those with a View that may have changed.
type Keys map[mcs.Key]struct{}

// Add adds key.
func (k Keys) Add(key mcs.Key) { k[key] = struct{}{} }

// Notifier calls the function that Run got for keys with a View that may have changed.
type Notifier struct {
	addResolved func(changed Keys)
	notify      func(mcs.Key)
}

// NewNotifier returns a Notifier. Before each notification it calls addResolved, which adds the
// keys of pending lookups that have another answer now (PendingLookups.AddChanged).
func NewNotifier(addResolved func(changed Keys)) *Notifier {
	return &Notifier{addResolved: addResolved}
}

// Start sets the function that Run got. It must be called before the loops that call Notify start.
func (n *Notifier) Start(notify func(mcs.Key)) { n.notify = notify }

// NotifyKeys calls the function for each changed key only: the caller has added the keys of pending
// lookups.
func (n *Notifier) NotifyKeys(changed Keys) {
	for key := range changed {
		n.notify(key)
	}
}

// Notify calls the function for each changed key and for each resolved pending lookup. The caller
// must not hold a lock that addResolved takes.
func (n *Notifier) Notify(changed Keys) {
	n.addResolved(changed)
	for key := range changed {
		n.notify(key)
	}
}
