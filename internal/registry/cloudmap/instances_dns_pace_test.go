package cloudmap

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// maxDNSDelay is the longest time from a change of an export to the answers of cloudmap-local's
// DNS.
const maxDNSDelay = 2 * time.Second

// answer is the dns.ResponseWriter of one query by TCP, which works in virtual time.
type answer struct {
	dns.ResponseWriter
	reply *dns.Msg
}

func (a *answer) LocalAddr() net.Addr { return &net.TCPAddr{} }

func (a *answer) WriteMsg(reply *dns.Msg) error {
	a.reply = reply
	return nil
}

// addresses returns the A records of a name, sorted.
func (w *simulation) addresses(name string) (found []string) {
	var a answer
	w.server.ServeDNS(&a, new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA))
	for _, rr := range a.reply.Answer {
		if rr, ok := rr.(*dns.A); ok {
			found = append(found, rr.A.String())
		}
	}
	slices.Sort(found)
	return found
}

// untilAnswer waits until DNS answers web-0 with exactly these addresses, and returns how long that
// took.
func (w *simulation) untilAnswer(within time.Duration, after string, want ...string) time.Duration {
	w.t.Helper()
	began := time.Now()
	for ; !slices.Equal(w.addresses("web-0.demo"), want); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > within {
			w.t.Fatalf("%s: after %v DNS answers %v, want %v", after, within, w.addresses("web-0.demo"), want)
		}
	}
	return time.Since(began)
}

// answering starts a cluster that asks for DNS records. Its controller knows exports and properties
// before the registry runs, as in package membership.
func (w *simulation) answering(identity mcs.Identity, unready instances.Unready, properties mcs.Properties, exp mcs.Export) *process {
	w.t.Helper()
	p := w.create(identity.ClusterID, identity, func(cfg *Config) { cfg.InstanceView, cfg.Instances = true, dnsSettings(unready) })
	publish(w.t, p.Registry, asking(exp, mcs.InstanceDNSAuto))
	p.SetProperties(properties)
	p.run(nil)
	return p
}

// TestDNSPace: DNS has exactly the ready endpoints of clusters that are not drained at most
// maxDNSDelay after each change, with all treatments of the others, and with AWS's quotas and 5 to
// 25 ms for a request. Without a pause, reads do not show the last write for certain, and with a
// pause they do.
func TestDNSPace(t *testing.T) {
	ready := func(n int) []bool { return slices.Repeat([]bool{true}, n) }
	first := func(n int) []string {
		return []string{"10.10.0.0", "10.10.0.1", "10.10.0.2", "10.10.0.3", "10.10.0.4"}[:n]
	}
	for _, unready := range []instances.Unready{instances.UnreadyMark, instances.UnreadyDeregister, instances.UnreadyUnhealthy} {
		for _, pause := range []time.Duration{0, 3 * time.Minute} {
			t.Run(string(unready)+" "+pause.String(), func(t *testing.T) {
				inBubble(t, func(t *testing.T) {
					w := newSimulation(t, 0, cloudmaplocal.Options{})
					exp := asking(webExport("cls1", 0, 5), mcs.InstanceDNSAuto)
					second := webOf("cls2", 45, true)
					other := second.Backends[0].Endpoints[0].Address.String()
					a := w.answering(cls1, unready, nil, withReady(exp, ready(3)...))
					w.answering(cls2, unready, nil, second)
					w.untilAnswer(time.Minute, "both export", append(first(3), other)...)
					time.Sleep(10 * time.Minute) // all lists are over
					change := func(ready ...bool) func() {
						return func() { publish(t, a.Registry, withReady(exp, ready...)) }
					}
					drained := withReady(exp, ready(2)...)
					drained.Drain = mcs.DrainAll
					for _, step := range []struct {
						name   string
						change func()
						want   []string
					}{
						{"one is unready", change(true, false, true), []string{"10.10.0.0", "10.10.0.2"}},
						{"another one is unready", change(false, true, true), []string{"10.10.0.1", "10.10.0.2"}},
						{"all are unready", change(false, false, false), nil},
						{"all are ready", change(ready(3)...), first(3)},
						{"scaled up", change(ready(5)...), first(5)},
						{"scaled down", change(ready(1)...), first(1)},
						{"scaled to zero", change(), nil},
						{"scaled up from zero", change(ready(2)...), first(2)},
						{"the service is drained", func() { publish(t, a.Registry, drained) }, nil},
						{"the service is not drained", change(ready(2)...), first(2)},
						{"the cluster is drained", func() { a.SetProperties(drain) }, nil},
						{"scaled up while it is drained", change(ready(4)...), nil},
						{"the cluster is not drained", func() { a.SetProperties(nil) }, first(4)},
					} {
						step.change()
						took := w.untilAnswer(maxDNSDelay, step.name, append(slices.Clone(step.want), other)...)
						t.Logf("%s: DNS is right after %v", step.name, took)
						time.Sleep(pause)
						w.untilAnswer(0, step.name+", later", append(slices.Clone(step.want), other)...)
					}
					if err := a.Withdraw(t.Context(), webKey(0)); err != nil {
						t.Fatal(err)
					}
					w.untilAnswer(maxDNSDelay, "withdrawn", other)
				})
			})
		}
	}
}

// drain drains a cluster, and ofDrained are the addresses of its endpoints.
var (
	drain     = mcs.Properties{mcs.PropertyDrain: "100%"}
	ofDrained = []string{"10.10.0.0", "10.10.0.1"}
)

// TestDNSDrain: without health, the endpoints of a drained cluster leave DNS while other clusters
// have ready endpoints for all of its ports and instances there. The last ones stay.
func TestDNSDrain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{})
		exp, second := webOf("cls1", 0, true, true), webOf("cls2", 45, true)
		other := second.Backends[0].Endpoints[0].Address.String()
		a := w.answering(cls1, instances.UnreadyMark, nil, exp)
		w.untilAnswer(time.Minute, "cls1 exports", ofDrained...)
		time.Sleep(10 * time.Minute)
		a.SetProperties(drain)
		time.Sleep(5 * time.Minute)
		w.untilAnswer(0, "no other cluster has endpoints", ofDrained...)

		b := w.answering(cls2, instances.UnreadyMark, nil, second)
		w.untilAnswer(3*time.Minute, "cls2 exports", other)
		publish(t, b.Registry, asking(withReady(second, false), mcs.InstanceDNSAuto))
		// cls1 reads that first
		w.untilAnswer(maxDNSDelay, "the endpoint of cls2 is unready", ofDrained...)
		publish(t, b.Registry, asking(second, mcs.InstanceDNSAuto))
		w.untilAnswer(3*time.Minute, "it is ready", other)
		b.SetProperties(drain)
		w.untilAnswer(maxDNSDelay, "both are drained", append(slices.Clone(ofDrained), other)...)
		b.SetProperties(nil)
		w.untilAnswer(3*time.Minute, "cls2 is not drained", other)

		// A restarted controller does not know the other clusters at first: nothing changes
		// meanwhile.
		a.kill()
		a = w.answering(cls1, instances.UnreadyMark, drain, exp)
		for range 300 {
			time.Sleep(time.Second)
			w.untilAnswer(0, "the drained cluster has restarted", other)
		}
		if warnings := a.view.Warnings(webKey(0)); len(warnings) > 0 {
			t.Errorf("warnings %q", strings.Join(warnings, "; "))
		}
		b.kill()
		w.untilAnswer(5*time.Minute, "cls2 is stale", append(slices.Clone(ofDrained), other)...)
	})
}

// TestDNSDrain_WithoutInstances: the other cluster serves its Kubernetes clients, but has no
// instances in this account.
func TestDNSDrain_WithoutInstances(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{})
		a := w.answering(cls1, instances.UnreadyMark, drain, webOf("cls1", 0, true, true))
		b := w.begin(cls2, nil)
		publish(t, b.Registry, webOf("cls2", 45, true))
		w.untilAnswer(5*time.Minute, "both export", ofDrained...)
		w.until(5*time.Minute, "cls1 has read the export of cls2", func() bool { return len(look(t, a.Registry, webKey(0)).Exports()) == 1 })
		time.Sleep(10 * time.Minute)
		w.untilAnswer(0, "cls2 has no instances", ofDrained...)
	})
}
