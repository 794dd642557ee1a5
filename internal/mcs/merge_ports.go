package mcs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// portKey is what makes two ports the same to a client that connects: it dials a protocol and a number.
type portKey struct {
	protocol corev1.Protocol
	number   int32
}

func (p Port) key() portKey {
	return portKey{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.Port}
}

// mergedPort is a port of the union and the cluster that brought it in.
type mergedPort struct {
	Port
	cluster string
}

// mergePorts unites the ports of exports that are sorted by precedence. Going from the oldest to the youngest, a port
// joins the union unless its name, and failing that its protocol and number, are taken.
//
// The API calls it a conflict "if the ports are not identical in all the constituent Services": besides ports that
// exclude each other, also those that only some clusters have.
func mergePorts(ordered []Export) ([]Port, *Conflict) {
	var union []mergedPort
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
	return nameAll(union), portConflict(union, ordered)
}

// nameAll is the union's ports. A port may be nameless while it is alone; beside others Kubernetes wants it named, so
// it is called after its protocol and number.
func nameAll(union []mergedPort) []Port {
	var ports []Port
	for _, p := range union {
		if p.Name == "" && len(union) > 1 {
			p.Name = freeName(p.Port, union)
		}
		ports = append(ports, p.Port)
	}
	return ports
}

// freeName is a port name that no port of union has: "tcp-80", or with as many x behind it as it takes.
func freeName(p Port, union []mergedPort) string {
	name := fmt.Sprintf("%s-%d", strings.ToLower(string(p.Protocol)), p.Port)
	for slices.ContainsFunc(union, func(o mergedPort) bool { return o.Name == name }) {
		name += "x"
	}
	return name
}

// portConflict lists the ports of the union that not every export has just so, or is nil. A port that did not make it
// into the union is not named itself, but its cluster is among those that disagree about the port that took its place.
func portConflict(union []mergedPort, ordered []Export) *Conflict {
	has := make([]map[Port]bool, len(ordered))
	for i, e := range ordered {
		has[i] = make(map[Port]bool, len(e.Ports))
		for _, p := range e.Ports {
			has[i][p.seen()] = true
		}
	}
	var messages []string
	for _, p := range union {
		var disagree []string
		for i, e := range ordered {
			if !has[i][p.seen()] {
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
	return &Conflict{Reason: mcsv1beta1.ServiceExportReasonPortConflict, Message: strings.Join(limit(messages), ", ")}
}

// seen is p as a client sees it. The targetPort is each cluster's own affair.
func (p Port) seen() Port {
	p.Protocol, p.TargetPort = p.key().protocol, ""
	return p
}

// String is the port as a user would say it: "http 80/TCP".
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

// limit cuts a list of messages to what a person reads.
func limit(messages []string) []string {
	if len(messages) <= enumerateMax {
		return messages
	}
	return append(messages[:enumerateMax:enumerateMax], fmt.Sprintf("and %d more ports", len(messages)-enumerateMax))
}

// Backends are e's backends as m's service uses them. A backend port remains when e exposes, under whatever name, the
// protocol and number that m has, and then bears the name it has in m: so traffic to a port on which clusters disagree
// goes only to clusters that expose it. Endpoints of which no port remains are left out.
//
// A headless service hands out addresses, for which it needs no ports: its endpoints without ports remain.
func (m Merged) Backends(e Export) []Backends {
	names := m.portNames(e)
	var out []Backends
	for _, b := range e.Backends {
		var ports []BackendPort
		for _, p := range b.Ports {
			if name, ok := names[p.Name]; ok {
				p.Name = name
				ports = append(ports, p)
			}
		}
		portless := m.Type == mcsv1beta1.Headless && (len(b.Ports) == 0 || len(e.Ports) == 0)
		if len(ports) > 0 || portless {
			out = append(out, Backends{Ports: ports, Endpoints: b.Endpoints})
		}
	}
	return groupBackends(out)
}

// portNames maps the name of each of e's ports that is in m to its name there.
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
