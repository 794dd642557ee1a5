package cloudmaplocal

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// maxMultivalue is the number of instances that Route 53 answers at most [DnsConfig,
// RoutingPolicy].
const maxMultivalue = 8

// The SOA record of Route 53's hosted zones. Its TTL is the namespace's, and is how long resolvers
// keep that a name does not exist.
const (
	soaPrimary, soaMailbox                 = "ns-0.awsdns-00.com.", "awsdns-hostmaster.amazon.com."
	soaSerial, soaRefresh, soaRetry        = 1, 7200, 900
	soaExpire, soaMinimum           uint32 = 1209600, 86400
)

var _ dns.Handler = (*Server)(nil)

// ServeDNS implements dns.Handler: it answers for the DNS namespaces of all accounts and Regions,
// as the resolver of a VPC does for Route 53's hosted zones. It refuses all other names.
func (s *Server) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	reply := s.answerDNS(query)
	size := dns.MaxMsgSize
	if w.LocalAddr().Network() == "udp" {
		size = dns.MinMsgSize
	}
	if edns := query.IsEdns0(); edns != nil {
		reply.SetEdns0(edns.UDPSize(), false)
		size = max(size, int(edns.UDPSize()))
	}
	reply.Truncate(size)
	_ = w.WriteMsg(reply) // the client may have gone
}

func (s *Server) answerDNS(query *dns.Msg) *dns.Msg {
	reply := new(dns.Msg).SetReply(query)
	reply.RecursionAvailable = true // else dig warns
	if len(query.Question) != 1 || query.Opcode != dns.OpcodeQuery {
		return reply.SetRcode(query, dns.RcodeNotImplemented)
	}
	question := query.Question[0]
	at, zone := s.findZone(strings.ToLower(question.Name))
	if zone.name == "" || question.Qclass != dns.ClassINET {
		return reply.SetRcode(query, dns.RcodeRefused)
	}
	reply.Authoritative = true
	var exists bool
	at.withState(func() { reply.Answer, exists = at.resolveDNS(zone, question, s.opts.Now()) })
	if len(reply.Answer) == 0 {
		reply.Ns = []dns.RR{zone.soa()}
		if !exists {
			reply.Rcode = dns.RcodeNameError
		}
	}
	return reply
}

// dnsZone is the hosted zone of a namespace. name is fully qualified and in lower case.
type dnsZone struct {
	name, namespaceID string
	soaTTL            int64
}

// contains reports whether a fully qualified name in lower case is the zone's or below it.
func (z dnsZone) contains(name string) bool {
	return name == z.name || strings.HasSuffix(name, "."+z.name)
}

func (z dnsZone) soa() dns.RR {
	return &dns.SOA{
		Hdr: header(z.name, dns.TypeSOA, z.soaTTL), Ns: soaPrimary, Mbox: soaMailbox, Serial: soaSerial,
		Refresh: soaRefresh, Retry: soaRetry, Expire: soaExpire, Minttl: soaMinimum,
	}
}

// findZone returns the zone with the longest name that contains name. It does not distinguish VPCs:
// of several zones with one name it returns that of the first account, Region and ID.
func (s *Server) findZone(name string) (at *region, zone dnsZone) {
	for _, r := range s.regions.allRegions() {
		r.withState(func() {
			for _, id := range sortedKeys(r.store.namespaces) {
				ns := r.store.namespaces[id]
				candidate := dnsZone{dns.Fqdn(strings.ToLower(ns.Name)), ns.ID, ns.SOATTL}
				if ns.Kind != kindHTTP && len(candidate.name) > len(zone.name) && candidate.contains(name) {
					at, zone = r, candidate
				}
			}
		})
	}
	return at, zone
}

// resolveDNS returns the records that answer a question in a zone, by the state that
// DiscoverInstances shows. exists reports whether the name has any record or is above one that has.
// The caller holds r.mu.
func (r *region) resolveDNS(zone dnsZone, question dns.Question, now time.Time) (answer []dns.RR, exists bool) {
	name := strings.ToLower(question.Name)
	if name == zone.name {
		exists = true
		if question.Qtype == dns.TypeSOA {
			answer = []dns.RR{zone.soa()}
		}
	}
	for _, id := range sortedKeys(r.store.services) {
		svc, shown := r.store.services[id], r.replica.services[id]
		if svc.NamespaceID != zone.namespaceID || svc.DNS == nil || shown == nil || len(shown.instances) == 0 {
			continue
		}
		records, known := resolveService(svc, shown, zone, question, now)
		answer, exists = append(answer, records...), exists || known
	}
	return answer, exists
}

// resolveService is resolveDNS for the names of one service: its own, and those of its instances if
// it has SRV records.
func resolveService(svc *service, shown *replicaService, zone dnsZone, question dns.Question, now time.Time) (answer []dns.RR, exists bool) {
	name, owner := strings.ToLower(question.Name), zone.name
	if svc.Name != "." {
		owner = strings.ToLower(svc.Name) + "." + zone.name
	}
	label, below := strings.CutSuffix(name, "."+owner)
	switch {
	case name == owner:
		return serviceRecords(svc, chooseInstances(shown, svc.DNS.RoutingPolicy, now), question), true
	case below && svc.DNS.DnsRecords[0].Type == "SRV":
		for _, inst := range shown.instances {
			if strings.EqualFold(inst.ID, label) {
				exists = true
				answer = append(answer, instanceRecords(inst, svc.DNS.DnsRecords[0].TTL, question.Qtype, question.Name)...)
			}
		}
	}
	return answer, exists || strings.HasSuffix(owner, "."+name)
}

// chooseInstances returns the instances that an answer has, in random order: up to eight, or one if
// the routing policy is WEIGHTED. Instances that are not healthy are left out, unless all are.
func chooseInstances(svc *replicaService, policy string, now time.Time) []*instance {
	all := slices.Collect(maps.Values(svc.instances))
	chosen := nonEmptyOr(filterSlice(all, func(inst *instance) bool { return inst.Health.at(now) != unhealthy }), all)
	rand.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	if policy == routingWeighted {
		return chosen[:min(1, len(chosen))]
	}
	return chosen[:min(maxMultivalue, len(chosen))]
}

// serviceRecords returns the records of a service's name for a question. A CNAME answers questions
// of all types.
func serviceRecords(svc *service, chosen []*instance, question dns.Question) (records []dns.RR) {
	for _, config := range svc.DNS.DnsRecords {
		for _, inst := range chosen {
			switch qtype := question.Qtype; {
			case config.Type == "CNAME":
				records = append(records, &dns.CNAME{Hdr: header(question.Name, dns.TypeCNAME, *config.TTL), Target: dns.Fqdn(inst.Attributes[attrCNAME])})
			case config.Type != dns.TypeToString[qtype]:
			case qtype == dns.TypeSRV:
				// checked when it was registered
				port, _ := strconv.ParseUint(inst.Attributes[attrPort], 10, 16)
				records = append(records, &dns.SRV{
					Hdr: header(question.Name, dns.TypeSRV, *config.TTL), Priority: 1, Weight: 1, Port: uint16(port), Target: inst.ID + "." + question.Name,
				})
			default:
				records = append(records, instanceRecords(inst, config.TTL, qtype, question.Name)...)
			}
		}
	}
	return records
}

// instanceRecords returns the address record of an instance, if it has an address of the type.
func instanceRecords(inst *instance, ttl *int64, qtype uint16, name string) []dns.RR {
	attribute := map[uint16]string{dns.TypeA: attrIPv4, dns.TypeAAAA: attrIPv6}[qtype]
	address, err := netip.ParseAddr(inst.Attributes[attribute])
	switch {
	case err != nil:
		return nil
	case qtype == dns.TypeA:
		return []dns.RR{&dns.A{Hdr: header(name, qtype, *ttl), A: address.AsSlice()}}
	}
	return []dns.RR{&dns.AAAA{Hdr: header(name, qtype, *ttl), AAAA: address.AsSlice()}}
}

func header(name string, rrtype uint16, ttl int64) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: uint32(ttl)} //nolint:gosec // checkTTL allows 31 bits
}

// DNSListener serves DNS on an address by UDP and TCP.
type DNSListener struct {
	address string
	servers []*dns.Server
	done    sync.WaitGroup
}

// ListenDNS serves DNS on an address such as 127.0.0.1:8053, by UDP and TCP, until Close. With port
// 0 it chooses a port that is free for both.
func (s *Server) ListenDNS(address string) (*DNSListener, error) {
	const attempts = 20 // the free TCP port may be in use by UDP
	var err error
	for range attempts {
		var tcp net.Listener
		if tcp, err = net.Listen("tcp", address); err != nil {
			break
		}
		var udp net.PacketConn
		if udp, err = net.ListenPacket("udp", tcp.Addr().String()); err == nil {
			return s.startDNS(tcp, udp), nil
		}
		_ = tcp.Close()
		if _, port, _ := net.SplitHostPort(address); port != "0" {
			break
		}
	}
	return nil, fmt.Errorf("listening on %s for DNS: %w", address, err)
}

func (s *Server) startDNS(tcp net.Listener, udp net.PacketConn) *DNSListener {
	l := &DNSListener{address: tcp.Addr().String(), servers: []*dns.Server{{Listener: tcp, Handler: s}, {PacketConn: udp, Handler: s}}}
	for _, server := range l.servers {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		l.done.Go(func() {
			if err := server.ActivateAndServe(); err != nil {
				s.opts.Logger.Error("serving DNS", "address", l.address, "error", err)
			}
		})
		<-started
	}
	return l
}

// Addr returns the address that the server listens on.
func (l *DNSListener) Addr() string { return l.address }

// Close stops serving, after the queries in progress.
func (l *DNSListener) Close() error {
	var errs []error
	for _, server := range l.servers {
		errs = append(errs, server.Shutdown())
	}
	l.done.Wait()
	return errors.Join(errs...)
}
