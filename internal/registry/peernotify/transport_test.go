package peernotify

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
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
}

func newTestHandler(t *testing.T, from string) *testHandler {
	return &testHandler{t: t, message: Message{ClusterSet: "set1", From: from, Generation: 1}, received: make(chan Message, 1_000), counts: map[string]int{}}
}

func (h *testHandler) Listening() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listening++
}

func (h *testHandler) HandleMessage(m Message) string {
	h.received <- m
	return ResultOK
}

func (h *testHandler) State() (Message, []Contact) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.message, h.receivers
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
			listen := func() (net.PacketConn, Contact) {
				conn, err := ListenUDP(address)
				if err != nil {
					t.Skipf("this machine has no %s: %v", name, err)
				}
				return conn, Contact{Address: netip.MustParseAddrPort(conn.LocalAddr().String()), Token: NewToken()}
			}
			connA, contactA := listen()
			connB, contactB := listen()
			a, b := newTestHandler(t, "a"), newTestHandler(t, "b")
			a.receivers, b.receivers = []Contact{contactB}, []Contact{contactA}
			transportA := NewTransport(Config{Listen: func() (net.PacketConn, error) { return connA, nil }, Contact: contactA}, a, a.count, logr.Discard())
			transportB := NewTransport(Config{Listen: func() (net.PacketConn, error) { return connB, nil }, Contact: contactB}, b, b.count, logr.Discard())
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
			connC, _ := listen()
			t.Cleanup(func() { _ = connC.Close() })
			for key, datagram := range map[string][]byte{
				"received malformed": []byte("hello"), "received oversize": make([]byte, 1_000),
				"received bad_mac": someMessage.Encode(NewToken()),
			} {
				if _, err := connC.WriteTo(datagram, net.UDPAddrFromAddrPort(contactB.Address)); err != nil {
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
