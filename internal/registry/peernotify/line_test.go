package peernotify

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// owner has one peer at most and writes down what it hears.
type owner struct {
	t       *testing.T
	mu      sync.Mutex
	message Message
	to      []Contact
	opened  int
	heard   chan Message
	counts  map[string]int
}

func newOwner(t *testing.T, from string) *owner {
	return &owner{t: t, message: Message{ClusterSet: "set1", From: from, Generation: 1}, heard: make(chan Message, 1_000), counts: map[string]int{}}
}

func (o *owner) Opened() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opened++
}

func (o *owner) Heard(m Message) string {
	o.heard <- m
	return ResultOK
}

func (o *owner) State() (Message, []Contact) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.message, o.to
}

func (o *owner) count(direction, result string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[direction+" "+result]++
}

func (o *owner) counted(what string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[what]
}

// wait waits until a hint of a generation is heard.
func (o *owner) wait(generation int64) Message {
	o.t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case m := <-o.heard:
			if m.Generation == generation {
				return m
			}
		case <-timeout:
			o.t.Fatalf("no hint of generation %d", generation)
		}
	}
}

// run runs a line until the test ends.
func run(t *testing.T, line *Line) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { line.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
}

// TestLine sends hints over real sockets.
func TestLine(t *testing.T) {
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
			a, b := newOwner(t, "a"), newOwner(t, "b")
			a.to, b.to = []Contact{contactB}, []Contact{contactA}
			lineA := NewLine(Whisper{Listen: func() (net.PacketConn, error) { return connA, nil }, Contact: contactA}, a, a.count, logr.Discard())
			lineB := NewLine(Whisper{Listen: func() (net.PacketConn, error) { return connB, nil }, Contact: contactB}, b, b.count, logr.Discard())
			run(t, lineA)
			run(t, lineB)
			first := b.wait(1) // at the first beat, unasked
			a.mu.Lock()
			a.message.Generation = 2
			a.mu.Unlock()
			lineA.Say()
			if second := b.wait(2); second.Sequence <= first.Sequence || second.From != "a" {
				t.Errorf("after %+v came %+v", first, second)
			}
			a.wait(1)
			if a.opened != 1 || a.counted("sent ok") == 0 || a.counted("received ok") == 0 {
				t.Errorf("opened %d times, counts %v", a.opened, a.counts)
			}
			connC, _ := listen()
			t.Cleanup(func() { _ = connC.Close() })
			for what, datagram := range map[string][]byte{
				"received malformed": []byte("hello"), "received oversize": make([]byte, 1_000),
				"received bad_mac": someMessage.Encode(NewToken()),
			} {
				if _, err := connC.WriteTo(datagram, net.UDPAddrFromAddrPort(contactB.Address)); err != nil {
					t.Fatal(err)
				}
				for deadline := time.Now().Add(20 * time.Second); b.counted(what) == 0; time.Sleep(time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("no %s among %v", what, b.counts)
					}
				}
			}
		})
	}
}

// TestLineWaitsForItsAddress has another process on the address at first.
func TestLineWaitsForItsAddress(t *testing.T) {
	o := newOwner(t, "a")
	tries := make(chan int, 10)
	tried := 0
	line := NewLine(Whisper{Listen: func() (net.PacketConn, error) {
		tried++
		tries <- tried
		return nil, errors.New("address already in use")
	}}, o, o.count, logr.Discard())
	run(t, line)
	<-tries
	line.Say()
	line.Say() // does not block, though nobody sends
	if o.opened != 0 {
		t.Error("opened without a socket")
	}
}
