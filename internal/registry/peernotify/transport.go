package peernotify

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
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
	// The records that a process sends: 4 MiB a second to all receivers, after a burst of 16 MiB.
	// What is more is read from the registry. A change of two kilobytes for 1,000 clusters takes
	// 2.4 MiB.
	recordsPerSecond, recordsBurst = 4 << 20, 16 << 20
	// rereadAfter is the pause after a failed read, so that a broken socket causes no busy loop.
	rereadAfter = 100 * time.Millisecond
)

// Directions of a notification, of records, and of an Ask and its Answer, and results beside those
// of Scheduler.HandleMessage.
const (
	Sent            = "sent"
	Received        = "received"
	RecordsSent     = "records_sent"
	RecordsReceived = "records_received"
	AskSent         = "ask_sent"
	AskReceived     = "ask_received"
	AnswerReceived  = "answer_received"

	ResultError     = "error"
	ResultMalformed = "malformed"
	ResultForged    = "bad_mac"
	ResultLimited   = "limited"
	ResultOversize  = "oversize"
	// ResultUnanswered means that a cluster does not hold its ID, or belongs to another clusterset,
	// or that no datagrams are sent to the address of the sender.
	ResultUnanswered = "unanswered"
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
	// HandleRecords processes records that a member has sent. It must not block, and returns the
	// result for metrics, "" if the handler counts it later.
	HandleRecords(Records) (result string)
	// State returns the message to send and its receivers. The Transport sets the sequence and the
	// generation.
	State() (Message, []Receiver)
	// Asks returns the questions to send, each with its receiver.
	Asks() []Question
	// HandleAsk answers a question of a member; ok is false if this cluster cannot say.
	HandleAsk(Ask) (answer Answer, ok bool)
	// HandleAnswer processes the answer of a member, and returns its result for metrics.
	HandleAnswer(Answer) (result string)
}

// Question is an Ask and the cluster that it is sent to.
type Question struct {
	Ask
	To Contact
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
	// conn is the socket, nil while there is none.
	conn atomic.Pointer[net.PacketConn]
	// records limits the records that are sent, in bytes.
	records *rate.Limiter
	// assembler belongs to the goroutine that receives.
	assembler *assembler

	mu sync.Mutex
	// origins are the addresses from which the members send, by their public keys.
	origins map[string]origin
}

// origin is the address of the last notification of a member, which arrived at a time.
type origin struct {
	address netip.Addr
	at      time.Time
}

// NewTransport returns a Transport; Run opens its socket.
func NewTransport(config Config, handler Handler, count func(direction, result string), log logr.Logger) *Transport {
	return &Transport{
		config: config, handler: handler, count: count, log: log, sendNow: make(chan struct{}, 1),
		unknown: rate.NewLimiter(unknownPerSecond, unknownBurst), all: rate.NewLimiter(datagramsPerSecond, datagramsBurst),
		records: rate.NewLimiter(recordsPerSecond, recordsBurst), assembler: newAssembler(), origins: map[string]origin{},
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
	t.conn.Store(&conn)
	defer t.conn.Store(nil)
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
			t.count(Sent, sendTo(conn, t.config.Keys.Encode(message, receiver.Key), receiver.Address))
		}
		for _, question := range t.handler.Asks() {
			t.count(AskSent, sendTo(conn, t.config.Keys.EncodeAsk(question.Ask, question.To.Key), question.To.Address))
		}
	}
}

// sendTo sends a datagram, nil if there is no key that its receiver shares.
func sendTo(conn net.PacketConn, datagram []byte, address netip.AddrPort) (result string) {
	if datagram == nil {
		return ResultError
	}
	if _, err := conn.WriteTo(datagram, net.UDPAddrFromAddrPort(address)); err != nil {
		return ResultError // only counted: the next one follows
	}
	return ResultOK
}

// SendRecords sends records to those of the receivers whose notifications come from the address of
// their contact. A contact is a claim of its cluster: without that, a member could make all others
// send records to an address that does not want them. A receiver behind a NAT gets none.
func (t *Transport) SendRecords(records Records, receivers []Receiver) {
	conn := t.conn.Load()
	if conn == nil {
		return
	}
	for _, receiver := range receivers {
		if t.isOrigin(time.Now(), receiver.Contact) {
			t.count(RecordsSent, t.sendRecordsTo(*conn, records, receiver.Contact))
		}
	}
}

// sendRecordsTo sends records to one receiver.
func (t *Transport) sendRecordsTo(conn net.PacketConn, records Records, receiver Contact) (result string) {
	datagrams := t.config.Keys.EncodeRecords(records, receiver.Key)
	if datagrams == nil {
		return ResultOversize
	}
	size := 0
	for _, datagram := range datagrams {
		size += len(datagram)
	}
	if !t.records.AllowN(time.Now(), size) {
		return ResultLimited
	}
	for _, datagram := range datagrams {
		if _, err := conn.WriteTo(datagram, net.UDPAddrFromAddrPort(receiver.Address)); err != nil {
			return ResultError // only counted: the receiver reads the registry
		}
	}
	return ResultOK
}

// isOrigin reports whether the last notification of a member came from the address of its contact,
// a short time ago.
func (t *Transport) isOrigin(now time.Time, member Contact) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	from, ok := t.origins[member.Key]
	return ok && from.address == member.Address.Addr() && now.Sub(from.at) < t.config.Silence()
}

// observeOrigin records the address that a member sends from.
func (t *Transport) observeOrigin(now time.Time, key string, from net.Addr) {
	udp, ok := from.(*net.UDPAddr)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.origins) >= maxShared {
		clear(t.origins) // those of keys that members had before
	}
	t.origins[key] = origin{address: udp.AddrPort().Addr().Unmap(), at: now}
}

// receive reads datagrams until the socket is closed.
func (t *Transport) receive(ctx context.Context, conn net.PacketConn) {
	datagram := make([]byte, maxRecordsDatagram+1)
	for {
		n, from, err := conn.ReadFrom(datagram)
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
		switch {
		case isRecords(datagram[:n]):
			if result := t.handleRecords(datagram[:n]); result != "" {
				t.count(RecordsReceived, result)
			}
		case isAsk(datagram[:n]):
			t.count(AskReceived, t.handleAsk(conn, datagram[:n], from))
		case isAnswer(datagram[:n]):
			t.count(AnswerReceived, t.handleAnswer(datagram[:n]))
		default:
			t.count(Received, t.handleDatagram(datagram[:n], from))
		}
	}
}

// handleAsk answers a question of a member. The answer is hardly larger than the question, and goes
// to the address that this came from: also a cluster behind a NAT gets it.
func (t *Transport) handleAsk(conn net.PacketConn, datagram []byte, from net.Addr) (result string) {
	ask, err := decodeAsk(datagram)
	if err != nil {
		return ResultMalformed
	}
	if problem := t.verify(ask.From, ask.Key, datagram, ask.encode); problem != "" {
		return problem
	}
	answer, ok := t.handler.HandleAsk(ask)
	if !ok || !t.reaches(from) {
		return ResultUnanswered
	}
	answer.Nonce = ask.Nonce
	if _, err := conn.WriteTo(t.config.Keys.EncodeAnswer(answer, ask.Key), from); err != nil {
		return ResultError // only counted: the sender asks again
	}
	return ResultOK
}

func (t *Transport) handleAnswer(datagram []byte) (result string) {
	answer, err := decodeAnswer(datagram)
	if err != nil {
		return ResultMalformed
	}
	if problem := t.verify(answer.From, answer.Key, datagram, answer.encode); problem != "" {
		return problem
	}
	return t.handler.HandleAnswer(answer)
}

// verify returns the result for a datagram that the member with an ID and a public key has not
// sent, "" if it has: encode returns its encoding with the key that they share.
func (t *Transport) verify(id, key string, datagram []byte, encode func(shared []byte) []byte) (problem string) {
	if key != t.handler.PeerKey(id) {
		return ResultUnknownPeer
	}
	if code := t.config.Keys.with(key).code; code == nil || !hmac.Equal(encode(code), datagram) {
		return ResultForged
	}
	return ""
}

// reaches reports whether datagrams may be sent to the address of a sender. Any address can be the
// source of a datagram, so that the rules are those for contacts.
func (t *Transport) reaches(from net.Addr) bool {
	address, err := ParseAddress(from.String())
	return err == nil && t.config.Allows(address.Addr()) && t.config.Contact().Reaches(Contact{Address: address})
}

// handleRecords handles a part of records, and returns its result, "" if there is none yet.
func (t *Transport) handleRecords(datagram []byte) (result string) {
	if len(datagram) > maxRecordsDatagram {
		return ResultOversize
	}
	sealed, err := decodeRecords(datagram)
	if err != nil {
		return ResultMalformed
	}
	if sealed.key != t.handler.PeerKey(sealed.from) {
		return ResultUnknownPeer
	}
	sealing := t.config.Keys.with(sealed.key).records
	if sealing == nil {
		return ResultForged
	}
	part, ok := sealed.open(sealing)
	if !ok {
		return ResultForged
	}
	data, isComplete := t.assembler.add(time.Now(), sealed.from, part)
	if !isComplete {
		return ""
	}
	return t.handler.HandleRecords(Records{ClusterSet: sealed.clusterSet, From: sealed.from, Generation: part.generation, Data: data})
}

func (t *Transport) handleDatagram(datagram []byte, from net.Addr) (result string) {
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
	if !message.isSigned(datagram, t.config.Keys.with(message.Key).code) {
		return ResultForged
	}
	if result = t.handler.HandleMessage(message); result == ResultOK {
		t.observeOrigin(time.Now(), message.Key, from)
	}
	return result
}

// handleUnknown handles a message of a sender that is not known as a member with this key. A
// cluster that joins is one.
func (t *Transport) handleUnknown(message Message, datagram []byte) (result string) {
	if !t.unknown.Allow() {
		return ResultLimited
	}
	if code := t.config.Keys.agree(message.Key).code; code == nil || !message.isSigned(datagram, code) {
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
