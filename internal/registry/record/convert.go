package record

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record/recordpb"
)

// The bits of an endpoint's state.
const (
	ready = 1 << iota
	serving
	terminating
)

// fromExport converts a canonical export to a message. The message has no cluster: the location of
// the page implies it.
func fromExport(exp mcs.Export) *recordpb.Export {
	m := &recordpb.Export{
		Namespace:             exp.Key.Namespace,
		Name:                  exp.Key.Name,
		Created:               exp.Created.Unix(),
		Changed:               exp.Changed.UnixMilli(),
		Type:                  string(exp.Type),
		SessionAffinity:       string(exp.SessionAffinity),
		InternalTrafficPolicy: string(exp.InternalTrafficPolicy),
		TrafficDistribution:   exp.TrafficDistribution,
		Labels:                fromMap(exp.Labels),
		Annotations:           fromMap(exp.Annotations),
		ClusterSelectors:      string(exp.ClusterSelectors),
		MinimumReady:          exp.MinimumReady,
		Drain:                 string(exp.Drain),
		Recipients:            string(exp.Recipients),
	}
	if c := exp.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		m.SessionAffinityTimeout = *c.ClientIP.TimeoutSeconds
	}
	for _, p := range exp.Ports {
		m.Ports = append(m.Ports, &recordpb.Port{Name: p.Name, Protocol: string(p.Protocol), Port: p.Port, AppProtocol: p.AppProtocol, TargetPort: p.TargetPort})
	}
	for _, f := range exp.IPFamilies {
		m.IpFamilies = append(m.IpFamilies, string(f))
	}
	for _, b := range exp.Backends {
		m.Backends = append(m.Backends, fromBackends(b))
	}
	return m
}

func toExport(m *recordpb.Export, clusterID string) (mcs.Export, error) {
	exp := mcs.Export{
		Key:                   mcs.Key{Namespace: m.GetNamespace(), Name: m.GetName()},
		Cluster:               clusterID,
		Created:               toTime(m.GetCreated(), time.Unix(m.GetCreated(), 0)),
		Changed:               toTime(m.GetChanged()/1000, time.UnixMilli(m.GetChanged())),
		Type:                  mcsv1beta1.ServiceImportType(m.GetType()),
		SessionAffinity:       corev1.ServiceAffinity(m.GetSessionAffinity()),
		InternalTrafficPolicy: corev1.ServiceInternalTrafficPolicy(m.GetInternalTrafficPolicy()),
		TrafficDistribution:   m.GetTrafficDistribution(),
		Labels:                toMap(m.GetLabels()),
		Annotations:           toMap(m.GetAnnotations()),
		ClusterSelectors:      mcs.ClusterSelectors(m.GetClusterSelectors()),
		MinimumReady:          m.GetMinimumReady(),
		Drain:                 mcs.Drain(m.GetDrain()),
		Recipients:            mcs.ClusterSelectors(m.GetRecipients()),
	}
	if seconds := m.GetSessionAffinityTimeout(); seconds != 0 {
		exp.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	for _, p := range m.GetPorts() {
		exp.Ports = append(exp.Ports, mcs.Port{Name: p.GetName(), Protocol: corev1.Protocol(p.GetProtocol()), Port: p.GetPort(), AppProtocol: p.GetAppProtocol(), TargetPort: p.GetTargetPort()})
	}
	for _, f := range m.GetIpFamilies() {
		exp.IPFamilies = append(exp.IPFamilies, corev1.IPFamily(f))
	}
	for _, b := range m.GetBackends() {
		backends, err := toBackends(b)
		if err != nil {
			return mcs.Export{}, err
		}
		exp.Backends = append(exp.Backends, backends)
	}
	return exp, nil
}

// maxSeconds is the end of the year 9999: RFC 3339 and JSON have no later times.
const maxSeconds = 253402300799

// toTime returns t in UTC, the zero time if JSON cannot encode it. seconds are t since 1970.
func toTime(seconds int64, t time.Time) time.Time {
	if seconds < 0 || seconds > maxSeconds {
		return time.Time{}
	}
	return t.UTC()
}

// fromMap returns the entries sorted, so that the same map gives the same bytes.
func fromMap(m map[string]string) []*recordpb.Pair {
	var pairs []*recordpb.Pair
	for _, key := range slices.Sorted(maps.Keys(m)) {
		pairs = append(pairs, &recordpb.Pair{Key: key, Value: m[key]})
	}
	return pairs
}

func toMap(pairs []*recordpb.Pair) map[string]string {
	if len(pairs) == 0 {
		return nil
	}
	m := make(map[string]string, len(pairs))
	for _, p := range pairs {
		m[p.GetKey()] = p.GetValue()
	}
	return m
}

func fromBackends(b mcs.Backends) *recordpb.Backends {
	m := &recordpb.Backends{}
	for _, p := range b.Ports {
		m.Ports = append(m.Ports, &recordpb.BackendPort{Name: p.Name, Protocol: string(p.Protocol), Port: p.Port, AppProtocol: p.AppProtocol})
	}
	// Sorted addresses begin with IPv4.
	firstIPv6 := slices.IndexFunc(b.Endpoints, func(e mcs.Endpoint) bool { return e.Address.Is6() })
	if firstIPv6 < 0 {
		firstIPv6 = len(b.Endpoints)
	}
	m.Ipv4, m.Ipv6 = toPlanes(b.Endpoints[:firstIPv6], 4), toPlanes(b.Endpoints[firstIPv6:], 16)
	m.States = states(b.Endpoints)
	m.ZoneNames, m.Zones = zones(b.Endpoints)
	m.Hostnames = hostnames(b.Endpoints)
	return m
}

// toPlanes transposes addresses of size bytes: all first bytes, then all second bytes, and so on.
// That compresses better.
func toPlanes(endpoints []mcs.Endpoint, size int) []byte {
	planes := make([]byte, size*len(endpoints))
	for i, e := range endpoints {
		for j, b := range e.Address.AsSlice() {
			planes[j*len(endpoints)+i] = b
		}
	}
	return planes
}

// fromPlanes is the inverse of toPlanes.
func fromPlanes(planes []byte, size int) ([]netip.Addr, error) {
	if len(planes)%size != 0 {
		return nil, fmt.Errorf("%d bytes of addresses are no multiple of %d", len(planes), size)
	}
	addresses := make([]netip.Addr, len(planes)/size)
	address := make([]byte, size)
	for i := range addresses {
		for j := range address {
			address[j] = planes[j*len(addresses)+i]
		}
		addresses[i], _ = netip.AddrFromSlice(address)
	}
	return addresses, nil
}

// states returns nil if all endpoints are ready and serving, which is the common case.
func states(endpoints []mcs.Endpoint) []byte {
	column := make([]byte, len(endpoints))
	usual := true
	for i, e := range endpoints {
		column[i] = bit(ready, e.Ready) | bit(serving, e.Serving) | bit(terminating, e.Terminating)
		usual = usual && column[i] == ready|serving
	}
	if usual {
		return nil
	}
	return column
}

func bit(mask byte, set bool) byte {
	if set {
		return mask
	}
	return 0
}

func zones(endpoints []mcs.Endpoint) (names []string, column []uint32) {
	for _, e := range endpoints {
		names = append(names, e.Zone)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 || len(names) == 1 && names[0] == "" {
		return nil, nil
	}
	for _, e := range endpoints {
		i, _ := slices.BinarySearch(names, e.Zone)
		column = append(column, uint32(i))
	}
	return names, column
}

func hostnames(endpoints []mcs.Endpoint) []string {
	if !slices.ContainsFunc(endpoints, func(e mcs.Endpoint) bool { return e.Hostname != "" }) {
		return nil
	}
	var column []string
	for _, e := range endpoints {
		column = append(column, e.Hostname)
	}
	return column
}

func toBackends(m *recordpb.Backends) (mcs.Backends, error) {
	var b mcs.Backends
	for _, p := range m.GetPorts() {
		b.Ports = append(b.Ports, mcs.BackendPort{Name: p.GetName(), Protocol: corev1.Protocol(p.GetProtocol()), Port: p.GetPort(), AppProtocol: p.GetAppProtocol()})
	}
	ipv4, err := fromPlanes(m.GetIpv4(), 4)
	if err != nil {
		return b, err
	}
	ipv6, err := fromPlanes(m.GetIpv6(), 16)
	if err != nil {
		return b, err
	}
	addresses := slices.Concat(ipv4, ipv6)
	for _, column := range []int{len(m.GetStates()), len(m.GetZones()), len(m.GetHostnames())} {
		if column != 0 && column != len(addresses) {
			return b, fmt.Errorf("a column has %d entries for %d endpoints", column, len(addresses))
		}
	}
	b.Endpoints = make([]mcs.Endpoint, len(addresses))
	for i, address := range addresses {
		if b.Endpoints[i], err = toEndpoint(m, i, address); err != nil {
			return b, err
		}
	}
	return b, nil
}

// toEndpoint returns row i of the columns. A column is empty or has that row.
func toEndpoint(m *recordpb.Backends, i int, address netip.Addr) (mcs.Endpoint, error) {
	state := byte(ready | serving)
	if column := m.GetStates(); len(column) > 0 {
		state = column[i]
	}
	e := mcs.Endpoint{Address: address, Ready: state&ready != 0, Serving: state&serving != 0, Terminating: state&terminating != 0}
	if column := m.GetZones(); len(column) > 0 {
		if int64(column[i]) >= int64(len(m.GetZoneNames())) {
			return e, errors.New("a zone is not in the table of zones")
		}
		e.Zone = m.GetZoneNames()[column[i]]
	}
	if column := m.GetHostnames(); len(column) > 0 {
		e.Hostname = column[i]
	}
	return e, nil
}
