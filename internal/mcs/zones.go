package mcs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// PropertyZones is the ClusterProperty with the names of a cluster's zones and their IDs, as
// "eu-central-1a=euc1-az2,eu-central-1b=euc1-az3"; a zone without "=" has no known ID. Each AWS
// account has its own names for the zones of a Region, while the IDs are the same in all accounts.
// The controller derives it from the nodes if no user has created it.
const PropertyZones = "zones.multicluster.k8s.aws"

// LabelZoneID is the label with the ID of a node's zone, which the cloud provider of AWS sets.
const LabelZoneID = "topology.k8s.aws/zone-id"

// Zones are the IDs of a cluster's zones by their names, "" where the ID is not known.
type Zones map[string]string

// ParseZones returns the zones of a text that a user or another cluster wrote. Their number is
// bounded by that of the bytes of all properties (maxPropertyBytes).
func ParseZones(text string) (Zones, error) {
	out := Zones{}
	for item := range strings.SplitSeq(text, ",") {
		name, id, hasID := strings.Cut(item, "=")
		name, id = strings.TrimSpace(name), strings.TrimSpace(id)
		if !isZone(name) || hasID && !isZone(id) {
			return nil, fmt.Errorf("%q must be the name of a zone and its ID, such as eu-central-1a=euc1-az2", abbreviate(item))
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("zone %s must be listed once", name)
		}
		out[name] = id
	}
	return out, nil
}

// isZone reports whether a node can have the text as the label of its zone, and so an EndpointSlice
// as the zone of an endpoint.
func isZone(text string) bool { return text != "" && len(validation.IsValidLabelValue(text)) == 0 }

// String returns the value of PropertyZones, "" if there are no zones.
func (z Zones) String() string {
	var items []string
	for _, name := range slices.Sorted(maps.Keys(z)) {
		item := name
		if id := z[name]; id != "" {
			item += "=" + id
		}
		items = append(items, item)
	}
	return strings.Join(items, ",")
}

// Zones returns the zones that a cluster with these properties announces, nil if it announces none
// or the text is not valid.
func (p Properties) Zones() Zones {
	text := p[PropertyZones]
	if text == "" {
		return nil
	}
	zones, err := ParseZones(text)
	if err != nil {
		return nil
	}
	return zones
}

// NameZones returns exports with the zones of their endpoints as cluster names them. properties are
// the ClusterProperties of cluster and of the exporting clusters, as far as they are known. A zone
// for whose ID cluster has no name gets the ID as its name: no node of cluster is in that zone,
// although one may be in a zone of the same name. Where one of both does not know the ID, the name
// stays as it is.
func NameZones(exports []Export, cluster string, properties map[string]Properties) []Export {
	out := slices.Clone(exports)
	own := properties[cluster].Zones()
	if len(own) == 0 {
		return out
	}
	for i, e := range out {
		if e.Cluster != cluster {
			names := own.namesFor(properties[e.Cluster].Zones())
			out[i] = e.WithZones(func(ep Endpoint) string { return cmp.Or(names[ep.Zone], ep.Zone) })
		}
	}
	return out
}

// namesFor returns the names in z of the zones of another cluster by their names there, as far as
// they differ.
func (z Zones) namesFor(other Zones) map[string]string {
	names := map[string]string{} // by ID
	for name, id := range z {
		if known, ok := names[id]; id != "" && (!ok || name < known) {
			names[id] = name
		}
	}
	out := map[string]string{}
	for name, id := range other {
		ownID, isOwn := z[name]
		switch {
		case id == "", ownID == id, len(names) == 0:
		case names[id] != "":
			out[name] = names[id]
		case !isOwn || ownID != "": // otherwise it may be the same zone
			out[name] = id
		}
	}
	return out
}

// WithZones returns e with the zones that zoneOf returns for its endpoints. It changes nothing that
// e refers to.
func (e Export) WithZones(zoneOf func(Endpoint) string) Export {
	differs := func(ep Endpoint) bool { return zoneOf(ep) != ep.Zone }
	if !slices.ContainsFunc(e.Backends, func(b Backends) bool { return slices.ContainsFunc(b.Endpoints, differs) }) {
		return e
	}
	e.Backends = slices.Clone(e.Backends)
	for i := range e.Backends {
		endpoints := slices.Clone(e.Backends[i].Endpoints)
		for k, ep := range endpoints {
			endpoints[k].Zone = zoneOf(ep)
		}
		e.Backends[i].Endpoints = endpoints
	}
	return e
}

// UnknownZone is a zone whose ID some clusters know, while others have a zone of the same name
// whose ID they do not know: it may be another one.
type UnknownZone struct {
	Name string
	// IDs and Clusters, those that do not know it, are sorted.
	IDs, Clusters []string
}

// UnknownZones returns the zones that may be confused, sorted by name. zones are those of each
// cluster.
func UnknownZones(zones map[string]Zones) []UnknownZone {
	byName := map[string]UnknownZone{}
	for _, cluster := range slices.Sorted(maps.Keys(zones)) {
		for name, id := range zones[cluster] {
			zone := byName[name]
			if id == "" {
				zone.Clusters = append(zone.Clusters, cluster)
			} else {
				zone.IDs = append(zone.IDs, id)
			}
			byName[name] = zone
		}
	}
	var out []UnknownZone
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		zone := byName[name]
		if zone.Name = name; len(zone.IDs) > 0 && len(zone.Clusters) > 0 {
			slices.Sort(zone.IDs)
			zone.IDs = slices.Compact(zone.IDs)
			out = append(out, zone)
		}
	}
	return out
}
