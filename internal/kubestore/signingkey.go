package kubestore

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// The keys of the Secret with the signing key. previous is the seed of the key that was replaced:
// to rotate the key, the user renames key to previous and restarts the controller.
const (
	signingKeyData  = "key"
	previousKeyData = "previous"
)

// SigningKey is the key with which a cluster signs its records, in a Secret of the controller's
// namespace.
type SigningKey struct {
	Client    client.Client
	Namespace string
}

func (s SigningKey) name() types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: names.SigningKeySecret}
}

// Load returns the key, and creates it first if there is none. A conflict with another replica that
// creates one is an error; a retry loads the other one's.
func (s SigningKey) Load(ctx context.Context) (*trust.Signer, error) {
	var secret corev1.Secret
	err := s.Client.Get(ctx, s.name(), &secret)
	exists := !apierrors.IsNotFound(err)
	if err != nil && exists {
		return nil, fmt.Errorf("reading the signing key: %w", err)
	}
	if len(secret.Data[signingKeyData]) == 0 {
		if err := s.create(ctx, &secret, exists); err != nil {
			return nil, err
		}
	}
	signer, err := trust.NewSigner(secret.Data[signingKeyData], secret.Data[previousKeyData])
	if err != nil {
		return nil, fmt.Errorf("reading the signing key from Secret %s: %w; if the key is lost, delete the data of the Secret", s.name(), err)
	}
	return signer, nil
}

// create adds a new key to the Secret. The manifests have the Secret, empty; without them, as in a
// development cluster, it is created.
func (s SigningKey) create(ctx context.Context, secret *corev1.Secret, exists bool) error {
	seed := NewSeed()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[signingKeyData] = seed
	var err error
	if exists {
		err = s.Client.Update(ctx, secret)
	} else {
		secret.Namespace, secret.Name = s.Namespace, names.SigningKeySecret
		err = s.Client.Create(ctx, secret)
	}
	if apierrors.IsForbidden(err) && !exists {
		return fmt.Errorf("creating the signing key: Secret %s does not exist: apply the manifests of this release, or create it empty: %w", s.name(), err)
	}
	if err != nil {
		return fmt.Errorf("writing the signing key to Secret %s: %w", s.name(), err)
	}
	return nil
}

// NewSeed returns the seed of a new key.
func NewSeed() []byte {
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // it never fails
	return seed
}
