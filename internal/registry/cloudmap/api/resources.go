package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// Tags of the namespaces and services that controllers create. Only resources with the first two,
// for this clusterset, are ever deleted.
const (
	tagManagedBy    = "managed-by"
	tagClusterSetID = "clusterset"
	tagPart         = "part"
)

// TagCluster is the tag of a resource with the ID of the cluster that it was created for.
const TagCluster = "cluster"

// TagCatalogOf is the tag of a catalog that an administrator has sealed: only the cluster in it may
// write into the catalog, whatever its other tags are.
const TagCatalogOf = "catalog-of"

// TagSealed is the tag, with the value true, of a namespace in which no cluster may create
// services, whatever its other tags are.
const TagSealed = "sealed"

// Parts of the registry, which the IAM policies in deploy/iam refer to.
const (
	PartControl = "control" // the control namespace
	PartMembers = "members"
	PartCatalog = "catalog"
	PartView    = "view" // namespaces and services of the instance view
)

// Tags returns the tags of a resource of a part that this cluster creates.
func Tags(identity mcs.Identity, part string) []types.Tag {
	return []types.Tag{
		{Key: aws.String(tagPart), Value: aws.String(part)},
		{Key: aws.String(tagManagedBy), Value: aws.String(plan.ManagedBy)},
		{Key: aws.String(tagClusterSetID), Value: aws.String(identity.ClusterSetID)},
		{Key: aws.String(TagCluster), Value: aws.String(identity.ClusterID)},
	}
}

// Instance is a Cloud Map instance: an ID and its attributes.
type Instance struct {
	ID         string
	Attributes map[string]string
	// Health is HealthHealthy or HealthUnhealthy in a service with a custom health check. It is ""
	// if there is none, or if it is not known: lists do not have it.
	Health string
}

// The values of Instance.Health.
const (
	HealthHealthy   = string(types.HealthStatusHealthy)
	HealthUnhealthy = string(types.HealthStatusUnhealthy)
)

// AttrInitialHealth is the attribute with the health of a new instance. RegisterInstance sets it.
const AttrInitialHealth = "AWS_INIT_HEALTH_STATUS"

// Namespace is a Cloud Map namespace.
type Namespace struct {
	ID, ARN, Name string
	// HTTPName is the name for DiscoverInstances: Name, with a suffix if the name was used before.
	HTTPName string
	Type     types.NamespaceType
	// Owner is the account that owns it, if AWS returns it.
	Owner string
}

// Service is a Cloud Map service.
type Service struct {
	ID, ARN, Name string
	ServiceConfig
}

// ServiceConfig is what cannot be changed of a Cloud Map service, except for the TTL. Lists and
// creations return it, GetService does not.
type ServiceConfig struct {
	// Records are the types of its DNS records, sorted and joined by "+", such as "A+AAAA"; ""
	// without DNS.
	Records string
	// TTL is that of the records in seconds, Routing their routing policy.
	TTL     int64
	Routing string
	// HasHealth: it has a custom health check, so that its instances are healthy or unhealthy.
	HasHealth bool
}

// Sets of DNS records that a service can have.
const (
	RecordsA         = "A"
	RecordsAAAA      = "AAAA"
	RecordsAddresses = "A+AAAA"
	RecordsSRV       = "SRV"
)

const recordSeparator = "+"

func serviceConfig(dns *types.DnsConfig, health *types.HealthCheckCustomConfig) ServiceConfig {
	config := ServiceConfig{HasHealth: health != nil}
	if dns == nil {
		return config
	}
	var records []string
	for _, record := range dns.DnsRecords {
		records, config.TTL = append(records, string(record.Type)), aws.ToInt64(record.TTL)
	}
	slices.Sort(records)
	config.Records, config.Routing = strings.Join(records, recordSeparator), string(dns.RoutingPolicy)
	return config
}

// dnsConfig returns the records for a request; nil without.
func (c ServiceConfig) dnsConfig() *types.DnsConfig {
	if c.Records == "" {
		return nil
	}
	config := &types.DnsConfig{RoutingPolicy: types.RoutingPolicy(c.Routing)}
	for record := range strings.SplitSeq(c.Records, recordSeparator) {
		config.DnsRecords = append(config.DnsRecords, types.DnsRecord{Type: types.RecordType(record), TTL: aws.Int64(c.TTL)})
	}
	return config
}

// ListNamespaces returns the namespaces of the account by name, or those that the namespace owner
// shares with it. Of several with a name it returns the preferred one (ByName), and logs that once.
func (c *Client) ListNamespaces(ctx context.Context) (map[string]Namespace, error) {
	all, err := c.ListAllNamespaces(ctx)
	if err != nil {
		return nil, err
	}
	found, ambiguous := ByName(all)
	c.names.report(ambiguous)
	return found, nil
}

// ListAllNamespaces is ListNamespaces with all namespaces of a name, in any order.
func (c *Client) ListAllNamespaces(ctx context.Context) (all []Namespace, err error) {
	in := &servicediscovery.ListNamespacesInput{MaxResults: aws.Int32(listPage)}
	if !c.names.refusesFilter.Load() {
		in.Filters = c.namespaceFilter()
	}
	for {
		out, err := call(ctx, c, "ListNamespaces", c.sdk.ListNamespaces, in)
		if IsInvalid(err) && in.Filters != nil && in.NextToken == nil {
			// A partition without shares may not know the filter.
			c.names.refusesFilter.Store(true)
			in.Filters = nil
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("listing namespaces: %w", err)
		}
		for _, n := range out.Namespaces {
			if c.owner != "" && aws.ToString(n.ResourceOwner) != c.owner {
				continue
			}
			all = append(all, Namespace{
				ID: c.resourceID(n.Id, n.Arn), ARN: aws.ToString(n.Arn), Name: aws.ToString(n.Name),
				HTTPName: httpName(n.Name, n.Properties), Type: n.Type, Owner: aws.ToString(n.ResourceOwner),
			})
		}
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return all, nil
		}
	}
}

func httpName(name *string, properties *types.NamespaceProperties) string {
	if properties != nil && properties.HttpProperties != nil && properties.HttpProperties.HttpName != nil {
		return *properties.HttpProperties.HttpName
	}
	return aws.ToString(name)
}

// CreateNamespace creates an HTTP namespace, or returns the one that another controller created
// meanwhile.
func (c *Client) CreateNamespace(ctx context.Context, name string, identity mcs.Identity, part string) (Namespace, error) {
	return c.createNamespace(ctx, name, func() (operation *string, err error) {
		out, err := call(ctx, c, "CreateHttpNamespace", c.sdk.CreateHttpNamespace, &servicediscovery.CreateHttpNamespaceInput{
			Name: aws.String(name),
			Tags: Tags(identity, part),
		})
		if err != nil {
			return nil, err
		}
		return out.OperationId, nil
	})
}

// CreatePrivateNamespace is CreateNamespace for a private DNS namespace in a VPC. AWS takes about a
// minute.
func (c *Client) CreatePrivateNamespace(ctx context.Context, name, vpc string, identity mcs.Identity, part string) (Namespace, error) {
	return c.createNamespace(ctx, name, func() (operation *string, err error) {
		out, err := call(ctx, c, "CreatePrivateDnsNamespace", c.sdk.CreatePrivateDnsNamespace, &servicediscovery.CreatePrivateDnsNamespaceInput{
			Name: aws.String(name),
			Vpc:  aws.String(vpc),
			Tags: Tags(identity, part),
		})
		if err != nil {
			return nil, err
		}
		return out.OperationId, nil
	})
}

func (c *Client) createNamespace(ctx context.Context, name string, create func() (operation *string, err error)) (Namespace, error) {
	if c.owner != "" {
		return Namespace{}, c.notSharedError(name)
	}
	operation, err := create()
	for err != nil && c.awaitDuplicate(ctx, err) == nil { // another cluster creates it
		operation, err = create()
	}
	var exists *types.NamespaceAlreadyExists
	switch {
	case errors.As(err, &exists) && aws.ToString(exists.NamespaceId) != "":
		return c.GetNamespace(ctx, aws.ToString(exists.NamespaceId))
	case err != nil:
		return Namespace{}, fmt.Errorf("creating namespace %s: %w", name, err)
	}
	targets, err := c.AwaitOperation(ctx, aws.ToString(operation))
	if err != nil {
		return Namespace{}, fmt.Errorf("creating namespace %s: %w", name, err)
	}
	return c.GetNamespace(ctx, targets[string(types.OperationTargetTypeNamespace)])
}

// GetNamespace reads a namespace.
func (c *Client) GetNamespace(ctx context.Context, id string) (Namespace, error) {
	out, err := callOn(ctx, c, id, "GetNamespace", c.sdk.GetNamespace, &servicediscovery.GetNamespaceInput{Id: aws.String(id)})
	if err != nil {
		return Namespace{}, fmt.Errorf("reading namespace %s: %w", id, err)
	}
	n := out.Namespace
	return Namespace{
		ID: c.resourceID(n.Id, n.Arn), ARN: aws.ToString(n.Arn), Name: aws.ToString(n.Name),
		HTTPName: httpName(n.Name, n.Properties), Type: n.Type, Owner: aws.ToString(n.ResourceOwner),
	}, nil
}

// ListServices returns the services of a namespace by name.
func (c *Client) ListServices(ctx context.Context, in Namespace) (map[string]Service, error) {
	found := map[string]Service{}
	request := &servicediscovery.ListServicesInput{
		MaxResults: aws.Int32(listPage),
		Filters:    []types.ServiceFilter{{Name: types.ServiceFilterNameNamespaceId, Values: []string{in.ID}}},
	}
	for {
		out, err := call(ctx, c, "ListServices", c.sdk.ListServices, request)
		if err != nil {
			return nil, fmt.Errorf("listing the services of namespace %s: %w", in.Name, err)
		}
		for _, s := range out.Services {
			found[aws.ToString(s.Name)] = Service{
				ID: c.resourceID(s.Id, s.Arn), ARN: aws.ToString(s.Arn), Name: aws.ToString(s.Name), ServiceConfig: serviceConfig(s.DnsConfig, s.HealthCheckCustomConfig),
			}
		}
		if request.NextToken = out.NextToken; request.NextToken == nil {
			return found, nil
		}
	}
}

// ServiceDescription is a service with the namespace and the account that it belongs to.
type ServiceDescription struct {
	Service
	// NamespaceID is the ID of the namespace also in a shared namespace, where requests use its ARN
	// (HasID).
	NamespaceID, Owner string
}

// GetService reads a service.
func (c *Client) GetService(ctx context.Context, id string) (ServiceDescription, error) {
	out, err := callOn(ctx, c, id, "GetService", c.sdk.GetService, &servicediscovery.GetServiceInput{Id: aws.String(id)})
	if err != nil {
		return ServiceDescription{}, fmt.Errorf("reading service %s: %w", id, err)
	}
	s := out.Service
	return ServiceDescription{
		Service:     Service{ID: c.resourceID(s.Id, s.Arn), ARN: aws.ToString(s.Arn), Name: aws.ToString(s.Name)},
		NamespaceID: aws.ToString(s.NamespaceId), Owner: aws.ToString(s.ResourceOwner),
	}, nil
}

// HasID reports whether id, as a service's description has it, is the namespace's.
func (n Namespace) HasID(id string) bool {
	return id != "" && (id == n.ARN || strings.HasSuffix(n.ARN, ":namespace/"+id))
}

// IsOwner reports whether owner, as AWS returns it of a resource, is the account of the
// clusterset's namespace. Without a namespace owner IDs can only be of the own account.
func (c *Client) IsOwner(owner string) bool { return c.owner == "" || owner == c.owner }

// CreateService creates a service without DNS records, or returns the one that another controller
// created meanwhile.
func (c *Client) CreateService(ctx context.Context, in Namespace, name string, identity mcs.Identity, part string) (Service, error) {
	s, _, err := c.CreateServiceAs(ctx, in, name, ServiceConfig{}, identity, part)
	return s, err
}

// CreateServiceAs is CreateService for a service with records, in a DNS namespace, or with a custom
// health check. isOther reports that another controller has created it: then its ServiceConfig is
// not known.
func (c *Client) CreateServiceAs(ctx context.Context, in Namespace, name string, config ServiceConfig, identity mcs.Identity, part string) (s Service, isOther bool, err error) {
	request := &servicediscovery.CreateServiceInput{NamespaceId: aws.String(in.ID), Name: aws.String(name), DnsConfig: config.dnsConfig()}
	// AWS supports no tags in shared namespaces (developer guide, "Shared AWS Cloud Map
	// namespaces")
	if c.owner == "" {
		request.Tags = Tags(identity, part)
	}
	if config.HasHealth {
		request.HealthCheckCustomConfig = &types.HealthCheckCustomConfig{}
	}
	if in.Type != types.NamespaceTypeHttp && config.Records == "" {
		// In a DNS namespace only type HTTP keeps Route 53 out.
		request.Type = types.ServiceTypeOptionHttp
	}
	out, err := callOn(ctx, c, in.ID, "CreateService", c.sdk.CreateService, request)
	var exists *types.ServiceAlreadyExists
	switch {
	case errors.As(err, &exists) && aws.ToString(exists.ServiceId) != "":
		return Service{ID: c.resourceID(exists.ServiceId, exists.ServiceArn), ARN: aws.ToString(exists.ServiceArn), Name: name}, true, nil
	case err != nil:
		return Service{}, false, fmt.Errorf("creating service %s in namespace %s: %w", name, in.Name, err)
	}
	return Service{
		ID: c.resourceID(out.Service.Id, out.Service.Arn), ARN: aws.ToString(out.Service.Arn), Name: name,
		ServiceConfig: serviceConfig(out.Service.DnsConfig, out.Service.HealthCheckCustomConfig),
	}, false, nil
}

// ListInstances returns all instances of a service. Unlike DiscoverInstances it has no upper limit,
// and makes a request per hundred.
func (c *Client) ListInstances(ctx context.Context, in Service) ([]Instance, error) {
	var found []Instance
	request := &servicediscovery.ListInstancesInput{ServiceId: aws.String(in.ID), MaxResults: aws.Int32(listPage)}
	for {
		out, err := callOn(ctx, c, in.ID, "ListInstances", c.sdk.ListInstances, request)
		if err != nil {
			return nil, fmt.Errorf("listing the instances of service %s: %w", in.Name, err)
		}
		for _, i := range out.Instances {
			found = append(found, Instance{ID: aws.ToString(i.Id), Attributes: i.Attributes})
		}
		if request.NextToken = out.NextToken; request.NextToken == nil {
			return found, nil
		}
	}
}

// isManaged reports whether a controller of this clusterset created the resource. It is false where
// a share hides the tags.
func (c *Client) isManaged(ctx context.Context, arn string, identity mcs.Identity) (bool, error) {
	have, err := c.tagsOf(ctx, arn)
	return have[tagManagedBy] == plan.ManagedBy && have[tagClusterSetID] == identity.ClusterSetID, err
}

// IsOfView reports whether the resource has the tags by which IAM allows controllers of this
// clusterset to write instances there.
func (c *Client) IsOfView(ctx context.Context, arn string, identity mcs.Identity) (bool, error) {
	have, err := c.tagsOf(ctx, arn)
	return have[tagClusterSetID] == identity.ClusterSetID && have[tagPart] == PartView, err
}

// IsCreatedBy reports whether the resource exists and this cluster's controller created it.
func (c *Client) IsCreatedBy(ctx context.Context, arn string, identity mcs.Identity) (bool, error) {
	have, err := c.tagsOf(ctx, arn)
	if IsNotFound(err) {
		return false, nil
	}
	return have[tagManagedBy] == plan.ManagedBy && have[tagClusterSetID] == identity.ClusterSetID && have[TagCluster] == identity.ClusterID, err
}

// CatalogOwner returns the ID of the only cluster that may write into a catalog, by its tag
// catalog-of, "" without one. The policies allow no cluster to set the tag.
func (c *Client) CatalogOwner(ctx context.Context, catalog Service) (string, error) {
	have, err := c.readTags(ctx, catalog.ARN)
	return have[TagCatalogOf], err
}

// tagsOf returns the tags of a resource, none where a share hides them.
func (c *Client) tagsOf(ctx context.Context, arn string) (map[string]string, error) {
	have, err := c.readTags(ctx, arn)
	if c.owner != "" && IsDenied(err) {
		return nil, nil
	}
	return have, err
}

// readTags returns the tags of a resource.
func (c *Client) readTags(ctx context.Context, arn string) (map[string]string, error) {
	out, err := call(ctx, c, "ListTagsForResource", c.sdk.ListTagsForResource, &servicediscovery.ListTagsForResourceInput{ResourceARN: aws.String(arn)})
	if err != nil {
		return nil, fmt.Errorf("reading the tags of %s: %w", arn, err)
	}
	have := map[string]string{}
	for _, tag := range out.Tags {
		have[aws.ToString(tag.Key)] = aws.ToString(tag.Value)
	}
	return have, nil
}

// DeleteService deletes a service. The error is IsInUse if it has instances.
func (c *Client) DeleteService(ctx context.Context, s Service) error {
	_, err := callOn(ctx, c, s.ID, "DeleteService", c.sdk.DeleteService, &servicediscovery.DeleteServiceInput{Id: aws.String(s.ID)})
	if err != nil && !IsNotFound(err) {
		return fmt.Errorf("deleting service %s: %w", s.Name, err)
	}
	return nil
}

// DeleteNamespace deletes a namespace and waits until it is gone, for one with DNS until AWS has
// deleted its hosted zone. The error is IsInUse if it has services.
func (c *Client) DeleteNamespace(ctx context.Context, n Namespace) error {
	out, err := callOn(ctx, c, n.ID, "DeleteNamespace", c.sdk.DeleteNamespace, &servicediscovery.DeleteNamespaceInput{Id: aws.String(n.ID)})
	if err == nil {
		_, err = c.AwaitOperation(ctx, aws.ToString(out.OperationId))
	} else {
		err = c.awaitDuplicate(ctx, err)
	}
	if err != nil && !IsNotFound(err) {
		return fmt.Errorf("deleting namespace %s: %w", n.Name, err)
	}
	return nil
}
