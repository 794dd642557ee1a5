package attack

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
)

// createZone creates a private DNS namespace of another team.
func (c *cloud) createZone(name string) api.Namespace {
	c.t.Helper()
	out, err := c.sdk(admin).CreatePrivateDnsNamespace(c.t.Context(), &servicediscovery.CreatePrivateDnsNamespaceInput{Name: &name, Vpc: aws.String("vpc-0a1b2c3d")})
	if err == nil {
		_, err = c.client(admin).AwaitOperation(c.t.Context(), aws.ToString(out.OperationId))
	}
	all, listErr := c.client(admin).ListNamespaces(c.t.Context())
	if err != nil || listErr != nil {
		c.t.Fatal(err, listErr)
	}
	return all[name]
}

func TestAttack_ZonesOfOthers(t *testing.T) {
	document, err := cloudmaptest.PolicyDocument(os.DirFS("../../deploy/iam"), "instance-dns.json", identityOf(intruder))
	if err != nil {
		t.Fatal(err)
	}
	narrowed, err := cloudmaptest.NarrowZones(document, "ZOFTHECLUSTERS")
	if err != nil {
		t.Fatal(err)
	}
	// attack has the intruder write in the hosted zones of another team, and checks each request.
	attack := func(t *testing.T, document []byte, check func(t *testing.T, request string, err error)) {
		t.Helper()
		var policy iampolicy.Policy
		if err := json.Unmarshal(document, &policy); err != nil {
			t.Fatal(err)
		}
		inCloud(t, cloudOptions{documents: []iampolicy.Policy{policy}, denyAtOnce: true}, func(t *testing.T, c *cloud) {
			in, empty := c.createZone("payments"), c.createZone("archive")
			out, err := c.sdk(admin).CreateService(t.Context(), &servicediscovery.CreateServiceInput{Name: aws.String("ledger"), NamespaceId: &in.ID,
				DnsConfig: &types.DnsConfig{DnsRecords: []types.DnsRecord{{Type: types.RecordTypeA, TTL: aws.Int64(60)}}}})
			if err != nil {
				t.Fatal(err)
			}
			ledger := aws.ToString(out.Service.Id)
			instance := api.Instance{ID: "ledger-1", Attributes: map[string]string{"AWS_INSTANCE_IPV4": "10.0.0.1"}}
			if _, err := c.client(admin).RegisterInstance(t.Context(), ledger, instance); err != nil {
				t.Fatal(err)
			}
			for _, arn := range []string{in.ARN, empty.ARN, aws.ToString(out.Service.Arn)} {
				if err := c.tag(arn, tag("managed-by", "cloud-map-mcs-controller"), tag("clusterset", clusterSet), tag("cluster", intruder), tag("part", "view")); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Minute)
			instance.Attributes["AWS_INSTANCE_IPV4"] = "10.66.66.66"
			_, err = c.attacker().RegisterInstance(t.Context(), ledger, instance)
			check(t, "changing the address of a name", err)
			check(t, "removing a name", c.attacker().DeregisterInstance(t.Context(), ledger, instance.ID))
			check(t, "deleting a hosted zone", c.attacker().DeleteNamespace(t.Context(), empty))
		})
	}
	t.Run("narrowed", func(t *testing.T) { attack(t, narrowed, wantDenied) })
	// Control: the policy as shipped.
	t.Run("as shipped", func(t *testing.T) {
		attack(t, document, func(t *testing.T, request string, err error) {
			if err != nil {
				t.Errorf("%s: %v, want that instance-dns.json allows it in all hosted zones", request, err)
			}
		})
	})
}
