package cloudmaplocal

import (
	"encoding/json"
	"maps"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// Kinds of namespace, of service and routing policies, as the API spells them.
const (
	kindHTTP    = "HTTP"
	kindPrivate = "DNS_PRIVATE"
	kindPublic  = "DNS_PUBLIC"

	serviceHTTP    = "HTTP"
	serviceDNSHTTP = "DNS_HTTP"

	routingMultivalue = "MULTIVALUE"
	routingWeighted   = "WEIGHTED"
)

// Health statuses, as the API spells them.
const (
	healthy       = "HEALTHY"
	unhealthy     = "UNHEALTHY"
	healthUnknown = "UNKNOWN"
)

// regionKey names a region.
type regionKey struct{ account, region string }

var (
	accountPattern = regexp.MustCompile(`^[0-9]{12}$`)
	regionPattern  = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)
)

// namespace is a Cloud Map namespace.
type namespace struct {
	ID               string
	Kind             string
	Name             string
	HTTPName         string
	VPC              string `json:",omitempty"`
	Description      string `json:",omitempty"`
	CreatorRequestID string `json:",omitempty"`
	OperationID      string // that created it
	HostedZoneID     string `json:",omitempty"`
	SOATTL           int64  `json:",omitempty"`
	Created          time.Time
	LastUsed         time.Time `json:",omitzero"` // when the last service was deleted
	tagged

	services          int // that exist
	reservedInstances int // existing instances and registrations in flight
}

// service is a Cloud Map service with its instances.
type service struct {
	ID               string
	NamespaceID      string
	Name             string
	Kind             string
	Description      string `json:",omitempty"`
	CreatorRequestID string `json:",omitempty"`
	Created          time.Time
	DNS              *wire.DNSConfig               `json:",omitempty"`
	HealthCheck      *wire.HealthCheckConfig       `json:",omitempty"`
	CustomHealth     *wire.HealthCheckCustomConfig `json:",omitempty"`
	CreatedBy        string                        `json:",omitempty"` // account, if not the owner
	Attributes       map[string]string             `json:",omitempty"`
	LastUsed         time.Time                     `json:",omitzero"` // when the last instance left
	tagged
	Revision  int64
	Instances map[string]*instance

	reservedInstances int // existing instances and registrations in flight
	inFlight          int // operations on its instances
}

// instance is one registration. Only its health changes: registering it again replaces it.
type instance struct {
	ID               string
	Attributes       map[string]string
	CreatorRequestID string `json:",omitempty"`
	CreatedBy        string `json:",omitempty"` // account, if not the owner
	OperationID      string // that registered it
	Health           health

	// encoded is Attributes in JSON. DiscoverInstances writes up to 1,000 of them per request;
	// encoding them once makes it several times faster.
	encoded json.RawMessage
}

// health is an instance's health status and the next one.
type health struct {
	Status string
	Next   string    `json:",omitempty"`
	NextAt time.Time `json:",omitzero"`
}

// at returns the status at a time.
func (h *health) at(now time.Time) string {
	if h.Next != "" && !now.Before(h.NextAt) {
		return h.Next
	}
	return h.Status
}

// uniqueName returns a name that must be unique: the name within its kind and, for private DNS,
// within its VPC.
func (ns *namespace) uniqueName() string {
	return strings.Join([]string{ns.Kind, ns.VPC, ns.Name}, "/")
}

// applyChange completes an update that was validated when it was received.
func (ns *namespace) applyChange(c *wire.NamespaceChange) {
	if c.Description != nil {
		ns.Description = *c.Description
	}
	if c.Properties != nil {
		ns.SOATTL = *c.Properties.DnsProperties.SOA.TTL
	}
}

// isSameRequest reports whether other results from the same request as svc.
func (svc *service) isSameRequest(other *service) bool {
	return svc.CreatorRequestID != "" && svc.CreatorRequestID == other.CreatorRequestID && svc.Name == other.Name &&
		reflect.DeepEqual(svc.DNS, other.DNS) && reflect.DeepEqual(svc.HealthCheck, other.HealthCheck) &&
		reflect.DeepEqual(svc.CustomHealth, other.CustomHealth)
}

// applyChange completes an update. Records and the health check that the request omits are deleted;
// the description and the custom health check stay.
func (svc *service) applyChange(c *wire.ServiceChange) {
	if c.Description != nil {
		svc.Description = *c.Description
	}
	svc.HealthCheck = c.HealthCheckConfig
	if svc.DNS == nil || c.DnsConfig == nil {
		svc.DNS = nil
		return
	}
	svc.DNS = &wire.DNSConfig{
		NamespaceId: svc.DNS.NamespaceId, RoutingPolicy: svc.DNS.RoutingPolicy, DnsRecords: c.DnsConfig.DnsRecords,
	}
}

// isSameRequest reports whether other results from the same request as inst.
func (inst *instance) isSameRequest(other *instance) bool {
	return inst.CreatorRequestID != "" && inst.CreatorRequestID == other.CreatorRequestID &&
		maps.Equal(inst.Attributes, other.Attributes)
}

// hasAttributes reports whether the instance has all these attributes.
func (inst *instance) hasAttributes(wanted map[string]string) bool {
	for key, value := range wanted {
		if have, set := inst.Attributes[key]; !set || have != value {
			return false
		}
	}
	return true
}
