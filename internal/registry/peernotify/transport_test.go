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
	"github.com/google/go-cmp/cmp"
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
	records   chan Records
	// questions are those to send, and answers those that arrived.
	questions []Question
	answers   chan Answer
}

func newTestHandler(t *testing.T, from string) *testHandler {
	return &testHandler{t: t, message: Message{ClusterSet: "set1", From: from, Generation: 1}, received: make(chan Message, 1_000), counts: map[string]int{}, records: make(chan Records, 100), answers: make(chan Answer, 100)}
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

func (h *testHandler) HandleRecords(r Records) string {
	h.records <- r
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

func (h *testHandler) Asks() []Question {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.questions
}

// HandleAsk answers with the message of h, a cluster of its clusterset.
func (h *testHandler) HandleAsk(a Ask) (Answer, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Answer{ClusterSet: "set1", From: h.message.From, Generation: h.message.Generation, Heartbeat: 7}, a.ClusterSet == "set1"
}

func (h *testHandler) HandleAnswer(a Answer) string {
	h.answers <- a
	return ResultOK
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

// waitForRecords waits until records arrive that another cluster sends to the contact of h.
func (h *testHandler) waitForRecords(from *Transport, sender *testHandler, contact Contact) {
	h.t.Helper()
	records := recordsOf(3 * chunkSize)
	records.From = sender.message.From
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		from.SendRecords(records, []Receiver{{Contact: contact}}) // datagrams may get lost
		select {
		case got := <-h.records:
			if diff := cmp.Diff(records, got); diff != "" {
				h.t.Errorf("the records differ (-want +got):\n%s", diff)
			}
			return
		case <-time.After(time.Second):
		}
	}
	h.t.Errorf("no records arrived: %v were sent, %v were received", sender.counts, h.counts)
}

// ask asks the cluster with a contact, and waits for its answer.
func (h *testHandler) ask(by *Transport, contact Contact) {
	h.t.Helper()
	question := Question{Ask: Ask{ClusterSet: "set1", From: h.message.From, Nonce: NewNonce()}, To: contact}
	h.mu.Lock()
	h.questions = []Question{question}
	h.mu.Unlock()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		by.Notify() // datagrams may get lost
		select {
		case got := <-h.answers:
			want := Answer{ClusterSet: "set1", From: "b", Key: contact.Key, Nonce: question.Nonce, Generation: 1, Heartbeat: 7}
			if diff := cmp.Diff(want, got); diff != "" {
				h.t.Errorf("the answer differs (-want +got):\n%s", diff)
			}
			return
		case <-time.After(time.Second):
		}
	}
	h.t.Errorf("no answer arrived: %v", h.counts)
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
			a.waitForRecords(transportB, b, configA.Contact())
			b.waitForRecords(transportA, a, configB.Contact())
			a.ask(transportA, configB.Contact())
			connC, configC := listen("c")
			t.Cleanup(func() { _ = connC.Close() })
			for key, datagram := range map[string][]byte{
				"received malformed": []byte("hello"), "received oversize": make([]byte, 1_000),
				"received bad_mac":      withCode(configC.Keys.Encode(Message{ClusterSet: "set1", From: "a"}, configB.Keys.Public()), configA.Keys.Public()),
				"received unknown_peer": configC.Keys.Encode(Message{ClusterSet: "set1", From: "a"}, configB.Keys.Public()),

				"ask_received malformed":    []byte("mcs-ask/1 hello"),
				"ask_received bad_mac":      withCode(configC.Keys.EncodeAsk(Ask{ClusterSet: "set1", From: "a", Nonce: NewNonce()}, configB.Keys.Public()), configA.Keys.Public()),
				"ask_received unknown_peer": configC.Keys.EncodeAsk(Ask{ClusterSet: "set1", From: "a", Nonce: NewNonce()}, configB.Keys.Public()),
				"ask_received unanswered":   configA.Keys.EncodeAsk(Ask{ClusterSet: "set2", From: "a", Nonce: NewNonce()}, configB.Keys.Public()),

				"answer_received malformed":    []byte("mcs-answer/1 hello"),
				"answer_received bad_mac":      withCode(configC.Keys.EncodeAnswer(Answer{ClusterSet: "set1", From: "a", Nonce: NewNonce()}, configB.Keys.Public()), configA.Keys.Public()),
				"answer_received unknown_peer": configC.Keys.EncodeAnswer(Answer{ClusterSet: "set1", From: "a", Nonce: NewNonce()}, configB.Keys.Public()),
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
				results[transport.handleDatagram(datagram, nil)]++
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
		transport.handleDatagram(forged, nil)
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

// counted is a socket that counts the bytes that it sends.
type counted struct {
	net.PacketConn
	bytes int
}

func (c *counted) WriteTo(p []byte, _ net.Addr) (int, error) {
	c.bytes += len(p)
	return len(p), nil
}

// TestSendRecords_OnlyToOrigin: records are sent to the address that a member's notifications come
// from, and to no other one that its contact may name.
func TestSendRecords_OnlyToOrigin(t *testing.T) {
	own, member := keysOf("b"), keysOf("a")
	contact := Contact{Address: netip.MustParseAddrPort("10.0.0.1:8479"), Key: member.Public()}
	for name, tc := range map[string]struct {
		from string // "" is no notification
		age  time.Duration
		want bool
	}{
		"no notification":      {"", 0, false},
		"the same address":     {"10.0.0.1:8479", time.Second, true},
		"another port":         {"10.0.0.1:50123", 0, true}, // a NAT may change it
		"as IPv6 sockets show": {"[::ffff:10.0.0.1]:8479", 0, true},
		"another address":      {"10.0.0.2:8479", 0, false},
		"silent since":         {"10.0.0.1:8479", 8 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, conn := newTestHandler(t, "b"), &counted{}
				h.keys = map[string]string{"a": member.Public()}
				transport := NewTransport(Config{Keys: own}, h, h.count, logr.Discard())
				var socket net.PacketConn = conn
				transport.conn.Store(&socket)
				if tc.from != "" {
					message := member.Encode(Message{ClusterSet: "set1", From: "a", Sequence: 1}, own.Public())
					transport.handleDatagram(message, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(tc.from)))
				}
				time.Sleep(tc.age)
				transport.SendRecords(recordsOf(100), []Receiver{{Contact: contact}})
				if got := conn.bytes > 0; got != tc.want {
					t.Errorf("%d bytes were sent, want some: %v", conn.bytes, tc.want)
				}
			})
		})
	}
}

// TestSendRecords_Bounded sends many records at once: the bytes of a second are bounded, and
// recover.
func TestSendRecords_Bounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, conn := newTestHandler(t, "b"), &counted{}
		own, member := keysOf("b"), keysOf("a")
		transport := NewTransport(Config{Keys: own}, h, h.count, logr.Discard())
		var socket net.PacketConn = conn
		transport.conn.Store(&socket)
		contact := Contact{Address: netip.MustParseAddrPort("10.0.0.1:8479"), Key: member.Public()}
		from := net.UDPAddrFromAddrPort(contact.Address)
		transport.observeOrigin(time.Now(), contact.Key, from)
		for range 2 * recordsBurst / MaxRecords {
			transport.SendRecords(recordsOf(MaxRecords), []Receiver{{Contact: contact}})
		}
		if conn.bytes > recordsBurst || h.counted("records_sent limited") == 0 {
			t.Errorf("%d bytes were sent at once, want at most %d; counts %v", conn.bytes, recordsBurst, h.counts)
		}
		time.Sleep(time.Second)
		before := conn.bytes
		transport.SendRecords(recordsOf(MaxRecords), []Receiver{{Contact: contact}})
		if conn.bytes == before {
			t.Error("nothing is sent a second later")
		}
	})
}
