package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// ClientConfig is the configuration of a Client.
type ClientConfig struct {
	// Endpoints are URLs of its members, all with https:// or all with http://.
	Endpoints []string
	// CAFile verifies the members' certificates; "" is the system's certificate authorities.
	CAFile string
	// CertFile and KeyFile are this cluster's client certificate. They are read again for each
	// connection.
	CertFile, KeyFile string
	// Username and PasswordFile are for etcd's own users. The file is read again when etcd refuses
	// the password.
	Username, PasswordFile string
	// Name is the registry's in metrics; "" is etcd.
	Name string
	// Metrics may be nil.
	Metrics *registry.Metrics

	// options are further options of tests.
	options []grpc.DialOption
}

// Client is a connection to an etcd cluster, which registries share. It connects with the first
// request.
type Client struct {
	cfg ClientConfig
	tls *tls.Config

	mu     sync.Mutex
	conn   *clientv3.Client
	closed bool
	// answeredAt is the time of the last answer to a request, in nanoseconds.
	answeredAt atomic.Int64
	// watches counts the watches.
	watches atomic.Uint64
}

const (
	// requestTimeout bounds one request: a healthy etcd answers in some milliseconds, and elects a
	// new leader in one or two seconds.
	requestTimeout = 5 * time.Second
	// keepAliveTime is the shortest that gRPC allows, and keepAliveTimeout how long a peer may take
	// to answer a ping: after both, the client connects to another member.
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
	// maxReconnect is the longest pause between two attempts to connect. With gRPC's own two
	// minutes, an etcd that has recovered would go unnoticed for that long.
	maxReconnect = 3 * time.Second
)

// NewClient checks cfg and creates a client. It makes no request.
func NewClient(cfg ClientConfig) (*Client, error) {
	cfg.Name = cmp.Or(cfg.Name, "etcd")
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("etcd needs at least one endpoint")
	}
	c := &Client{cfg: cfg}
	if strings.HasPrefix(cfg.Endpoints[0], "https://") {
		files := transport.TLSInfo{CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, TrustedCAFile: cfg.CAFile, Logger: zap.NewNop()}
		var err error
		if c.tls, err = files.ClientConfig(); err != nil {
			return nil, fmt.Errorf("reading the certificates for etcd: %w", err)
		}
	}
	if _, err := c.readPassword(); err != nil {
		return nil, err
	}
	return c, nil
}

// readPassword reads the password file.
func (c *Client) readPassword() (string, error) {
	if c.cfg.PasswordFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(c.cfg.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("reading the password for etcd: %w", err)
	}
	password := strings.TrimRight(string(text), "\r\n")
	if password == "" {
		return "", fmt.Errorf("reading the password for etcd: file %s is empty", c.cfg.PasswordFile)
	}
	return password, nil
}

// connection returns the client library's client. It is created with the first request, which may
// fail: a user has to log in.
func (c *Client) connection(ctx context.Context) (*clientv3.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.New("the client is closed")
	}
	if c.conn != nil {
		return c.conn, nil
	}
	password, err := c.readPassword()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// The connection outlives this request, but a process that ends does not wait until etcd has
	// accepted the password.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	interrupt := context.AfterFunc(ctx, cancel)
	conn, err := clientv3.New(clientv3.Config{
		Context: life, Endpoints: c.cfg.Endpoints, TLS: c.tls, Username: c.cfg.Username, Password: password,
		DialTimeout: requestTimeout, DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallRecvMsgSize: maxAnswer, Logger: zap.NewNop(),
		DialOptions: append([]grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxReconnect}, MinConnectTimeout: requestTimeout,
		}), grpc.WithChainStreamInterceptor(openOnce)}, c.cfg.options...),
	})
	if !interrupt() {
		if err == nil {
			_ = conn.Close() // it was never used
		}
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("connecting: %w", err)
	}
	if err := c.checkMembers(ctx, conn); err != nil {
		cancel()
		return nil, errors.Join(err, conn.Close())
	}
	c.conn = conn
	return conn, nil
}

// Close closes the connection.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return c.disconnect()
}

// disconnect closes the connection; the next request makes another. The caller holds c.mu.
func (c *Client) disconnect() error {
	if c.conn == nil {
		return nil
	}
	err := c.conn.Close()
	c.conn = nil
	if errors.Is(err, context.Canceled) {
		return nil // the result of a normal Close
	}
	return err
}

// call makes a request with a timeout and counts it.
func (c *Client) call(ctx context.Context, operation string, do func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.request(ctx, operation, do)
}

// request makes a request, which ends with ctx at the latest, and counts it.
func (c *Client) request(ctx context.Context, operation string, do func(context.Context, *clientv3.Client) error) error {
	conn, err := c.connection(ctx)
	began := time.Now()
	if err == nil {
		err = do(ctx, conn)
	}
	if err == nil {
		c.answeredAt.Store(time.Now().UnixNano())
	}
	c.cfg.Metrics.ObserveRequest(c.cfg.Name, operation, resultOf(err), time.Since(began))
	c.handleAuthFailure(conn, err)
	return withAdvice(err)
}

// handleAuthFailure disconnects if etcd refused the password, so that the file is read again.
func (c *Client) handleAuthFailure(conn *clientv3.Client, err error) {
	if errors.Is(err, rpctypes.ErrAuthFailed) && conn != nil {
		c.drop(conn)
	}
}

// handleSilence disconnects if etcd did not answer a request in time that began at began, nor any
// other since, so that the next request logs in again. An etcd that was restored from a backup does
// not answer requests with a token that it gave out later, until it has as many entries again, and
// the client library gets another token only when etcd refuses one or a watch begins. It is for
// requests without which there is no watch.
func (c *Client) handleSilence(began time.Time, err error) {
	if c.cfg.Username == "" || !errors.Is(err, context.DeadlineExceeded) || c.answeredAt.Load() > began.UnixNano() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.disconnect() // the connection is not used any more
}

// drop closes a connection if it is the current one; the next request makes another.
func (c *Client) drop(conn *clientv3.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == conn {
		_ = c.disconnect() // the connection is not used any more
	}
}
