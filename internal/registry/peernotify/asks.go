package peernotify

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Ask asks a cluster which record it has written last. A process that starts cannot know otherwise
// that the record that the registry shows is not an earlier one.
type Ask struct {
	// ClusterSet and From are IDs, DNS labels both.
	ClusterSet, From string
	// Key is the public key of From (Keys.Public).
	Key string
	// Nonce is a new one for each cluster and process (NewNonce): an answer to another process, or
	// one of before, has another one.
	Nonce string
}

// Answer answers an Ask: From has written no record that is later than Generation and Heartbeat.
type Answer struct {
	ClusterSet, From, Key, Nonce string
	// Generation and Heartbeat are those of the last record that From has written, or begun to.
	Generation, Heartbeat int64
}

const (
	// askVersion and answerVersion are the first words of the datagrams. A receiver that does not
	// know them drops the datagram.
	askVersion    = "mcs-ask/1"
	answerVersion = "mcs-answer/1"
	// nonceLength is the length of the text of NewNonce.
	nonceLength = 26
	// maxAnswer is the largest datagram that is decoded, in bytes: version 12, two IDs of 63, a key
	// of 43, a nonce of 26, two numbers of 20, a code of 22, seven spaces. An Ask has at most 45
	// less, so an answer is at most a fifth larger than what it answers.
	maxAnswer = 12 + 2*63 + 43 + nonceLength + 2*20 + 22 + 7
)

// NewNonce returns a nonce that no sender can guess: 130 random bits in base32.
func NewNonce() string { return rand.Text() }

// encode returns the datagram for a cluster with which From shares a key. The last word is an
// HMAC-SHA-256 of the rest.
//
//	mcs-ask/1 <clusterset> <from> <key> <nonce> <code>
func (a Ask) encode(shared []byte) []byte {
	return appendCode(fmt.Appendf(nil, "%s %s %s %s %s", askVersion, a.ClusterSet, a.From, a.Key, a.Nonce), shared)
}

// encode returns the datagram for a cluster with which From shares a key, as Ask.encode does.
//
//	mcs-answer/1 <clusterset> <from> <key> <nonce> <generation> <heartbeat> <code>
func (a Answer) encode(shared []byte) []byte {
	return appendCode(fmt.Appendf(nil, "%s %s %s %s %s %d %d", answerVersion, a.ClusterSet, a.From, a.Key, a.Nonce, a.Generation, a.Heartbeat), shared)
}

// isAsk and isAnswer report whether a datagram may be an Ask or an Answer.
func isAsk(datagram []byte) bool    { return strings.HasPrefix(string(datagram), askVersion+" ") }
func isAnswer(datagram []byte) bool { return strings.HasPrefix(string(datagram), answerVersion+" ") }

// decodeAsk reads a datagram from an untrusted sender, which is not verified yet. The error is
// ErrMalformed.
func decodeAsk(datagram []byte) (Ask, error) {
	words := strings.Split(string(datagram), " ")
	if len(datagram) > maxAnswer || len(words) != 6 || words[0] != askVersion || !isHead(words) {
		return Ask{}, ErrMalformed
	}
	return Ask{ClusterSet: words[1], From: words[2], Key: words[3], Nonce: words[4]}, nil
}

// decodeAnswer reads a datagram from an untrusted sender, which is not verified yet. The error is
// ErrMalformed.
func decodeAnswer(datagram []byte) (Answer, error) {
	words := strings.Split(string(datagram), " ")
	if len(datagram) > maxAnswer || len(words) != 8 || words[0] != answerVersion || !isHead(words) {
		return Answer{}, ErrMalformed
	}
	a := Answer{ClusterSet: words[1], From: words[2], Key: words[3], Nonce: words[4]}
	var err error
	if a.Generation, err = strconv.ParseInt(words[5], 10, 64); err != nil {
		return Answer{}, ErrMalformed
	}
	if a.Heartbeat, err = strconv.ParseInt(words[6], 10, 64); err != nil {
		return Answer{}, ErrMalformed
	}
	return a, nil
}

// isHead reports whether words begin with a version, two IDs, a public key and a nonce.
func isHead(words []string) bool {
	return mcs.ValidateClusterID(words[1]) == nil && mcs.ValidateClusterID(words[2]) == nil && isKey(words[3]) && len(words[4]) == nonceLength
}
