package peernotify

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"sync"
)

// Keys are the keys that this cluster shares with the others, each with one of them: only these two
// can make a notification from one for the other. It is safe for concurrent use.
type Keys struct {
	private *ecdh.PrivateKey

	mu     sync.Mutex
	shared map[string]pair
}

// pair are the keys that this cluster shares with another one.
type pair struct {
	// code is the key of the codes of messages, nil if the two share none, and records the one
	// that seals records.
	code    []byte
	records cipher.AEAD
}

// SecretSize is the size of the secret of NewKeys in bytes.
const SecretSize = 32

// maxShared bounds the memory of the shared keys: those of keys that clusters had before go.
const maxShared = 4096

// NewKeys returns the keys of a cluster from its secret. The same secret makes the same keys, so
// that the keys of a cluster stay when its controller restarts.
func NewKeys(secret []byte) (*Keys, error) {
	private, err := ecdh.X25519().NewPrivateKey(secret)
	if err != nil {
		return nil, fmt.Errorf("making the key for peer notifications: %w", err)
	}
	return &Keys{private: private, shared: map[string]pair{}}, nil
}

// Public returns the public key for the cluster's contact: 43 characters of unpadded URL-safe
// base64.
func (k *Keys) Public() string {
	return base64.RawURLEncoding.EncodeToString(k.private.PublicKey().Bytes())
}

// keyLength is the length of a public key as text.
const keyLength = 43

// isKey reports whether text may be a public key.
func isKey(text string) bool {
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	return err == nil && len(text) == keyLength && len(data) == 32
}

// Encode returns the datagram of a message of this cluster for the cluster of a public key, nil if
// there is no shared key.
func (k *Keys) Encode(m Message, public string) []byte {
	m.Key = k.Public()
	return k.encode(public, m.encode)
}

// encode returns a datagram with the key that this cluster shares with the cluster of a public key,
// nil if there is none.
func (k *Keys) encode(public string, with func(shared []byte) []byte) []byte {
	code := k.with(public).code
	if code == nil {
		return nil
	}
	return with(code)
}

// EncodeAsk returns the datagram of a question of this cluster for the cluster of a public key, nil
// if there is no shared key.
func (k *Keys) EncodeAsk(a Ask, public string) []byte {
	a.Key = k.Public()
	return k.encode(public, a.encode)
}

// EncodeAnswer is EncodeAsk for an answer.
func (k *Keys) EncodeAnswer(a Answer, public string) []byte {
	a.Key = k.Public()
	return k.encode(public, a.encode)
}

// EncodeRecords returns the datagrams of records of this cluster for the cluster of a public key,
// none if there is no shared key or they are too large.
func (k *Keys) EncodeRecords(r Records, public string) [][]byte {
	sealing := k.with(public).records
	if sealing == nil {
		return nil
	}
	return r.datagrams(k.Public(), sealing)
}

// with returns the keys that this cluster shares with the cluster of a public key, from memory if
// they were used before. They are nil if there are none: X25519 has points with which everybody
// shares the same secret.
func (k *Keys) with(public string) pair {
	k.mu.Lock()
	shared, ok := k.shared[public]
	k.mu.Unlock()
	if ok {
		return shared
	}
	shared = k.agree(public)
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.shared) >= maxShared {
		clear(k.shared)
	}
	k.shared[public] = shared
	return shared
}

// agree computes the keys that this cluster shares with the cluster of a public key, nil if there
// are none. It takes some 100 microseconds.
func (k *Keys) agree(public string) pair {
	data, err := base64.RawURLEncoding.Strict().DecodeString(public)
	if err != nil {
		return pair{}
	}
	other, err := ecdh.X25519().NewPublicKey(data)
	if err != nil {
		return pair{}
	}
	secret, err := k.private.ECDH(other)
	if err != nil {
		return pair{}
	}
	code, err := hkdf.Key(sha256.New, secret, nil, version, sha256.Size)
	if err != nil {
		return pair{}
	}
	records, err := newSealing(secret)
	if err != nil {
		return pair{}
	}
	return pair{code: code, records: records}
}

// newSealing returns AES-256-GCM with a random nonce for each datagram. A key may seal 2^32 of them
// (NIST SP 800-38D, 8.3): 13 years of ten a second.
func newSealing(secret []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, recordsVersion, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}
