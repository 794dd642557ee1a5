// Package config is what the user can set: one Options struct, its flags, defaults and validation, and the version.
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/redact"
)

// Options are all settings of the controller, by concern.
type Options struct {
	Registry          Registry
	PeerNotifications PeerNotifications
	AWS               AWS
	// AWSRates replace the default rates of the operations that they name, in every account and Region.
	AWSRates Rates
	Etcd     Etcd
	// ImportFrom are further registries, which are imported from as well.
	ImportFrom Sources
	Migration  Migration
	Identity   Identity
	Scope      Scope
	Kubernetes Kubernetes
	Election   Election
	Serving    Serving
	Log        Log
	// ShowVersion asks for the version and nothing else.
	ShowVersion bool
}

// Registry is the clusterset's shared memory and how this cluster uses it.
type Registry struct {
	// Name chooses the backend.
	Name string
	// InstanceView says whether each endpoint is also shown as a Cloud Map instance, for people and AWS-native consumers.
	InstanceView bool
	// PollInterval is the time between two looks at the registry, PollIntervalWithNotifications while peer notifications from every other cluster
	// arrive, HeartbeatInterval between two signs of life.
	PollInterval, PollIntervalWithNotifications, HeartbeatInterval time.Duration
	// StaleAfter is how long another cluster may show no sign of life until it is stale.
	StaleAfter time.Duration
	// StalePolicy is what becomes of its endpoints then: one of mcs.StalePolicies.
	StalePolicy string
}

// StaleRule is what the importer does about stale clusters.
func (r *Registry) StaleRule() mcs.StaleRule {
	return mcs.StaleRule{Policy: mcs.StalePolicy(r.StalePolicy), After: r.StaleAfter}
}

// Identity is who this cluster is while no ClusterProperty says so.
type Identity struct {
	ClusterID, ClusterSetID string
}

// Kubernetes is how to talk to the cluster's API server.
type Kubernetes struct {
	Kubeconfig, Context string
	QPS                 float32
	Burst               int
	// Concurrency is how many exports and how many imports are worked on at the same time.
	Concurrency int
}

// Election makes one of several replicas work while the others stand by.
type Election struct {
	Enabled bool
	// Namespace holds the Lease, and the ConfigMap that remembers the cluster's identity; "" is the pod's own.
	Namespace string
}

// Serving are the addresses that the controller listens on; "0" is none.
type Serving struct {
	Metrics, Probes string
	// Status is where kubectl mcs asks what the controller knows: a loopback address, reached by port-forward only.
	Status string
}

// RegistryCloudMap is AWS Cloud Map.
const RegistryCloudMap = "cloudmap"

// Default is what holds without any flag.
func Default() Options {
	return Options{
		Registry: Registry{
			Name:                          RegistryCloudMap,
			InstanceView:                  true,
			PollInterval:                  time.Second,
			PollIntervalWithNotifications: 5 * time.Second,
			HeartbeatInterval:             12 * time.Second,
			// Ten missed heartbeats: a restart, a lost lease (15 s) or a throttled minute is not death.
			StaleAfter:  2 * time.Minute,
			StalePolicy: string(mcs.StaleWithdraw),
		},
		PeerNotifications: PeerNotifications{Enabled: true, Bind: ":8479"},
		AWS:               AWS{InstancesPerNamespace: 2000},
		AWSRates:          Rates{},
		Etcd:              Etcd{Prefix: "/mcs"},
		Migration:         Migration{PollInterval: 5 * time.Second},
		Scope:             Scope{ExportNamespaces: allButSystem, ImportNamespaces: allButSystem},
		Kubernetes: Kubernetes{
			// client-go's own 5 a second would dominate every delay: a new import is five writes, a new export one or two, so 300
			// services at once would take five minutes. The API server guards itself (priority and fairness); this only bounds a
			// controller that goes wrong. 3,000 new imports are 15,000 writes: at 500 a second, half a minute.
			QPS:   500,
			Burst: 1000,
			// The writes of an import follow one another: where each takes 50 ms, 24 imports make 480 a second. 24 are an eighth of the
			// writes that an API server does at a time (--max-mutating-requests-inflight, 200).
			Concurrency: 24,
		},
		Election: Election{Enabled: true},
		Serving:  Serving{Metrics: ":8080", Probes: ":8081", Status: "127.0.0.1:8082"},
		Log:      Log{Level: "info", Format: "json"},
	}
}

// Parse makes Options of the command line. The error names every invalid setting and what is valid. It shows no password that a
// URL has.
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

// Flags are the flags that set o, with o's values as defaults.
func (o *Options) Flags() *pflag.FlagSet {
	flags := pflag.NewFlagSet("controller", pflag.ContinueOnError)
	flags.SortFlags = false
	o.Registry.bind(flags)
	o.PeerNotifications.bind(flags)
	o.AWS.bind(flags)
	flags.Var(o.AWSRates, "aws-rate",
		"requests a second, and at once, that this cluster allows itself of an operation of Cloud Map, such as RegisterInstance=20/40 (repeatable); docs/cost.md has the defaults")
	o.Etcd.bind(flags)
	flags.Var(&o.ImportFrom, "import-from",
		"a further registry to import from, without exporting to it, such as cloudmap,region=eu-central-1,role-arn=arn:aws:iam::111122223333:role/mcs-reader (repeatable); "+
			"its settings are name, region, endpoint, role-arn, role-external-id, role-session-name and namespace-owner, "+
			"and of etcd name, endpoints (separated by semicolons), ca, cert, key, username, password-file and prefix")
	o.Migration.bind(flags)
	o.Identity.bind(flags)
	o.Scope.bind(flags)
	o.Kubernetes.bind(flags)
	o.Election.bind(flags)
	o.Serving.bind(flags)
	o.Log.bind(flags)
	flags.BoolVar(&o.ShowVersion, "version", o.ShowVersion, "print the version and exit")
	return flags
}

func (r *Registry) bind(flags *pflag.FlagSet) {
	flags.StringVar(&r.Name, "registry", r.Name,
		"the clusterset's shared registry: "+RegistryCloudMap+" or "+RegistryEtcd)
	flags.BoolVar(&r.InstanceView, "instance-view", r.InstanceView,
		"show each exported endpoint as a Cloud Map instance as well, for people and AWS-native consumers; importing does not need it")
	flags.DurationVar(&r.PollInterval, "poll-interval", r.PollInterval,
		"time between two looks at the registry")
	flags.DurationVar(&r.PollIntervalWithNotifications, "poll-interval-with-notifications", r.PollIntervalWithNotifications,
		"time between two looks at the registry while peer notifications from every other cluster arrive; at least --poll-interval and at most a quarter of --stale-after are used")
	flags.DurationVar(&r.HeartbeatInterval, "heartbeat-interval", r.HeartbeatInterval,
		"time between two signs of life of this cluster in the registry")
	flags.DurationVar(&r.StaleAfter, "stale-after", r.StaleAfter,
		"time without a sign of life after which another cluster is stale, measured by this cluster's clock; at least three heartbeat intervals of that cluster")
	flags.StringVar(&r.StalePolicy, "stale-cluster-policy", r.StalePolicy,
		"what becomes of the imported endpoints of a stale cluster: withdraw (but never the last ones of a service or port), withdraw-all or keep")
}

func (i *Identity) bind(flags *pflag.FlagSet) {
	flags.StringVar(&i.ClusterID, "cluster-id", i.ClusterID,
		"ID of this cluster, used only while there is no ClusterProperty cluster.clusterset.k8s.io")
	flags.StringVar(&i.ClusterSetID, "clusterset-id", i.ClusterSetID,
		"ID of the clusterset, used only while there is no ClusterProperty clusterset.k8s.io")
}

func (k *Kubernetes) bind(flags *pflag.FlagSet) {
	flags.StringVar(&k.Kubeconfig, "kubeconfig", k.Kubeconfig,
		"path of a kubeconfig, to run outside of the cluster (default: KUBECONFIG, else the pod's service account)")
	flags.StringVar(&k.Context, "kube-context", k.Context,
		"context of the kubeconfig (default: its current one)")
	flags.Float32Var(&k.QPS, "kube-api-qps", k.QPS,
		"requests per second to the Kubernetes API server")
	flags.IntVar(&k.Burst, "kube-api-burst", k.Burst,
		"requests to the Kubernetes API server in one burst")
	flags.IntVar(&k.Concurrency, "concurrency", k.Concurrency,
		"exports, and likewise imports, that are worked on at the same time")
}

func (e *Election) bind(flags *pflag.FlagSet) {
	flags.BoolVar(&e.Enabled, "leader-elect", e.Enabled,
		"let one replica work while the others stand by")
	flags.StringVar(&e.Namespace, "leader-election-namespace", e.Namespace,
		"namespace of the leader election's Lease and of the ConfigMap that remembers this cluster's identity (default: the pod's own)")
}

func (s *Serving) bind(flags *pflag.FlagSet) {
	flags.StringVar(&s.Metrics, "metrics-bind-address", s.Metrics,
		"address of the Prometheus metrics; 0 switches them off")
	flags.StringVar(&s.Probes, "health-probe-bind-address", s.Probes,
		"address of /healthz and /readyz; 0 switches them off")
	flags.StringVar(&s.Status, "status-bind-address", s.Status,
		"loopback address of what kubectl mcs asks for through kubectl port-forward; 0 switches it off")
}

// Validate reports every setting that cannot work, and what would.
func (o *Options) Validate() error {
	var etcd error
	if o.Registry.Name == RegistryEtcd {
		etcd = o.Etcd.validate()
	}
	return errors.Join(o.Registry.validate(), o.PeerNotifications.validate(), o.AWS.validate(), etcd, o.ImportFrom.validate(), o.Migration.validate(), o.Identity.validate(), o.Scope.validate(), o.Kubernetes.validate(), o.Serving.validate(), o.Log.validate())
}

const (
	// A poll costs one Discover request of an account's budget of 1,000 a second, shared by all clusters.
	minPollInterval = 100 * time.Millisecond
	// A heartbeat costs one write of about 50 a second for the whole account.
	minHeartbeatInterval = time.Second
	// Fewer than three missed heartbeats would make one lost write and one slow read look like death.
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
	problems = append(problems, oneOf("stale-cluster-policy", r.StalePolicy, mcs.StalePolicies()))
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

// validate keeps the status endpoint, which asks nobody who he is, off the network.
func (s *Serving) validate() error {
	if s.Status == "0" {
		return nil
	}
	address, err := netip.ParseAddrPort(s.Status)
	if err != nil || !address.Addr().IsLoopback() {
		return fmt.Errorf("--status-bind-address=%s: must be a loopback address and a port, such as 127.0.0.1:8082, or 0", s.Status)
	}
	return nil
}

// oneOf is the error of a setting whose value is none of those allowed.
func oneOf(flag, value string, allowed []string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("--%s=%s: must be one of %s", flag, value, strings.Join(allowed, ", "))
}
