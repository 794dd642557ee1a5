package api

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
)

// HealthInstance is an instance with its health.
type HealthInstance struct {
	Instance
	// Unhealthy is true if the health check of the service has failed for the instance. Services
	// without a health check have no unhealthy instances.
	Unhealthy bool
}

// DiscoverHealth returns all instances of a service with their health, and the revision that they
// are of. AWS allows MaxDiscovered instances in a service, so that one request returns all.
func (c *Client) DiscoverHealth(ctx context.Context, namespace, service string) (found []HealthInstance, revision int64, err error) {
	out, err := call(ctx, c, "DiscoverInstances", c.data.DiscoverInstances, &servicediscovery.DiscoverInstancesInput{
		NamespaceName: aws.String(namespace),
		ServiceName:   aws.String(service),
		OwnerAccount:  c.ownerAccount(),
		HealthStatus:  types.HealthStatusFilterAll,
		MaxResults:    aws.Int32(MaxDiscovered),
	})
	if err != nil {
		return nil, 0, err
	}
	found = make([]HealthInstance, len(out.Instances))
	for i, in := range out.Instances {
		found[i] = HealthInstance{
			Instance:  Instance{ID: aws.ToString(in.InstanceId), Attributes: in.Attributes},
			Unhealthy: in.HealthStatus == types.HealthStatusUnhealthy,
		}
	}
	return found, aws.ToInt64(out.InstancesRevision), nil
}

// CountInstances returns the number of instances of each service of a namespace, by the service's
// name and nil where AWS gives none, and the number of requests. AWS documents that the count might
// not reflect pending registrations and deregistrations.
func (c *Client) CountInstances(ctx context.Context, in Namespace) (counts map[string]*int32, requests int, err error) {
	counts = map[string]*int32{}
	request := &servicediscovery.ListServicesInput{
		MaxResults: aws.Int32(listPage),
		Filters:    []types.ServiceFilter{{Name: types.ServiceFilterNameNamespaceId, Values: []string{in.ID}}},
	}
	for {
		requests++
		out, err := call(ctx, c, "ListServices", c.sdk.ListServices, request)
		if err != nil {
			return nil, requests, fmt.Errorf("counting the instances in namespace %s: %w", in.Name, err)
		}
		for _, s := range out.Services {
			counts[aws.ToString(s.Name)] = s.InstanceCount
		}
		if request.NextToken = out.NextToken; request.NextToken == nil {
			return counts, requests, nil
		}
	}
}
