// Package wire has the JSON shapes of the Cloud Map API (AWS JSON 1.1). Fields have the names of
// the API's members, so that few need a tag. Answers omit absent members, as AWS does.
package wire

import (
	"encoding/json"
	"strconv"
	"time"
)

// Timestamp is written as seconds since 1970 with milliseconds, the way AWS JSON does.
type Timestamp time.Time

// MarshalJSON implements json.Marshaler.
func (t Timestamp) MarshalJSON() ([]byte, error) {
	seconds := float64(time.Time(t).UnixMilli()) / 1000
	return strconv.AppendFloat(nil, seconds, 'f', 3, 64), nil
}

// Empty is the answer {}.
type Empty struct{}

// EmptyBody is the answer of UpdateInstanceCustomHealthStatus, which has no body.
type EmptyBody struct{}

// OperationStarted is the answer of an asynchronous operation.
type OperationStarted struct{ OperationId string }

// Tag is a tag of a resource.
type Tag struct{ Key, Value string }

// Filter is a filter of a list operation.
type Filter struct {
	Name      string
	Values    []string
	Condition string
}

// Paging is the part of a request that selects a page.
type Paging struct {
	MaxResults *int
	NextToken  string
}

// ListInput is the input of ListNamespaces, ListServices and ListOperations.
type ListInput struct {
	Paging
	Filters []Filter
}

// SOA is the start-of-authority record of a hosted zone.
type SOA struct {
	TTL *int64 `json:",omitempty"`
}

// DNSProperties are the DNS properties of a namespace.
type DNSProperties struct {
	HostedZoneId string `json:",omitempty"`
	SOA          *SOA   `json:",omitempty"`
}

// HTTPProperties has the name of a namespace in DiscoverInstances.
type HTTPProperties struct{ HttpName string }

// NamespaceProperties are the properties of a namespace.
type NamespaceProperties struct {
	DnsProperties  DNSProperties
	HttpProperties *HTTPProperties `json:",omitempty"`
}

// Namespace is a namespace in answers.
type Namespace struct {
	Arn              string
	CreateDate       Timestamp
	CreatorRequestId string `json:",omitempty"`
	Description      string `json:",omitempty"`
	Id               string
	Name             string
	Properties       NamespaceProperties
	ResourceOwner    string
	ServiceCount     *int `json:",omitempty"`
	Type             string
}

// CreateNamespaceInput is the input of the three operations that create namespaces.
type CreateNamespaceInput struct {
	Name             string
	Vpc              string
	CreatorRequestId string
	Description      string
	Properties       *NamespaceProperties
	Tags             []Tag
}

// NamespaceChange is an update of a namespace.
type NamespaceChange struct {
	Description *string
	Properties  *NamespaceProperties
}

// UpdateNamespaceInput is the input of the three operations that update namespaces.
type UpdateNamespaceInput struct {
	Id               string
	Namespace        *NamespaceChange
	UpdaterRequestId string
}

// DNSRecord is a DNS record that Cloud Map creates for each instance.
type DNSRecord struct {
	Type string
	TTL  *int64
}

// DNSConfig is the DNS configuration of a service.
type DNSConfig struct {
	NamespaceId   string `json:",omitempty"`
	RoutingPolicy string `json:",omitempty"`
	DnsRecords    []DNSRecord
}

// HealthCheckConfig is the Route 53 health check of a service.
type HealthCheckConfig struct {
	Type             string
	ResourcePath     string `json:",omitempty"`
	FailureThreshold *int   `json:",omitempty"`
}

// HealthCheckCustomConfig is the custom health check of a service.
type HealthCheckCustomConfig struct {
	FailureThreshold *int `json:",omitempty"`
}

// CreateServiceInput is the input of CreateService.
type CreateServiceInput struct {
	Name                    string
	CreatorRequestId        string
	Description             string
	DnsConfig               *DNSConfig
	HealthCheckConfig       *HealthCheckConfig
	HealthCheckCustomConfig *HealthCheckCustomConfig
	NamespaceId             string
	Tags                    []Tag
	Type                    string
}

// ServiceChange is an update of a service.
type ServiceChange struct {
	Description       *string
	DnsConfig         *DNSConfig
	HealthCheckConfig *HealthCheckConfig
}

// UpdateServiceInput is the input of UpdateService.
type UpdateServiceInput struct {
	Id      string
	Service *ServiceChange
}

// Service is a service in answers.
type Service struct {
	Arn                     string
	CreateDate              Timestamp
	CreatedByAccount        string
	CreatorRequestId        string                   `json:",omitempty"`
	Description             string                   `json:",omitempty"`
	DnsConfig               *DNSConfig               `json:",omitempty"`
	HealthCheckConfig       *HealthCheckConfig       `json:",omitempty"`
	HealthCheckCustomConfig *HealthCheckCustomConfig `json:",omitempty"`
	Id                      string
	InstanceCount           *int `json:",omitempty"`
	Name                    string
	NamespaceId             string `json:",omitempty"`
	ResourceOwner           string
	Type                    string
}

// IDInput is the input of every operation on one namespace or service.
type IDInput struct{ Id string }

// ServiceInput is the input of operations on the attributes of one service.
type ServiceInput struct{ ServiceId string }

// InstanceInput is the input of operations on one instance.
type InstanceInput struct{ ServiceId, InstanceId string }

// RegisterInstanceInput is the input of RegisterInstance.
type RegisterInstanceInput struct {
	ServiceId        string
	InstanceId       string
	CreatorRequestId string
	Attributes       map[string]string
}

// ListInstancesInput is the input of ListInstances.
type ListInstancesInput struct {
	Paging
	ServiceId string
}

// Instance is an instance in answers.
type Instance struct {
	Id               string
	Attributes       map[string]string
	CreatedByAccount string
	CreatorRequestId string `json:",omitempty"`
}

// HealthStatusInput is the input of GetInstancesHealthStatus.
type HealthStatusInput struct {
	Paging
	ServiceId string
	Instances []string
}

// CustomHealthInput is the input of UpdateInstanceCustomHealthStatus.
type CustomHealthInput struct{ ServiceId, InstanceId, Status string }

// DiscoverInput is the input of DiscoverInstances and DiscoverInstancesRevision.
type DiscoverInput struct {
	NamespaceName      string
	ServiceName        string
	HealthStatus       string
	MaxResults         *int
	OptionalParameters map[string]string
	OwnerAccount       string
	QueryParameters    map[string]string
}

// DiscoveredInstance is an instance in the answer of DiscoverInstances.
type DiscoveredInstance struct {
	Attributes    json.RawMessage // encoded by the server
	HealthStatus  string
	InstanceId    string
	NamespaceName string
	ServiceName   string
}

// DiscoverOutput is the answer of DiscoverInstances.
type DiscoverOutput struct {
	Instances         []DiscoveredInstance
	InstancesRevision int64
}

// RevisionOutput is the answer of DiscoverInstancesRevision.
type RevisionOutput struct{ InstancesRevision int64 }

// OperationInput is the input of GetOperation.
type OperationInput struct{ OperationId, OwnerAccount string }

// Operation is an operation in answers.
type Operation struct {
	CreateDate   Timestamp
	ErrorCode    string `json:",omitempty"`
	ErrorMessage string `json:",omitempty"`
	Id           string
	OwnerAccount string
	Status       string
	Targets      map[string]string
	Type         string
	UpdateDate   Timestamp
}

// OperationSummary is an operation in the answer of ListOperations.
type OperationSummary struct{ Id, Status string }

// ARNInput is the input of ListTagsForResource.
type ARNInput struct{ ResourceARN string }

// TagInput is the input of TagResource.
type TagInput struct {
	ResourceARN string
	Tags        []Tag
}

// UntagInput is the input of UntagResource.
type UntagInput struct {
	ResourceARN string
	TagKeys     []string
}

// UpdateAttributesInput is the input of UpdateServiceAttributes.
type UpdateAttributesInput struct {
	ServiceId  string
	Attributes map[string]string
}

// DeleteAttributesInput is the input of DeleteServiceAttributes.
type DeleteAttributesInput struct {
	ServiceId  string
	Attributes []string
}

// ServiceAttributes are the attributes of a service.
type ServiceAttributes struct {
	Attributes    map[string]string
	ResourceOwner string
	ServiceArn    string
}

// ListNamespacesOutput is the answer of ListNamespaces.
type ListNamespacesOutput struct {
	Namespaces []Namespace
	NextToken  string `json:",omitempty"`
}

// HealthStatusOutput is the answer of GetInstancesHealthStatus.
type HealthStatusOutput struct {
	NextToken string `json:",omitempty"`
	Status    map[string]string
}

// GetInstanceOutput is the answer of GetInstance.
type GetInstanceOutput struct {
	Instance      Instance
	ResourceOwner string
}

// ListInstancesOutput is the answer of ListInstances.
type ListInstancesOutput struct {
	Instances     []Instance
	NextToken     string `json:",omitempty"`
	ResourceOwner string
}

// ListOperationsOutput is the answer of ListOperations.
type ListOperationsOutput struct {
	NextToken  string `json:",omitempty"`
	Operations []OperationSummary
}

// ListServicesOutput is the answer of ListServices.
type ListServicesOutput struct {
	NextToken string `json:",omitempty"`
	Services  []Service
}
