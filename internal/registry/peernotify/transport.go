package peernotify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
)

const (
	// A thousand clusters send 500 datagrams a second, and as many again while all of them write.
	// Of more than that, the kernel drops most: the process does not read for a while, and the
	// socket has room for some 200.
	datagramsPerSecond, datagramsBurst = 2_000, 2_000
	// floodPause is the time without reads after a datagram that is over the limit: as many as the
	// socket holds are within the limit then.
	floodPause = 100 * time.Millisecond
	// A verified message of an unknown sender makes the registry be read, which shows all clusters
	// that have joined.
	unknownPerSecond, unknownBurst = 1, 5
	// rebindAfter is the pause after which Run retries to listen on its address: the process that
	// uses it may be about to stop.
	rebindAfter = 5 * time.Second
	// rereadAfter is the pause after a failed read, so that a broken socket causes no busy loop.
	rereadAfter = 100 * time.Millisecond
)

// Directions of a notification, and results beside those of Scheduler.HandleMessage.
const (
	Sent     = "sent"
	Received = "received"

	ResultError     = "error"
	ResultMalformed = "malformed"
	ResultForged    = "bad_mac"
	ResultLimited   = "limited"
	ResultOversize  = "oversize"
)

// Config configures a cluster's Transport.
type Config struct {
	// Listen opens the socket that sends and receives notifications.
	Listen func() (net.PacketConn, error)
	// Address is published to the other clusters with the public key of Keys.
	Address netip.AddrPort
	Keys    *Keys
	// Networks has the addresses that notifications are sent to; empty is all that can belong to a
	// pod.
	Networks []netip.Prefix
	// SendInterval is the time between two notifications to a cluster, the same in all clusters; 0
	// is the constant SendInterval.
	SendInterval time.Duration
}

// Allows reports whether notifications may be sent to an address.
func (c Config) Allows(address netip.Addr) bool {
	return len(c.Networks) == 0 || slices.ContainsFunc(c.Networks, func(n netip.Prefix) bool { return n.Contains(address) })
}

// Contact is published to the other clusters.
func (c Config) Contact() Contact { return Contact{Address: c.Address, Key: c.Keys.Public()} }

func (c Config) sendInterval() time.Duration {
	if c.SendInterval == 0 {
		return SendInterval
	}
	return c.SendInterval
}

// Handler connects a Transport with the registry. Its methods are called from the Transport's
// goroutines.
type Handler interface {
	// Listening is called when the socket is open: from then on the contact may be published.
	Listening()
	// PeerKey returns the public key of a member, "" if it has none or is not known.
	PeerKey(clusterID string) string
	// HandleMessage processes a message of a member, and returns its result for metrics.
	HandleMessage(Message) (result string)
	// HandleUnknownPeer processes a message of a sender that can read the registry and that is not
	// known as a member yet: not with this ID, or not with this key. It returns the result for
	// metrics.
	HandleUnknownPeer(Message) (result string)
	// State returns the message to send and its receivers. The Transport sets the sequence and the
	// generation.
	State() (Message, []Receiver)
}

// Transport sends and receives the notifications of one registry.
type Transport struct {
	config  Config
	handler Handler
	// count counts notifications for metrics.
	count func(direction, result string)
	log   logr.Logger
	// unknown limits the verification of messages from unknown senders, which costs some 100
	// microseconds each. all limits the work for all datagrams.
	unknown, all *rate.Limiter
	// sendNow requests that the state is sent.
	sendNow chan struct{}
}

// NewTransport returns a Transport; Run opens its socket.
func NewTransport(config Config, handler Handler, count func(direction, result string), log logr.Logger) *Transport {
	return &Transport{
		config: config, handler: handler, count: count, log: log, sendNow: make(chan struct{}, 1),
		unknown: rate.NewLimiter(unknownPerSecond, unknownBurst), all: rate.NewLimiter(datagramsPerSecond, datagramsBurst),
	}
}

// Notify requests that the state is sent now. It does not block.
func (t *Transport) Notify() {
	select {
	case t.sendNow <- struct{}{}:
	default:
	}
}

// Run sends and receives until ctx ends. While the socket cannot be opened it retries.
func (t *Transport) Run(ctx context.Context) {
	var logged string
	for ctx.Err() == nil {
		conn, err := t.config.Listen()
		if err == nil {
			t.handler.Listening()
			t.serve(ctx, conn)
			return
		}
		if err.Error() != logged {
			logged = err.Error()
			t.log.Error(err, "Failed to listen for peer notifications, retrying; the registry is polled at the fast interval")
		}
		sleep(ctx, rebindAfter)
	}
}

func sleep(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// serve uses a socket until ctx ends, and closes it.
func (t *Transport) serve(ctx context.Context, conn net.PacketConn) {
	var receiver sync.WaitGroup
	receiver.Go(func() { t.receive(ctx, conn) })
	t.send(ctx, conn)
	if err := conn.Close(); err != nil { // ends the pending read
		t.log.Error(err, "Failed to close the socket for peer notifications")
	}
	receiver.Wait()
}

// send sends the state at every interval and whenever Notify requests it.
func (t *Transport) send(ctx context.Context, conn net.PacketConn) {
	ticker := time.NewTicker(t.config.sendInterval())
	defer ticker.Stop()
	var sequence int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.sendNow:
		case <-ticker.C:
		}
		sequence = max(sequence+1, time.Now().UnixNano())
		message, receivers := t.handler.State()
		message.Sequence = sequence
		for _, receiver := range receivers {
			message.Generation = receiver.Generation
			t.count(Sent, t.sendTo(conn, message, receiver.Contact))
		}
	}
}

func (t *Transport) sendTo(conn net.PacketConn, message Message, contact Contact) (result string) {
	datagram := t.config.Keys.Encode(message, contact.Key)
	if datagram == nil {
		return ResultError
	}
	if _, err := conn.WriteTo(datagram, net.UDPAddrFromAddrPort(contact.Address)); err != nil {
		return ResultError // only counted: the next notification follows
	}
	return ResultOK
}

// receive reads datagrams until the socket is closed.
func (t *Transport) receive(ctx context.Context, conn net.PacketConn) {
	datagram := make([]byte, MaxSize+1)
	for {
		n, _, err := conn.ReadFrom(datagram)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			t.count(Received, ResultError)
			sleep(ctx, rereadAfter)
			continue
		}
		if !t.all.Allow() {
			t.count(Received, ResultLimited)
			sleep(ctx, floodPause)
			continue
		}
		t.count(Received, t.handleDatagram(datagram[:n]))
	}
}

func (t *Transport) handleDatagram(datagram []byte) (result string) {
	if len(datagram) > MaxSize {
		return ResultOversize
	}
	message, err := decode(datagram)
	if err != nil {
		return ResultMalformed
	}
	if message.Key != t.handler.PeerKey(message.From) {
		return t.handleUnknown(message, datagram)
	}
	if !message.isSigned(datagram, t.config.Keys.with(message.Key)) {
		return ResultForged
	}
	return t.handler.HandleMessage(message)
}

// handleUnknown handles a message of a sender that is not known as a member with this key. A
// cluster that joins is one.
func (t *Transport) handleUnknown(message Message, datagram []byte) (result string) {
	if !t.unknown.Allow() {
		return ResultLimited
	}
	if shared := t.config.Keys.agree(message.Key); shared == nil || !message.isSigned(datagram, shared) {
		return ResultForged
	}
	return t.handler.HandleUnknownPeer(message)
}

// ListenUDP opens a socket on address, such as ":8479": of both IP families if the address has no
// host.
func ListenUDP(address string) (net.PacketConn, error) {
	conn, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for peer notifications: %w", err)
	}
	return conn, nil
}
