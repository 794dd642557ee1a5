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
	// maxPorts: a port takes up to 530 bytes in the derived Service (maxMergedPorts), 440 in the
	// ServiceImport and in each EndpointSlice: with 1,000 of them each object stays below two
	// fifths of etcd's 1.5 MiB.
	maxPorts = 1000
	// maxEndpoints: 10,000 endpoints are 100 slices of 100 per address family, about 4 MiB in etcd;
	// more than the tested limits of Kubernetes for one Service.
	maxEndpoints = 10_000
	// maxBackends: each group of backends needs at least one slice per address family, so 100
	// groups at most double the slices of maxEndpoints.
	maxBackends = 100
	// maxLabels and maxLabelBytes bound the labels, maxAnnotationBytes the annotations. With 8 KiB
	// an export takes three instances in AWS Cloud Map at most besides its endpoints, so that the
	// exports of one user do not fill a page.
	maxLabels          = 100
	maxLabelBytes      = 4 << 10
	maxAnnotationBytes = 4 << 10
	// maxAffinitySeconds is one day, the maximum in Kubernetes.
	maxAffinitySeconds = 86400
	// maxProblems bounds the LeftOuts of one export.
	maxProblems = 20
)

// Sanitize returns the canonical form of an export that another cluster wrote, without the
// properties that the Kubernetes API would refuse or that must not come from another cluster. It
// reports each of them in one line. An error reports that nothing of e can be used.
//
// NewExport sanitizes this cluster's own exports as well, so that all clusters merge the same
// exports.
func Sanitize(e Export) (Export, []string, error) {
	var left LeftOuts
	e, err := left.sanitize(e)
	if err != nil {
		return Export{}, nil, err
	}
	return e, left.lines(), nil
}

// sanitize is Sanitize, and adds to o what it leaves out.
func (o *LeftOuts) sanitize(e Export) (Export, error) {
	if err := checkExport(e); err != nil {
		return Export{}, err
	}
	e = e.Canonical()
	if e.Recipients != "" {
		recipients, err := ParseRecipients(string(e.Recipients))
		if err != nil {
			return Export{}, fmt.Errorf("the recipients are not valid: %w", err)
		}
		e.Recipients = recipients
	}
	o.sanitizeTimes(&e)
	var ports LeftOuts
	e.Ports = ports.sanitizePorts(e.Ports)
	if len(e.Ports) == 0 && e.Type == mcsv1beta1.ClusterSetIP {
		return Export{}, fmt.Errorf("a service of type %s has no usable port: %s", e.Type, cmp.Or(strings.Join(ports.lines(), ", "), "it has none at all"))
	}
	for _, l := range ports {
		o.add(l)
	}
	o.sanitizePolicies(&e)
	e.Labels = o.sanitizeLabels(e.Labels)
	e.Annotations = o.sanitizeAnnotations(e.Annotations)
	o.sanitizeSelectors(&e)
	o.sanitizeDrain(&e)
	e.Backends = o.sanitizeBackends(e.Type, e.Backends)
	return e.Canonical(), nil
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

// The range of plausible times: the Multi-Cluster Services API is of 2020, and a time that is too
// late for RFC 3339 has no JSON. No clock is needed for times in the future: they are later than
// those of all other exports, which thus win.
var (
	earliestTime = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	latestTime   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// sanitizeTimes removes times that no ServiceExport can have. A creation time of 1970 would win
// every conflict.
func (o *LeftOuts) sanitizeTimes(e *Export) {
	switch {
	case e.Created.IsZero():
		o.addNote("there is no creation time: every other export wins against this one")
	case !isPlausibleTime(e.Created):
		o.addField("creation time "+abbreviate(e.Created.Format(time.RFC3339)),
			"it is not between %d and %d, so every other export wins against this one", earliestTime.Year(), latestTime.Year())
		e.Created = time.Time{}
	}
	if !isPlausibleTime(e.Changed) {
		e.Changed = time.Time{}
	}
}

func isPlausibleTime(t time.Time) bool { return !t.Before(earliestTime) && t.Before(latestTime) }

func (o *LeftOuts) sanitizePorts(in []Port) []Port {
	names, keys := map[string]bool{}, map[portKey]bool{}
	return sift(o, in, func(port *Port) *LeftOut {
		switch err := checkPort(port.Name, port.Protocol, port.Port); {
		case err != nil:
			return leftOut(LeftOutPort, abbreviate(port.String()), err.Error())
		case names[port.Name] || keys[port.key()]:
			return leftOut(LeftOutPort, port.String(), "another port has its name or number")
		case len(names) == maxPorts:
			return leftOut(LeftOutPort, port.String(), fmt.Sprintf("there are more than %d", maxPorts))
		}
		if port.AppProtocol != "" && len(validation.IsQualifiedName(port.AppProtocol)) > 0 {
			o.addField(fmt.Sprintf("appProtocol %q of port %s", abbreviate(port.AppProtocol), port.Name), "it is not a qualified name")
			port.AppProtocol = ""
		}
		if port.TargetPort != "" && !isValidTargetPort(port.TargetPort) {
			o.addField(fmt.Sprintf("targetPort %q of port %s", abbreviate(port.TargetPort), port.Name), "it is neither a port number nor a port name")
			port.TargetPort = ""
		}
		names[port.Name], keys[port.key()] = true, true
		return nil
	})
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
func (o *LeftOuts) sanitizePolicies(e *Export) {
	switch e.SessionAffinity {
	case corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP:
	default:
		o.addField(fmt.Sprintf("sessionAffinity %q", abbreviate(string(e.SessionAffinity))), reasonUnknown)
		e.SessionAffinity = corev1.ServiceAffinityNone
	}
	if t := affinityTimeout(e.SessionAffinityConfig); t < 0 || t > maxAffinitySeconds {
		o.addField("sessionAffinityConfig", "a timeout of %d s is not between 1 and %d", t, maxAffinitySeconds)
		e.SessionAffinityConfig = nil
	}
	switch e.InternalTrafficPolicy {
	case "", corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal:
	default:
		o.addField(fmt.Sprintf("internalTrafficPolicy %q", abbreviate(string(e.InternalTrafficPolicy))), reasonUnknown)
		e.InternalTrafficPolicy = ""
	}
	switch e.TrafficDistribution {
	case "", corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone,
		corev1.ServiceTrafficDistributionPreferSameNode:
	default:
		o.addField(fmt.Sprintf("trafficDistribution %q", abbreviate(e.TrafficDistribution)), reasonUnknown)
		e.TrafficDistribution = ""
	}
	e.IPFamilies = sift(o, e.IPFamilies, func(f *corev1.IPFamily) *LeftOut {
		if *f == corev1.IPv4Protocol || *f == corev1.IPv6Protocol {
			return nil
		}
		return leftOut(LeftOutField, fmt.Sprintf("IP family %q", abbreviate(string(*f))), reasonUnknown)
	})
}

// sanitizeSelectors removes cluster selectors that are not valid as a whole: a part of a list would
// prefer other clusters.
func (o *LeftOuts) sanitizeSelectors(e *Export) {
	selectors, err := ParseClusterSelectors(string(e.ClusterSelectors))
	if err != nil {
		o.addField("clusterSelectors", "%v", err)
	}
	if e.MinimumReady < 0 || e.MinimumReady > 100 {
		o.addField(fmt.Sprintf("the minimum of %d %% for clusterSelectors", e.MinimumReady), "it is not between 0 and 100")
		e.MinimumReady = 0
	}
	if selectors == "" || e.Type != mcsv1beta1.ClusterSetIP {
		selectors, e.MinimumReady = "", 0
	}
	e.ClusterSelectors = selectors
}

func (o *LeftOuts) sanitizeDrain(e *Export) {
	drain, err := ParseDrain(string(e.Drain))
	if err != nil {
		o.addField("the drain", "%v", err)
	}
	e.Drain = drain
}

func (o *LeftOuts) sanitizeLabels(in map[string]string) map[string]string {
	size, count := 0, 0
	return o.siftKeys(in, func(k string) *LeftOut {
		refuse := func(reason string) *LeftOut { return leftOut(LeftOutLabel, quote(k), reason) }
		switch {
		case isReservedKey(k):
			return refuse(reasonReserved)
		case len(validation.IsQualifiedName(k)) > 0 || len(validation.IsValidLabelValue(in[k])) > 0:
			return refuse("its key or value is not valid")
		case count == maxLabels:
			return refuse(fmt.Sprintf("there are more than %d", maxLabels))
		case size+len(k)+len(in[k]) > maxLabelBytes:
			return refuse(fmt.Sprintf("there are more than %d bytes of labels", maxLabelBytes))
		}
		size, count = size+len(k)+len(in[k]), count+1
		return nil
	})
}

func (o *LeftOuts) sanitizeAnnotations(in map[string]string) map[string]string {
	size := 0
	in = maps.Clone(in)
	// these are fields of Export
	for _, key := range []string{AnnotationClusterSelectors, AnnotationMinimumReady} {
		delete(in, key)
		delete(in, DeprecatedKey(key))
	}
	return o.siftKeys(in, func(k string) *LeftOut {
		refuse := func(reason string) *LeftOut { return leftOut(LeftOutAnnotation, quote(k), reason) }
		switch {
		case isReservedKey(k):
			return refuse(reasonReserved)
		// Kubernetes compares annotation keys in lower case.
		case len(validation.IsQualifiedName(strings.ToLower(k))) > 0:
			return refuse("its key is not valid")
		case size+len(k)+len(in[k]) > maxAnnotationBytes:
			return refuse(fmt.Sprintf("there are more than %d bytes of annotations", maxAnnotationBytes))
		}
		size += len(k) + len(in[k])
		return nil
	})
}

// siftKeys returns the labels or annotations whose keys rule keeps, which gets them sorted.
func (o *LeftOuts) siftKeys(in map[string]string, rule func(key string) *LeftOut) map[string]string {
	out := map[string]string{}
	for _, k := range sift(o, slices.Sorted(maps.Keys(in)), func(k *string) *LeftOut { return rule(*k) }) {
		out[k] = in[k]
	}
	return out
}

// quote quotes a key for a message.
func quote(key string) string { return fmt.Sprintf("%q", abbreviate(key)) }

// sanitizeBackends removes ports and endpoints that are not valid. Endpoints without a valid port
// are of no use behind a clusterset IP; clients of a headless service use their addresses.
func (o *LeftOuts) sanitizeBackends(kind mcsv1beta1.ServiceImportType, in []Backends) []Backends {
	groups, count := 0, 0
	return sift(o, in, func(b *Backends) *LeftOut {
		refuse := func(reason string) *LeftOut {
			return &LeftOut{Kind: LeftOutEndpoint, Count: len(b.Endpoints), Reason: reason}
		}
		before := len(b.Ports)
		b.Ports = o.sanitizeBackendPorts(b.Ports)
		switch {
		case len(b.Ports) == 0 && before > 0 && kind == mcsv1beta1.ClusterSetIP:
			return refuse("none of their ports is usable")
		case groups == maxBackends:
			return refuse(fmt.Sprintf("there are more than %d groups of endpoints with different ports", maxBackends))
		}
		b.Endpoints = o.sanitizeEndpoints(b.Endpoints, maxEndpoints-count)
		groups, count = groups+1, count+len(b.Endpoints)
		return nil
	})
}

func (o *LeftOuts) sanitizeBackendPorts(in []BackendPort) []BackendPort {
	names := map[string]bool{}
	return sift(o, in, func(port *BackendPort) *LeftOut {
		refuse := func(reason string) *LeftOut {
			return leftOut(LeftOutEndpointPort, fmt.Sprintf("%q %d/%s", abbreviate(port.Name), port.Port, abbreviate(string(port.Protocol))), reason)
		}
		switch err := checkPort(port.Name, port.Protocol, port.Port); {
		case err != nil:
			return refuse(err.Error())
		case names[port.Name]:
			return refuse("another port has its name")
		case len(names) == maxPorts:
			return refuse(fmt.Sprintf("there are more than %d", maxPorts))
		}
		if port.AppProtocol != "" && len(validation.IsQualifiedName(port.AppProtocol)) > 0 {
			o.addField(fmt.Sprintf("appProtocol %q of endpoint port %q", abbreviate(port.AppProtocol), port.Name), "it is not a qualified name")
			port.AppProtocol = ""
		}
		names[port.Name] = true
		return nil
	})
}

// sanitizeEndpoints returns at most room endpoints.
func (o *LeftOuts) sanitizeEndpoints(in []Endpoint, room int) []Endpoint {
	return sift(o, in, func(ep *Endpoint) *LeftOut {
		if err := CheckPodAddress(ep.Address); err != nil {
			return leftOut(LeftOutEndpoint, abbreviate(ep.Address.String()), err.Error())
		}
		if room == 0 {
			return &LeftOut{Kind: LeftOutEndpoint, Count: 1, Reason: fmt.Sprintf("there are more than %d", maxEndpoints)}
		}
		room--
		if ep.Hostname != "" && len(validation.IsDNS1123Label(ep.Hostname)) > 0 {
			o.addField(fmt.Sprintf("hostname %q of endpoint %s", abbreviate(ep.Hostname), ep.Address), "it is not a DNS label")
			ep.Hostname = ""
		}
		if len(validation.IsValidLabelValue(ep.Zone)) > 0 {
			o.addField(fmt.Sprintf("zone %q of endpoint %s", abbreviate(ep.Zone), ep.Address), "it is not a label value")
			ep.Zone = ""
		}
		if ep.Node != "" && len(validation.IsDNS1123Subdomain(ep.Node)) > 0 {
			o.addField(fmt.Sprintf("node %q of endpoint %s", abbreviate(ep.Node), ep.Address), "it is not a DNS name")
			ep.Node = ""
		}
		return nil
	})
}

// refusedNetwork is a network that cannot have pods, and its description.
type refusedNetwork struct {
	network netip.Prefix
	name    string
}

// refusedNetworks are networks whose addresses answer with credentials of the node or the pod that
// asks, and networks whose addresses contain another address, so that every other check could be
// bypassed. Metadata services at link-local addresses are not listed.
var refusedNetworks = []refusedNetwork{
	{netip.MustParsePrefix("fd00:ec2::/32"), "a metadata service of AWS"},
	{netip.MustParsePrefix("fd20:ce::/64"), "the metadata service of Google Cloud"},
	{netip.MustParsePrefix("168.63.129.16/32"), "the platform service of Azure"},
	{netip.MustParsePrefix("100.100.100.200/32"), "the metadata service of Alibaba Cloud"},
	// By Alibaba's change of cloud-init: github.com/canonical/cloud-init/pull/6893.
	{netip.MustParsePrefix("fd00:100::100:200/128"), "the metadata service of Alibaba Cloud"},
	{netip.MustParsePrefix("192.0.0.0/24"), "in a reserved network (RFC 6890), which has the metadata service of Oracle Cloud"},
	// By Oracle's scripts and the datasource of cloud-init.
	{netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), "the metadata service of Oracle Cloud"},
	// By the datasource of cloud-init.
	{netip.MustParsePrefix("fd00:42::42/128"), "the metadata service of Scaleway"},
	// techdocs.akamai.com/cloud-computing/docs/metadata-service-api
	{netip.MustParsePrefix("fd00:a9fe:a9fe::1/128"), "the metadata service of Linode"},
	// RFC 3879 deprecates site-local addresses: each site has its own, so that another cluster
	// cannot mean one.
	{netip.MustParsePrefix("fec0::/10"), "a site-local address (RFC 3879)"},
	{netip.MustParsePrefix("192.88.99.0/24"), "a relay of 6to4 (RFC 7526)"},
	{netip.MustParsePrefix("64:ff9b::/96"), "a translated IPv4 address (NAT64)"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "a translated IPv4 address (NAT64)"},
	{netip.MustParsePrefix("::ffff:0:0:0/96"), "a translated IPv4 address (SIIT)"},
	{netip.MustParsePrefix("::/96"), "an IPv4-compatible address"},
	{netip.MustParsePrefix("2002::/16"), "a tunnelled IPv4 address (6to4)"},
	{netip.MustParsePrefix("2001::/32"), "a tunnelled IPv4 address (Teredo)"},
}

// CheckPodAddress returns an error if Kubernetes refuses a in an EndpointSlice or if a cannot be
// the address of a pod.
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
