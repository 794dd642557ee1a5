package peernotify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

const (
	// rebindAfter is the pause after which an address that could not be listened on is tried again: the controller that
	// had it may be about to stop.
	rebindAfter = 5 * time.Second
	// rereadAfter is the pause after a failed read, so that a broken socket is no busy loop.
	rereadAfter = 100 * time.Millisecond
)

// Directions of a hint, and results beside those of Watch.Heard.
const (
	Sent     = "sent"
	Received = "received"

	ResultError     = "error"
	ResultMalformed = "malformed"
	ResultForged    = "bad_mac"
	ResultOversize  = "oversize"
)

// Whisper is how a cluster takes part in hints.
type Whisper struct {
	// Listen opens the socket that hints are sent from and arrive at.
	Listen func() (net.PacketConn, error)
	// Contact is what the others are told of it.
	Contact Contact
	// Beat is the time between two hints to a cluster, the same in all clusters; 0 is BeatInterval.
	Beat time.Duration
}

func (w Whisper) beat() time.Duration {
	if w.Beat == 0 {
		return BeatInterval
	}
	return w.Beat
}

// Owner is who a Line works for. Its methods are called from the Line's goroutines.
type Owner interface {
	// Opened is called when the socket is open: from then on the others may be told of the contact.
	Opened()
	// Heard takes in a hint that was made for us, and returns a result for metrics.
	Heard(Message) (result string)
	// State is what is to be sent, and to whom. The sequence is set by the Line.
	State() (Message, []Contact)
}

// Line sends and receives the hints of one registry.
type Line struct {
	whisper Whisper
	owner   Owner
	// count counts hints.
	count func(direction, result string)
	log   logr.Logger
	// say asks for the state to be sent now.
	say chan struct{}
}

// NewLine makes a Line; Run opens its socket.
func NewLine(whisper Whisper, owner Owner, count func(direction, result string), log logr.Logger) *Line {
	return &Line{whisper: whisper, owner: owner, count: count, log: log, say: make(chan struct{}, 1)}
}

// Say makes the state be sent now. It does not block.
func (l *Line) Say() {
	select {
	case l.say <- struct{}{}:
	default:
	}
}

// Run sends and receives until ctx ends. While the socket cannot be opened it goes on trying.
func (l *Line) Run(ctx context.Context) {
	var problem string
	for ctx.Err() == nil {
		conn, err := l.whisper.Listen()
		if err == nil {
			l.owner.Opened()
			l.serve(ctx, conn)
			return
		}
		if err.Error() != problem {
			problem = err.Error()
			l.log.Error(err, "Cannot listen for hints from the other clusters; trying again. Until then the registry is polled")
		}
		wait(ctx, rebindAfter)
	}
}

func wait(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// serve uses a socket until ctx ends, and closes it.
func (l *Line) serve(ctx context.Context, conn net.PacketConn) {
	var receiver sync.WaitGroup
	receiver.Go(func() { l.receive(ctx, conn) })
	l.send(ctx, conn)
	if err := conn.Close(); err != nil { // ends the read that is under way
		l.log.Error(err, "Cannot close the socket for hints")
	}
	receiver.Wait()
}

// send sends the state when asked to, and at every beat.
func (l *Line) send(ctx context.Context, conn net.PacketConn) {
	beat := time.NewTicker(l.whisper.beat())
	defer beat.Stop()
	var sequence int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.say:
		case <-beat.C:
		}
		sequence = max(sequence+1, time.Now().UnixNano())
		message, contacts := l.owner.State()
		message.Sequence = sequence
		for _, contact := range contacts {
			l.count(Sent, sendTo(conn, message, contact))
		}
	}
}

func sendTo(conn net.PacketConn, message Message, contact Contact) (result string) {
	if _, err := conn.WriteTo(message.Encode(contact.Token), net.UDPAddrFromAddrPort(contact.Address)); err != nil {
		return ResultError // a hint is worth no more than a number: the next one follows
	}
	return ResultOK
}

// receive reads datagrams until the socket is closed.
func (l *Line) receive(ctx context.Context, conn net.PacketConn) {
	datagram := make([]byte, MaxSize+1)
	for {
		n, _, err := conn.ReadFrom(datagram)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			l.count(Received, ResultError)
			wait(ctx, rereadAfter)
			continue
		}
		l.count(Received, l.take(datagram[:n]))
	}
}

func (l *Line) take(datagram []byte) (result string) {
	if len(datagram) > MaxSize {
		return ResultOversize
	}
	message, err := Decode(datagram, l.whisper.Contact.Token)
	switch {
	case errors.Is(err, ErrForged):
		return ResultForged
	case err != nil:
		return ResultMalformed
	}
	return l.owner.Heard(message)
}

// ListenUDP opens a socket on address, such as ":8479": of both IP families where there is no host in it.
func ListenUDP(address string) (net.PacketConn, error) {
	conn, err := (&net.ListenConfig{}).ListenPacket(context.Background(), "udp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for hints: %w", err)
	}
	return conn, nil
}
