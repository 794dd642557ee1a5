package redact_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/redact"
)

func TestSecrets(t *testing.T) {
	const secretKey = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKE1"
	tests := map[string]string{
		"plain text: 1, a=b":                                                    "plain text: 1, a=b",
		"AKIAIOSFODNN7EXAMPLE and ASIAIOSFODNN7EXAMPLE":                         "… and …",
		"the key " + secretKey + " is not valid":                                "the key … is not valid",
		"AWS_SECRET_ACCESS_KEY=" + secretKey:                                    "AWS_SECRET_ACCESS_KEY=…",
		"sha1 0123456789abcdef0123456789abcdef01234567":                         "sha1 0123456789abcdef0123456789abcdef01234567",
		"key: SxMK3WdMfm5WqzuZDw9_LVtqVwfZfWfvNA9IBhjcucI":                      "key: SxMK3WdMfm5WqzuZDw9_LVtqVwfZfWfvNA9IBhjcucI",
		"Authorization: Bearer abc.def-ghi and more":                            "Authorization: Bearer … and more",
		"token eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln!":                      "token …!",
		`{"password":"hun\"ter2","user":"a"}`:                                   `{"password":"…","user":"a"}`,
		`"body":"{\"sessionToken\":\"abc\",\"a\":1}"`:                           `"body":"{\"sessionToken\":\"…\",\"a\":1}"`,
		"db_password: 'hunter 2'":                                               "db_password: '…'",
		"--etcd-password=hunter2 --etcd-username=a":                             "--etcd-password=… --etcd-username=a",
		"https://a/?X-Amz-Signature=abc&X-Amz-Date=1":                           "https://a/?X-Amz-Signature=…&X-Amz-Date=1",
		"secret:\n  name: a":                                                    "secret:\n  name: a",
		"https://user:hunter2@etcd:2379":                                        "https://…@etcd:2379",
		"a -----BEGIN EC PRIVATE KEY-----\nMHc\n-----END EC PRIVATE KEY----- b": "a … b",
		"a -----BEGIN PRIVATE KEY-----\nMHc\nMHc":                               "a …",
	}
	for text, want := range tests {
		if got := redact.Secrets(text); got != want {
			t.Errorf("%s\nbecomes %s\nwant    %s", text, got, want)
		}
	}
}

func TestValue(t *testing.T) {
	got := redact.Value(map[string]any{
		"password": "line 1\nline 2", "replicas": int64(2), "list": []any{"Bearer abc", map[string]any{"sessionToken": "a", "name": "b"}}, "secret": map[string]any{"name": "c"},
	})
	want := map[string]any{
		"password": "…", "replicas": int64(2), "list": []any{"Bearer …", map[string]any{"sessionToken": "…", "name": "b"}}, "secret": map[string]any{"name": "c"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
