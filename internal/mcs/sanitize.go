package mcs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Limits of one export. They keep a broken or hostile cluster from filling the etcd of the others.
const (
	// maxPorts: a port takes about 60 bytes in the ServiceImport, 200 in the derived Service with its managed fields and
	// 60 in each EndpointSlice: with 1,000 of them each object stays below a fifth of etcd's 1.5 MiB.
	maxPorts = 1000
	// maxEndpoints: 10,000 endpoints are 100 slices of 100 per address family, about 4 MiB in etcd; more than the tested limits
	// of Kubernetes for one Service.
	maxEndpoints = 10_000
	// maxBackends: each group of backends needs at least one slice per address family, so 100 groups at most double the
	// slices of maxEndpoints.
	maxBackends = 100
	// maxLabels and maxLabelBytes bound the labels, maxAnnotationBytes the annotations. With 8 KiB an export takes three instances in AWS Cloud Map at
	// most besides its endpoints, so that the exports of one user do not fill a page.
	maxLabels          = 100
	maxLabelBytes      = 4 << 10
	maxAnnotationBytes = 4 << 10
	// maxAffinitySeconds is one day, the maximum in Kubernetes.
	maxAffinitySeconds = 86400
	// maxProblems bounds the lines about one export.
	maxProblems = 20
)

// Sanitize returns the canonical form of an export that another cluster wrote, without the properties that the Kubernetes API would
// refuse or that must not come from another cluster. It reports each of them in one line. An error reports that nothing of e can
// be used.
//
// NewExport sanitizes this cluster's own exports as well, so that all clusters merge the same exports.
func Sanitize(e Export) (Export, []string, error) {
	if err := checkExport(e); err != nil {
		return Export{}, nil, err
	}
	var p problems
	e = e.Canonical()
	if e.Recipients != "" {
		recipients, err := ParseRecipients(string(e.Recipients))
		if err != nil {
			return Export{}, nil, fmt.Errorf("the recipients are not valid: %w", err)
		}
		e.Recipients = recipients
	}
	p.sanitizeTimes(&e)
	e.Ports = p.sanitizePorts(e.Ports)
	if len(e.Ports) == 0 && e.Type == mcsv1beta1.ClusterSetIP {
		return Export{}, nil, fmt.Errorf("a service of type %s has no usable port: %s", e.Type, cmp.Or(strings.Join(p.lines(), ", "), "it has none at all"))
	}
	p.sanitizePolicies(&e)
	e.Labels = p.sanitizeLabels(e.Labels)
	e.Annotations = p.sanitizeAnnotations(e.Annotations)
	p.sanitizeSelectors(&e)
	p.sanitizeDrain(&e)
	e.Backends = p.sanitizeBackends(e.Type, e.Backends)
	return e.Canonical(), p.lines(), nil
}

// checkExport returns an error if e lacks a property that every export must have.
func checkExport(e Export) error {
	if len(validation.IsDNS1123Label(e.Key.Namespace)) > 0 {
		return fmt.Errorf("namespace %q is not a DNS label", abbreviate(e.Key.Namespace))
	}
	if len(validation.IsDNS1123Label(e.Key.Name)) > 0 {
		return fmt.Errorf("service name %q is not a DNS label", abbreviate(e.Key.Name))
	}
	if err := ValidateClusterID(e.Cluster); err != nil {
		return fmt.Errorf("checking the source cluster: %w", err)
	}
	if e.Type != mcsv1beta1.ClusterSetIP && e.Type != mcsv1beta1.Headless {
		return fmt.Errorf("type %q is neither %s nor %s", abbreviate(string(e.Type)), mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless)
	}
	return nil
}

// The range of plausible times: the Multi-Cluster Services API is of 2020, and a time that is too late for RFC 3339 has no JSON. No clock
// is needed for times in the future: they are later than those of all other exports, which thus win.
var (
	earliestTime = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	latestTime   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// sanitizeTimes removes times that no ServiceExport can have. A creation time of 1970 would win every conflict.
func (p *problems) sanitizeTimes(e *Export) {
	switch {
	case e.Created.IsZero():
		p.add("there is no creation time: every other export wins against this one")
	case !isPlausibleTime(e.Created):
		p.add("creation time %s left out: it is not between %d and %d, so every other export wins against this one",
			abbreviate(e.Created.Format(time.RFC3339)), earliestTime.Year(), latestTime.Year())
		e.Created = time.Time{}
	}
	if !isPlausibleTime(e.Changed) {
		e.Changed = time.Time{}
	}
}

func isPlausibleTime(t time.Time) bool { return !t.Before(earliestTime) && t.Before(latestTime) }

// problems collects the lines about properties that were left out of an export.
type problems struct {
	first []string
	more  int
}

func (p *problems) add(format string, args ...any) {
	if len(p.first) < maxProblems {
		p.first = append(p.first, fmt.Sprintf(format, args...))
		return
	}
	p.more++
}

func (p *problems) lines() []string {
	if p.more == 0 {
		return p.first
	}
	return append(p.first, fmt.Sprintf("and %d more problems", p.more))
}

func (p *problems) sanitizePorts(in []Port) []Port {
	var out []Port
	names := map[string]bool{}
	keys := map[portKey]bool{}
	for _, port := range in {
		switch err := checkPort(port.Name, port.Protocol, port.Port); {
		case err != nil:
			p.add("port %s left out: %v", abbreviate(port.String()), err)
			continue
		case names[port.Name] || keys[port.key()]:
			p.add("port %s left out: another port has its name or number", port)
			continue
		case len(out) == maxPorts:
			p.add("port %s left out: there are more than %d", port, maxPorts)
			continue
		}
		if port.AppProtocol != "" && len(validation.IsQualifiedName(port.AppProtocol)) > 0 {
			p.add("appProtocol %q of port %s left out: it is not a qualified name", abbreviate(port.AppProtocol), port.Name)
			port.AppProtocol = ""
		}
		if port.TargetPort != "" && !isValidTargetPort(port.TargetPort) {
			p.add("targetPort %q of port %s left out: it is neither a port number nor a port name", abbreviate(port.TargetPort), port.Name)
			port.TargetPort = ""
		}
		names[port.Name], keys[port.key()] = true, true
		out = append(out, port)
	}
	return out
}

func checkPort(name string, protocol corev1.Protocol, number int32) error {
	if name != "" && len(validation.IsDNS1123Label(name)) > 0 {
		return errors.New("the name is not a DNS label")
	}
	if len(validation.IsValidPortNum(int(number))) > 0 {
		return errors.New("the number is not between 1 and 65535")
	}
	switch protocol {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return nil
	}
	return errors.New("the protocol is none of TCP, UDP, SCTP")
}

func isValidTargetPort(s string) bool {
	if n, err := strconv.Atoi(s); err == nil {
		return len(validation.IsValidPortNum(n)) == 0
	}
	return len(validation.IsValidPortName(s)) == 0
}

// sanitizePolicies resets policies with values that Kubernetes does not know to their defaults.
func (p *problems) sanitizePolicies(e *Export) {
	switch e.SessionAffinity {
	case corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP:
	default:
		p.add("sessionAffinity %q left out: it is unknown", abbreviate(string(e.SessionAffinity)))
		e.SessionAffinity = corev1.ServiceAffinityNone
	}
	if t := affinityTimeout(e.SessionAffinityConfig); t < 0 || t > maxAffinitySeconds {
		p.add("sessionAffinityConfig left out: a timeout of %d s is not between 1 and %d", t, maxAffinitySeconds)
		e.SessionAffinityConfig = nil
	}
	switch e.InternalTrafficPolicy {
	case "", corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal:
	default:
		p.add("internalTrafficPolicy %q left out: it is unknown", abbreviate(string(e.InternalTrafficPolicy)))
		e.InternalTrafficPolicy = ""
	}
	switch e.TrafficDistribution {
	case "", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone,
		corev1.ServiceTrafficDistributionPreferSameNode:
	default:
		p.add("trafficDistribution %q left out: it is unknown", abbreviate(e.TrafficDistribution))
		e.TrafficDistribution = ""
	}
	e.IPFamilies = slices.DeleteFunc(e.IPFamilies, func(f corev1.IPFamily) bool {
		bad := f != corev1.IPv4Protocol && f != corev1.IPv6Protocol
		if bad {
			p.add("IP family %q left out: it is unknown", abbreviate(string(f)))
		}
		return bad
	})
}

// sanitizeSelectors removes cluster selectors that are not valid as a whole: a part of a list would prefer other clusters.
func (p *problems) sanitizeSelectors(e *Export) {
	selectors, err := ParseClusterSelectors(string(e.ClusterSelectors))
	if err != nil {
		p.add("clusterSelectors left out: %v", err)
	}
	if e.MinimumReady < 0 || e.MinimumReady > 100 {
		p.add("the minimum of %d %% for clusterSelectors left out: it is not between 0 and 100", e.MinimumReady)
		e.MinimumReady = 0
	}
	if selectors == "" || e.Type != mcsv1beta1.ClusterSetIP {
		selectors, e.MinimumReady = "", 0
	}
	e.ClusterSelectors = selectors
}

func (p *problems) sanitizeDrain(e *Export) {
	drain, err := ParseDrain(string(e.Drain))
	if err != nil {
		p.add("the drain left out: %v", err)
	}
	e.Drain = drain
}

func (p *problems) sanitizeLabels(in map[string]string) map[string]string {
	out := map[string]string{}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(in)) {
		switch {
		case isReservedKey(k):
			p.add("label %q left out: its prefix is reserved", abbreviate(k))
		case len(validation.IsQualifiedName(k)) > 0 || len(validation.IsValidLabelValue(in[k])) > 0:
			p.add("label %q left out: its key or value is not valid", abbreviate(k))
		case len(out) == maxLabels:
			p.add("label %q left out: there are more than %d", abbreviate(k), maxLabels)
		case size+len(k)+len(in[k]) > maxLabelBytes:
			p.add("label %q left out: there are more than %d bytes of labels", abbreviate(k), maxLabelBytes)
		default:
			size += len(k) + len(in[k])
			out[k] = in[k]
		}
	}
	return out
}

func (p *problems) sanitizeAnnotations(in map[string]string) map[string]string {
	out := map[string]string{}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(in)) {
		switch {
		case k == AnnotationClusterSelectors || k == AnnotationMinimumReady: // fields of Export
		case isReservedKey(k):
			p.add("annotation %q left out: its prefix is reserved", abbreviate(k))
		// Kubernetes compares annotation keys in lower case.
		case len(validation.IsQualifiedName(strings.ToLower(k))) > 0:
			p.add("annotation %q left out: its key is not valid", abbreviate(k))
		case size+len(k)+len(in[k]) > maxAnnotationBytes:
			p.add("annotation %q left out: there are more than %d bytes of annotations", abbreviate(k), maxAnnotationBytes)
		default:
			size += len(k) + len(in[k])
			out[k] = in[k]
		}
	}
	return out
}

// sanitizeBackends removes ports and endpoints that are not valid. Endpoints without a valid port
// are of no use behind a clusterset IP; clients of a headless service use their addresses.
func (p *problems) sanitizeBackends(kind mcsv1beta1.ServiceImportType, in []Backends) []Backends {
	var out []Backends
	count := 0
	for _, b := range in {
		ports := p.sanitizeBackendPorts(b.Ports)
		if len(ports) == 0 && len(b.Ports) > 0 && kind == mcsv1beta1.ClusterSetIP {
			p.add("%d endpoints left out: none of their ports is usable", len(b.Endpoints))
			continue
		}
		if len(out) == maxBackends {
			p.add("%d endpoints left out: there are more than %d groups of endpoints with different ports", len(b.Endpoints), maxBackends)
			continue
		}
		endpoints := p.sanitizeEndpoints(b.Endpoints)
		if room := maxEndpoints - count; len(endpoints) > room {
			p.add("%d endpoints left out: there are more than %d", len(endpoints)-room, maxEndpoints)
			endpoints = endpoints[:room]
		}
		count += len(endpoints)
		out = append(out, Backends{Ports: ports, Endpoints: endpoints})
	}
	return out
}

func (p *problems) sanitizeBackendPorts(in []BackendPort) []BackendPort {
	var out []BackendPort
	names := map[string]bool{}
	for _, port := range in {
		switch err := checkPort(port.Name, port.Protocol, port.Port); {
		case err != nil:
			p.add("endpoint port %q %d/%s left out: %v", abbreviate(port.Name), port.Port, abbreviate(string(port.Protocol)), err)
		case names[port.Name]:
			p.add("endpoint port %q %d/%s left out: another port has its name", port.Name, port.Port, port.Protocol)
		case len(out) == maxPorts:
			p.add("endpoint port %q left out: there are more than %d", port.Name, maxPorts)
		default:
			if port.AppProtocol != "" && len(validation.IsQualifiedName(port.AppProtocol)) > 0 {
				p.add("appProtocol %q of endpoint port %q left out: it is not a qualified name", abbreviate(port.AppProtocol), port.Name)
				port.AppProtocol = ""
			}
			names[port.Name] = true
			out = append(out, port)
		}
	}
	return out
}

func (p *problems) sanitizeEndpoints(in []Endpoint) []Endpoint {
	var out []Endpoint
	for _, ep := range in {
		if err := CheckPodAddress(ep.Address); err != nil {
			p.add("endpoint %s left out: %v", abbreviate(ep.Address.String()), err)
			continue
		}
		if ep.Hostname != "" && len(validation.IsDNS1123Label(ep.Hostname)) > 0 {
			p.add("hostname %q of endpoint %s left out: it is not a DNS label", abbreviate(ep.Hostname), ep.Address)
			ep.Hostname = ""
		}
		if len(validation.IsValidLabelValue(ep.Zone)) > 0 {
			p.add("zone %q of endpoint %s left out: it is not a label value", abbreviate(ep.Zone), ep.Address)
			ep.Zone = ""
		}
		if ep.Node != "" && len(validation.IsDNS1123Subdomain(ep.Node)) > 0 {
			p.add("node %q of endpoint %s left out: it is not a DNS name", abbreviate(ep.Node), ep.Address)
			ep.Node = ""
		}
		out = append(out, ep)
	}
	return out
}

// refusedNetwork is a network that cannot have pods, and its description.
type refusedNetwork struct {
	network netip.Prefix
	name    string
}

// refusedNetworks are networks whose addresses answer with credentials of the node or the pod that asks, and networks whose addresses
// contain another address, so that every other check could be bypassed. Metadata services at link-local addresses are not listed.
var refusedNetworks = []refusedNetwork{
	{netip.MustParsePrefix("fd00:ec2::/32"), "a metadata service of AWS"},
	{netip.MustParsePrefix("fd20:ce::/64"), "the metadata service of Google Cloud"},
	{netip.MustParsePrefix("168.63.129.16/32"), "the platform service of Azure"},
	{netip.MustParsePrefix("100.100.100.200/32"), "the metadata service of Alibaba Cloud"},
	{netip.MustParsePrefix("192.0.0.0/24"), "in a reserved network (RFC 6890), which has the metadata service of Oracle Cloud"},
	{netip.MustParsePrefix("64:ff9b::/96"), "a translated IPv4 address (NAT64)"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "a translated IPv4 address (NAT64)"},
	{netip.MustParsePrefix("::ffff:0:0:0/96"), "a translated IPv4 address (SIIT)"},
	{netip.MustParsePrefix("::/96"), "an IPv4-compatible address"},
	{netip.MustParsePrefix("2002::/16"), "a tunnelled IPv4 address (6to4)"},
	{netip.MustParsePrefix("2001::/32"), "a tunnelled IPv4 address (Teredo)"},
}

// CheckPodAddress returns an error if Kubernetes refuses a in an EndpointSlice or if a cannot be the address of a pod.
func CheckPodAddress(a netip.Addr) error {
	switch a = a.Unmap(); {
	case !a.IsValid():
		return errors.New("it has no address")
	case a.Zone() != "":
		return errors.New("an address with a zone is valid on one host only")
	case a.IsUnspecified(), a.Is4() && a.As4()[0] == 0:
		return errors.New("the address is unspecified")
	case a.IsLoopback():
		return errors.New("the address is a loopback address")
	case a.IsLinkLocalUnicast():
		return errors.New("the address is link-local")
	case a.IsMulticast():
		return errors.New("the address is a multicast address")
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return errors.New("the address is the broadcast address")
	}
	for _, r := range refusedNetworks {
		if r.network.Contains(a) {
			return errors.New("the address is " + r.name)
		}
	}
	return nil
}
