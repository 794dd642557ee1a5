package peernotify

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Message is the content of a datagram: cluster From of clusterset ClusterSet is at Generation.
type Message struct {
	// ClusterSet and From are IDs, DNS labels both.
	ClusterSet, From string
	// Generation is that of the last record that From wrote.
	Generation int64
	// Sequence grows with every message of a sender, so that receivers recognize replayed ones.
	Sequence int64
}

const (
	// version is the first word of a datagram. A receiver of another version drops the datagram and polls.
	version = "mcs-notify/1"
	// macSize is the number of bytes of the HMAC that are sent. 128 bits cannot be guessed.
	macSize = 16
	// MaxSize is the largest datagram that is decoded, in bytes. Encode makes at most 205: version 12, two IDs of 63, two
	// numbers of 20, a code of 22, five spaces.
	MaxSize = 256
)

// Reasons why a datagram is dropped.
var (
	ErrMalformed = errors.New("not a notification of version " + version)
	ErrForged    = errors.New("the code does not match this cluster's token")
)

// Encode returns the datagram for the cluster that has published token: one line of words separated by single spaces. The last
// word is an HMAC-SHA-256 of the rest, keyed with the token. Only a client that can read the registry knows the token.
//
//	mcs-notify/1 <clusterset> <from> <generation> <sequence> <code>
func (m Message) Encode(token string) []byte {
	text := fmt.Appendf(make([]byte, 0, MaxSize), "%s %s %s %d %d", version, m.ClusterSet, m.From, m.Generation, m.Sequence)
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write(text)
	return base64.RawURLEncoding.AppendEncode(append(text, ' '), mac.Sum(nil)[:macSize])
}

// Decode reads a datagram from an untrusted sender. The error is ErrMalformed or ErrForged.
func Decode(datagram []byte, token string) (Message, error) {
	if len(datagram) > MaxSize {
		return Message{}, ErrMalformed
	}
	words := strings.Split(string(datagram), " ")
	if len(words) != 6 || words[0] != version || mcs.ValidateClusterID(words[1]) != nil || mcs.ValidateClusterID(words[2]) != nil {
		return Message{}, ErrMalformed
	}
	m := Message{ClusterSet: words[1], From: words[2]}
	var err error
	if m.Generation, err = strconv.ParseInt(words[3], 10, 64); err != nil {
		return Message{}, ErrMalformed
	}
	if m.Sequence, err = strconv.ParseInt(words[4], 10, 64); err != nil {
		return Message{}, ErrMalformed
	}
	// A message has one encoding: the comparison checks the code and also rejects other spellings of the numbers.
	if !hmac.Equal(m.Encode(token), datagram) {
		return Message{}, ErrForged
	}
	return m, nil
}

// NewToken returns a random token that cannot be guessed.
func NewToken() string { return rand.Text() }

// Contact is published by a cluster so that the others can send it notifications.
type Contact struct {
	Address netip.AddrPort
	Token   string
}

// String returns the contact as it is written to the registry: "10.10.0.5:8479 <token>", "[2001:db8::5]:8479 <token>".
func (c Contact) String() string { return c.Address.String() + " " + c.Token }

// tokenPattern also accepts tokens of other implementations.
var tokenPattern = regexp.MustCompile(`^[0-9A-Za-z_-]{16,64}$`)

// ParseContact reads a contact from the registry. It is untrusted input.
func ParseContact(s string) (Contact, error) {
	address, token, _ := strings.Cut(s, " ")
	parsed, err := ParseAddress(address)
	if err != nil {
		return Contact{}, err
	}
	if !tokenPattern.MatchString(token) {
		return Contact{}, errors.New("the token is not 16 to 64 letters, digits, '-' or '_'")
	}
	return Contact{Address: parsed, Token: token}, nil
}

// ParseAddress reads the IP address and port of a controller: 10.10.0.5:8479, [2001:db8::5]:8479. It refuses addresses that
// cannot belong to a pod in another cluster, such as multicast and link-local ones, so that no record makes the clusters send
// datagrams there. Loopback addresses are for clusters on one machine (Contact.Reaches).
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

// Reaches reports whether c may send to other: to a loopback address only from another one.
func (c Contact) Reaches(other Contact) bool {
	return other.Address.IsValid() && (!other.Address.Addr().IsLoopback() || c.Address.Addr().IsLoopback())
}
