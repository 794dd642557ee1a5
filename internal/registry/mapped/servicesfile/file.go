// Package servicesfile reads the file of --cloud-map-services. It is pure, and needs no AWS SDK, so
// that the kubectl plugin can check files too.
package servicesfile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

const (
	// MaxBytes is the size of the largest ConfigMap.
	MaxBytes = 1 << 20
	// MaxServices bounds the services of a file. With readPace, 200 services are read in five
	// minutes.
	MaxServices = 200
	// maxServicePorts bounds the ports of a service: those of most Services, and a tenth of what
	// mcs.Sanitize allows.
	maxServicePorts = 100
	// maxZones bounds the zones of a file. A Region of AWS has at most 6, and some 20 local ones.
	maxZones = 64
	// MaxProblems bounds the lines about one file or service.
	MaxProblems = 20
	// maxNamespaceName and maxServiceName are the limits of AWS Cloud Map.
	maxNamespaceName, maxServiceName = 1024, 127
)

// Mapping maps a service of Cloud Map to a service of the clusterset.
type Mapping struct {
	// Namespace and Service name the service in Cloud Map.
	Namespace, Service string
	// Key names it in Kubernetes.
	Key mcs.Key
	// Created is the time by which it takes precedence over exports of clusters, zero if every
	// export of a cluster decides.
	Created time.Time
	// Families are those of the clusterset IPs and of the addresses that are imported.
	Families []corev1.IPFamily
	Ports    []Port
	// Zones are the zones of the account that has the service, nil if they have the names that they
	// have in the account of the nodes.
	Zones mcs.Zones
}

// Port is a port of the imported service.
type Port struct {
	mcs.Port
	// Target is the port of the instances, 0 for their attribute AWS_INSTANCE_PORT.
	Target int32
}

// IsSameSource reports whether m and o have the same service in Cloud Map.
func (m Mapping) IsSameSource(o Mapping) bool {
	return m.Namespace == o.Namespace && m.Service == o.Service
}

// Equal reports whether m and o are the same.
func (m Mapping) Equal(o Mapping) bool {
	return m.IsSameSource(o) && m.Key == o.Key && m.Created.Equal(o.Created) && slices.Equal(m.Families, o.Families) && slices.Equal(m.Ports, o.Ports) &&
		maps.Equal(m.Zones, o.Zones)
}

// String returns the names of both services.
func (m Mapping) String() string {
	return fmt.Sprintf("%s (service %s in %s)", m.Key, m.Service, m.Namespace)
}

// The format of the file. docs/ecs-ec2-lambda.md documents it.
type (
	file struct {
		Services []fileService `json:"services"`
		// Zones are optional.
		Zones map[string]string `json:"zones"`
	}
	fileService struct {
		CloudMap struct {
			Namespace string `json:"namespace"`
			Service   string `json:"service"`
		} `json:"cloudMap"`
		Import struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"import"`
		Ports []filePort `json:"ports"`
		// Created and IPFamilies are optional.
		Created    string            `json:"created"`
		IPFamilies []corev1.IPFamily `json:"ipFamilies"`
	}
	filePort struct {
		Name        string `json:"name"`
		Port        int32  `json:"port"`
		Protocol    string `json:"protocol"`
		TargetPort  *int32 `json:"targetPort"`
		AppProtocol string `json:"appProtocol"`
	}
)

// Parse reads a file. The error has one line for each problem, with the action that solves it. The
// mappings are sorted by key.
func Parse(text []byte) ([]Mapping, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("the file has more than the %d bytes of a ConfigMap", MaxBytes)
	}
	var f file
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return nil, fmt.Errorf("the file is not valid YAML with the list services, whose entries have the keys cloudMap (namespace, service), import (namespace, name), "+
			"ports (name, port, protocol, targetPort, appProtocol), ipFamilies and created, and the optional object zones: %s", Abbreviate(err.Error()))
	}
	var p problems
	if f.Services == nil {
		p.add("services: must be a list; write [] for none")
	}
	if len(f.Services) > MaxServices {
		return nil, fmt.Errorf("services: there are %d, more than the %d that are read in time: map fewer services in this cluster", len(f.Services), MaxServices)
	}
	zones := p.zones(f.Zones)
	seen := map[mcs.Key]int{}
	var out []Mapping
	for i, s := range f.Services {
		at := fmt.Sprintf("services[%d]", i)
		m := p.mapping(at, s)
		m.Zones = zones
		if other, twice := seen[m.Key]; twice && m.Key != (mcs.Key{}) {
			p.add("%s.import: services[%d] is imported as %s too: give one of them another name", at, other, m.Key)
		}
		seen[m.Key] = i
		out = append(out, m)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Mapping) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return out, nil
}

// problems collects the problems of a file.
type problems []error

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

func (p *problems) err() error {
	if len(*p) > MaxProblems {
		return errors.Join(append((*p)[:MaxProblems:MaxProblems], fmt.Errorf("and %d more problems", len(*p)-MaxProblems))...)
	}
	return errors.Join(*p...)
}

// mapping checks an entry.
func (p *problems) mapping(at string, s fileService) Mapping {
	m := Mapping{Namespace: s.CloudMap.Namespace, Service: s.CloudMap.Service, Key: mcs.Key{Namespace: s.Import.Namespace, Name: s.Import.Name}}
	p.cloudMapName(at+".cloudMap.namespace", m.Namespace, maxNamespaceName)
	p.cloudMapName(at+".cloudMap.service", m.Service, maxServiceName)
	if len(validation.IsDNS1123Label(m.Key.Namespace)) > 0 {
		p.add("%s.import.namespace: %q must be the name of a Kubernetes namespace", at, Abbreviate(m.Key.Namespace))
	}
	if len(validation.IsDNS1123Label(m.Key.Name)) > 0 {
		p.add("%s.import.name: %q must be a name for a Kubernetes Service: lower-case letters, digits and -", at, Abbreviate(m.Key.Name))
	}
	if s.Created != "" {
		created, err := time.Parse(time.RFC3339, s.Created)
		if err != nil || created.Year() < 2020 || created.Year() >= 2200 {
			p.add("%s.created: %q must be a time from 2020 to 2199, such as 2026-01-31T00:00:00Z; remove the key to let the exports of clusters decide", at, Abbreviate(s.Created))
		}
		m.Created = created.UTC().Truncate(time.Second)
	}
	m.Families = p.families(at+".ipFamilies", s.IPFamilies)
	m.Ports = p.ports(at+".ports", s.Ports)
	return m
}

// zones checks the names and IDs of zones.
func (p *problems) zones(ids map[string]string) mcs.Zones {
	if len(ids) > maxZones {
		p.add("zones: must have at most %d zones", maxZones)
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		if parsed, err := mcs.ParseZones(name + "=" + ids[name]); err != nil || !maps.Equal(parsed, mcs.Zones{name: ids[name]}) {
			p.add("zones: %q: %q must be the name of a zone and its ID, such as eu-central-1a: euc1-az2", Abbreviate(name), Abbreviate(ids[name]))
		}
	}
	return ids
}

// families checks the IP families. They do not follow the addresses: a user that registers
// instances could otherwise make Kubernetes allocate other IPs. Without the key they are IPv4
// alone, which instances of ECS and EC2 have by default: an IPv6 clusterset IP without endpoints
// would refuse connections.
func (p *problems) families(at string, list []corev1.IPFamily) []corev1.IPFamily {
	if len(list) == 0 {
		return []corev1.IPFamily{corev1.IPv4Protocol}
	}
	unknown := slices.ContainsFunc(list, func(f corev1.IPFamily) bool { return f != corev1.IPv4Protocol && f != corev1.IPv6Protocol })
	if unknown || len(list) > 2 || len(list) == 2 && list[0] == list[1] {
		p.add("%s: must be [IPv4], [IPv6], [IPv4, IPv6] or [IPv6, IPv4]", at)
		return nil
	}
	return list
}

// cloudMapName checks a name of Cloud Map, which has printable ASCII characters only.
func (p *problems) cloudMapName(at, name string, most int) {
	if name == "" || len(name) > most || strings.ContainsFunc(name, func(r rune) bool { return r < '!' || r > '~' }) {
		p.add("%s: %q must be the name in AWS Cloud Map: 1 to %d ASCII characters without spaces", at, Abbreviate(name), most)
	}
}

// ports checks the ports of a service.
func (p *problems) ports(at string, list []filePort) []Port {
	if len(list) == 0 || len(list) > maxServicePorts {
		p.add("%s: must have 1 to %d ports, such as [{port: 80}]", at, maxServicePorts)
		return nil
	}
	type number struct {
		protocol corev1.Protocol
		port     int32
	}
	names, numbers := map[string]bool{}, map[number]bool{}
	var out []Port
	for i, f := range list {
		port := Port{Port: mcs.Port{Name: f.Name, Port: f.Port, Protocol: corev1.Protocol(f.Protocol), AppProtocol: f.AppProtocol}}
		at := fmt.Sprintf("%s[%d]", at, i)
		if port.Protocol == "" {
			port.Protocol = corev1.ProtocolTCP
		}
		switch port.Protocol {
		case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			p.add("%s.protocol: %q must be TCP, UDP or SCTP", at, Abbreviate(f.Protocol))
		}
		p.number(at+".port", f.Port)
		if f.TargetPort != nil {
			port.Target = *f.TargetPort
			p.number(at+".targetPort", port.Target)
		}
		p.portName(at, f, len(list) > 1)
		if key := (number{port.Protocol, port.Port.Port}); names[f.Name] || numbers[key] {
			p.add("%s: another port has the same name, or the same protocol and number", at)
		} else {
			names[f.Name], numbers[key] = true, true
		}
		out = append(out, port)
	}
	return out
}

// portName checks the name and the application protocol of a port.
func (p *problems) portName(at string, f filePort, isNeeded bool) {
	if f.Name == "" && isNeeded || f.Name != "" && len(validation.IsDNS1123Label(f.Name)) > 0 {
		p.add("%s.name: %q must be a DNS label, which each of several ports needs", at, Abbreviate(f.Name))
	}
	if f.AppProtocol != "" && len(validation.IsQualifiedName(f.AppProtocol)) > 0 {
		p.add("%s.appProtocol: %q must be a name such as http or kubernetes.io/h2c", at, Abbreviate(f.AppProtocol))
	}
}

func (p *problems) number(at string, n int32) {
	if len(validation.IsValidPortNum(int(n))) > 0 {
		p.add("%s: %d must be a port number from 1 to 65535", at, n)
	}
}

// abbreviateMax bounds texts of a file or an instance in messages.
const abbreviateMax = 100

// Abbreviate bounds a text in a message.
func Abbreviate(s string) string {
	if len(s) <= abbreviateMax {
		return s
	}
	return strings.ToValidUTF8(s[:abbreviateMax], "") + "..."
}
