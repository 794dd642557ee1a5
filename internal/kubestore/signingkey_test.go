package kubestore

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// emptySecret returns the Secret as the manifests create it.
func emptySecret() *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: names.SigningKeySecret}}
}

func loadKey(t *testing.T, c client.Client) *trust.Signer {
	t.Helper()
	signer, err := SigningKey{Client: c, Namespace: "system"}.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

func TestSigningKey_StaysTheSame(t *testing.T) {
	for name, c := range map[string]client.Client{
		"Secret of the manifests": fake.NewClientBuilder().WithObjects(emptySecret()).Build(),
		"no Secret":               fake.NewClientBuilder().Build(),
	} {
		t.Run(name, func(t *testing.T) {
			if first, second := loadKey(t, c).Key(), loadKey(t, c).Key(); first != second {
				t.Errorf("the key is %s, and %s after a restart", first, second)
			}
		})
	}
}

func TestSigningKey_Rotates(t *testing.T) {
	c := fake.NewClientBuilder().WithObjects(emptySecret()).Build()
	before := loadKey(t, c)
	if before.Succession("set", "cls1") != "" {
		t.Error("the first key has a previous key")
	}
	secret := emptySecret()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}
	secret.Data[previousKeyData] = secret.Data[signingKeyData]
	delete(secret.Data, signingKeyData)
	if err := c.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	after := loadKey(t, c)
	if after.Key() == before.Key() || after.Succession("set", "cls1") == "" {
		t.Errorf("the key is %s after %s, with succession %q", after.Key(), before.Key(), after.Succession("set", "cls1"))
	}
}

func TestSigningKey_ReportsProblems(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, names.SigningKeySecret, nil)
	short := emptySecret()
	short.Data = map[string][]byte{signingKeyData: []byte("short")}
	for name, tt := range map[string]struct {
		client client.Client
		want   string
	}{
		"no Secret and no permission to create one": {fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return forbidden },
		}).Build(), "Secret system/" + names.SigningKeySecret + " does not exist: apply the manifests"},
		"no permission to read": {fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return forbidden
			},
		}).Build(), "reading the signing key"},
		"another replica writes a key meanwhile": {fake.NewClientBuilder().WithObjects(emptySecret()).WithInterceptorFuncs(interceptor.Funcs{
			Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
				other := emptySecret()
				other.Data = map[string][]byte{signingKeyData: NewSeed()}
				if err := c.Update(ctx, other); err != nil {
					return err
				}
				return c.Update(ctx, obj, opts...)
			},
		}).Build(), "writing the signing key"},
		"key of another length": {fake.NewClientBuilder().WithObjects(short).Build(), "must have 32 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := SigningKey{Client: tt.client, Namespace: "system"}.Load(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
