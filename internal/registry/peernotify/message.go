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

// Message is what a datagram says: cluster From of clusterset ClusterSet is at Generation.
type Message struct {
	// ClusterSet and From are IDs, DNS labels both.
	ClusterSet, From string
	// Generation is that of what From wrote last.
	Generation int64
	// Sequence grows with every message of a sender, so that a copy of an earlier one is known for what it is.
	Sequence int64
}

const (
	// version is the first word of a datagram. A reader of another version drops it, and polls.
	version = "mcs-notify/1"
	// macSize is how much of the HMAC is sent, in bytes. 128 bits cannot be guessed.
	macSize = 16
	// MaxSize is that of a datagram in bytes: version 10, two IDs of 63, two numbers of 20, a code of 22, five spaces: 203.
	// A larger one is nobody's.
	MaxSize = 256
)

// Reasons why a datagram is dropped.
var (
	ErrMalformed = errors.New("no hint of version " + version)
	ErrForged    = errors.New("the code is not made with this cluster's token")
)

// Encode is m as a datagram for the cluster that has published token: one line of text, words with single spaces between,
// the last of which is an HMAC-SHA-256 of the rest, keyed with the token. Only who can read the registry knows the token.
//
//	mcs-notify/1 <clusterset> <from> <generation> <sequence> <code>
func (m Message) Encode(token string) []byte {
	text := fmt.Appendf(make([]byte, 0, MaxSize), "%s %s %s %d %d", version, m.ClusterSet, m.From, m.Generation, m.Sequence)
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write(text)
	return base64.RawURLEncoding.AppendEncode(append(text, ' '), mac.Sum(nil)[:macSize])
}

// Decode reads a datagram, which anybody may have sent. The error is ErrMalformed or ErrForged.
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
	// A message has one encoding: to compare it checks the code, and numbers that are written in another way as well.
	if !hmac.Equal(m.Encode(token), datagram) {
		return Message{}, ErrForged
	}
	return m, nil
}

// NewToken makes a token that cannot be guessed.
func NewToken() string { return rand.Text() }

// Contact is what a cluster publishes of itself to be sent hints.
type Contact struct {
	Address netip.AddrPort
	Token   string
}

// String is the contact as it stands in the registry: "10.10.0.5:8479 <token>", "[2001:db8::5]:8479 <token>".
func (c Contact) String() string { return c.Address.String() + " " + c.Token }

// tokenPattern has room for other tokens than ours.
var tokenPattern = regexp.MustCompile(`^[0-9A-Za-z_-]{16,64}$`)

// ParseContact reads what a cluster has published, which anybody may have written.
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

// ParseAddress reads an IP address and port at which a controller can be reached: 10.10.0.5:8479, [2001:db8::5]:8479. What
// cannot be a pod's in another cluster is refused, for no record must make the clusters send to everybody, or each to what is
// near it. Loopback addresses are for clusters on one machine (Contact.Reaches).
func ParseAddress(s string) (netip.AddrPort, error) {
	parsed, err := netip.ParseAddrPort(s)
	if err != nil {
		return parsed, errors.New("it is no IP address and port, such as 10.10.0.5:8479 or [2001:db8::5]:8479")
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

// Reaches says whether c may send to other: to a loopback address only from one.
func (c Contact) Reaches(other Contact) bool {
	return other.Address.IsValid() && (!other.Address.Addr().IsLoopback() || c.Address.Addr().IsLoopback())
}
