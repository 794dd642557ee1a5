package cloudmaplocal

import (
	"net/http"
	"strings"
	"testing"
	"time"

	sd "github.com/aws/aws-sdk-go-v2/service/servicediscovery"
)

func TestAccessKeys(t *testing.T) {
	const clockOff = 10 * time.Minute
	w := newTestServer(t, Options{Now: time.Now, AccessKeys: []AccessKey{
		{ID: "AKIDSIGNED", Secret: "correct"},
		{ID: "AKIDNAMED"},
		{ID: "AKIDOTHER", Secret: "other/+=", Account: "111111111111"},
	}})
	late := newTestServer(t, Options{Now: func() time.Time { return time.Now().Add(clockOff) }, AccessKeys: []AccessKey{{ID: "AKIDSIGNED", Secret: "correct"}}})
	tests := []struct {
		name        string
		world       *testServer
		id, secret  string
		wantAccount string
		wantCode    string
	}{
		{"right", w, "AKIDSIGNED", "correct", DefaultAccount, ""},
		{"wrong secret", w, "AKIDSIGNED", "wrong", "", "InvalidSignatureException"},
		{"unknown key", w, "AKIDNOBODY", "correct", "", "UnrecognizedClientException"},
		{"key without secret", w, "AKIDNAMED", "anything", DefaultAccount, ""},
		{"another account", w, "AKIDOTHER", "other/+=", "111111111111", ""},
		{"clock off", late, "AKIDSIGNED", "correct", "", "InvalidSignatureException"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.world.client("eu-central-1", tt.id, tt.secret)
			created, err := c.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new(strings.ReplaceAll(tt.name, " ", "-"))})
			if tt.wantCode != "" {
				wantCode(t, err, tt.wantCode)
				wantStatus(t, err, 400)
				return
			}
			got, err := c.GetOperation(t.Context(), &sd.GetOperationInput{OperationId: must(t, created, err).OperationId})
			assertEqual(t, &tt.wantAccount, must(t, got, err).Operation.OwnerAccount)
			_, err = c.DiscoverInstances(t.Context(), &sd.DiscoverInstancesInput{NamespaceName: new("nowhere"), ServiceName: new("x")})
			wantCode(t, err, "NamespaceNotFound") // signed well, with the data- prefix or without
		})
	}
}

func TestAccounts_AreIsolated(t *testing.T) {
	w := newTestServer(t, Options{AccessKeys: []AccessKey{{ID: "ONE", Account: "111111111111"}, {ID: "TWO", Account: "222222222222"}}})
	one, two := w.client("us-east-1", "ONE", "s"), w.client("us-east-1", "TWO", "s")
	if _, err := one.CreateHttpNamespace(t.Context(), &sd.CreateHttpNamespaceInput{Name: new("demo")}); err != nil {
		t.Fatal(err)
	}
	listed, err := two.ListNamespaces(t.Context(), &sd.ListNamespacesInput{})
	if n := len(must(t, listed, err).Namespaces); n != 0 {
		t.Errorf("account two sees %d namespaces of account one", n)
	}
}

func TestUnsigned(t *testing.T) {
	open := newTestServer(t, Options{})
	if status, body := open.post("ListNamespaces", "{}", nil); status != http.StatusOK {
		t.Errorf("unsigned to an open server: %d %s", status, body)
	}
	closed := newTestServer(t, Options{AccessKeys: []AccessKey{{ID: "A", Secret: "s"}}})
	if status, body := closed.post("ListNamespaces", "{}", nil); status != http.StatusBadRequest || !strings.Contains(body, "MissingAuthenticationTokenException") {
		t.Errorf("unsigned: %d %s", status, body)
	}
	header := map[string]string{"Authorization": "AWS4-HMAC-SHA256 Credential=A/20261120/us-east-1/servicediscovery/aws4_request"}
	if status, body := closed.post("ListNamespaces", "{}", header); status != http.StatusBadRequest || !strings.Contains(body, "IncompleteSignatureException") {
		t.Errorf("half a signature: %d %s", status, body)
	}
}
