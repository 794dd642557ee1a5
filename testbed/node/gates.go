package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"
)

// pollInterval of gates: well below the start-up time of a cluster.
const pollInterval = 100 * time.Millisecond

// gates wait for the prerequisites of a process (cluster.Process.After).
type gates struct {
	client *http.Client
	done   map[string]chan struct{}
}

func newGates(ca string, done map[string]chan struct{}) (*gates, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca)) {
		return nil, errors.New("reading the cluster's certificate authority: no certificate in it")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	return &gates{client: &http.Client{Transport: transport, Timeout: 2 * time.Second}, done: done}, nil
}

// wait returns when the gate is open. It has no timeout: the host has one.
func (g *gates) wait(gate string) {
	if name, ok := strings.CutPrefix(gate, "done:"); ok {
		<-g.done[name]
		return
	}
	for !g.open(gate) {
		time.Sleep(pollInterval)
	}
}

func (g *gates) open(gate string) bool {
	if socket, ok := strings.CutPrefix(gate, "unix://"); ok {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}
	resp, err := g.client.Get(gate)
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}
