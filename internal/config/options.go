// Package config holds the settings of the controller: one Options struct with its flags, defaults
// and validation, and the version. Default is the only place of a default.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/redact"
)

// Options are all settings of the controller, by concern.
type Options struct {
	Registry          Registry
	PeerNotifications PeerNotifications
	AWS               AWS
	// AWSRates override the default rates of operations, in every account and Region.
	AWSRates Rates
	Etcd     Etcd
	// ImportFrom are additional registries that are imported from.
	ImportFrom Sources
	Migration  Migration
	// CloudMapServices are services of Cloud Map that no cluster exports.
	CloudMapServices CloudMapServices
	Identity         Identity
	Membership       Membership
	Scope            Scope
	Budgets          Budgets
	// ClusterSetIPHold is the time for which the clusterset IPs of an ended import stay reserved
	// for its service.
	ClusterSetIPHold time.Duration
	Kubernetes       Kubernetes
	Election         Election
	Serving          Serving
	Tracing          Tracing
	Log              Log
	// ShowVersion prints the version and exits.
	ShowVersion bool
}

// Registry configures the registry that this cluster exports to.
type Registry struct {
	// Name selects the backend.
	Name string
	// InstanceView registers each exported endpoint as a Cloud Map instance, for users and other
	// AWS services.
	InstanceView bool
	// Instances configures the instance view.
	Instances Instances
	// PollInterval is the time between two polls, PollIntervalWithNotifications while peer
	// notifications from every other cluster arrive.
	PollInterval, PollIntervalWithNotifications time.Duration
	// HeartbeatInterval is the time between two heartbeats of this cluster.
	HeartbeatInterval time.Duration
	// StaleAfter is the time without a heartbeat after which another cluster is stale.
	StaleAfter time.Duration
	// StalePolicy selects the treatment of a stale cluster's endpoints: one of mcs.StalePolicies.
	StalePolicy string
	// PathHealth is the policy for clusters that pods of this cluster cannot reach: one of
	// mcs.PathHealths.
	PathHealth string
}

// Instances configures the Cloud Map services of the instance view.
type Instances struct {
	// VPC is the ID of the VPC of private DNS namespaces that the view creates; with "" it creates
	// HTTP namespaces.
	VPC string
	// TTL is that of DNS records, Routing their routing policy: RoutingMultivalue or
	// RoutingWeighted.
	TTL     time.Duration
	Routing string
	// Unready is the treatment of endpoints that are not ready: UnreadyMark, UnreadyDeregister or
	// UnreadyUnhealthy.
	Unready string
	// Stale is the treatment of instances of stale clusters: StaleKeep or StaleUnhealthy.
	Stale string
}

// StaleRule returns the importer's rule for stale clusters.
func (r *Registry) StaleRule() mcs.StaleRule {
	return mcs.StaleRule{Policy: mcs.StalePolicy(r.StalePolicy), After: r.StaleAfter}
}

// Identity is used while the cluster has no ClusterProperties.
type Identity struct {
	ClusterID, ClusterSetID string
}

// Kubernetes configures the client of the API server and the controllers.
type Kubernetes struct {
	Kubeconfig, Context string
	QPS                 float32
	Burst               int
	// Concurrency is the number of exports, and of imports, that are reconciled in parallel.
	Concurrency int
}

// Election configures leader election: one of several replicas is active.
type Election struct {
	Enabled bool
	// Namespace holds the Lease and the ConfigMap with the cluster's identity; "" is the pod's
	// namespace.
	Namespace string
}

// Serving configures the addresses that the controller listens on; "0" disables a server.
type Serving struct {
	Metrics, Probes string
	// MetricsSecure serves metrics over HTTPS, to clients that the API server authenticates and
	// authorizes.
	MetricsSecure bool
	// MetricsCertDir has tls.crt and tls.key of the metrics endpoint; "" is a self-signed
	// certificate.
	MetricsCertDir string
	// Status serves the state of the controller to kubectl mcs: a loopback address, reached by
	// port-forward.
	Status string
	// Pprof serves profiles of the process: a loopback address, or 0.
	Pprof string
}

// ProbePort returns the port of Probes, 0 if they are off. The controllers of the other clusters
// are assumed to use the same.
func (s *Serving) ProbePort() uint16 {
	_, port, err := net.SplitHostPort(s.Probes)
	if err != nil {
		return 0
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(number)
}

// RegistryCloudMap selects AWS Cloud Map.
const RegistryCloudMap = "cloudmap"

// Default returns the settings without any flag.
func Default() Options {
	return Options{
		Registry: Registry{
			Name:         RegistryCloudMap,
			InstanceView: true,
			// 15 s is the TTL of Cloud Map's negative answers, so that endpoints that appear are
			// seen as soon as those that disappear.
			Instances:    Instances{TTL: 15 * time.Second, Routing: RoutingMultivalue, Unready: UnreadyMark, Stale: StaleKeep},
			PollInterval: time.Second,
			// Each notification is repeated every two seconds, so polls only find changes of which
			// no cluster notifies: a quarter of StaleAfter is the longest interval.
			PollIntervalWithNotifications: 30 * time.Second,
			HeartbeatInterval:             12 * time.Second,
			// Ten missed heartbeats: a restart, a lost lease (7 s) or a throttled minute does not
			// make a cluster stale.
			StaleAfter:  2 * time.Minute,
			StalePolicy: string(mcs.StaleWithdraw),
			PathHealth:  string(mcs.PathHealthWithdraw),
		},
		PeerNotifications: PeerNotifications{Enabled: true, Bind: ":8479"},
		AWS:               AWS{InstancesPerNamespace: 2000},
		AWSRates:          Rates{},
		Etcd:              Etcd{Prefix: names.EtcdPrefix},
		Migration:         Migration{PollInterval: 5 * time.Second},
		CloudMapServices:  CloudMapServices{Cluster: "cloud-map"},
		// Deleting and applying CRDs or ClusterProperties again takes seconds, a failed GitOps sync
		// minutes.
		Membership: Membership{LeaveAfter: 5 * time.Minute},
		Scope: Scope{
			ExportNamespaces: allButSystem, ImportNamespaces: allButSystem, ExportSlices: ExportAllSlices, ImportMetadata: mcs.DefaultMetadataKeys,
			ClusterPreference: string(mcs.PreferNoCluster), InstanceDNS: string(mcs.InstanceDNSNone),
		},
		Budgets: defaultBudgets(),
		// An hour covers a deployment that is rolled back, and a registry that is restored.
		ClusterSetIPHold: time.Hour,
		Kubernetes: Kubernetes{
			// client-go's default of 5 a second would dominate every delay: a new import is five
			// writes, a new export one or two, so 300 services at once would take five minutes. The
			// API server protects itself (priority and fairness); this limit only bounds a
			// controller that malfunctions. 3,000 new imports are 15,000 writes: at 500 a second,
			// 30 s.
			QPS:   500,
			Burst: 1000,
			// The writes of an import are sequential: at 50 ms each, 24 imports make 480 a second.
			// 24 are an eighth of the writes that an API server executes in parallel
			// (--max-mutating-requests-inflight, 200).
			Concurrency: 24,
		},
		Election: Election{Enabled: true},
		Serving:  Serving{Metrics: ":8080", MetricsSecure: true, Probes: ":8081", Status: fmt.Sprintf("127.0.0.1:%d", names.StatusPort), Pprof: "0"},
		Tracing:  Tracing{SamplingRatio: 1},
		Log:      Log{Level: "info", Format: "json"},
	}
}

// Parse returns the Options of a command line. The error names every invalid setting and its valid
// values. It contains no password of a URL.
func Parse(args []string) (Options, error) {
	options, err := parse(args)
	return options, redact.Error(err)
}

func parse(args []string) (Options, error) {
	options := Default()
	flags := options.Flags()
	if err := flags.Parse(args); err != nil {
		return Options{}, fmt.Errorf("parsing flags: %w", err)
	}
	if extra := flags.Args(); len(extra) > 0 {
		return Options{}, fmt.Errorf("unexpected argument %q: settings are flags, see --help", extra[0])
	}
	return options, options.Validate()
}

// FlagGroups returns the flags that set o by group, with o's values as defaults.
func (o *Options) FlagGroups() FlagGroups {
	var g FlagGroups
	o.Identity.bind(g.group("clusterset"))
	o.Membership.bind(g.group("clusterset"))
	o.Registry.bind(g.group("registry"))
	o.ImportFrom.bind(g.group("registry"))
	o.AWS.bind(g.group("AWS"))
	o.AWSRates.bind(g.group("AWS"))
	o.Etcd.bind(g.group("etcd"))
	o.Registry.bindInstances(g.group("instance view"))
	o.Scope.bindInstances(g.group("instance view"))
	o.Registry.Instances.bind(g.group("instance view"))
	o.Scope.bindExports(g.group("export"))
	o.Scope.bindImports(g.group("import"))
	o.CloudMapServices.bind(g.group("import"))
	o.Budgets.bind(g.group("import"))
	o.bindHold(g.group("import"))
	o.Registry.bindHealth(g.group("cluster health"))
	o.PeerNotifications.bind(g.group("peer notification"))
	o.Migration.bind(g.group("migration"))
	o.Kubernetes.bind(g.group("Kubernetes"))
	o.Election.bind(g.group("Kubernetes"))
	o.Serving.bind(g.group("metrics and probe"))
	o.Tracing.bind(g.group("tracing"))
	o.Log.bind(g.group("log"))
	o.bindVersion(g.group("global"))
	g.bindHelp(g.group("global"))
	return g
}

func (o *Options) bindVersion(common, _ *pflag.FlagSet) {
	common.BoolVar(&o.ShowVersion, "version", o.ShowVersion, "Print the version and exit.")
}

func (o *Options) bindHold(_, advanced *pflag.FlagSet) {
	advanced.DurationVar(&o.ClusterSetIPHold, "clusterset-ip-hold", o.ClusterSetIPHold,
		"Time that the clusterset IPs of an ended import stay reserved for its service. 0 releases them at once.")
}

func (r *Registry) bind(common, advanced *pflag.FlagSet) {
	common.StringVar(&r.Name, "registry", r.Name,
		"Registry of the clusterset: "+RegistryCloudMap+" or "+RegistryEtcd+".")
	advanced.DurationVar(&r.PollInterval, "poll-interval", r.PollInterval,
		"Interval between polls of the registry.")
	advanced.DurationVar(&r.PollIntervalWithNotifications, "poll-interval-with-notifications", r.PollIntervalWithNotifications,
		"Interval between polls while peer notifications from every other cluster arrive, up to a quarter of --stale-after.")
	advanced.DurationVar(&r.HeartbeatInterval, "heartbeat-interval", r.HeartbeatInterval,
		"Interval between heartbeats. Twice as long on Cloud Map while nothing changes and peer notifications arrive.")
}

func (r *Registry) bindInstances(common, _ *pflag.FlagSet) {
	common.BoolVar(&r.InstanceView, "instance-view", r.InstanceView,
		"Register exported endpoints as Cloud Map instances, for clients outside of Kubernetes. AWS bills them: "+docs.URL("instance-view.md"))
}

func (r *Registry) bindHealth(common, _ *pflag.FlagSet) {
	common.DurationVar(&r.StaleAfter, "stale-after", r.StaleAfter,
		"Time without a heartbeat after which another cluster is stale. At least three heartbeat intervals.")
	common.StringVar(&r.StalePolicy, "stale-cluster-policy", r.StalePolicy,
		"Policy for the endpoints of stale clusters: withdraw (all but the last ones), withdraw-all or keep.")
	common.StringVar(&r.PathHealth, "path-health", r.PathHealth,
		"Policy for clusters whose pods cannot be reached: withdraw (all but the last endpoints), observe or off.")
}

func (i *Identity) bind(common, _ *pflag.FlagSet) {
	common.StringVar(&i.ClusterID, "cluster-id", i.ClusterID,
		"ID of this cluster. Used only while ClusterProperty cluster.clusterset.k8s.io does not exist.")
	common.StringVar(&i.ClusterSetID, "clusterset-id", i.ClusterSetID,
		"ID of the clusterset. Used only while ClusterProperty clusterset.k8s.io does not exist.")
}

func (k *Kubernetes) bind(common, advanced *pflag.FlagSet) {
	common.StringVar(&k.Kubeconfig, "kubeconfig", k.Kubeconfig,
		"Path of a kubeconfig, to run outside of the cluster (default: KUBECONFIG, otherwise the pod's service account).")
	advanced.StringVar(&k.Context, "kube-context", k.Context,
		"Context of the kubeconfig (default: the current context).")
	advanced.Float32Var(&k.QPS, "kube-api-qps", k.QPS,
		"Client-side rate limit for the Kubernetes API server, in requests per second.")
	advanced.IntVar(&k.Burst, "kube-api-burst", k.Burst,
		"Burst of --kube-api-qps.")
	advanced.IntVar(&k.Concurrency, "concurrency", k.Concurrency,
		"Number of exports, and of imports, that are reconciled in parallel.")
}

func (e *Election) bind(_, advanced *pflag.FlagSet) {
	advanced.BoolVar(&e.Enabled, "leader-elect", e.Enabled,
		"Enable leader election: only one replica is active.")
	advanced.StringVar(&e.Namespace, "leader-election-namespace", e.Namespace,
		"Namespace of the Lease and of the ConfigMap with this cluster's identity (default: the pod's namespace).")
}

func (s *Serving) bind(common, advanced *pflag.FlagSet) {
	common.StringVar(&s.Metrics, "metrics-bind-address", s.Metrics,
		"Address of the Prometheus metrics endpoint. 0 disables it.")
	common.BoolVar(&s.MetricsSecure, "metrics-secure", s.MetricsSecure,
		"Serve metrics over HTTPS, to clients that may get the non-resource URL /metrics. false: over HTTP to everyone.")
	common.StringVar(&s.MetricsCertDir, "metrics-cert-dir", s.MetricsCertDir,
		"Directory with tls.crt and tls.key of the metrics endpoint (default: a self-signed certificate).")
	advanced.StringVar(&s.Probes, "health-probe-bind-address", s.Probes,
		"Address of the /healthz and /readyz endpoints. 0 disables them.")
	advanced.StringVar(&s.Status, "status-bind-address", s.Status,
		"Loopback address of the status endpoint, which kubectl mcs reads through port-forward. 0 disables it.")
	advanced.StringVar(&s.Pprof, "pprof-bind-address", s.Pprof,
		"Loopback address of profiles of the controller (/debug/pprof). 0 disables it.")
}

// Validate reports every invalid setting and its valid values.
func (o *Options) Validate() error {
	var etcd error
	if o.Registry.Name == RegistryEtcd {
		etcd = o.Etcd.validate()
	}
	return errors.Join(o.Registry.validate(), o.PeerNotifications.validate(), o.AWS.validate(), etcd, o.ImportFrom.validate(), o.Migration.validate(), o.CloudMapServices.validate(), o.Identity.validate(), o.Membership.validate(), o.Scope.validate(), o.validateHold(), o.Kubernetes.validate(), o.Serving.validate(), o.Tracing.validate(), o.Log.validate())
}

func (o *Options) validateHold() error {
	if o.ClusterSetIPHold < 0 {
		return fmt.Errorf("--clusterset-ip-hold=%s: must not be negative", o.ClusterSetIPHold)
	}
	return nil
}

const (
	// A poll costs one DiscoverInstances request of an account's 1,000 a second, shared by all
	// clusters.
	minPollInterval = 100 * time.Millisecond
	// A heartbeat costs one write of about 50 a second for the whole account.
	minHeartbeatInterval = time.Second
	// With fewer than three missed heartbeats, one lost write and one slow read would make a
	// cluster stale.
	minStaleHeartbeats = 3
)

func (r *Registry) validate() error {
	var problems []error
	if err := oneOf("registry", r.Name, []string{RegistryCloudMap, RegistryEtcd}); err != nil {
		problems = append(problems, err)
	}
	if r.PollInterval < minPollInterval {
		problems = append(problems, fmt.Errorf("--poll-interval=%s: must be at least %s", r.PollInterval, minPollInterval))
	}
	if r.PollIntervalWithNotifications < minPollInterval {
		problems = append(problems, fmt.Errorf("--poll-interval-with-notifications=%s: must be at least %s", r.PollIntervalWithNotifications, minPollInterval))
	}
	if r.HeartbeatInterval < minHeartbeatInterval {
		problems = append(problems, fmt.Errorf("--heartbeat-interval=%s: must be at least %s", r.HeartbeatInterval, minHeartbeatInterval))
	}
	if least := minStaleHeartbeats * r.HeartbeatInterval; r.StaleAfter < least {
		problems = append(problems, fmt.Errorf("--stale-after=%s: must be at least %d times --heartbeat-interval, which is %s",
			r.StaleAfter, minStaleHeartbeats, least))
	}
	problems = append(problems, oneOf("stale-cluster-policy", r.StalePolicy, mcs.StalePolicies()), oneOf("path-health", r.PathHealth, mcs.PathHealths()), r.Instances.validate(), r.validateStale())
	return errors.Join(problems...)
}

// validateStale returns an error if the instances of stale clusters cannot become unhealthy.
func (r *Registry) validateStale() error {
	if r.Instances.Stale != StaleUnhealthy {
		return nil
	}
	var problems []error
	check := func(isProblem bool, problem string) {
		if isProblem {
			problems = append(problems, fmt.Errorf("--stale-instances=%s %s", StaleUnhealthy, problem))
		}
	}
	check(r.Instances.Unready != UnreadyUnhealthy, "needs --unready-instances="+UnreadyUnhealthy)
	check(r.StalePolicy == string(mcs.StaleKeep), "has no effect with --stale-cluster-policy="+string(mcs.StaleKeep))
	return errors.Join(problems...)
}

func (i *Identity) validate() error {
	var problems []error
	check := func(flag, value string) {
		if value == "" {
			return
		}
		if err := mcs.ValidateClusterID(value); err != nil {
			problems = append(problems, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	check("cluster-id", i.ClusterID)
	check("clusterset-id", i.ClusterSetID)
	return errors.Join(problems...)
}

func (k *Kubernetes) validate() error {
	var problems []error
	if k.QPS <= 0 {
		problems = append(problems, fmt.Errorf("--kube-api-qps=%v: must be positive", k.QPS))
	}
	if float32(k.Burst) < k.QPS {
		problems = append(problems, fmt.Errorf("--kube-api-burst=%d: must be at least --kube-api-qps, which is %v", k.Burst, k.QPS))
	}
	if k.Concurrency < 1 {
		problems = append(problems, fmt.Errorf("--concurrency=%d: must be at least 1", k.Concurrency))
	}
	return errors.Join(problems...)
}

// validate keeps the status endpoint, which has no authentication, off the network.
func (s *Serving) validate() error {
	var problems []error
	if s.MetricsCertDir != "" && !s.MetricsSecure {
		problems = append(problems, fmt.Errorf("--metrics-cert-dir=%s: has no effect with --metrics-secure=false", s.MetricsCertDir))
	}
	problems = append(problems, loopback("status-bind-address", s.Status, "127.0.0.1:8082"), loopback("pprof-bind-address", s.Pprof, "127.0.0.1:8083"))
	return errors.Join(problems...)
}

// loopback returns an error unless the address is one of the loopback interface, with a port, or 0.
// A client that can reach such a server needs no other right: it must not listen on an address of
// the pod.
func loopback(flag, value, example string) error {
	if value == "0" {
		return nil
	}
	if address, err := netip.ParseAddrPort(value); err != nil || !address.Addr().IsLoopback() {
		return fmt.Errorf("--%s=%s: must be a loopback address and a port, such as %s, or 0", flag, value, example)
	}
	return nil
}

// oneOf returns an error unless value is one of those allowed.
func oneOf(flag, value string, allowed []string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("--%s=%s: must be one of %s", flag, value, strings.Join(allowed, ", "))
}
