package serve

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

// TestLimitConcurrency_RefusesExcess: requests beyond the limit are refused, and admitted again
// when others have ended.
func TestLimitConcurrency_RefusesExcess(t *testing.T) {
	started, end := make(chan struct{}), make(chan struct{})
	handler := limitConcurrency(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		started <- struct{}{}
		<-end
	}), 2)
	get := func() int {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		return w.Code
	}
	codes := make(chan int)
	for range 2 {
		go func() { codes <- get() }()
		<-started
	}
	if got := get(); got != http.StatusServiceUnavailable {
		t.Errorf("the third concurrent request gets %d, want 503", got)
	}
	for range 2 {
		end <- struct{}{}
		if got := <-codes; got != http.StatusOK {
			t.Errorf("an admitted request gets %d, want 200", got)
		}
	}
	go func() { codes <- get() }()
	<-started
	end <- struct{}{}
	if got := <-codes; got != http.StatusOK {
		t.Errorf("a request after the others gets %d, want 200", got)
	}
}

// TestLimitedListener_LimitsAddresses: an address that has all its connections is refused another
// one, and other addresses are not.
func TestLimitedListener_LimitsAddresses(t *testing.T) {
	if runtime.GOOS == "darwin" {
		t.Skip("macOS has no loopback address but 127.0.0.1")
	}
	listener, err := listen("127.0.0.1:0", 2)
	if err != nil {
		t.Fatal(err)
	}
	server := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	connect := func(from string) net.Conn {
		t.Helper()
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	isServed := func(conn net.Conn) bool {
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		line, _ := bufio.NewReader(conn).ReadString('\n')
		return strings.Contains(line, "204")
	}
	first, second := connect("127.0.0.2"), connect("127.0.0.2")
	if !isServed(first) || !isServed(second) {
		t.Fatal("the first two connections are not served")
	}
	if isServed(connect("127.0.0.2")) {
		t.Error("a third connection of the address is served")
	}
	if !isServed(connect("127.0.0.3")) {
		t.Error("another address is not served")
	}
	_ = first.Close()
	for !isServed(connect("127.0.0.2")) { // the server notices the end of the first connection
		if t.Context().Err() != nil {
			t.Fatal("no connection is served after the end of another one")
		}
	}
}

// TestHTTPServer_RefusesLargeHeaders: the server does not buffer large headers of a client that is
// not authenticated.
func TestHTTPServer_RefusesLargeHeaders(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config = newHTTPServer(server.Config.Handler)
	server.Start()
	defer server.Close()
	for size, want := range map[int]int{8 << 10: http.StatusOK, 32 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", strings.Repeat("x", size))
		answer, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%d bytes of headers: %d, want %d", size, answer.StatusCode, want)
		}
	}
}
