package configmap

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestMerge(t *testing.T) {
	name := types.NamespacedName{Namespace: "system", Name: "state"}
	denied := errors.New("denied")
	for title, tt := range map[string]struct {
		before, want map[string]string
		values       map[string]any
		funcs        interceptor.Funcs
		wantErr      string
	}{
		"a key is added":                    {before: map[string]string{"a": "1"}, values: map[string]any{"b": "2"}, want: map[string]string{"a": "1", "b": "2"}},
		"a key is changed":                  {before: map[string]string{"a": "1", "b": "1"}, values: map[string]any{"b": "2"}, want: map[string]string{"a": "1", "b": "2"}},
		"a key is removed":                  {before: map[string]string{"a": "1", "b": "1"}, values: map[string]any{"b": nil}, want: map[string]string{"a": "1"}},
		"it is created":                     {values: map[string]any{"a": "1", "b": nil}, want: map[string]string{"a": "1"}},
		"it is not created to remove a key": {values: map[string]any{"b": nil}},
		"the change is refused": {
			before: map[string]string{"a": "1"}, values: map[string]any{"b": "2"}, want: map[string]string{"a": "1"}, wantErr: "writing ConfigMap system/state: denied",
			funcs: interceptor.Funcs{Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return denied
			}},
		},
		"the creation is refused": {
			values: map[string]any{"b": "2"}, wantErr: "writing ConfigMap system/state: denied",
			funcs: interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return denied }},
		},
	} {
		t.Run(title, func(t *testing.T) {
			builder := fake.NewClientBuilder()
			if tt.before != nil {
				builder.WithObjects(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Data: tt.before})
			}
			stored := builder.Build()
			err := Merge(t.Context(), interceptor.NewClient(stored, tt.funcs), name, tt.values)
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want one with %q", err, tt.wantErr)
			}
			var got corev1.ConfigMap
			err = stored.Get(t.Context(), name, &got)
			if tt.want == nil {
				if !apierrors.IsNotFound(err) {
					t.Errorf("the ConfigMap has %v (%v), want none", got.Data, err)
				}
				return
			}
			if err != nil || !maps.Equal(got.Data, tt.want) {
				t.Errorf("the ConfigMap has %v (%v), want %v", got.Data, err, tt.want)
			}
		})
	}
}

func TestMergeAt(t *testing.T) {
	name, c := types.NamespacedName{Namespace: "system", Name: "state"}, fake.NewClientBuilder().Build()
	write := func(version string, values map[string]any) (next string) {
		t.Helper()
		next, err := MergeAt(t.Context(), c, name, version, values)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	refused := func(version string) {
		t.Helper()
		if _, err := MergeAt(t.Context(), c, name, version, map[string]any{"a": "0"}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "writing ConfigMap system/state") {
			t.Errorf("version %q: error %v, want a conflict that names the ConfigMap", version, err)
		}
	}
	if next := write("", map[string]any{"a": nil}); next != "" {
		t.Errorf("a ConfigMap was created with version %q to remove a key", next)
	}
	first := write("", map[string]any{"a": "1"})
	refused("")
	second := write(first, map[string]any{"b": "1"})
	refused(first)
	third := write(second, map[string]any{"a": nil, "b": "2"})
	var got corev1.ConfigMap
	if err := c.Get(t.Context(), name, &got); err != nil || !maps.Equal(got.Data, map[string]string{"b": "2"}) || got.ResourceVersion != third {
		t.Errorf("the ConfigMap has %v in version %s (%v), want b=2 in version %s", got.Data, got.ResourceVersion, err, third)
	}
	if err := c.Delete(t.Context(), &got); err != nil {
		t.Fatal(err)
	}
	refused(third)
}
