package cloudmap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// Tags of the namespaces and services that we create. Only what carries the first two, of our clusterset, is ever deleted.
const (
	tagManagedBy    = "managed-by"
	tagClusterSetID = "clusterset"
	tagClusterID    = "cluster"
	tagPart         = "part"
)

// Parts of the registry, by which IAM policies tell what each cluster may write (deploy/iam).
const (
	partControl = "control" // the control namespace
	partMembers = "members"
	partCatalog = "catalog"
	partView    = "view" // namespaces and services of the instance view
)

func tags(identity mcs.Identity, part string) []types.Tag {
	return []types.Tag{
		{Key: aws.String(tagPart), Value: aws.String(part)},
		{Key: aws.String(tagManagedBy), Value: aws.String(plan.ManagedBy)},
		{Key: aws.String(tagClusterSetID), Value: aws.String(identity.ClusterSetID)},
		{Key: aws.String(tagClusterID), Value: aws.String(identity.ClusterID)},
	}
}

// namespace is a Cloud Map namespace.
type namespace struct {
	id, arn, name string
	// httpName is what DiscoverInstances wants: the name, with a suffix when the name was used before.
	httpName string
	kind     types.NamespaceType
	// owner is the account that has it, as far as AWS says so.
	owner string
}

// service is a Cloud Map service.
type service struct{ id, arn, name string }

// namespaces lists every namespace of the account, or those that the client's owner shares with it.
func (c *Client) namespaces(ctx context.Context) (map[string]namespace, error) {
	found := map[string]namespace{}
	in := &servicediscovery.ListNamespacesInput{MaxResults: aws.Int32(listPage), Filters: c.whose()}
	for {
		out, err := call(ctx, c, "ListNamespaces", c.sdk.ListNamespaces, in)
		if err != nil {
			return nil, fmt.Errorf("listing namespaces: %w", err)
		}
		for _, n := range out.Namespaces {
			if c.owner != "" && aws.ToString(n.ResourceOwner) != c.owner {
				continue
			}
			found[aws.ToString(n.Name)] = namespace{
				id: c.idOf(n.Id, n.Arn), arn: aws.ToString(n.Arn), name: aws.ToString(n.Name),
				httpName: httpName(n.Name, n.Properties), kind: n.Type, owner: aws.ToString(n.ResourceOwner),
			}
		}
		if in.NextToken = out.NextToken; in.NextToken == nil {
			return found, nil
		}
	}
}

func httpName(name *string, properties *types.NamespaceProperties) string {
	if properties != nil && properties.HttpProperties != nil && properties.HttpProperties.HttpName != nil {
		return *properties.HttpProperties.HttpName
	}
	return aws.ToString(name)
}

// createNamespace makes an HTTP namespace, or finds the one that somebody else made meanwhile.
func (c *Client) createNamespace(ctx context.Context, name string, identity mcs.Identity, part string) (namespace, error) {
	if c.owner != "" {
		return namespace{}, c.notSharedError(name)
	}
	out, err := call(ctx, c, "CreateHttpNamespace", c.sdk.CreateHttpNamespace, &servicediscovery.CreateHttpNamespaceInput{
		Name: aws.String(name),
		Tags: tags(identity, part),
	})
	var exists *types.NamespaceAlreadyExists
	switch {
	case errors.As(err, &exists) && aws.ToString(exists.NamespaceId) != "":
		return c.namespace(ctx, aws.ToString(exists.NamespaceId))
	case err != nil:
		return namespace{}, fmt.Errorf("creating namespace %s: %w", name, err)
	}
	targets, err := c.await(ctx, aws.ToString(out.OperationId))
	if err != nil {
		return namespace{}, fmt.Errorf("creating namespace %s: %w", name, err)
	}
	return c.namespace(ctx, targets[string(types.OperationTargetTypeNamespace)])
}

func (c *Client) namespace(ctx context.Context, id string) (namespace, error) {
	out, err := call(ctx, c, "GetNamespace", c.sdk.GetNamespace, &servicediscovery.GetNamespaceInput{Id: aws.String(id)})
	if err != nil {
		return namespace{}, fmt.Errorf("reading namespace %s: %w", id, err)
	}
	n := out.Namespace
	return namespace{
		id: c.idOf(n.Id, n.Arn), arn: aws.ToString(n.Arn), name: aws.ToString(n.Name),
		httpName: httpName(n.Name, n.Properties), kind: n.Type, owner: aws.ToString(n.ResourceOwner),
	}, nil
}

// services lists the services of a namespace.
func (c *Client) services(ctx context.Context, in namespace) (map[string]service, error) {
	found := map[string]service{}
	request := &servicediscovery.ListServicesInput{
		MaxResults: aws.Int32(listPage),
		Filters:    []types.ServiceFilter{{Name: types.ServiceFilterNameNamespaceId, Values: []string{in.id}}},
	}
	for {
		out, err := call(ctx, c, "ListServices", c.sdk.ListServices, request)
		if err != nil {
			return nil, fmt.Errorf("listing the services of namespace %s: %w", in.name, err)
		}
		for _, s := range out.Services {
			found[aws.ToString(s.Name)] = service{id: c.idOf(s.Id, s.Arn), arn: aws.ToString(s.Arn), name: aws.ToString(s.Name)}
		}
		if request.NextToken = out.NextToken; request.NextToken == nil {
			return found, nil
		}
	}
}

// createService makes a service that only the API shows, or finds the one that somebody else made meanwhile.
func (c *Client) createService(ctx context.Context, in namespace, name string, identity mcs.Identity, part string) (service, error) {
	request := &servicediscovery.CreateServiceInput{NamespaceId: aws.String(in.id), Name: aws.String(name), Tags: tags(identity, part)}
	if in.kind != types.NamespaceTypeHttp {
		// In a DNS namespace, Type HTTP is what keeps Route 53 out of it.
		request.Type = types.ServiceTypeOptionHttp
	}
	out, err := call(ctx, c, "CreateService", c.sdk.CreateService, request)
	if c.owner != "" && resultOf(err) == resultDenied {
		// The share may allow to create services and not to tag them. Without tags a service is never deleted, no more.
		request.Tags = nil
		out, err = call(ctx, c, "CreateService", c.sdk.CreateService, request)
	}
	var exists *types.ServiceAlreadyExists
	switch {
	case errors.As(err, &exists) && aws.ToString(exists.ServiceId) != "":
		return service{id: c.idOf(exists.ServiceId, exists.ServiceArn), arn: aws.ToString(exists.ServiceArn), name: name}, nil
	case err != nil:
		return service{}, fmt.Errorf("creating service %s in namespace %s: %w", name, in.name, err)
	}
	return service{id: c.idOf(out.Service.Id, out.Service.Arn), arn: aws.ToString(out.Service.Arn), name: name}, nil
}

// list reads all instances of a service. Unlike discover it has no upper limit, and costs a request per hundred.
func (c *Client) list(ctx context.Context, in service) ([]plan.Instance, error) {
	var found []plan.Instance
	request := &servicediscovery.ListInstancesInput{ServiceId: aws.String(in.id), MaxResults: aws.Int32(listPage)}
	for {
		out, err := call(ctx, c, "ListInstances", c.sdk.ListInstances, request)
		if err != nil {
			return nil, fmt.Errorf("listing the instances of service %s: %w", in.name, err)
		}
		for _, i := range out.Instances {
			found = append(found, plan.Instance{ID: aws.ToString(i.Id), Attributes: i.Attributes})
		}
		if request.NextToken = out.NextToken; request.NextToken == nil {
			return found, nil
		}
	}
}

// isOurs says whether a controller of this clusterset made the resource, as far as a share lets us see that.
func (c *Client) isOurs(ctx context.Context, arn string, identity mcs.Identity) (bool, error) {
	have, err := c.tagsOf(ctx, arn)
	return have[tagManagedBy] == plan.ManagedBy && have[tagClusterSetID] == identity.ClusterSetID, err
}

// madeHere says whether it was this cluster's controller. What is not there is nobody's.
func (c *Client) madeHere(ctx context.Context, arn string, identity mcs.Identity) (bool, error) {
	have, err := c.tagsOf(ctx, arn)
	if isNotFound(err) {
		return false, nil
	}
	return have[tagManagedBy] == plan.ManagedBy && have[tagClusterSetID] == identity.ClusterSetID && have[tagClusterID] == identity.ClusterID, err
}

// tagsOf are the tags of a resource, none where a share does not let us see them.
func (c *Client) tagsOf(ctx context.Context, arn string) (map[string]string, error) {
	out, err := call(ctx, c, "ListTagsForResource", c.sdk.ListTagsForResource, &servicediscovery.ListTagsForResourceInput{ResourceARN: aws.String(arn)})
	if c.owner != "" && resultOf(err) == resultDenied {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the tags of %s: %w", arn, err)
	}
	have := map[string]string{}
	for _, tag := range out.Tags {
		have[aws.ToString(tag.Key)] = aws.ToString(tag.Value)
	}
	return have, nil
}

// deleteService deletes a service, unless it has instances. The error then says so (isInUse).
func (c *Client) deleteService(ctx context.Context, s service) error {
	_, err := call(ctx, c, "DeleteService", c.sdk.DeleteService, &servicediscovery.DeleteServiceInput{Id: aws.String(s.id)})
	if err != nil && !isNotFound(err) {
		return fmt.Errorf("deleting service %s: %w", s.name, err)
	}
	return nil
}

// deleteNamespace deletes a namespace, unless it has services. The error then says so (isInUse).
func (c *Client) deleteNamespace(ctx context.Context, n namespace) error {
	_, err := call(ctx, c, "DeleteNamespace", c.sdk.DeleteNamespace, &servicediscovery.DeleteNamespaceInput{Id: aws.String(n.id)})
	if err != nil && !isNotFound(err) {
		return fmt.Errorf("deleting namespace %s: %w", n.name, err)
	}
	return nil
}

// untilUnused repeats a deletion that fails because something is in use, for as long as it takes AWS Cloud Map to notice
// that what used it was just removed.
func (c *Client) untilUnused(ctx context.Context, remove func() error) error {
	const patience = 3 * time.Second
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		err := remove()
		if !isInUse(err) || pause > patience {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// removeIfOurs deletes what a controller of this clusterset made. What others made, or use, or we may not delete, stays: then gone is false.
func (c *Client) removeIfOurs(ctx context.Context, arn string, identity mcs.Identity, remove func() error) (gone bool, err error) {
	ours, err := c.isOurs(ctx, arn, identity)
	if isNotFound(err) {
		return true, nil
	}
	if err != nil || !ours {
		return false, err
	}
	err = c.untilUnused(ctx, remove)
	if isInUse(err) || resultOf(err) == resultDenied {
		// What we may not delete is for who may: an administrator made it, or another account (docs/iam.md).
		return false, nil
	}
	return err == nil, err
}
