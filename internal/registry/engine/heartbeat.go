package engine

import "time"

// SavedHeartbeat is the heartbeat of a cluster, in milliseconds, that its controller keeps across
// restarts, 0 for none. The next process continues after it although its clock may be behind and
// the registry may not show the record any more. Other clusters would take earlier heartbeats for
// replays.
//
// It is saved before a record with the heartbeat is written. No record or page of the cluster has a
// heartbeat or generation of unsavedFor later, and none at all is later if it was ahead of the
// clock. If the clock of a process was ahead by less than saveInterval, and not that of the next
// one, its records may be earlier, for that time at most: which of the two clocks is right is not
// known.
type SavedHeartbeat int64

// saveInterval is the interval at which the own heartbeat is saved, saveAheadInterval while it is
// ahead of the clock: then a later one is saved, and a later clock shows that the next process
// continues after all that were used.
const (
	saveInterval      = 5 * time.Minute
	saveAheadInterval = 30 * time.Second
	// unsavedFor is how much later than the saved heartbeat the last one, and the generation of a
	// page that no record announced, may be: two heartbeat intervals pass between records at most,
	// or a pause of 30 s after failures.
	unsavedFor = saveInterval + time.Minute
)

// Next returns a heartbeat that the previous process has not used, 0 if none is saved. If the clock
// is behind what was saved, the previous process may have used more since.
func (s SavedHeartbeat) Next(wall time.Time) int64 {
	if s == 0 || wall.UnixMilli() > int64(s) {
		return int64(s)
	}
	return int64(s) + unsavedFor.Milliseconds()
}

// Advance returns what is to be saved before a record with a heartbeat is written. due reports
// whether it is time to save it.
func (s SavedHeartbeat) Advance(heartbeat int64, wall time.Time) (next SavedHeartbeat, due bool) {
	interval := saveInterval
	if heartbeat > wall.Add(time.Second).UnixMilli() {
		interval = saveAheadInterval
		// no heartbeat before the next save is later
		heartbeat += 2 * saveAheadInterval.Milliseconds()
	}
	next = max(SavedHeartbeat(heartbeat), s)
	return next, int64(next-s) >= interval.Milliseconds()
}
