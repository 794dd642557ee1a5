package peernotify

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Message is the content of a datagram: cluster From of clusterset ClusterSet is at Generation.
type Message struct {
	// ClusterSet and From are IDs, DNS labels both.
	ClusterSet, From string
	// Key is the public key of From (Keys.Public).
	Key string
	// Generation is that of the last record that From wrote.
	Generation int64
	// Sequence is the sender's time in nanoseconds, and grows with every message of a sender, so
	// that receivers recognize replayed ones.
	Sequence int64
}

const (
	// version is the first word of a datagram. A receiver of another version drops the datagram and
	// polls.
	version = "mcs-notify/2"
	// macSize is the number of bytes of the HMAC that are sent. 128 bits cannot be guessed.
	macSize = 16
	// MaxSize is the largest datagram that is decoded, in bytes. Encode makes at most 249: version
	// 12, two IDs of 63, a key of 43, two numbers of 20, a code of 22, six spaces.
	MaxSize = 256
)

// ErrMalformed means that a datagram is not a notification.
var ErrMalformed = errors.New("not a notification of version " + version)

// encode returns the datagram for a cluster with which From shares a key: one line of words
// separated by single spaces. The last word is an HMAC-SHA-256 of the rest.
//
//	mcs-notify/2 <clusterset> <from> <key> <generation> <sequence> <code>
func (m Message) encode(shared []byte) []byte {
	text := fmt.Appendf(make([]byte, 0, MaxSize), "%s %s %s %s %d %d", version, m.ClusterSet, m.From, m.Key, m.Generation, m.Sequence)
	return appendCode(text, shared)
}

// appendCode returns the text of a datagram with its code.
func appendCode(text, shared []byte) []byte {
	mac := hmac.New(sha256.New, shared)
	mac.Write(text)
	return base64.RawURLEncoding.AppendEncode(append(text, ' '), mac.Sum(nil)[:macSize])
}

// isSigned reports whether a datagram is the encoding of the message with a shared key. A message
// has one encoding: the comparison also rejects other spellings of the numbers.
func (m Message) isSigned(datagram, shared []byte) bool {
	return hmac.Equal(m.encode(shared), datagram)
}

// decode reads a datagram from an untrusted sender. The sender is not verified yet (isSigned). The
// error is ErrMalformed.
func decode(datagram []byte) (Message, error) {
	if len(datagram) > MaxSize {
		return Message{}, ErrMalformed
	}
	words := strings.Split(string(datagram), " ")
	if len(words) != 7 || words[0] != version || mcs.ValidateClusterID(words[1]) != nil || mcs.ValidateClusterID(words[2]) != nil || !isKey(words[3]) {
		return Message{}, ErrMalformed
	}
	m := Message{ClusterSet: words[1], From: words[2], Key: words[3]}
	var err error
	if m.Generation, err = strconv.ParseInt(words[4], 10, 64); err != nil {
		return Message{}, ErrMalformed
	}
	if m.Sequence, err = strconv.ParseInt(words[5], 10, 64); err != nil {
		return Message{}, ErrMalformed
	}
	return m, nil
}

// Contact is published by a cluster so that the others can send it notifications.
type Contact struct {
	Address netip.AddrPort
	// Key is the cluster's public key (Keys.Public).
	Key string
}

// String returns the contact as it is written to the registry: "10.10.0.5:8479 <key>",
// "[2001:db8::5]:8479 <key>".
func (c Contact) String() string { return c.Address.String() + " " + c.Key }

// ParseContact reads a contact from the registry. It is untrusted input.
func ParseContact(s string) (Contact, error) {
	address, key, _ := strings.Cut(s, " ")
	parsed, err := ParseAddress(address)
	if err != nil {
		return Contact{}, err
	}
	if !isKey(key) {
		return Contact{}, errors.New("the key is not 32 bytes of X25519 in unpadded URL-safe base64")
	}
	return Contact{Address: parsed, Key: key}, nil
}

// ParseAddress reads the IP address and port of a controller: 10.10.0.5:8479, [2001:db8::5]:8479.
// It refuses addresses that cannot belong to a pod in another cluster, such as multicast and
// link-local ones, so that no record makes the clusters send datagrams there. Loopback addresses
// are for clusters on one machine (Contact.Reaches).
func ParseAddress(s string) (netip.AddrPort, error) {
	parsed, err := netip.ParseAddrPort(s)
	if err != nil {
		return parsed, errors.New("it is not an IP address and port, such as 10.10.0.5:8479 or [2001:db8::5]:8479")
	}
	parsed = netip.AddrPortFrom(parsed.Addr().Unmap(), parsed.Port())
	if parsed.Port() == 0 {
		return parsed, errors.New("it has no port")
	}
	if !parsed.Addr().IsLoopback() {
		err = mcs.CheckPodAddress(parsed.Addr())
	}
	return parsed, err
}

// maxContacts is the number of contacts of one round. A thousand clusters get a notification in two
// rounds, 4 s, and so never become silent.
const maxContacts = 512

// Receiver is a cluster that notifications are sent to.
type Receiver struct {
	Contact
	// Generation is that of the last record with a change for the cluster.
	Generation int64
}

// Round returns the receivers of one round, at most maxContacts of them and one of each IP address,
// and the position of the next round: what the records of a hostile member make every cluster send
// is bounded, in all and to one address. Receivers on one machine may share a loopback address.
func Round(receivers []Receiver, position int) (round []Receiver, next int) {
	slices.SortFunc(receivers, func(a, b Receiver) int { return a.Address.Compare(b.Address) })
	receivers = slices.CompactFunc(receivers, func(a, b Receiver) bool {
		return a.Address.Addr() == b.Address.Addr() && !a.Address.Addr().IsLoopback()
	})
	if len(receivers) <= maxContacts {
		return receivers, 0
	}
	for i := range maxContacts {
		round = append(round, receivers[(position+i)%len(receivers)])
	}
	return round, (position + maxContacts) % len(receivers)
}

// Reaches reports whether c may send to other: to a loopback address only from another one.
func (c Contact) Reaches(other Contact) bool {
	return other.Address.IsValid() && (!other.Address.Addr().IsLoopback() || c.Address.Addr().IsLoopback())
}
