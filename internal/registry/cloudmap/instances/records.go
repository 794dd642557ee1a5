package instances

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// Unready selects the instances of endpoints that are not ready.
type Unready string

const (
	// UnreadyMark registers them with attribute READY=false. In a service with DNS records that its
	// export asks for it is UnreadyDeregister, because DNS has no attributes.
	UnreadyMark Unready = "mark"
	// UnreadyDeregister registers ready endpoints only.
	UnreadyDeregister Unready = "deregister"
	// UnreadyUnhealthy makes them, and those of a drained cluster, unhealthy in services with a
	// custom health check, with which it creates services. In others it is UnreadyMark.
	UnreadyUnhealthy Unready = "unhealthy"
)

// Settings say how the view creates services, and how it shows endpoints in them.
type Settings struct {
	// VPC is that of private DNS namespaces that the view creates for exports that ask for records.
	// With "" it creates HTTP namespaces.
	VPC string
	// TTL is that of records in seconds, Routing their routing policy.
	TTL     int64
	Routing string
	// Unready is UnreadyMark if it is "".
	Unready Unready
	// Stale is the policy by which this cluster sets the health of the instances of stale clusters;
	// "" leaves them as they are.
	Stale mcs.StalePolicy
}

// serviceConfig returns the configuration of a new service for an export. Only private DNS
// namespaces have records: addresses of pods are of no use in public ones.
func (s Settings) serviceConfig(e mcs.Export, in types.NamespaceType) api.ServiceConfig {
	config := api.ServiceConfig{HasHealth: s.Unready == UnreadyUnhealthy}
	if in == types.NamespaceTypeDnsPrivate {
		config.Records = recordsFor(e)
	}
	if config.Records != "" {
		config.TTL, config.Routing = s.TTL, s.Routing
	}
	return config
}

// recordsFor returns the types of records that an export asks for, "" for none. AWS allows SRV
// records only without others.
func recordsFor(e mcs.Export) string {
	isSRV := e.InstanceDNS == mcs.InstanceDNSSRV || e.InstanceDNS == mcs.InstanceDNSAuto && len(e.Ports) > 1
	families := map[corev1.IPFamily]bool{}
	for _, family := range e.IPFamilies {
		families[family] = true
	}
	switch {
	case !e.InstanceDNS.IsWanted():
		return ""
	case isSRV:
		return api.RecordsSRV
	case families[corev1.IPv4Protocol] && families[corev1.IPv6Protocol]:
		return api.RecordsAddresses
	case families[corev1.IPv6Protocol]:
		return api.RecordsAAAA
	}
	return api.RecordsA
}

// shape says how the instances of an export are written into a service.
type shape struct {
	// hasFirstPortOnly: each address has one instance, because each instance is an answer of DNS.
	// isPaired: an instance has the addresses of both families of a pod.
	hasFirstPortOnly, isPaired bool
	// hasReadyOnly: there are no instances of endpoints that are not ready. hasHealth: instances
	// are healthy or unhealthy.
	hasReadyOnly, hasHealth bool
	// isAnswered: instances are answers of DNS that nothing but their absence leaves out.
	// hasOthers: other clusters have instances in the service.
	isAnswered, hasOthers bool
}

// shapeOf returns the shape for a service that is configured like this. A service that the export
// did not ask for keeps one instance for each address and port.
func (s Settings) shapeOf(e mcs.Export, service api.ServiceConfig) shape {
	isWanted := e.InstanceDNS.IsWanted() && service.Records != ""
	isAddress := service.Records == api.RecordsA || service.Records == api.RecordsAAAA || service.Records == api.RecordsAddresses
	hasHealth := s.Unready == UnreadyUnhealthy && service.HasHealth
	return shape{
		hasFirstPortOnly: isWanted && isAddress,
		isPaired:         isWanted && service.Records == api.RecordsAddresses,
		hasReadyOnly:     !hasHealth && (isWanted || s.Unready == UnreadyDeregister),
		hasHealth:        hasHealth,
		isAnswered:       isWanted && !hasHealth,
	}
}

// in returns the shape for a service with these instances.
func (s shape) in(have []api.Instance, isOwn func(attrs map[string]string) bool) shape {
	s.hasOthers = slices.ContainsFunc(have, func(i api.Instance) bool { return i.Attributes[AttrClusterID] != "" && !isOwn(i.Attributes) })
	return s
}

// hidesDrained reports whether e has no instances because its cluster or service is drained. The
// last ones stay, as all unhealthy ones do.
func (s shape) hidesDrained(e mcs.Export) bool {
	return s.isAnswered && s.hasOthers && e.Drain == mcs.DrainForced
}

// DrainOf returns the drain of the instances of own, an export whose cluster may be drained:
// DrainForced if importers use none of its endpoints, because other clusters serve all of its ports
// and families. known is false if that depends on clusters of which it is not known whether they
// export it, or are stale.
func (e Exporters) DrainOf(own mcs.Export) (drain mcs.Drain, known bool) {
	exports := append(slices.DeleteFunc(slices.Clone(e.Exports), func(o mcs.Export) bool { return o.Cluster == own.Cluster }), own)
	drains, merged := mcs.Drains(exports, nil, ""), mcs.Merge(exports)
	decide := func(stale []string) mcs.Drain {
		for _, d := range merged.Choose(mcs.Candidates{Exports: exports, Reserve: stale, Drains: drains}).Drained {
			if d.Cluster == own.Cluster && d.Drain.Percent() == 100 && !d.Kept {
				return mcs.DrainForced
			}
		}
		return own.Drain
	}
	drain = decide(e.Stale)
	return drain, drain == decide(slices.Concat(e.Stale, e.Unknown)) && (drain == mcs.DrainForced || !e.IsOpen)
}

// ObserveDrain requests that the service of key is reconciled if its export has another drain than
// its instances. A nil view has none.
func (v *View) ObserveDrain(key mcs.Key) {
	if v == nil || !v.cfg.Enabled {
		return
	}
	exp, known := v.cfg.Desired(key)
	v.mu.Lock()
	defer v.mu.Unlock()
	if s := v.services[key]; known && exp != nil && s != nil && (s.isBusy || s.applied != nil && s.applied.Drain != exp.Drain) {
		v.enqueue(key)
		v.signal()
	}
}

// dependsOnService reports whether the shape of an export depends on its service.
func (s Settings) dependsOnService(e mcs.Export) bool {
	return e.InstanceDNS.IsWanted() || s.Unready == UnreadyUnhealthy
}

// healthOf returns the health of the instances of an endpoint.
func (s shape) healthOf(e mcs.Export, ep mcs.Endpoint) string {
	switch {
	case !s.hasHealth:
		return ""
	case ep.Ready && e.Drain.Percent() < 100:
		return api.HealthHealthy
	}
	return api.HealthUnhealthy
}

// ReadinessRequests returns the requests of the view for the first endpoint of e becoming unready,
// by operation, in a service that it has created in a namespace of this type: a list of the
// instances, a read of their health if there is any, the writes, and a look at each of them if the
// service has DNS records. The endpoint becoming ready again takes as many.
func (s Settings) ReadinessRequests(e mcs.Export, in types.NamespaceType) map[string]int {
	config := s.serviceConfig(e, in)
	shape := s.shapeOf(e, config)
	before, _ := firstFromExport(e, "", "", maxInstances, shape)
	e.Backends = slices.Clone(e.Backends)
	e.Backends[0].Endpoints = slices.Clone(e.Backends[0].Endpoints)
	e.Backends[0].Endpoints[0].Ready = false
	after, _ := firstFromExport(e, "", "", maxInstances, shape)
	changes := Diff(after, before, func(map[string]string) bool { return true })
	requests := map[string]int{
		"ListInstances": 1, "RegisterInstance": len(changes.Register), "DeregisterInstance": len(changes.Deregister), "UpdateInstanceCustomHealthStatus": len(changes.Health),
	}
	if shape.hasHealth {
		requests["DiscoverInstances"] = 1
	}
	if config.Records != "" {
		requests["GetOperation"] = len(changes.Register) + len(changes.Deregister)
	}
	maps.DeleteFunc(requests, func(_ string, n int) bool { return n == 0 })
	return requests
}

// StaleRequests returns the most requests of a view with Settings.Stale for a cluster with a number
// of services and instances that becomes stale, by operation: each service is read twice, its tags
// are read, and each instance is written once. Then one service is read at each resync interval.
func StaleRequests(services, instances int) map[string]int {
	return map[string]int{"DiscoverInstances": 2 * services, "ListTagsForResource": services, "UpdateInstanceCustomHealthStatus": instances}
}

// CheckRequests returns the reads of a view with health for a cluster with a number of services
// that has started, or was without heartbeats: now and once more. If the health of a service
// differs, it is also listed, and each instance is written once more.
func CheckRequests(services int) int { return 2 * services }

// difference returns the sentence for the user if a service is not as the settings and the export
// ask for, "" if it is. The view does not change services: AWS cannot change types of records, and
// other clusters may have other settings.
func (s Settings) difference(e mcs.Export, in types.NamespaceType, have api.ServiceConfig) string {
	if !s.dependsOnService(e) {
		return ""
	}
	if recordsFor(e) != "" && in != types.NamespaceTypeDnsPrivate {
		return fmt.Sprintf("the Cloud Map namespace %s has the type %s, so that its services have no DNS records: to get them, set --instance-dns-vpc and delete the namespace, "+
			"or create it as a private DNS namespace", e.Key.Namespace, in)
	}
	want := s.serviceConfig(e, in)
	var differences []string
	if want.Records != "" && (want.Records != have.Records || want.TTL != have.TTL || want.Routing != have.Routing) {
		differences = append(differences, fmt.Sprintf("it has %s and not %s", describeRecords(have), describeRecords(want)))
	}
	if want.HasHealth && !have.HasHealth {
		differences = append(differences, "it has no custom health check, so that no instance can be unhealthy")
	}
	if len(differences) == 0 {
		return ""
	}
	return fmt.Sprintf("the Cloud Map service %s stays as it was created: %s. Delete the service and its instances if it is to be created again", e.Key.Name, strings.Join(differences, "; "))
}

func describeRecords(c api.ServiceConfig) string {
	if c.Records == "" {
		return "no DNS records"
	}
	return fmt.Sprintf("DNS records %s (TTL %d, %s)", c.Records, c.TTL, c.Routing)
}
