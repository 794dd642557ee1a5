package paths

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/pathhealth"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// maxEndpoints is the maximum number of endpoints of a cluster that one round probes.
const maxEndpoints = 3

// outcome is the result of one probe.
type outcome int

const (
	// inconclusive: the result is no evidence about the path.
	inconclusive outcome = iota
	reached
	unreached
)

// probe is one connection.
type probe struct {
	cluster string
	kind    pathhealth.Kind
	address netip.AddrPort
	outcome outcome
}

// round is a set of probes that run at the same time, and their results by cluster.
type round struct {
	start   time.Time
	probes  []probe
	results map[string]pathhealth.Result
}

// add adds the probes of a member.
func (r *round) add(m registry.Member, d dueProbes) {
	result := pathhealth.Result{Stale: m.Stale, Notified: m.Notified, Heartbeat: m.LastSeen}
	result.Outcomes[pathhealth.Controller].Targets = d.controllers
	result.Outcomes[pathhealth.Endpoints].Targets = d.endpoints
	r.results[m.ClusterID] = result
	for _, p := range d.probes {
		p.cluster = m.ClusterID
		r.probes = append(r.probes, p)
	}
}

// targets are the addresses of a cluster that can be probed.
type targets struct {
	controller netip.AddrPort
	endpoints  map[mcs.Key]netip.AddrPort
	// allowed reports whether this cluster may connect to an address.
	allowed func(netip.Addr) bool
}

// dueProbes are the probes to a cluster in the next round, and the number of targets of each kind.
type dueProbes struct {
	controllers, endpoints int
	probes                 []probe
}

// schedule decides when the targets of a cluster are probed.
type schedule struct {
	// chosen are the endpoints that are probed. They stay while they answer.
	chosen []chosen
	// controllerFails reports whether the last probe of the controller failed. allFail reports
	// whether the last probes of the endpoints failed as well.
	controllerFails, allFail bool
	lastRound, lastEndpoints time.Time
}

// chosen is an endpoint of a service.
type chosen struct {
	key     mcs.Key
	address netip.AddrPort
	// probed reports whether it was probed since it was chosen.
	probed bool
}

// next returns the probes that are due at now. A cluster in state Unknown is rarely probed, each
// time at other endpoints.
func (s *schedule) next(now time.Time, t targets, state pathhealth.State, times Times) dueProbes {
	isPaused := state == pathhealth.Unknown && now.Sub(s.lastRound) < times.Unknown
	if state == pathhealth.Unknown && !isPaused {
		s.chosen = nil
	}
	s.choose(t)
	isPaused = isPaused && !s.hasNew()
	d := dueProbes{endpoints: len(s.chosen)}
	if t.controller.IsValid() {
		d.controllers = 1
	}
	if isPaused {
		return d
	}
	s.lastRound = now
	if t.controller.IsValid() {
		d.probes = append(d.probes, probe{kind: pathhealth.Controller, address: t.controller})
	}
	if now.Sub(s.lastEndpoints) >= s.endpointInterval(t, times) && len(s.chosen) > 0 {
		s.lastEndpoints = now
		for i := range s.chosen {
			s.chosen[i].probed = true
			d.probes = append(d.probes, probe{kind: pathhealth.Endpoints, address: s.chosen[i].address})
		}
	}
	return d
}

// endpointInterval returns the interval between two probes of endpoints.
func (s *schedule) endpointInterval(t targets, times Times) time.Duration {
	switch {
	case s.allFail, s.hasNew():
		return 0
	case t.controller.IsValid() && !s.controllerFails:
		return times.Endpoints
	}
	return times.EndpointsAlone
}

// hasNew reports whether a chosen endpoint has not been probed yet.
func (s *schedule) hasNew() bool {
	return slices.ContainsFunc(s.chosen, func(c chosen) bool { return !c.probed })
}

// choose removes endpoints that are not targets any more, and adds others, in any order.
func (s *schedule) choose(t targets) {
	s.chosen = slices.DeleteFunc(s.chosen, func(c chosen) bool { return t.endpoints[c.key] != c.address || !t.allowed(c.address.Addr()) })
	for key, address := range t.endpoints {
		if len(s.chosen) >= maxEndpoints {
			return
		}
		isChosen := slices.ContainsFunc(s.chosen, func(c chosen) bool { return c.address.Addr() == address.Addr() })
		if !isChosen && t.allowed(address.Addr()) {
			s.chosen = append(s.chosen, chosen{key: key, address: address})
		}
	}
}

// observe records a round. Endpoints that do not answer while another target of the cluster does
// are replaced.
func (s *schedule) observe(r round, cluster string) {
	result := r.results[cluster]
	controller, endpoints := result.Outcomes[pathhealth.Controller], result.Outcomes[pathhealth.Endpoints]
	if controller.Probed > 0 {
		s.controllerFails = controller.Reached == 0
	}
	if controller.Reached+endpoints.Reached > 0 {
		s.allFail = false
		s.chosen = slices.DeleteFunc(s.chosen, func(c chosen) bool { return slices.Contains(r.unansweredEndpoints(cluster), c.address) })
	} else if endpoints.Probed > 0 {
		s.allFail = true
	}
}

// unansweredEndpoints returns the endpoints of a cluster that did not answer.
func (r *round) unansweredEndpoints(cluster string) (out []netip.AddrPort) {
	for _, p := range r.probes {
		if p.cluster == cluster && p.kind == pathhealth.Endpoints && p.outcome != reached {
			out = append(out, p.address)
		}
	}
	return out
}

// dial opens a TCP connection and closes it. It sends no data.
func dial(ctx context.Context, address netip.AddrPort) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address.String())
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// classify returns the outcome of a connection that ended with err. A refused connection shows that
// the destination answered. An error of this host, such as a missing permission, is no evidence
// about the path.
func classify(err error) outcome {
	var timeout net.Error
	switch {
	case err == nil, errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return reached
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH),
		errors.As(err, &timeout) && timeout.Timeout():
		return unreached
	}
	return inconclusive
}
