package memory

import "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"

// faults are the faults that last until they are switched off.
type faults struct {
	err            error // SetError
	held           bool  // HoldConfirmations
	dropHeartbeats bool
	unreadable     map[string]bool
}

// SetError makes every read and write fail with err, or succeed again if err is nil.
func (h *Hub) SetError(err error) { h.inject(func() { h.err = err }) }

// SetUnreadable sets whether the exports of a cluster are unreadable for the others.
func (h *Hub) SetUnreadable(clusterID string, unreadable bool) {
	h.inject(func() { h.unreadable[clusterID] = unreadable })
}

// HoldConfirmations sets whether writers do not read their own writes. Other clusters read them.
func (h *Hub) HoldConfirmations(hold bool) { h.inject(func() { h.held = hold }) }

// DropHeartbeats sets whether heartbeats are lost. Exports are still written.
func (h *Hub) DropHeartbeats(drop bool) { h.inject(func() { h.dropHeartbeats = drop }) }

// Wipe removes everything, as another user of a store may, without farewells.
func (h *Hub) Wipe() { h.inject(func() { clear(h.clusters) }) }

// DeleteMember removes the record of a cluster as another user may, but not its exports.
func (h *Hub) DeleteMember(clusterSetID, clusterID string) {
	h.inject(func() {
		if c := h.clusters[clusterRef{clusterSetID, clusterID}]; c != nil {
			c.isMissing = true
		}
	})
}

// DeleteExport removes an export as another user may.
func (h *Hub) DeleteExport(clusterSetID, clusterID string, key mcs.Key) {
	h.inject(func() {
		if c := h.clusters[clusterRef{clusterSetID, clusterID}]; c != nil {
			delete(c.units, unitOf(key))
		}
	})
}

// inject changes the store, and shows that to every running registry.
func (h *Hub) inject(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
	h.wakeAll()
}
