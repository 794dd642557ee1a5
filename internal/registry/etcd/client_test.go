package etcd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// A process that ends does not wait for an etcd that accepts the connection and does not answer.
func TestClient_ConnectionEndsWithItsRequest(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := NewClient(ClientConfig{Endpoints: []string{"http://" + listener.Addr().String()}, Username: "user", PasswordFile: password})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if conn, err := listener.Accept(); err == nil {
			cancel()
			<-t.Context().Done()
			_ = conn.Close()
		}
	}()
	if _, err := client.connection(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want that of the request, which was canceled", err)
	}
}
