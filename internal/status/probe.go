package status

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

const (
	// lookupTimeout is the resolver's default timeout for one server. connectTimeout allows for one
	// lost SYN, which is retransmitted after a second.
	lookupTimeout  = 5 * time.Second
	connectTimeout = 3 * time.Second
)

// A Prober tests services from its pod. The zero Prober uses the pod's resolver and network.
type Prober struct {
	lookup func(ctx context.Context, name string) ([]string, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
}

// Probe resolves the name of the service and opens a TCP connection to each target. It sends no
// data.
func (p Prober) Probe(ctx context.Context, key mcs.Key, targets []Target) Probe {
	probe := Probe{Key: key, Name: key.Name + "." + key.Namespace + ".svc." + coredns.Zone, Connections: make([]Connection, len(targets))}
	var all sync.WaitGroup
	all.Go(func() {
		addresses, err := p.resolve(ctx, probe.Name+".") // the trailing dot disables search domains
		if err != nil {
			probe.LookupProblem = problemOf(err)
			return
		}
		slices.Sort(addresses)
		probe.Addresses = addresses
	})
	for i, target := range targets {
		all.Go(func() { probe.Connections[i] = p.Connect(ctx, target) })
	}
	all.Wait()
	return probe
}

// Connect opens a TCP connection and closes it.
func (p Prober) Connect(ctx context.Context, target Target) Connection {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	dial := p.dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	began := time.Now()
	conn, err := dial(ctx, "tcp", target.Address)
	result := Connection{Target: target, Milliseconds: time.Since(began).Milliseconds()}
	if err != nil {
		result.Problem = problemOf(err)
		return result
	}
	_ = conn.Close()
	return result
}

func (p Prober) resolve(ctx context.Context, name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if p.lookup != nil {
		return p.lookup(ctx, name)
	}
	return net.DefaultResolver.LookupHost(ctx, name)
}

// problemOf returns the text of a network error without the addresses, which are shown beside it.
func problemOf(err error) string {
	var noName *net.DNSError
	if errors.As(err, &noName) {
		return noName.Err
	}
	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer"
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err.Error()
	}
	return err.Error()
}
