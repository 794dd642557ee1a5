package peernotify

import (
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
	shared map[string][]byte
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
	return &Keys{private: private, shared: map[string][]byte{}}, nil
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
	shared := k.with(public)
	if shared == nil {
		return nil
	}
	m.Key = k.Public()
	return m.encode(shared)
}

// with returns the key that this cluster shares with the cluster of a public key, from memory if it
// was used before. It is nil if there is none: X25519 has points with which everybody shares the
// same secret.
func (k *Keys) with(public string) []byte {
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

// agree computes the key that this cluster shares with the cluster of a public key, nil if there is
// none. It takes some 100 microseconds.
func (k *Keys) agree(public string) []byte {
	data, err := base64.RawURLEncoding.Strict().DecodeString(public)
	if err != nil {
		return nil
	}
	other, err := ecdh.X25519().NewPublicKey(data)
	if err != nil {
		return nil
	}
	secret, err := k.private.ECDH(other)
	if err != nil {
		return nil
	}
	shared, err := hkdf.Key(sha256.New, secret, nil, version, sha256.Size)
	if err != nil {
		return nil
	}
	return shared
}
