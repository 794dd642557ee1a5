package awsprobe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// probeHosts is probe 1. Package api always sets the filter and the prefix.
func probeHosts(ctx context.Context, p *prober) error {
	p.row("", "account and Region", "", p.account+" "+p.region)
	_, err := p.sdk.ListNamespaces(ctx, &servicediscovery.ListNamespacesInput{})
	p.row("ListNamespaces", "ListNamespaces without a filter", codeOK, codeOf(err))
	_, err = p.sdk.ListNamespaces(ctx, &servicediscovery.ListNamespacesInput{
		Filters: []types.NamespaceFilter{{Name: types.NamespaceFilterNameResourceOwner, Values: []string{"SELF"}}}})
	p.row("ListNamespaces", "ListNamespaces with the filter RESOURCE_OWNER", codeOK, codeOf(err))
	switch code := codeOf(err); code {
	case codeOK:
		p.report.found("refuseOwnerFilter", false)
	case "InvalidInput":
		p.report.found("refuseOwnerFilter", true)
	}
	missing := &servicediscovery.DiscoverInstancesInput{NamespaceName: &p.shared.name, ServiceName: &p.shared.name}
	_, err = p.sdk.DiscoverInstances(ctx, missing)
	onData := codeOf(err)
	p.row("DiscoverInstances", "DiscoverInstances on a host with the prefix data-, of a namespace that does not exist", "NamespaceNotFound", onData)
	_, err = p.control.DiscoverInstances(ctx, missing)
	onControl := codeOf(err)
	p.row("DiscoverInstances", "DiscoverInstances on a host without the prefix", "UnknownOperationException", onControl)
	if onData == "NamespaceNotFound" {
		p.report.found("strictHosts", onControl != onData)
	}
	return nil
}

// probeNamespaces is probe 2.
func probeNamespaces(ctx context.Context, p *prober) error {
	took, codes, err := p.createTwice(ctx, p.shared.name+"-a")
	if err != nil {
		return err
	}
	p.row("CreateHttpNamespace", "two CreateHttpNamespace of one name at once", "ok and DuplicateRequest or NamespaceAlreadyExists", codes)
	p.row("GetNamespace", "time until an HTTP namespace exists", "some seconds", seconds(took))
	p.row("GetNamespace", "HttpName of a new name", "the name", p.describeName(p.shared.main))

	again := p.shared.name + "-b"
	first, err := p.createNamespace(ctx, again)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := p.deleteNamespace(ctx, first.ID); err != nil {
		return err
	}
	p.row("DeleteNamespace", "time until an HTTP namespace is deleted", "some seconds", seconds(time.Since(begin)))
	second, err := p.createNamespace(ctx, again)
	if err != nil {
		return err
	}
	p.row("GetNamespace", "HttpName of a name that a deleted namespace had", "the name", p.describeName(second))
	if second.HTTPName != second.Name {
		p.report.found("httpNameSuffix", cloudmaplocal.SuffixReuse)
	}
	return nil
}

// createTwice creates the main namespace with two requests at once, and returns their codes.
func (p *prober) createTwice(ctx context.Context, name string) (took time.Duration, codes string, err error) {
	begin := time.Now()
	var outs [2]*servicediscovery.CreateHttpNamespaceOutput
	var errs [2]error
	var both sync.WaitGroup
	for i := range outs {
		both.Go(func() {
			outs[i], errs[i] = p.sdk.CreateHttpNamespace(ctx, &servicediscovery.CreateHttpNamespaceInput{
				Name: &name, Tags: api.Tags(p.identity(), api.PartControl)})
		})
	}
	both.Wait()
	first := slices.IndexFunc(errs[:], func(err error) bool { return err == nil })
	if first < 0 {
		return 0, "", errors.Join(errs[:]...)
	}
	targets, err := p.api.AwaitOperation(ctx, aws.ToString(outs[first].OperationId))
	if err != nil {
		return 0, "", err
	}
	took = time.Since(begin)
	p.shared.main, err = p.api.GetNamespace(ctx, targets[string(types.OperationTargetTypeNamespace)])
	all := []string{codeOf(errs[0]), codeOf(errs[1])}
	slices.Sort(all)
	return took, strings.Join(all, ", "), err
}

func (p *prober) describeName(ns api.Namespace) string {
	if ns.HTTPName == ns.Name {
		return "the name"
	}
	return "with a suffix: " + strings.TrimPrefix(ns.HTTPName, p.shared.name)
}

// probeDNS is probe 10. The private namespace has the name of the main one.
func probeDNS(ctx context.Context, p *prober) error {
	if p.shared.main.ID == "" {
		return errors.New("the namespace of probe 2 is missing")
	}
	begin := time.Now()
	var ns api.Namespace
	err := unthrottled(ctx, func() (err error) {
		ns, err = p.api.CreatePrivateNamespace(ctx, p.shared.main.Name, p.opts.VPC, p.identity(), api.PartControl)
		return err
	})
	p.row("CreatePrivateDnsNamespace", "time until a private namespace exists", "a minute", orCode(err, seconds(time.Since(begin))))
	if err != nil {
		return err
	}
	p.row("GetNamespace", "HttpName while another namespace has the name", "with a suffix", p.describeName(ns))
	p.foundSuffix(ns.HTTPName != ns.Name)
	var errs []error
	for _, records := range []string{api.RecordsA, api.RecordsSRV} {
		errs = append(errs, p.probeRecords(ctx, ns, records))
	}
	errs = append(errs, p.probeDenial(ctx, ns))
	begin = time.Now()
	if err := p.removeServices(ctx, ns.ID, false); err != nil {
		errs = append(errs, err)
	} else {
		err = p.deleteNamespace(ctx, ns.ID)
		p.row("DeleteNamespace", "time until a private namespace and its services are deleted", "a minute", orCode(err, seconds(time.Since(begin))))
	}
	return errors.Join(errs...)
}

// foundSuffix decides between the suffixes by a namespace that has another one beside it, unless
// probe 2 has seen more.
func (p *prober) foundSuffix(hasSuffix bool) {
	p.report.mu.Lock()
	seen := p.report.behavior["httpNameSuffix"]
	p.report.mu.Unlock()
	switch {
	case seen != nil:
	case hasSuffix:
		p.report.found("httpNameSuffix", cloudmaplocal.SuffixCoexisting)
	default:
		p.report.found("httpNameSuffix", cloudmaplocal.SuffixNever)
	}
}

// orCode returns the code of an error, or else text.
func orCode(err error, text string) string {
	if err != nil {
		return codeOf(err)
	}
	return text
}

// dnsTTL is that of the records in seconds.
const dnsTTL = 15

func dnsConfig(records string) api.ServiceConfig {
	return api.ServiceConfig{Records: records, TTL: dnsTTL, Routing: string(types.RoutingPolicyMultivalue)}
}

// dnsAttributes are those of an instance in a service with records.
func dnsAttributes() map[string]string {
	return map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1", "AWS_INSTANCE_PORT": "80"}
}

func (p *prober) probeRecords(ctx context.Context, ns api.Namespace, records string) error {
	s, err := p.createServiceIn(ctx, ns, strings.ToLower(records), dnsConfig(records))
	if err != nil {
		return err
	}
	begin := time.Now()
	err = p.register(ctx, s, "a", dnsAttributes())
	p.row("RegisterInstance", fmt.Sprintf("time until an instance is registered in a service with %s records", records), "some seconds",
		orCode(err, seconds(time.Since(begin))))
	return nil
}

// probeDenial finds out when AWS checks the rights in Route 53, with a role that has none.
func (p *prober) probeDenial(ctx context.Context, ns api.Namespace) error {
	if p.opts.Role.ARN == "" {
		p.row("", "RegisterInstance without rights in Route 53", "an operation that fails", "skipped: needs --role")
		return nil
	}
	role, err := p.opts.connect(ctx, p.opts.Role)
	if err != nil {
		return err
	}
	var s api.Service
	err = unthrottled(ctx, func() (err error) {
		s, _, err = p.api.CreateServiceAs(ctx, ns, "denied", dnsConfig(api.RecordsA), roleIdentity(), api.PartCatalog)
		return err
	})
	if err != nil {
		return err
	}
	// The service has the tags that allow the role to write. IAM may see them later, and then
	// denies the action itself.
	const action = "servicediscovery:RegisterInstance"
	var operation string
	_, ok, err := poll(ctx, visibleLimit, func() (bool, error) {
		operation, err = role.api.RegisterInstance(ctx, s.ID, api.Instance{ID: "a", Attributes: dnsAttributes()})
		return err == nil || !strings.Contains(err.Error(), "perform: "+action), ignore(err, api.IsDenied)
	})
	const question = "RegisterInstance without rights in Route 53"
	switch {
	case err != nil:
		return err
	case operation != "":
		_, err := role.api.AwaitOperation(ctx, operation)
		p.row("GetOperation", question, "an operation that fails", "an operation: "+codeOf(err))
		if api.IsDenied(err) {
			p.report.found("denyAtOnce", false)
		}
	case ok:
		p.row("RegisterInstance", question, "an operation that fails", "denied at once")
		p.report.found("denyAtOnce", true)
	default:
		p.row("RegisterInstance", question, "an operation that fails", "the role may not write in services with its own tags")
	}
	return nil
}
