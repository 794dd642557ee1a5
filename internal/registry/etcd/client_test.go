package etcd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
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

// TestClient_DisconnectsAfterSilence: a list that etcd does not answer ends the connection if
// nothing else was answered since, and not the requests that etcd is answering.
func TestClient_DisconnectsAfterSilence(t *testing.T) {
	began := time.Now()
	for name, tt := range map[string]struct {
		answered time.Time
		err      error
		want     bool
	}{
		"nothing is answered":          {began.Add(-time.Second), context.DeadlineExceeded, true},
		"another request was answered": {began.Add(time.Second), context.DeadlineExceeded, false},
		"etcd has refused the request": {began.Add(-time.Second), rpctypes.ErrPermissionDenied, false},
	} {
		c := &Client{cfg: ClientConfig{Username: "cls1"}, conn: clientv3.NewCtxClient(t.Context())}
		c.answeredAt.Store(tt.answered.UnixNano())
		if c.handleSilence(began, tt.err); (c.conn == nil) != tt.want {
			t.Errorf("%s: disconnected %t, want %t", name, c.conn == nil, tt.want)
		}
	}
}
