package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// SettleTime is the time after which every kube-proxy has seen a write. kube-proxy joins the port
// names of a Service with those of its EndpointSlices, but has one watch for each of the two kinds.
// 1 s is the limit of Kubernetes for API calls (99 % of them, scalability SLOs), 1 s is
// kube-proxy's default of minSyncPeriod, and 3 s are for a sync of thousands of Services.
const SettleTime = 5 * time.Second

// PortInput is the input of Ports for one service of type ClusterSetIP.
type PortInput struct {
	Key mcs.Key
	// Service is the existing derived Service, nil if there is none.
	Service *corev1.Service
	// Merged is the merge of Exports, which are those of all clusters whose slices may change.
	Merged  mcs.Merged
	Exports []mcs.Export
	// Slices are the existing EndpointSlices. Slices of other services are ignored.
	Slices []*discoveryv1.EndpointSlice
	// Settled are the pending changes of an earlier plan that have been pending for SettleTime.
	Settled []NameChange
}

// PortPlan has the ports to write now.
type PortPlan struct {
	// Service are the ports of the derived Service.
	Service []mcs.Port
	// Names are the names of a port in the slices, by its merged name. A port that it lacks has its
	// merged name. Ports that led to the same port of the endpoints may share an old name, which
	// the first port in a slice has.
	Names map[string][]string
	// Pending are the changes that must be pending for SettleTime before a plan contains them,
	// and those that are settled but not written yet.
	Pending []NameChange
}

// NameChange is a change of a port name that waits until every kube-proxy has seen the writes
// before it.
type NameChange struct {
	Kind NameChangeKind
	// Port is the port of the derived Service whose name changes, such as "80/TCP", "" for the
	// slices.
	Port string
	Name string
}

// NameChangeKind is the kind of a NameChange.
type NameChangeKind string

const (
	// ServiceTakesName gives a port of the derived Service a name that the slices have already.
	ServiceTakesName NameChangeKind = "ServiceTakesName"
	// SlicesLoseName removes from the slices a name that the derived Service no longer has.
	SlicesLoseName NameChangeKind = "SlicesLoseName"
)

// Ports returns the port names of the derived Service and of the slices, so that a change of names
// costs no connection. A port is a protocol and a number, because clients connect to these. A port
// that stays gets another name in three steps, each of which is written only after the one before
// has been there for SettleTime:
//
//  1. the slices have both names;
//  2. the derived Service has the new name;
//  3. the slices lose the old name.
//
// A name belongs to one port until the slices have lost it. A port whose wanted name belongs to
// another port keeps its name until then. If that name is wanted for another port, as in a swap, or
// if the port is new, it has a name in between, such as tcp-80. So no ports wait for each other.
//
// Everything else is written at once: ports that are new or gone, and the endpoints. Only a new
// port beside one without a name waits for step 2, because Kubernetes requires names if a Service
// has several ports.
//
// The API allows 20,000 ports in a slice, more than an export can have.
func Ports(in PortInput) PortPlan {
	s := newPortState(in)
	if s.isDone() {
		return PortPlan{Service: in.Merged.Ports}
	}
	chosen := s.choose()
	old := s.oldNames(chosen)
	pending := slices.Clone(old)
	if s.forget(old, in.Settled) {
		chosen = s.choose()
		old = s.oldNames(chosen)
		pending = append(pending, old...)
	}
	slices.Sort(pending)
	p := PortPlan{Names: s.sliceNames(chosen, old)}
	for _, name := range slices.Compact(pending) {
		p.Pending = append(p.Pending, NameChange{Kind: SlicesLoseName, Name: name})
	}
	ports, renamed := s.servicePorts(chosen)
	p.Service, p.Pending = ports, append(p.Pending, renamed...)
	return p
}

// servicePorts returns the ports of the derived Service, and the changes of their names for which
// the slices are ready.
func (s *portState) servicePorts(chosen map[portID]string) (ports []mcs.Port, pending []NameChange) {
	for _, w := range s.wanted {
		had, exists := s.current[w.id]
		change := NameChange{Kind: ServiceTakesName, Port: w.id.String(), Name: chosen[w.id]}
		w.Name = change.Name
		switch {
		// no connection depends on the name
		case !exists || had == change.Name || !s.isCarried(had):
		case !s.isAlias(had, change.Name): // a slice has the old name alone
			w.Name = had
		default:
			pending = append(pending, change)
			if !slices.Contains(s.in.Settled, change) {
				w.Name = had
			}
		}
		ports = append(ports, w.Port)
	}
	return s.withoutNewBesideUnnamed(ports), pending
}

// portID identifies a port for clients.
type portID struct {
	protocol corev1.Protocol
	number   int32
}

func portIDOf(protocol corev1.Protocol, number int32) portID {
	return portID{cmp.Or(protocol, corev1.ProtocolTCP), number}
}

// String returns the port in the form "80/TCP".
func (id portID) String() string { return fmt.Sprintf("%d/%s", id.number, id.protocol) }

// wantedPort is a merged port.
type wantedPort struct {
	mcs.Port
	id portID
}

// portState is that which exists, and the wanted ports.
type portState struct {
	in     PortInput
	wanted []wantedPort
	// current are the names that the wanted ports have in the derived Service. New ports have none.
	current map[portID]string
	// carried are the ports of each slice by name.
	carried []carriedPorts
	// exported are those of exportedPorts, nil until they are needed.
	exported map[string]map[string][]portID
}

// carriedPorts are the ports of a slice from a cluster: those of the endpoints, not of the Service.
type carriedPorts struct {
	cluster string
	byName  map[string]portID
}

func newPortState(in PortInput) *portState {
	s := &portState{in: in, current: map[portID]string{}}
	for _, p := range in.Merged.Ports {
		s.wanted = append(s.wanted, wantedPort{p, portIDOf(p.Protocol, p.Port)})
	}
	if in.Service == nil {
		return s
	}
	for _, p := range in.Service.Spec.Ports {
		id := portIDOf(p.Protocol, p.Port)
		if slices.ContainsFunc(s.wanted, func(w wantedPort) bool { return w.id == id }) {
			s.current[id] = p.Name
		}
	}
	for _, slice := range in.Slices {
		if slice.DeletionTimestamp != nil || len(slice.Endpoints) == 0 || !IsImportedSlice(in.Key, slice) {
			continue
		}
		c := carriedPorts{SourceCluster(slice), map[string]portID{}}
		for _, p := range slice.Ports {
			c.byName[ptr.Deref(p.Name, "")] = portIDOf(ptr.Deref(p.Protocol, ""), ptr.Deref(p.Port, 0))
		}
		s.carried = append(s.carried, c)
	}
	return s
}

// isDone reports whether no port of the derived Service needs another name, and the slices have
// none that they must lose.
func (s *portState) isDone() bool {
	for _, w := range s.wanted {
		had, exists := s.current[w.id]
		if exists && had != w.Name || !exists && s.isCarried(w.Name) {
			return len(s.current) == 0
		}
	}
	return len(s.current) == 0 || !slices.ContainsFunc(s.carriedNames(), func(name string) bool { return !s.isWanted(name) })
}

// isWanted reports whether a merged port has the name.
func (s *portState) isWanted(name string) bool {
	return slices.ContainsFunc(s.wanted, func(w wantedPort) bool { return w.Name == name })
}

// carriedNames returns the names in the slices, sorted.
func (s *portState) carriedNames() []string {
	all := map[string]bool{}
	for _, c := range s.carried {
		for name := range c.byName {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// isCarried reports whether a slice has the name.
func (s *portState) isCarried(name string) bool {
	return slices.ContainsFunc(s.carried, func(c carriedPorts) bool { _, ok := c.byName[name]; return ok })
}

// isAlias reports whether slices have the name, and each of them has the other name for the same
// port of its endpoints.
func (s *portState) isAlias(name, other string) bool {
	return s.isCarried(name) && !slices.ContainsFunc(s.carried, func(c carriedPorts) bool {
		port, has := c.byName[name]
		same, ok := c.byName[other]
		return has && (!ok || same != port)
	})
}

// choose returns the name that each port is to have in the derived Service.
func (s *portState) choose() map[portID]string {
	chosen := map[portID]string{}
	for _, w := range s.wanted {
		had, exists := s.current[w.id]
		switch {
		case s.isFree(w.Name, w):
			chosen[w.id] = w.Name
		case exists && !s.isWanted(had):
			chosen[w.id] = had
		default:
			chosen[w.id] = s.nameBetween(w)
		}
	}
	return chosen
}

// isFree reports whether the name belongs to no other port than w: to none in the derived Service,
// and in the slices to none that the derived Service called so before.
func (s *portState) isFree(name string, w wantedPort) bool {
	if s.belongsToOther(name, w.id) {
		return false
	}
	had, exists := s.current[w.id]
	if !s.isCarried(name) || exists && s.isAlias(name, had) || s.isCarriedFor(name, w) {
		return true
	}
	for other, otherName := range s.current {
		if other != w.id && s.isAlias(name, otherName) {
			return false
		}
	}
	return true
}

// belongsToOther reports whether another port of the derived Service has the name.
func (s *portState) belongsToOther(name string, id portID) bool {
	for other, otherName := range s.current {
		if other != id && otherName == name {
			return true
		}
	}
	return false
}

// isCarriedFor reports whether the slices have the name for the ports of the endpoints to which the
// exports of w lead.
func (s *portState) isCarriedFor(name string, w wantedPort) bool {
	if s.exported == nil {
		s.exported = exportedPorts(s.in)
	}
	exported := s.exported[w.Name]
	return !slices.ContainsFunc(s.carried, func(c carriedPorts) bool {
		port, has := c.byName[name]
		return has && !slices.Contains(exported[c.cluster], port)
	})
}

// exportedPorts returns the ports of the endpoints in the exports, by merged name and cluster.
func exportedPorts(in PortInput) map[string]map[string][]portID {
	out := map[string]map[string][]portID{}
	for _, e := range in.Exports {
		for _, b := range in.Merged.Backends(e) {
			for _, p := range b.Ports {
				if out[p.Name] == nil {
					out[p.Name] = map[string][]portID{}
				}
				out[p.Name][e.Cluster] = append(out[p.Name][e.Cluster], portIDOf(p.Protocol, p.Port))
			}
		}
	}
	return out
}

// nameBetween returns a name that no port has or wants for a port whose wanted name belongs to
// another one.
func (s *portState) nameBetween(w wantedPort) string {
	return mcs.PortName(w.id.protocol, w.id.number, func(name string) bool { return s.isWanted(name) || !s.isFree(name, w) })
}

// oldNames returns the names in the slices, sorted, that neither the derived Service has nor
// chosen, for ports that it has: it may have had them.
func (s *portState) oldNames(chosen map[portID]string) []string {
	used := slices.Concat(slices.Collect(maps.Values(s.current)), slices.Collect(maps.Values(chosen)))
	return slices.DeleteFunc(s.carriedNames(), func(name string) bool {
		isOld := func(had string) bool { return s.isAlias(name, had) }
		return slices.Contains(used, name) || !slices.ContainsFunc(slices.Collect(maps.Values(s.current)), isOld)
	})
}

// forget removes from the state those of the names that the slices may lose now, and reports
// whether there are any.
func (s *portState) forget(names []string, settled []NameChange) (forgotten bool) {
	for _, name := range names {
		if !slices.Contains(settled, NameChange{Kind: SlicesLoseName, Name: name}) {
			continue
		}
		forgotten = true
		for _, c := range s.carried {
			delete(c.byName, name)
		}
	}
	return forgotten
}

// sliceNames returns the names of each port in the slices: the chosen one, and those that the
// slices have and kube-proxy may look for.
func (s *portState) sliceNames(chosen map[portID]string, old []string) map[string][]string {
	out := map[string][]string{}
	for _, w := range s.wanted {
		names := []string{chosen[w.id]}
		if had, exists := s.current[w.id]; exists && had != chosen[w.id] && s.isCarried(had) {
			names = append(names, had)
		}
		for _, name := range old {
			if had, exists := s.current[w.id]; exists && s.isAlias(name, had) {
				names = append(names, name)
			}
		}
		out[w.Name] = names
	}
	return out
}

// withoutNewBesideUnnamed returns ports without the new ones if one of several has no name.
func (s *portState) withoutNewBesideUnnamed(ports []mcs.Port) []mcs.Port {
	if !slices.ContainsFunc(ports, func(p mcs.Port) bool { return p.Name == "" }) {
		return ports
	}
	return slices.DeleteFunc(ports, func(p mcs.Port) bool {
		_, exists := s.current[portIDOf(p.Protocol, p.Port)]
		return p.Name != "" && !exists
	})
}
