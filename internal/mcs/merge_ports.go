package mcs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// portKey identifies a port for a client, which connects to a protocol and a number.
type portKey struct {
	protocol corev1.Protocol
	number   int32
}

func (p Port) key() portKey {
	return portKey{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port}
}

// mergedPort is a port of the union and the cluster that it comes from.
type mergedPort struct {
	Port
	cluster string
}

// maxMergedPorts bounds the ports of a service: those of the oldest export, and as many of all
// others together. A port takes up to 530 bytes of the derived Service: 63 of its name, 317 of its
// appProtocol, which is a qualified name, 25 of its numbers and protocol, and 125 of its managed
// fields. So 2,000 ports are 1.06 MB of the 1.5 MiB that etcd accepts (--max-request-bytes,
// etcd.io/docs/v3.6/dev-guide/limit), and 0.5 MB are left for annotations, which have 256 KiB.
const maxMergedPorts = 2 * maxPorts

// portShare divides the room for ports: one part in portShare of that which the older exports leave
// belongs to an export.
const portShare = 16

// mergePorts returns the union of the ports of exports that are sorted by precedence. From the
// oldest export to the youngest, it adds each port unless the union has its name or its protocol
// and number. Ports beyond maxMergedPorts are left out.
//
// The API defines a conflict "if the ports are not identical in all the constituent Services":
// ports that exclude each other and ports that only some clusters have.
func mergePorts(ordered []Export) (ports []Port, uses []PortUse, conflict *Conflict) {
	union := unitePorts(ordered)
	if len(union) > maxMergedPorts {
		union, uses = boundPorts(union, maxPorts)
	}
	return nameUnnamed(union), uses, portConflict(union, ordered)
}

// unitePorts returns the union of the ports of exports that are sorted by precedence.
func unitePorts(ordered []Export) (union []mergedPort) {
	byName := map[string]bool{}
	byKey := map[portKey]bool{}
	for _, e := range ordered {
		for _, p := range e.Ports {
			if byName[p.Name] || byKey[p.key()] {
				continue
			}
			byName[p.Name], byKey[p.key()] = true, true
			p.Protocol = p.key().protocol
			union = append(union, mergedPort{p, e.Cluster})
		}
	}
	return union
}

// AddPorts adds the ports of exports that m lacks, as far as there may be more: m keeps its ports,
// as the oldest export does in a merge, and each export has its part of the room. m was merged
// before from these and other exports, which are not known now.
func (m *Merged) AddPorts(exports []Export) {
	union := unitePorts(append([]Export{{Ports: m.Ports}}, oldestFirst(exports)...))
	if len(union) > maxMergedPorts {
		union, _ = boundPorts(union, cmp.Or(len(m.Ports), maxPorts))
	}
	m.Ports = nameUnnamed(union)
}

// PortUse are the ports that an export adds to those of the older ones.
type PortUse struct {
	Cluster string
	// Ports is their number, LeftOut the number of those that the service does not have.
	Ports, LeftOut int
}

// boundPorts returns maxMergedPorts of the ports of union, which is sorted by precedence, and which
// cluster has how many, those with most ports first.
//
// The oldest export keeps its first ofOldest ports. Each other one, from the oldest to the
// youngest, has its part of the room that those before it leave, at least one port, and the rest
// of the room belongs to the oldest. So no number of younger exports takes ports away from one
// that has not more than its part: 62 ports for the second export, 33 for the twelfth, 10 for the
// thirtieth.
func boundPorts(union []mergedPort, ofOldest int) (kept []mergedPort, uses []PortUse) {
	room, part, isKept := max(maxMergedPorts, ofOldest), ofOldest, make([]bool, len(union))
	for i, p := range union {
		if i > 0 && p.cluster != union[i-1].cluster {
			part = max(1, room/portShare)
		}
		if part > 0 && room > 0 {
			room, part, isKept[i] = room-1, part-1, true
		}
	}
	for i, p := range union {
		if !isKept[i] && room > 0 {
			room, isKept[i] = room-1, true
		}
		if i == 0 || p.cluster != union[i-1].cluster {
			uses = append(uses, PortUse{Cluster: p.cluster})
		}
		use := &uses[len(uses)-1]
		use.Ports++
		if isKept[i] {
			kept = append(kept, p)
		} else {
			use.LeftOut++
		}
	}
	slices.SortStableFunc(uses, func(a, b PortUse) int { return cmp.Compare(b.Ports, a.Ports) })
	return kept, uses
}

// PortsLeftOut describes the ports of a cluster that are left out, "" if there are none.
func (m Merged) PortsLeftOut(cluster string) string {
	i := slices.IndexFunc(m.PortUses, func(u PortUse) bool { return u.Cluster == cluster })
	if i < 0 || m.PortUses[i].LeftOut == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d ports of cluster %s left out, because the exports of the service have more than %d together: most are of cluster %s",
		m.PortUses[i].LeftOut, m.PortUses[i].Ports, cluster, maxMergedPorts, m.PortUses[0].Cluster)
}

// ReasonPortLimitConflict is a reason of the ServiceExport condition Conflict beside those of
// mcs-api: the exports have too many ports together.
const ReasonPortLimitConflict mcsv1beta1.ServiceExportConditionReason = "PortLimitConflict"

// portLimitConflict returns the conflict about the ports that are left out, nil if there are none.
func portLimitConflict(uses []PortUse) *Conflict {
	var most, left []string
	for _, u := range uses {
		most = append(most, fmt.Sprintf("cluster %s (%d)", u.Cluster, u.Ports))
		if u.LeftOut > 0 {
			left = append(left, fmt.Sprintf("cluster %s (%d)", u.Cluster, u.LeftOut))
		}
	}
	if len(left) == 0 {
		return nil
	}
	return &Conflict{
		Reason:  ReasonPortLimitConflict,
		Message: fmt.Sprintf("ports: the exports have more than %d together, most of them %s; left out are ports of %s", maxMergedPorts, enumerate(most), enumerate(left)),
	}
}

// nameUnnamed returns the ports of union. Kubernetes requires names if a Service has several ports,
// so a port without a name is then named after its protocol and number.
func nameUnnamed(union []mergedPort) []Port {
	var ports []Port
	for _, p := range union {
		if p.Name == "" && len(union) > 1 {
			p.Name = unusedPortName(p.Port, union)
		}
		ports = append(ports, p.Port)
	}
	return ports
}

// unusedPortName returns a port name that no port of union has.
func unusedPortName(p Port, union []mergedPort) string {
	return PortName(p.Protocol, p.Port, func(name string) bool {
		return slices.ContainsFunc(union, func(o mergedPort) bool { return o.Name == name })
	})
}

// PortName returns the first name that is not taken for a port that needs one: "tcp-80", "tcp-80-2"
// and so on. It is far below the 63 characters that the API accepts, however many names others
// take.
func PortName(protocol corev1.Protocol, number int32, isTaken func(name string) bool) string {
	base := fmt.Sprintf("%s-%d", strings.ToLower(string(protocol)), number)
	name := base
	for n := 2; isTaken(name); n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	return name
}

// portConflict returns a conflict about the ports of the union that not every export has unchanged,
// or nil. A port that is not in the union is not named; its cluster is listed with the port that
// replaces it.
func portConflict(union []mergedPort, ordered []Export) *Conflict {
	has := make([]map[Port]bool, len(ordered))
	for i, e := range ordered {
		has[i] = make(map[Port]bool, len(e.Ports))
		for _, p := range e.Ports {
			has[i][p.withoutTargetPort()] = true
		}
	}
	var messages []string
	for _, p := range union {
		var disagree []string
		for i, e := range ordered {
			if !has[i][p.withoutTargetPort()] {
				disagree = append(disagree, e.Cluster)
			}
		}
		if len(disagree) > 0 {
			messages = append(messages, conflictMessage("port", p.String(), p.cluster, disagree, len(ordered)))
		}
	}
	if len(messages) == 0 {
		return nil
	}
	return &Conflict{Reason: mcsv1beta1.ServiceExportReasonPortConflict, Message: strings.Join(truncateMessages(messages), ", ")}
}

// withoutTargetPort returns p as clients see it: the targetPort may differ between clusters.
func (p Port) withoutTargetPort() Port {
	p.Protocol, p.TargetPort = p.key().protocol, ""
	return p
}

// String returns the port in the form "http 80/TCP".
func (p Port) String() string {
	s := fmt.Sprintf("%d/%s", p.Port, p.key().protocol)
	if p.Name != "" {
		s = p.Name + " " + s
	}
	if p.AppProtocol != "" {
		s += " (" + p.AppProtocol + ")"
	}
	return s
}

// truncateMessages returns the first enumerateMax messages and the number of the others.
func truncateMessages(messages []string) []string {
	if len(messages) <= enumerateMax {
		return messages
	}
	return append(messages[:enumerateMax:enumerateMax], fmt.Sprintf("and %d more ports", len(messages)-enumerateMax))
}

// Backends returns the backends of e that the merged service uses.
//
// For a clusterset IP it keeps a backend port if e exposes a protocol and number of m, under any
// name, and renames it to the name in m. Traffic to a port on which clusters disagree thus goes
// only to clusters that expose it. Endpoints without a remaining port are dropped.
//
// For a headless service it returns all backends with their own ports: clients connect to the
// addresses of the endpoints, and CoreDNS reads names and numbers of ports from the EndpointSlices.
// There is no port translation that the Services' ports could decide.
func (m Merged) Backends(e Export) []Backends {
	if m.Type == mcsv1beta1.Headless {
		return e.sliceBackends()
	}
	names, appProtocols := m.portNames(e), appProtocols(m.Ports)
	var out []Backends
	for _, b := range e.Backends {
		var ports []BackendPort
		for _, p := range b.Ports {
			if name, ok := names[p.Name]; ok {
				p.Name, p.AppProtocol = name, appProtocols[name]
				ports = append(ports, p)
			}
		}
		if len(ports) > 0 {
			out = append(out, Backends{Ports: ports, Endpoints: b.Endpoints})
		}
	}
	return groupBackends(m.Type, out, nil)
}

// sliceBackends returns the backends of e with the ports of its slices.
func (e Export) sliceBackends() []Backends {
	appProtocols := appProtocols(e.Ports)
	out := slices.Clone(e.Backends)
	for i, b := range out {
		out[i].Ports = slices.Clone(b.Ports)
		for j, p := range b.Ports {
			out[i].Ports[j].AppProtocol = cmp.Or(p.AppProtocol, appProtocols[p.Name])
		}
	}
	return groupBackends(mcsv1beta1.Headless, out, nil)
}

// appProtocols returns the appProtocols of ports that have one, by name.
func appProtocols(ports []Port) map[string]string {
	var out map[string]string
	for _, p := range ports {
		if p.AppProtocol == "" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[p.Name] = p.AppProtocol
	}
	return out
}

// portNames maps the names of the ports of e that are in m to their names in m.
func (m Merged) portNames(e Export) map[string]string {
	byKey := make(map[portKey]string, len(m.Ports))
	for _, p := range m.Ports {
		byKey[p.key()] = p.Name
	}
	names := make(map[string]string, len(e.Ports))
	for _, p := range e.Ports {
		if name, ok := byKey[p.key()]; ok {
			names[p.Name] = name
		}
	}
	return names
}
