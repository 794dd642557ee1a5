package cloudmap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
)

// The policies that docs/migration.md names, for services without DNS records and with them.
var (
	migrationPolicies    = append(slices.Clone(viewPolicies), "compatibility.json")
	migrationDNSPolicies = append(slices.Clone(migrationPolicies), "compatibility-dns.json")
)

// startLegacyCloud runs a Cloud Map in which legacy controllers of two clusters exported webKey(0)
// with three endpoints each, in a namespace of an administrator: an HTTP namespace, or a private
// DNS namespace, in which they create services with SRV records. The keys of the clusters have
// policies, for the zone of that namespace alone. denyAtOnce is that of cloudmaplocal.Options.
func startLegacyCloud(t *testing.T, hasDNS, denyAtOnce bool, policies []string) *cloud {
	t.Helper()
	options := cloudmaplocal.Options{Unthrottled: true, Behaviors: cloudmaplocal.Behaviors{DenyAtOnce: denyAtOnce}, StateFile: filepath.Join(t.TempDir(), "state")}
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true})
	before, err := cloudmaplocal.New(options)
	if err != nil {
		t.Fatal(err)
	}
	c.replace(before)
	// the policies, which a server gets at its start, have the ID of the zone
	zone := createLegacyExports(t, c, hasDNS)
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	options.AccessKeys = []cloudmaplocal.AccessKey{{ID: admin}}
	for _, identity := range []mcs.Identity{cls1, cls2} {
		key := cloudmaplocal.AccessKey{ID: keyFor(identity), User: identity.ClusterID}
		for _, file := range policies {
			var policy iampolicy.Policy
			document, err := cloudmaptest.NarrowZones(bytes.ReplaceAll(policyDocument(t, file, identity), []byte("<hosted-zone>"), []byte(zone)), zone)
			if err == nil {
				err = json.Unmarshal(document, &policy)
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			key.Policies = append(key.Policies, policy)
		}
		options.AccessKeys = append(options.AccessKeys, key)
	}
	after, err := cloudmaplocal.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := after.Close(); err != nil {
			t.Error(err)
		}
	})
	c.replace(after)
	c.keyOf = keyFor
	return c
}

// createLegacyExports creates the namespace and what legacy controllers create, and returns the ID
// of the hosted zone if there is one.
func createLegacyExports(t *testing.T, c *cloud, hasDNS bool) (zone string) {
	t.Helper()
	sdk, name := c.sdk(admin), aws.String(webKey(0).Namespace)
	var operation *string
	if hasDNS {
		out, err := sdk.CreatePrivateDnsNamespace(t.Context(), &servicediscovery.CreatePrivateDnsNamespaceInput{Name: name, Vpc: aws.String("vpc-1")})
		if err != nil {
			t.Fatal(err)
		}
		operation = out.OperationId
	} else {
		out, err := sdk.CreateHttpNamespace(t.Context(), &servicediscovery.CreateHttpNamespaceInput{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		operation = out.OperationId
	}
	targets, err := c.client.AwaitOperation(t.Context(), aws.ToString(operation))
	if err != nil {
		t.Fatal(err)
	}
	service := &servicediscovery.CreateServiceInput{Name: aws.String(webKey(0).Name), NamespaceId: aws.String(targets["NAMESPACE"])}
	if hasDNS {
		service.DnsConfig = &types.DnsConfig{DnsRecords: []types.DnsRecord{{Type: types.RecordTypeSrv, TTL: aws.Int64(60)}}}
		in, err := sdk.GetNamespace(t.Context(), &servicediscovery.GetNamespaceInput{Id: service.NamespaceId})
		if err != nil {
			t.Fatal(err)
		}
		zone = aws.ToString(in.Namespace.Properties.DnsProperties.HostedZoneId)
	}
	if _, err := sdk.CreateService(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	for _, exp := range []mcs.Export{legacyExport(cls1, 1), legacyExport(cls2, 2)} {
		for _, i := range legacyInstances(exp) {
			c.put(t, exp.Key.Namespace, exp.Key.Name, i)
		}
	}
	return zone
}

// legacyExport is a cluster's export of webKey(0) with three endpoints. Each cluster has its own
// addresses.
func legacyExport(identity mcs.Identity, network byte) mcs.Export {
	exp := webExport(identity.ClusterID, 0, 3)
	for i := range exp.Backends[0].Endpoints {
		address := exp.Backends[0].Endpoints[i].Address.As4()
		address[1] += network
		exp.Backends[0].Endpoints[i].Address = netip.AddrFrom4(address)
	}
	return exp
}

// tagLegacyServices tags the namespace and the service of webKey(0) as docs/migration.md says.
func tagLegacyServices(t *testing.T, c *cloud) {
	t.Helper()
	namespaces, err := c.client.ListNamespaces(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, _ := c.service(t, webKey(0).Namespace, webKey(0).Name)
	for _, arn := range []string{namespaces[webKey(0).Namespace].ARN, s.ARN} {
		_, err := c.sdk(admin).TagResource(t.Context(), &servicediscovery.TagResourceInput{ResourceARN: &arn, Tags: []types.Tag{
			{Key: aws.String("clusterset"), Value: aws.String("set1")}, {Key: aws.String("part"), Value: aws.String("view")},
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// importing starts the registry of --import-from-aws-controller.
func importing(t *testing.T, c *cloud, identity mcs.Identity) *legacy.Registry {
	t.Helper()
	reg := legacy.NewRegistry(c.clientFor(t, withKey(keyFor(identity))), legacy.Config{Identity: identity, PollInterval: 20 * time.Millisecond, Logger: logr.Discard()})
	start(t, reg)
	return reg
}

// controllersOf returns the controllers that wrote the instances of webKey(0), by cluster and
// instance.
func (c *cloud) controllersOf(t *testing.T) map[string]map[string]string {
	t.Helper()
	found := map[string]map[string]string{}
	for id, attrs := range c.instances(t, webKey(0).Namespace, webKey(0).Name) {
		cluster := attrs[instances.AttrClusterID]
		if found[cluster] == nil {
			found[cluster] = map[string]string{}
		}
		found[cluster][id], _, _ = strings.Cut(attrs[instances.AttrController], " ")
	}
	return found
}

// writtenBy are the instances of an export with the controller that wrote them.
func writtenBy(exp mcs.Export, controller string) map[string]string {
	list := map[string]string{}
	for _, i := range instances.FromExport(exp, "set1", "") {
		list[i.ID] = controller
	}
	return list
}

// hasRecords returns a check that DNS has exactly the SRV records of the exports' instances. A DNS
// namespace is the only one with records.
func hasRecords(t *testing.T, c *cloud, hasDNS bool) func(exports ...mcs.Export) func() bool {
	t.Helper()
	if !hasDNS {
		return func(...mcs.Export) func() bool { return func() bool { return true } }
	}
	resolver := listenDNS(t, c)
	return func(exports ...mcs.Export) func() bool {
		var want []string
		for _, exp := range exports {
			for _, i := range instances.FromExport(exp, "set1", "") {
				want = append(want, fmt.Sprintf("%s %s.web-0.demo.", i.Attributes[instances.AttrPort], i.ID))
			}
		}
		slices.Sort(want)
		return func() bool { return slices.Equal(resolver.lookup(t, "web-0.demo", dns.TypeSRV, "tcp"), want) }
	}
}

// TestLegacyMigrationUnderIAM migrates two clusters as docs/migration.md says, with the policies
// that it names and no more: no request is denied. In a DNS namespace, the records of the legacy
// controllers' services stay, and are those of all endpoints all the time.
func TestLegacyMigrationUnderIAM(t *testing.T) {
	const ours, theirs = "cloud-map-mcs-controller", legacy.ControllerName
	for name, tc := range map[string]struct {
		hasDNS   bool
		policies []string
	}{
		"HTTP namespace":                     {policies: migrationPolicies},
		"private DNS namespace, SRV records": {hasDNS: true, policies: migrationDNSPolicies},
	} {
		t.Run(name, func(t *testing.T) {
			c := startLegacyCloud(t, tc.hasDNS, true, tc.policies)
			tagLegacyServices(t, c)
			resolves := hasRecords(t, c, tc.hasDNS)
			isWritten := func(first, second map[string]string) func() bool {
				want := map[string]map[string]string{"cls1": first, "cls2": second}
				maps.DeleteFunc(want, func(_ string, list map[string]string) bool { return list == nil })
				return func() bool { return cmp.Equal(want, c.controllersOf(t)) }
			}
			one, two := legacyExport(cls1, 1), legacyExport(cls2, 2)
			if !isWritten(writtenBy(one, theirs), writtenBy(two, theirs))() {
				t.Fatalf("the legacy controllers have written %v", c.controllersOf(t))
			}
			within(t, patience, "DNS has the records of the legacy controllers", resolves(one, two))

			// cls1 migrates. One of its endpoints has ended meanwhile.
			one.Backends[0].Endpoints = one.Backends[0].Endpoints[1:]
			a, stopA := viewing(t, c, cls1)
			publish(t, a, one)
			legacyA := importing(t, c, cls1)
			within(t, patience, "the instances of cls1 are updated, those of cls2 stay", isWritten(writtenBy(one, ours), writtenBy(two, theirs)))
			within(t, patience, "so are the records", resolves(one, two))
			within(t, patience, "cls1 imports the export of cls2 from its instances", func() bool {
				shown, err := legacyA.Lookup(t.Context(), webKey(0))
				return err == nil && len(shown.Exports()) == 1 && shown.Exports()[0].Cluster == "cls2" && shown.Exports()[0].EndpointCount() == 3
			})
			// A Service that is exported only now, in the namespace of the legacy controllers.
			publish(t, a, webExport("cls1", 1, 1))
			within(t, patience, "it has an instance", func() bool { return len(c.instances(t, webKey(1).Namespace, webKey(1).Name)) == 1 })

			// cls2 migrates.
			b, stopB := viewing(t, c, cls2)
			publish(t, b, two)
			importing(t, c, cls2)
			within(t, patience, "the instances of cls2 are updated", isWritten(writtenBy(one, ours), writtenBy(two, ours)))
			within(t, patience, "the records stay", resolves(one, two))
			within(t, patience, "both import from pages", func() bool { return shows(t, a, "cls2", webKey(0)) && shows(t, b, "cls1", webKey(0)) })

			if err := a.Withdraw(t.Context(), webKey(0)); err != nil {
				t.Fatal(err)
			}
			within(t, patience, "the instances of cls1 are deregistered", isWritten(nil, writtenBy(two, ours)))
			within(t, patience, "the records of cls1 are gone", resolves(two))
			if err := a.Withdraw(t.Context(), webKey(1)); err != nil {
				t.Fatal(err)
			}
			within(t, patience, "the service that this controller created is deleted", func() bool {
				_, there := c.service(t, webKey(1).Namespace, webKey(1).Name)
				return !there
			})
			stopA(registry.ErrLeave)
			stopB(registry.ErrLeave)
			within(t, patience, "the service of the legacy controller stays, without instances", func() bool {
				_, there := c.service(t, webKey(0).Namespace, webKey(0).Name)
				return there && len(c.controllersOf(t)) == 0
			})
			if denied := c.denials(t); len(denied) > 0 {
				t.Errorf("denied: %v", denied)
			}
		})
	}
}

// TestLegacyServicesWithoutIAMTags: without the steps of docs/migration.md the legacy clusters do
// not see changes, the warning at the ServiceExport names the missing step, and the export itself
// works.
func TestLegacyServicesWithoutIAMTags(t *testing.T) {
	for name, tc := range map[string]struct {
		hasDNS, hasTags, deniesAtOnce bool
		want                          string
	}{
		"no tags":                            {want: "tag a namespace or service that this controller did not create"},
		"DNS without policy":                 {hasDNS: true, hasTags: true, want: "or compatibility-dns.json if the legacy controller created it"},
		"DNS without policy, denied at once": {hasDNS: true, hasTags: true, deniesAtOnce: true, want: "or compatibility-dns.json if the legacy controller created it"},
	} {
		t.Run(name, func(t *testing.T) {
			c := startLegacyCloud(t, tc.hasDNS, tc.deniesAtOnce, migrationPolicies)
			if tc.hasTags {
				tagLegacyServices(t, c)
			}
			before := c.controllersOf(t)
			a, _ := viewing(t, c, cls1)
			publish(t, a, legacyExport(cls1, 1))
			within(t, patience, "the export is in the pages, and the warning names the step", func() bool {
				warnings := look(t, a, webKey(0)).Local.Warnings
				return isExported(t, a, webKey(0))() && slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, tc.want) })
			})
			if diff := cmp.Diff(before, c.controllersOf(t)); diff != "" {
				t.Errorf("instances were changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestNarrowedZones: instance-dns.json with the hosted zone of the namespace in place of all zones,
// as docs/iam.md says, allows all that the view writes there.
func TestNarrowedZones(t *testing.T) {
	c := startLegacyCloud(t, true, false, dnsPolicies)
	tagLegacyServices(t, c)
	resolves := hasRecords(t, c, true)
	cfg := fast(cls1)
	cfg.InstanceView, cfg.Instances = true, dnsSettings("")
	a := c.registry(t, cfg)
	stop := start(t, a)
	one, two := legacyExport(cls1, 1), legacyExport(cls2, 2)
	one.Backends[0].Endpoints = one.Backends[0].Endpoints[1:]
	publish(t, a, asking(one, mcs.InstanceDNSSRV))
	within(t, patience, "an endpoint that has ended leaves DNS", resolves(one, two))
	stop(registry.ErrLeave)
	within(t, patience, "so do the others", resolves(two))
	if denied := c.denials(t); len(denied) > 0 {
		t.Errorf("denied: %v", denied)
	}
}
