package mcs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
)

// Properties are the ClusterProperties of a cluster by name (KEP-2149). nil means that they are
// unknown.
type Properties map[string]string

// The ClusterProperties that the controller derives from the labels of nodes if no user has created
// them. PropertyNetworks and PropertyZones are two more.
const (
	PropertyRegion = "region.topology.k8s.io"
	PropertyZone   = "zone.topology.k8s.io"
)

// maxPropertyBytes bounds the encoded properties of a cluster: an attribute of an AWS Cloud Map
// instance has at most 1,024 characters.
const maxPropertyBytes = 1000

// OfCluster returns a copy of p with the properties that identify the cluster. A record cannot set
// them: they are those of its author.
func (p Properties) OfCluster(clusterID, clusterSetID string) Properties {
	out := maps.Clone(p)
	if out == nil {
		out = Properties{}
	}
	out[aboutv1beta1.ClusterIDProperty] = clusterID
	out[aboutv1beta1.ClusterSetIDProperty] = clusterSetID
	return out
}

// Publishable returns the properties that a member record has, and the names of those that it has
// not: their name or value is not valid, or there are too many. Region, zone and drain come first,
// and the zones and networks, which the controller derives, last: they take the place of nothing
// that a user has written.
func (p Properties) Publishable() (out Properties, omitted []string) {
	names := slices.SortedFunc(maps.Keys(p), func(a, b string) int {
		return cmp.Or(cmp.Compare(publicationRank(a), publicationRank(b)), strings.Compare(a, b))
	})
	out = Properties{}
	size := len("{}")
	for _, name := range names {
		if isIdentityProperty(name) {
			continue
		}
		entry := len(Properties{name: p[name]}.Encode()) - len("{}") + len(",")
		if checkProperty(name, p[name]) != nil || size+entry > maxPropertyBytes {
			omitted = append(omitted, name)
			continue
		}
		size += entry
		out[name] = p[name]
	}
	return out, omitted
}

// publicationRank returns the place of a property among those that are published.
func publicationRank(name string) int {
	switch name {
	case PropertyRegion, PropertyZone, PropertyDrain:
		return 0
	case PropertyZones:
		return 2
	case PropertyNetworks:
		return 3
	}
	return 1
}

// CheckAnnouncement returns an error if other clusters cannot use the value of a ClusterProperty
// that they interpret.
func CheckAnnouncement(name, value string) (err error) {
	switch name {
	case PropertyNetworks:
		_, err = ParseNetworks(value)
	case PropertyZones:
		_, err = ParseZones(value)
	}
	return err
}

// isIdentityProperty reports whether the record of a cluster has a property in another field.
func isIdentityProperty(name string) bool {
	return name == aboutv1beta1.ClusterIDProperty || name == aboutv1beta1.ClusterSetIDProperty
}

// checkProperty returns an error if no ClusterProperty can have the name, or if the value is no
// text.
func checkProperty(name, value string) error {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("%q is not the name of a ClusterProperty, a lower-case DNS name", abbreviate(name))
	}
	if !utf8.ValidString(value) {
		return fmt.Errorf("the value of ClusterProperty %s is not valid UTF-8", abbreviate(name))
	}
	return nil
}

// Encode returns p as JSON in ASCII, sorted by name.
func (p Properties) Encode() string {
	data, err := json.Marshal(map[string]string(p))
	if err != nil {
		return "{}" // a map of strings has no value that JSON cannot encode
	}
	var ascii strings.Builder
	for _, r := range string(data) {
		switch {
		case r < utf8.RuneSelf:
			ascii.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&ascii, `\u%04x`, r)
		}
	}
	return ascii.String()
}

// DecodeProperties is the inverse of Encode, for the text of another cluster. It returns an error
// unless everything in it is valid.
func DecodeProperties(text string) (Properties, error) {
	if len(text) > maxPropertyBytes {
		return nil, fmt.Errorf("the properties have %d bytes, more than %d", len(text), maxPropertyBytes)
	}
	var p Properties
	if err := unmarshalStrict(text, &p); err != nil {
		return nil, fmt.Errorf("parsing the properties: %w", err)
	}
	if p == nil {
		return nil, errors.New("the properties are no object")
	}
	for name, value := range p {
		if err := checkProperty(name, value); err != nil {
			return nil, err
		}
		if isIdentityProperty(name) {
			return nil, fmt.Errorf("property %s is not allowed here", name)
		}
	}
	return p, nil
}

// DecodedProperties holds the result of DecodeProperties for the last text: members are listed for
// each import, and change rarely. The zero value is ready to use, by one caller at a time.
type DecodedProperties struct {
	text       string
	properties Properties
}

// Decode returns the properties of a valid text, and empty ones for "", never nil. Callers must not
// change them.
func (d *DecodedProperties) Decode(text string) Properties {
	if d.properties == nil || d.text != text {
		properties, err := DecodeProperties(text)
		if err != nil || properties == nil {
			properties = Properties{}
		}
		d.text, d.properties = text, properties
	}
	return d.properties
}
