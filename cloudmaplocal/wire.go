package cloudmaplocal

import (
	"encoding/json"
	"strconv"
	"time"
)

// The shapes of the API. A field is named like its member, so that hardly any needs a tag; in answers an absent member is
// left out, as AWS does.

// timestamp is written as seconds since 1970 with milliseconds, the way AWS JSON does.
type timestamp time.Time

// MarshalJSON implements json.Marshaler.
func (t timestamp) MarshalJSON() ([]byte, error) {
	seconds := float64(time.Time(t).UnixMilli()) / 1000
	return strconv.AppendFloat(nil, seconds, 'f', 3, 64), nil
}

// empty is the answer {}.
type empty struct{}

// noBody is the answer of the one operation whose answer has no body at all.
type noBody struct{}

type operationStarted struct{ OperationId string }

type tag struct{ Key, Value string }

type filter struct {
	Name      string
	Values    []string
	Condition string
}

type paging struct {
	MaxResults *int
	NextToken  string
}

// listInput is the input of ListNamespaces, ListServices and ListOperations.
type listInput struct {
	paging
	Filters []filter
}

type soa struct {
	TTL *int64 `json:",omitempty"`
}

type dnsProperties struct {
	HostedZoneId string `json:",omitempty"`
	SOA          *soa   `json:",omitempty"`
}

type httpProperties struct{ HttpName string }

type namespaceProperties struct {
	DnsProperties  dnsProperties
	HttpProperties *httpProperties `json:",omitempty"`
}

type namespaceShape struct {
	Arn              string
	CreateDate       timestamp
	CreatorRequestId string `json:",omitempty"`
	Description      string `json:",omitempty"`
	Id               string
	Name             string
	Properties       namespaceProperties
	ResourceOwner    string
	ServiceCount     int
	Type             string
}

type createNamespaceInput struct {
	Name             string
	Vpc              string
	CreatorRequestId string
	Description      string
	Properties       *namespaceProperties
	Tags             []tag
}

type namespaceChange struct {
	Description *string
	Properties  *namespaceProperties
}

type updateNamespaceInput struct {
	Id               string
	Namespace        *namespaceChange
	UpdaterRequestId string
}

type dnsRecord struct {
	Type string
	TTL  *int64
}

type dnsConfig struct {
	NamespaceId   string `json:",omitempty"`
	RoutingPolicy string `json:",omitempty"`
	DnsRecords    []dnsRecord
}

type healthCheckConfig struct {
	Type             string
	ResourcePath     string `json:",omitempty"`
	FailureThreshold *int   `json:",omitempty"`
}

type healthCheckCustomConfig struct {
	FailureThreshold *int `json:",omitempty"`
}

type createServiceInput struct {
	Name                    string
	CreatorRequestId        string
	Description             string
	DnsConfig               *dnsConfig
	HealthCheckConfig       *healthCheckConfig
	HealthCheckCustomConfig *healthCheckCustomConfig
	NamespaceId             string
	Tags                    []tag
	Type                    string
}

type serviceChange struct {
	Description       *string
	DnsConfig         *dnsConfig
	HealthCheckConfig *healthCheckConfig
}

type updateServiceInput struct {
	Id      string
	Service *serviceChange
}

type serviceShape struct {
	Arn                     string
	CreateDate              timestamp
	CreatedByAccount        string
	CreatorRequestId        string                   `json:",omitempty"`
	Description             string                   `json:",omitempty"`
	DnsConfig               *dnsConfig               `json:",omitempty"`
	HealthCheckConfig       *healthCheckConfig       `json:",omitempty"`
	HealthCheckCustomConfig *healthCheckCustomConfig `json:",omitempty"`
	Id                      string
	InstanceCount           int
	Name                    string
	NamespaceId             string `json:",omitempty"`
	ResourceOwner           string
	Type                    string
}

// idInput is the input of every operation on one namespace or service.
type idInput struct{ Id string }

type serviceInput struct{ ServiceId string }

type instanceInput struct{ ServiceId, InstanceId string }

type registerInstanceInput struct {
	ServiceId        string
	InstanceId       string
	CreatorRequestId string
	Attributes       map[string]string
}

type listInstancesInput struct {
	paging
	ServiceId string
}

type instanceShape struct {
	Id               string
	Attributes       map[string]string
	CreatedByAccount string
	CreatorRequestId string `json:",omitempty"`
}

type healthStatusInput struct {
	paging
	ServiceId string
	Instances []string
}

type customHealthInput struct{ ServiceId, InstanceId, Status string }

type discoverInput struct {
	NamespaceName      string
	ServiceName        string
	HealthStatus       string
	MaxResults         *int
	OptionalParameters map[string]string
	OwnerAccount       string
	QueryParameters    map[string]string
}

type discoveredInstance struct {
	Attributes    json.RawMessage // see instance.encoded
	HealthStatus  string
	InstanceId    string
	NamespaceName string
	ServiceName   string
}

type discoverOutput struct {
	Instances         []discoveredInstance
	InstancesRevision int64
}

type revisionOutput struct{ InstancesRevision int64 }

type operationInput struct{ OperationId, OwnerAccount string }

type operationShape struct {
	CreateDate   timestamp
	ErrorCode    string `json:",omitempty"`
	ErrorMessage string `json:",omitempty"`
	Id           string
	OwnerAccount string
	Status       string
	Targets      map[string]string
	Type         string
	UpdateDate   timestamp
}

type operationSummary struct{ Id, Status string }

type arnInput struct{ ResourceARN string }

type tagInput struct {
	ResourceARN string
	Tags        []tag
}

type untagInput struct {
	ResourceARN string
	TagKeys     []string
}

type updateAttributesInput struct {
	ServiceId  string
	Attributes map[string]string
}

type deleteAttributesInput struct {
	ServiceId  string
	Attributes []string
}

type serviceAttributes struct {
	Attributes    map[string]string
	ResourceOwner string
	ServiceArn    string
}
