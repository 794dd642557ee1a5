package awsprobe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// roleIdentity is the cluster of the role's policies.
func roleIdentity() mcs.Identity {
	return mcs.Identity{ClusterSetID: RoleClusterSet, ClusterID: RoleCluster}
}

// probeRights is probe 9: the role joins a clusterset as a controller does, and tries what it may
// not do.
func probeRights(ctx context.Context, p *prober) error {
	role, err := p.opts.connect(ctx, p.opts.Role)
	if err != nil {
		return err
	}
	control := format.ControlNamespace(RoleClusterSet)
	var ns api.Namespace
	err = unthrottled(ctx, func() (err error) {
		ns, err = role.api.CreateNamespace(ctx, control, roleIdentity(), api.PartControl)
		return err
	})
	created := time.Now()
	if api.IsDenied(err) { // of the read after the creation: IAM may see the tags later
		ns, err = p.awaitControl(ctx, role, control)
	}
	p.row("CreateHttpNamespace", "CreateHttpNamespace with the tags of the policy", codeOK, codeOf(err))
	if err != nil {
		return err
	}
	var catalog api.Service
	create := func() (bool, error) {
		catalog, _, err = role.api.CreateServiceAs(ctx, ns, format.CatalogName(RoleCluster), api.ServiceConfig{}, roleIdentity(), api.PartCatalog)
		return err == nil, ignore(err, api.IsDenied)
	}
	if _, err := within(ctx, visibleLimit, "CreateService in a namespace with the tags of the policy is allowed", create); err != nil {
		p.row("CreateService", "CreateService with the tags of the policy", codeOK, codeOf(err))
		return err
	}
	allowedAfter := time.Since(created)
	p.row("CreateService", "time from CreateHttpNamespace until CreateService there is allowed", "at once", seconds(allowedAfter))
	var operation string
	after, err := within(ctx, visibleLimit, "RegisterInstance in a service with the tags of the policy is allowed", func() (bool, error) {
		operation, err = role.api.RegisterInstance(ctx, catalog.ID, api.Instance{ID: "a", Attributes: map[string]string{}})
		return err == nil, ignore(err, api.IsDenied)
	})
	if err != nil {
		return err
	}
	p.row("RegisterInstance", "time from CreateService until RegisterInstance there is allowed", "at once", seconds(after))
	p.report.found("tagsVisibleAfter", roundDelay(max(after, allowedAfter)))
	_, err = role.api.AwaitOperation(ctx, operation)
	p.row("GetOperation", "RegisterInstance in an HTTP namespace without rights in Route 53", codeOK, codeOf(err))
	return p.probeDenials(ctx, role, catalog)
}

// awaitControl reads the namespace that the role has just created, as soon as it may.
func (p *prober) awaitControl(ctx context.Context, role *connection, name string) (ns api.Namespace, err error) {
	found, err := p.leftovers(ctx)
	if err != nil {
		return ns, err
	}
	for _, one := range found {
		if aws.ToString(one.Name) != name {
			continue
		}
		_, err = within(ctx, visibleLimit, "GetNamespace of a namespace with the tags of the policy is allowed", func() (bool, error) {
			ns, err = role.api.GetNamespace(ctx, aws.ToString(one.Id))
			return err == nil, ignore(err, api.IsDenied)
		})
		return ns, err
	}
	return ns, fmt.Errorf("namespace %s was not created", name)
}

// probeDenials makes requests that the policies do not allow.
func (p *prober) probeDenials(ctx context.Context, role *connection, catalog api.Service) error {
	if p.shared.main.ID == "" {
		return errors.New("the namespace of probe 2 is missing")
	}
	foreign, err := p.createService(ctx, "foreign")
	if err != nil {
		return err
	}
	attributes := map[string]string{}
	for _, tc := range []struct {
		operation, question, expected string
		ask                           func() error
	}{
		{"DiscoverInstances", "in the namespace of the policy", codeOK, func() error {
			_, err := within(ctx, visibleLimit, "the new service is found", func() (bool, error) {
				_, _, err := role.api.DiscoverInstances(ctx, format.ControlNamespace(RoleClusterSet), catalog.Name, nil)
				return err == nil, ignore(err, api.IsNotFound)
			})
			return err
		}},
		{"ListInstances", "in a service with the tags of the policy", codeOK, func() error {
			_, err := role.api.ListInstances(ctx, catalog)
			return err
		}},
		{"CreateHttpNamespace", "without tags", codeDenied, func() error {
			_, err := role.sdk.CreateHttpNamespace(ctx, &servicediscovery.CreateHttpNamespaceInput{Name: aws.String(p.shared.name + "-denied")})
			return err
		}},
		{"DiscoverInstances", "in another namespace", codeDenied, func() error {
			_, _, err := role.api.DiscoverInstances(ctx, p.shared.main.HTTPName, foreign.Name, nil)
			return err
		}},
		{"RegisterInstance", "in a service with the tags of another clusterset", codeDenied, func() error {
			_, err := role.api.RegisterInstance(ctx, foreign.ID, api.Instance{ID: "a", Attributes: attributes})
			return err
		}},
		{"DeleteService", "of a service with the tags of another clusterset", codeDenied, func() error { return role.api.DeleteService(ctx, foreign) }},
		{"TagResource", "of the own catalog with another tag", codeDenied, func() error {
			_, err := role.sdk.TagResource(ctx, &servicediscovery.TagResourceInput{
				ResourceARN: &catalog.ARN, Tags: []types.Tag{{Key: aws.String(api.TagCatalogOf), Value: aws.String(RoleCluster)}}})
			return err
		}},
	} {
		p.row(tc.operation, tc.operation+" "+tc.question+", by the role", tc.expected, codeOf(tc.ask()))
	}
	return nil
}

// codeDenied is the code of a request without rights.
const codeDenied = "AccessDeniedException"

// probeShare is probe 11. Package api takes a share by its name and owner.
func probeShare(ctx context.Context, p *prober) error {
	arn := p.opts.Share
	got, err := p.sdk.GetNamespace(ctx, &servicediscovery.GetNamespaceInput{Id: &arn})
	p.row("GetNamespace", "GetNamespace of a shared namespace by its ARN", codeOK, codeOf(err))
	if err != nil {
		return err
	}
	_, err = p.sdk.GetNamespace(ctx, &servicediscovery.GetNamespaceInput{Id: got.Namespace.Id})
	p.row("GetNamespace", "GetNamespace of a shared namespace by its ID", "NamespaceNotFound", codeOf(err))
	in := &servicediscovery.CreateServiceInput{
		NamespaceId: &arn, Name: aws.String(p.shared.name + "-shared"), Tags: api.Tags(p.identity(), api.PartCatalog),
	}
	created, err := p.sdk.CreateService(ctx, in)
	p.row("CreateService", "CreateService with tags in a shared namespace", codeDenied, codeOf(err))
	p.report.found("shareAllowsTags", err == nil)
	if err != nil {
		in.Tags = nil
		created, err = p.sdk.CreateService(ctx, in)
		p.row("CreateService", "CreateService without tags in a shared namespace", codeOK, codeOf(err))
	}
	if err != nil {
		return err
	}
	service := aws.ToString(created.Service.Arn)
	p.row("CreateService", "ARN of a service in a shared namespace", "of the owner, with :service/",
		pick(strings.Contains(service, ":service/"), "with :service/", "without :service/")+
			pick(strings.Contains(service, ":"+aws.ToString(got.Namespace.ResourceOwner)+":"), ", of the owner", ", not of the owner"))
	read := &servicediscovery.DiscoverInstancesInput{NamespaceName: httpName(got.Namespace), ServiceName: in.Name}
	_, err = p.sdk.DiscoverInstances(ctx, read)
	p.row("DiscoverInstances", "DiscoverInstances in a shared namespace without OwnerAccount", "NamespaceNotFound", codeOf(err))
	read.OwnerAccount = got.Namespace.ResourceOwner
	_, err = within(ctx, visibleLimit, "the new service is found", func() (bool, error) {
		_, err := p.sdk.DiscoverInstances(ctx, read)
		return err == nil, ignore(err, api.IsNotFound)
	})
	p.row("DiscoverInstances", "DiscoverInstances in a shared namespace with OwnerAccount", codeOK, codeOf(err))
	return p.removeService(ctx, service)
}

func httpName(ns *types.Namespace) *string {
	if ns.Properties != nil && ns.Properties.HttpProperties != nil {
		return ns.Properties.HttpProperties.HttpName
	}
	return ns.Name
}
