package etcdtest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// Proxy forwards connections to a local process until Cut.
type Proxy struct {
	listener net.Listener
	// target is the address of the process.
	target string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
	wg    sync.WaitGroup
	// answered counts the bytes from the process.
	answered atomic.Int64
}

// Answered returns the number of bytes that the process has sent through the proxy, those of TLS
// included.
func (p *Proxy) Answered() int64 { return p.answered.Load() }

// counted is a connection that counts what is written to it.
type counted struct {
	net.Conn
	bytes *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.bytes.Add(int64(n))
	return n, err
}

// NewProxy creates a proxy and chooses a port for the process behind it.
func NewProxy() (*Proxy, error) {
	port, err := testprocess.FreePort()
	if err != nil {
		return nil, err
	}
	return ProxyTo(net.JoinHostPort("127.0.0.1", port))
}

// ProxyTo creates a proxy for a process at the address target.
func ProxyTo(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, target: target, conns: map[net.Conn]bool{}}
	p.wg.Go(p.serve)
	return p, nil
}

// Address returns the address of the proxy.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Cut closes all connections and refuses new ones until Restore.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// Restore accepts connections again after Cut.
func (p *Proxy) Restore() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

// Close closes the proxy.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) serve() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.pass(from) })
	}
}

func (p *Proxy) pass(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer to.Close()
	if !p.add(from, to) {
		return
	}
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{counted{from, &p.answered}, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	<-done
	p.remove(from, to)
	<-done
}

func (p *Proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		p.conns[conn] = true
	}
	return !p.cut
}

func (p *Proxy) remove(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
		delete(p.conns, conn)
	}
}
