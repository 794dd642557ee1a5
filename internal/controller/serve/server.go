package serve

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Limits of the servers that pods can reach. A connection takes at most maxHeaderBytes and a few
// buffers, so that a pod cannot use up the memory of the controller.
const (
	maxHeaderBytes = 16 << 10
	// readHeaderTimeout includes the TLS handshake.
	readHeaderTimeout = 5 * time.Second
	requestTimeout    = 30 * time.Second
	idleTimeout       = 90 * time.Second
	// maxMetricsConnections and maxProbeConnections are the numbers of connections from one
	// address. Prometheus needs one; probes of all containers of a node come from one address.
	maxMetricsConnections = 4
	maxProbeConnections   = 32
	// serverShutdownTimeout bounds the wait for open requests when the process ends.
	serverShutdownTimeout = 2 * time.Second
)

// newHTTPServer returns a server for a port that pods can reach.
func newHTTPServer(handler http.Handler) *http.Server {
	return &http.Server{
		Handler: handler, MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout,
		IdleTimeout: idleTimeout,
	}
}

// newServer returns a runnable that serves at listener, on standby replicas too.
func newServer(name string, handler http.Handler, listener net.Listener) *manager.Server {
	return &manager.Server{Name: name, Server: newHTTPServer(handler), Listener: listener, ShutdownTimeout: new(serverShutdownTimeout)}
}

// listen listens on address, for at most limit connections from each address.
func listen(address string, limit int) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return &limitedListener{Listener: l, limit: limit, open: map[netip.Addr]int{}}, nil
}

// limitedListener accepts at most limit open connections from an address and closes further ones,
// so that one client cannot keep out the others.
type limitedListener struct {
	net.Listener
	limit int
	mu    sync.Mutex
	open  map[netip.Addr]int
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := addressOf(conn)
		if !l.acquire(client) {
			_ = conn.Close()
			continue
		}
		return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { l.release(client) })}, nil
	}
}

// addressOf returns the address of the client, the zero Addr if it has none.
func addressOf(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func (l *limitedListener) acquire(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[client] >= l.limit {
		return false
	}
	l.open[client]++
	return true
}

func (l *limitedListener) release(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[client]--; l.open[client] == 0 {
		delete(l.open, client)
	}
}

// limitedConn is a connection of a limitedListener.
type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
