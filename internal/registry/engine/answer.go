package engine

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// answersPerSecond is the rate at which the clusters of a clusterset answer a new process: half of
// the 50 writes a second that AWS is known to accept from an account (docs/cost.md). The first
// answersAtOnce do so at once.
const (
	answersPerSecond = 25
	answersAtOnce    = 25
)

// AnswerDelay returns how long a cluster waits until it answers a new process of another one by a
// record: that process cannot know before that it has read the latest one. All clusters read the
// new process at the same time. Without the delay, 1,000 of them would write at once, and from then
// on all heartbeats together. The delay of a cluster is always the same, and is below interval,
// that of the heartbeats, which makes the write needless.
func AnswerDelay(id string, clusters int, interval time.Duration) time.Duration {
	within := min(time.Duration(max(0, clusters-answersAtOnce))*time.Second/answersPerSecond, interval)
	hash := sha256.Sum256([]byte(id))
	return time.Duration(float64(within) * float64(binary.BigEndian.Uint32(hash[:])) / (1 << 32))
}
