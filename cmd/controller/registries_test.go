package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/legacy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap"
	cloudmapapi "github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/instances"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/mapped"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/union"
)

// TestPlanRegistries compares all that the command line configures with the plans of the
// registries.
func TestPlanRegistries(t *testing.T) {
	const role = "arn:aws:iam::111122223333:role/mcs"
	defaultNotifications := config.PeerNotifications{Enabled: true, Bind: ":8479"}
	tests := []struct {
		name, args string
		want       []namedPlan
	}{
		{
			name: "defaults",
			want: []namedPlan{{"cloudmap", "--registry=cloudmap", cloudMapPlan{
				client: cloudmapapi.Config{Name: "cloudmap", Rates: map[string]cloudmapapi.Rate{}},
				registry: cloudmap.Config{
					Version: config.Version, InstanceView: true, Instances: defaultInstances, InstancesPerNamespace: 2000,
					PollInterval: time.Second, PollIntervalWithNotifications: 30 * time.Second, HeartbeatInterval: 12 * time.Second, StaleAfter: 2 * time.Minute,
				},
				notifications: defaultNotifications,
			}}},
		},
		{
			name: "Cloud Map, all flags",
			args: "--instance-view=false --poll-interval=2s --poll-interval-with-notifications=7s --heartbeat-interval=11s --stale-after=3m " +
				"--aws-region=eu-west-1 --aws-endpoint=https://cloudmap.example.com --aws-data-endpoint=https://data.example.com --aws-role-arn=" + role + " --aws-role-external-id=external --aws-role-session-name=session " +
				"--aws-namespace-owner=444455556666 --aws-instances-per-namespace=5000 --aws-rate=RegisterInstance=20/40 " +
				"--peer-notification-bind-address=:99 --peer-notification-advertise-address=192.0.2.1:100",
			want: []namedPlan{{"cloudmap", "--registry=cloudmap", cloudMapPlan{
				client: cloudmapapi.Config{
					Name: "cloudmap", Region: "eu-west-1", Endpoint: "https://cloudmap.example.com", DataEndpoint: "https://data.example.com",
					Role:           cloudmapapi.Role{ARN: role, ExternalID: "external", SessionName: "session"},
					NamespaceOwner: "444455556666", Rates: map[string]cloudmapapi.Rate{"RegisterInstance": {PerSecond: 20, Burst: 40}},
				},
				registry: cloudmap.Config{
					Version: config.Version, Instances: defaultInstances, InstancesPerNamespace: 5000,
					PollInterval: 2 * time.Second, PollIntervalWithNotifications: 7 * time.Second, HeartbeatInterval: 11 * time.Second, StaleAfter: 3 * time.Minute,
				},
				notifications: config.PeerNotifications{Enabled: true, Bind: ":99", Advertise: "192.0.2.1:100"},
			}}},
		},
		{
			name: "stale instances", args: "--unready-instances=unhealthy --stale-instances=unhealthy --stale-cluster-policy=withdraw-all --aws-region=eu-west-1",
			want: []namedPlan{{"cloudmap", "--registry=cloudmap", cloudMapPlan{
				client: cloudmapapi.Config{Name: "cloudmap", Region: "eu-west-1", Rates: map[string]cloudmapapi.Rate{}},
				registry: cloudmap.Config{
					Version: config.Version, InstanceView: true, InstancesPerNamespace: 2000,
					Instances:    instances.Settings{TTL: 15, Routing: "MULTIVALUE", Unready: instances.UnreadyUnhealthy, Stale: mcs.StaleWithdrawAll},
					PollInterval: time.Second, PollIntervalWithNotifications: 30 * time.Second, HeartbeatInterval: 12 * time.Second, StaleAfter: 2 * time.Minute,
				},
				notifications: defaultNotifications,
			}}},
		},
		{
			name: "etcd, all flags",
			args: "--registry=etcd --etcd-endpoints=https://a:2379,https://b:2379 --etcd-ca=ca --etcd-cert=cert --etcd-key=key --etcd-username=user " +
				"--etcd-password-file=password --etcd-prefix=/other --poll-interval=2s --heartbeat-interval=11s --stale-after=3m",
			want: []namedPlan{{"etcd", "--registry=etcd", etcdPlan{
				client: etcd.ClientConfig{
					Name: "etcd", Endpoints: []string{"https://a:2379", "https://b:2379"}, CAFile: "ca", CertFile: "cert", KeyFile: "key",
					Username: "user", PasswordFile: "password",
				},
				registry: etcd.Config{
					Version: config.Version, Prefix: "/other",
					PollInterval: 2 * time.Second, HeartbeatInterval: 11 * time.Second, StaleAfter: 3 * time.Minute,
				},
			}}},
		},
		{
			name: "sources, with defaults of the registry that is exported to",
			args: "--aws-region=eu-west-1 --etcd-prefix=/other --import-from=cloudmap,name=shared,namespace-owner=444455556666,role-arn=" + role +
				" --import-from=cloudmap,region=eu-central-1 --import-from=etcd,endpoints=https://a:2379 --import-from=etcd,endpoints=https://b:2379,prefix=/mine,name=b" +
				" --import-from-aws-controller --legacy-poll-interval=9s --cloud-map-services=/services.yaml --cloud-map-services-cluster=ecs",
			want: []namedPlan{
				{"cloudmap", "--registry=cloudmap", cloudMapPlan{
					client: cloudmapapi.Config{Name: "cloudmap", Region: "eu-west-1", Rates: map[string]cloudmapapi.Rate{}},
					registry: cloudmap.Config{
						Version: config.Version, InstanceView: true, Instances: defaultInstances, InstancesPerNamespace: 2000,
						PollInterval: time.Second, PollIntervalWithNotifications: 30 * time.Second, HeartbeatInterval: 12 * time.Second, StaleAfter: 2 * time.Minute,
					},
					notifications: defaultNotifications,
				}},
				{"shared", "--import-from=cloudmap,name=shared,namespace-owner=444455556666,role-arn=" + role, importedCloudMap(cloudmapapi.Config{
					Name: "shared", Region: "eu-west-1", NamespaceOwner: "444455556666", Role: cloudmapapi.Role{ARN: role},
				})},
				{"cloudmap/eu-central-1", "--import-from=cloudmap,region=eu-central-1", importedCloudMap(cloudmapapi.Config{
					Name: "cloudmap/eu-central-1", Region: "eu-central-1",
				})},
				{"etcd/a:2379", "--import-from=etcd,endpoints=https://a:2379", importedEtcd("etcd/a:2379", "https://a:2379", "/other")},
				{"b", "--import-from=etcd,endpoints=https://b:2379,prefix=/mine,name=b", importedEtcd("b", "https://b:2379", "/mine")},
				{"aws-controller", "--import-from-aws-controller", legacyPlan{
					client:   cloudmapapi.Config{Name: "aws-controller", Region: "eu-west-1", Rates: legacy.Rates()},
					registry: legacy.Config{PollInterval: 9 * time.Second},
				}},
				{"cloud-map-services", "--cloud-map-services=/services.yaml", mappedPlan{
					client:   cloudmapapi.Config{Name: "cloud-map-services", Region: "eu-west-1", Rates: mapped.Rates()},
					registry: mapped.Config{Path: "/services.yaml", Cluster: "ecs", StaleAfter: 2 * time.Minute},
				}},
			},
		},
	}
	options := []cmp.Option{
		cmp.AllowUnexported(namedPlan{}, cloudMapPlan{}, etcdPlan{}, legacyPlan{}, mappedPlan{}),
		cmpopts.IgnoreUnexported(cloudmap.Config{}, etcd.Config{}, legacy.Config{}, mapped.Config{}, etcd.ClientConfig{}, logr.Logger{}),
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			parsed, err := config.Parse(strings.Fields(tt.args))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, planRegistries(parsed), options...); diff != "" {
				t.Errorf("plans (-want +got):\n%s", diff)
			}
		})
	}
}

// defaultInstances are the settings of the instance view without flags.
var defaultInstances = instances.Settings{TTL: 15, Routing: "MULTIVALUE", Unready: instances.UnreadyMark}

// importedCloudMap returns the plan of a registry on Cloud Map that is only imported from, with
// default intervals.
func importedCloudMap(client cloudmapapi.Config) cloudMapPlan {
	client.Rates = map[string]cloudmapapi.Rate{}
	return cloudMapPlan{client: client, registry: cloudmap.Config{
		Version: config.Version, InstanceView: true, Instances: defaultInstances, ReadOnly: true,
		PollInterval: time.Second, PollIntervalWithNotifications: 30 * time.Second, HeartbeatInterval: 12 * time.Second, StaleAfter: 2 * time.Minute,
	}}
}

// importedEtcd returns the plan of a registry on etcd that is only imported from, with default
// intervals.
func importedEtcd(name, endpoint, prefix string) etcdPlan {
	return etcdPlan{client: etcd.ClientConfig{Name: name, Endpoints: []string{endpoint}}, registry: etcd.Config{
		Version: config.Version, Prefix: prefix, ReadOnly: true,
		PollInterval: time.Second, HeartbeatInterval: 12 * time.Second, StaleAfter: 2 * time.Minute,
	}}
}

// TestNewRegistry creates the registries: several become a union, and an error names the flag.
func TestNewRegistry(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	create := func(args ...string) (registry.Registry, error) {
		options, err := config.Parse(args)
		if err != nil {
			t.Fatal(err)
		}
		newRegistry, err := newRegistry(t.Context(), options, dependencies{log: logr.Discard()})
		if err != nil {
			return nil, err
		}
		reg, err := newRegistry(t.Context(), mcs.Identity{ClusterID: "cls1", ClusterSetID: "set1", UID: "uid"})
		if err != nil {
			return nil, err
		}
		return reg.(keyringRegistry).Registry, nil
	}
	one, err := create("--aws-region=eu-west-1")
	if _, isUnion := one.(*union.Registry); err != nil || isUnion {
		t.Errorf("without --import-from: %T, %v; want no union", one, err)
	}
	many, err := create("--aws-region=eu-west-1", "--import-from=cloudmap,region=eu-central-1", "--import-from=cloudmap,namespace-owner=111122223333",
		"--import-from=etcd,endpoints=https://localhost:2379", "--import-from-aws-controller")
	if _, isUnion := many.(*union.Registry); err != nil || !isUnion {
		t.Errorf("with --import-from: %T, %v; want a union", many, err)
	}
	mapping, err := create("--aws-region=eu-west-1", "--cloud-map-services=/services.yaml")
	if _, isUnion := mapping.(*union.Registry); err != nil || !isUnion {
		t.Errorf("with --cloud-map-services: %T, %v; want a union", mapping, err)
	}
	if _, err := create("--import-from=cloudmap,region=eu-central-1"); err == nil || !strings.HasPrefix(err.Error(), "--registry=cloudmap: ") {
		t.Errorf("without a Region: %v, want an error of --registry=cloudmap", err)
	}
}

// oldEtcd answers as an etcd that must not be used. An etcd of that version cannot be built from
// today's modules.
type oldEtcd struct {
	etcdserverpb.UnimplementedMaintenanceServer
}

func (oldEtcd) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	return &etcdserverpb.StatusResponse{Version: "3.5.0"}, nil
}

// A controller does not start with an etcd that must not be used, unless it only imports from it.
func TestNewRegistry_ChecksEtcd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	etcdserverpb.RegisterMaintenanceServer(server, oldEtcd{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	plan := importedEtcd("etcd", "http://"+listener.Addr().String(), "/mcs")
	deps := dependencies{log: logr.Discard()}
	if _, err := plan.prepare(t.Context(), deps); err != nil {
		t.Errorf("a registry that is only imported from: %v", err)
	}
	plan.registry.ReadOnly = false
	if _, err := plan.prepare(t.Context(), deps); !errors.Is(err, etcd.ErrUnsafeServer) {
		t.Errorf("the cluster's own registry: %v, want %v", err, etcd.ErrUnsafeServer)
	}
}

// Each session has a ledger of its own, with the limits of the flags, that its registries get.
func TestBudgets(t *testing.T) {
	options, err := config.Parse([]string{"--aws-region=eu-west-1", "--budget-scale=0.5"})
	if err != nil {
		t.Fatal(err)
	}
	b := newBudgets(options)
	first := b.open()
	if ledger, isWanted := b.current(); ledger != first || isWanted == nil || ledger.Limits().Member[budget.Exports] != 2_500 {
		t.Errorf("the registries get ledger %p with the limits %v, want %p with 2,500 exports of a member", ledger, ledger.Limits(), first)
	}
	if second := b.open(); second == first {
		t.Error("two sessions share a ledger")
	}
	if ledger, isWanted := (*budgets)(nil).current(); ledger != nil || isWanted != nil {
		t.Error("registries without budgets have some")
	}
}

func TestEveryRegistryHasPlans(t *testing.T) {
	for _, name := range []string{config.Default().Registry.Name, config.RegistryCloudMap, config.RegistryEtcd} {
		if exportPlans[name] == nil || importPlans[name] == nil {
			t.Errorf("--registry=%s has no plan", name)
		}
	}
}
