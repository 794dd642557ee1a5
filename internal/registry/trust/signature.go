// Package trust decides which records a cluster may have written. Each cluster signs its records
// with an Ed25519 key, and every other cluster pins that key (Keyring).
// docs/proposals/011-signed-records.md has the decision and its reasons.
package trust

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
)

// Key is the public key of a cluster.
type Key [ed25519.PublicKeySize]byte

// String returns the key in 43 characters of unpadded URL-safe base64.
func (k Key) String() string { return base64.RawURLEncoding.EncodeToString(k[:]) }

// ParseKey is the inverse of String.
func ParseKey(text string) (Key, error) {
	var k Key
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(data) != len(k) {
		return k, fmt.Errorf("%q is not a public key: it must be %d bytes of Ed25519 in unpadded URL-safe base64", text, len(k))
	}
	copy(k[:], data)
	return k, nil
}

// MarshalText implements encoding.TextMarshaler, so that JSON has keys as text.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Key) UnmarshalText(text []byte) (err error) {
	*k, err = ParseKey(string(text))
	return err
}

// Kind is the kind of a signed statement. A signature of one kind is not valid for another.
type Kind string

// The kinds of statements.
const (
	KindMember Kind = "member" // a member record; a farewell is a member record, too
	KindPage   Kind = "page"   // a page of exports on AWS Cloud Map
	KindExport Kind = "export" // an export on etcd
	KindKey    Kind = "key"    // a new key, signed with the previous one
)

// Statement is the content that a cluster signs, with its context. Every field is part of the
// signature, so a signature is not valid for another cluster, clusterset, record or time.
type Statement struct {
	ClusterSetID, ClusterID string
	// UID is the UID of the cluster's namespace kube-system.
	UID  string
	Kind Kind
	// Name is the name of the record: the number of a page, the key of an export, or "".
	Name string
	// Generation orders the statements of a cluster in time.
	Generation int64
	// Content is the statement itself, of any length.
	Content []byte
}

// domain separates these signatures from those of other programs and of later formats.
const domain = "cloud-map-mcs-controller signature 1"

// message returns the bytes that are signed: the fields with their lengths, so that no two
// statements have the same bytes, and a digest of the content.
func (s Statement) message() []byte {
	digest := sha256.Sum256(s.Content)
	var out []byte
	for _, field := range []string{domain, s.ClusterSetID, s.ClusterID, s.UID, string(s.Kind), s.Name} {
		out = binary.BigEndian.AppendUint32(out, uint32(len(field))) //nolint:gosec // a record has at most 5,000 characters
		out = append(out, field...)
	}
	out = binary.BigEndian.AppendUint64(out, uint64(s.Generation)) //nolint:gosec // the same bits
	return append(out, digest[:]...)
}

// SignatureLength is the length of a signature as text.
const SignatureLength = (ed25519.SignatureSize*8 + 5) / 6 // unpadded base64: 6 bits a character

// errSignature means that a statement was not signed with the key, or was changed since.
var errSignature = errors.New("its signature is not valid")

// verify verifies a signature.
var verify = ed25519.Verify

// SetVerifier replaces ed25519.Verify. It is for tests with many clusters in one process, which
// verify each signature once for all.
func SetVerifier(verifier func(key ed25519.PublicKey, message, signature []byte) bool) {
	verify = verifier
}

// Verify returns an error unless signature is the signature of statement with this key.
func (k Key) Verify(statement Statement, signature string) error {
	if signature == "" {
		return errors.New("it has no signature")
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(signature)
	if err != nil || !verify(k[:], statement.message(), data) {
		return errSignature
	}
	return nil
}

// Signer signs the statements of this cluster. It is safe for concurrent use.
type Signer struct {
	private ed25519.PrivateKey
	key     Key
	// previous is the key that was replaced by this one, or nil.
	previous ed25519.PrivateKey
}

// NewSigner returns a Signer for a seed of ed25519.SeedSize random bytes. previous is the seed of
// the key that was replaced by this one, or empty.
func NewSigner(seed, previous []byte) (*Signer, error) {
	if len(seed) != ed25519.SeedSize || len(previous) != 0 && len(previous) != ed25519.SeedSize {
		return nil, fmt.Errorf("a signing key must have %d bytes", ed25519.SeedSize)
	}
	s := &Signer{private: ed25519.NewKeyFromSeed(seed)}
	copy(s.key[:], s.private[ed25519.SeedSize:])
	if len(previous) > 0 {
		s.previous = ed25519.NewKeyFromSeed(previous)
	}
	return s, nil
}

// Key returns the public key.
func (s *Signer) Key() Key { return s.key }

// Secret returns 32 secret bytes for another purpose than signatures, always the same ones for a
// key. They reveal nothing of it.
func (s *Signer) Secret(purpose string) []byte {
	secret, err := hkdf.Key(sha256.New, s.private.Seed(), nil, purpose, sha256.Size)
	if err != nil {
		panic(err) // only for more bytes than HKDF makes
	}
	return secret
}

// Keys returns the public key and, if there is one, the public key that was replaced by it.
func (s *Signer) Keys() []Key {
	keys := []Key{s.key}
	if s.previous != nil {
		keys = append(keys, Key(s.previous[ed25519.SeedSize:]))
	}
	return keys
}

// Sign returns the signature of statement: SignatureLength characters.
func (s *Signer) Sign(statement Statement) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(s.private, statement.message()))
}

// Succession returns the signature of this key with the previous one, "" if there is no previous
// key.
func (s *Signer) Succession(clusterSetID, clusterID string) string {
	if s.previous == nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(s.previous, succession(clusterSetID, clusterID, s.key).message()))
}

// IsSucceededBy reports whether a signature is that of this key for next, which replaces it as the
// key of a cluster.
func (k Key) IsSucceededBy(next Key, clusterSetID, clusterID, signature string) bool {
	return signature != "" && k.Verify(succession(clusterSetID, clusterID, next), signature) == nil
}

// succession returns the statement that key replaces another key.
func succession(clusterSetID, clusterID string, key Key) Statement {
	return Statement{ClusterSetID: clusterSetID, ClusterID: clusterID, Kind: KindKey, Content: key[:]}
}
