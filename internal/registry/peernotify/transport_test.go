package peernotify

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testHandler has one receiver at most and records the messages that arrive.
type testHandler struct {
	t         *testing.T
	mu        sync.Mutex
	message   Message
	receivers []Contact
	listening int
	received  chan Message
	counts    map[string]int
	keys      map[string]string
	unknown   []Message
}

func newTestHandler(t *testing.T, from string) *testHandler {
	return &testHandler{t: t, message: Message{ClusterSet: "set1", From: from, Generation: 1}, received: make(chan Message, 1_000), counts: map[string]int{}}
}

func (h *testHandler) Listening() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listening++
}

func (h *testHandler) PeerKey(id string) string { return h.keys[id] }

func (h *testHandler) HandleUnknownPeer(m Message) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unknown = append(h.unknown, m)
	return ResultUnknownPeer
}

func (h *testHandler) HandleMessage(m Message) string {
	h.received <- m
	return ResultOK
}

func (h *testHandler) State() (Message, []Receiver) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var receivers []Receiver
	for _, contact := range h.receivers {
		receivers = append(receivers, Receiver{Contact: contact, Generation: h.message.Generation})
	}
	return h.message, receivers
}

func (h *testHandler) count(direction, result string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[direction+" "+result]++
}

func (h *testHandler) counted(key string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts[key]
}

// waitForGeneration waits for a message of a generation.
func (h *testHandler) waitForGeneration(generation int64) Message {
	h.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case m := <-h.received:
			if m.Generation == generation {
				return m
			}
		case <-timeout:
			h.t.Fatalf("no message of generation %d", generation)
		}
	}
}

// runTransport runs a Transport until the test ends.
func runTransport(t *testing.T, transport *Transport) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { transport.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
}

// TestTransport sends notifications over real sockets.
func TestTransport(t *testing.T) {
	for name, address := range map[string]string{"IPv4": "127.0.0.1:0", "IPv6": "[::1]:0"} {
		t.Run(name, func(t *testing.T) {
			listen := func(id string) (net.PacketConn, Config) {
				conn, err := ListenUDP(address)
				if err != nil {
					t.Skipf("this machine has no %s: %v", name, err)
				}
				return conn, Config{
					Listen: func() (net.PacketConn, error) { return conn, nil }, Address: netip.MustParseAddrPort(conn.LocalAddr().String()), Keys: keysOf(id),
				}
			}
			_, configA := listen("a")
			_, configB := listen("b")
			a, b := newTestHandler(t, "a"), newTestHandler(t, "b")
			a.receivers, b.receivers = []Contact{configB.Contact()}, []Contact{configA.Contact()}
			a.keys = map[string]string{"b": configB.Keys.Public()}
			b.keys = map[string]string{"a": configA.Keys.Public()}
			transportA := NewTransport(configA, a, a.count, logr.Discard())
			transportB := NewTransport(configB, b, b.count, logr.Discard())
			runTransport(t, transportA)
			runTransport(t, transportB)
			first := b.waitForGeneration(1) // sent at the first interval
			a.mu.Lock()
			a.message.Generation = 2
			a.mu.Unlock()
			transportA.Notify()
			if second := b.waitForGeneration(2); second.Sequence <= first.Sequence || second.From != "a" {
				t.Errorf("%+v arrived after %+v", second, first)
			}
			a.waitForGeneration(1)
			if a.listening != 1 || a.counted("sent ok") == 0 || a.counted("received ok") == 0 {
				t.Errorf("Listening was called %d times, counts %v", a.listening, a.counts)
			}
			connC, configC := listen("c")
			t.Cleanup(func() { _ = connC.Close() })
			for key, datagram := range map[string][]byte{
				"received malformed": []byte("hello"), "received oversize": make([]byte, 1_000),
				"received bad_mac":      withCode(configC.Keys.Encode(Message{ClusterSet: "set1", From: "a"}, configB.Keys.Public()), configA.Keys.Public()),
				"received unknown_peer": configC.Keys.Encode(Message{ClusterSet: "set1", From: "a"}, configB.Keys.Public()),
			} {
				if _, err := connC.WriteTo(datagram, net.UDPAddrFromAddrPort(configB.Address)); err != nil {
					t.Fatal(err)
				}
				for deadline := time.Now().Add(20 * time.Second); b.counted(key) == 0; time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("no %s among %v", key, b.counts)
					}
				}
			}
		})
	}
}

// withCode returns a datagram that names another sender's key.
func withCode(datagram []byte, key string) []byte {
	words := strings.Split(string(datagram), " ")
	words[3] = key
	return []byte(strings.Join(words, " "))
}

// flood is a socket that always has a datagram.
type flood struct {
	net.PacketConn
	datagram []byte
	reads    atomic.Int64
	isClosed atomic.Bool
}

func (f *flood) ReadFrom(p []byte) (int, net.Addr, error) {
	if f.isClosed.Load() {
		return 0, nil, net.ErrClosed
	}
	f.reads.Add(1)
	return copy(p, f.datagram), nil, nil
}

// TestTransportReadsNoFlood: of a flood no more is read than is handled, so that the kernel drops
// the rest.
func TestTransportReadsNoFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, conn := newTestHandler(t, "b"), &flood{datagram: []byte("garbage")}
		transport := NewTransport(Config{Keys: keysOf("b")}, h, h.count, logr.Discard())
		done := make(chan struct{})
		go func() { defer close(done); transport.receive(t.Context(), conn) }()
		const seconds = 10
		time.Sleep(seconds * time.Second)
		if n := conn.reads.Load(); n > datagramsBurst+datagramsPerSecond*(seconds+1) || n < datagramsPerSecond*seconds {
			t.Errorf("%d reads in %d s, want some %d a second", n, seconds, datagramsPerSecond)
		}
		conn.isClosed.Store(true)
		<-done
	})
}

// TestTransportLimits: of unknown senders little is handled, and a known sender is heard meanwhile.
func TestTransportLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHandler(t, "b")
		a, unknown, b := keysOf("a"), keysOf("c"), keysOf("b")
		h.keys = map[string]string{"a": a.Public()}
		transport := NewTransport(Config{Keys: b}, h, h.count, logr.Discard())
		handle := func(n int, datagram []byte) map[string]int {
			results := map[string]int{}
			for range n {
				results[transport.handleDatagram(datagram)]++
			}
			return results
		}
		known := a.Encode(Message{ClusterSet: "set1", From: "a", Sequence: 1}, b.Public())
		if got := handle(1000, unknown.Encode(Message{ClusterSet: "set1", From: "c"}, b.Public())); got[ResultUnknownPeer] != unknownBurst || got[ResultLimited] != 1000-unknownBurst {
			t.Errorf("unknown senders: %v", got)
		}
		if got := handle(1, known); got[ResultOK] != 1 {
			t.Errorf("a known sender meanwhile: %v", got)
		}
	})
}

// BenchmarkFlood is the cost of a datagram of a flood that is handled, without its reception.
func BenchmarkFlood(b *testing.B) {
	receiver, known := keysOf("b"), keysOf("a")
	forged := withCode(keysOf("c").Encode(someMessage, receiver.Public()), known.Public())
	h := newTestHandler(nil, "b")
	h.keys = map[string]string{"cls1": known.Public()}
	transport := NewTransport(Config{Keys: receiver}, h, h.count, logr.Discard())
	for b.Loop() {
		transport.handleDatagram(forged)
	}
}

// TestTransportRetriesToListen has another process on the address.
func TestTransportRetriesToListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newTestHandler(t, "a")
		attempts := make(chan time.Time, 10)
		transport := NewTransport(Config{Listen: func() (net.PacketConn, error) {
			attempts <- time.Now()
			return nil, errors.New("address already in use")
		}}, h, h.count, logr.Discard())
		runTransport(t, transport)
		first := <-attempts
		transport.Notify()
		transport.Notify() // does not block although nothing is sent
		if pause := (<-attempts).Sub(first); pause != rebindAfter || h.listening != 0 {
			t.Errorf("next attempt after %v, want %v; Listening was called %d times", pause, rebindAfter, h.listening)
		}
	})
}
