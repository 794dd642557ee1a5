package config

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name    string
		args    string
		want    func(*Options)
		wantErr []string
	}{
		{name: "defaults", want: func(*Options) {}},
		{
			name: "values", args: "--aws-region=eu-west-1 --cluster-id=cls1 --instance-view=false --poll-interval=2s --log-format=text",
			want: func(o *Options) {
				o.AWS.Region = "eu-west-1"
				o.Identity.ClusterID = "cls1"
				o.Registry.InstanceView = false
				o.Registry.PollInterval = 2 * time.Second
				o.Log.Format = "text"
			},
		},
		{name: "tracing", args: "--tracing-endpoint=[::1]:4317 --tracing-insecure --tracing-sampling-ratio=0.1", want: func(o *Options) {
			o.Tracing = Tracing{Endpoint: "[::1]:4317", Insecure: true, SamplingRatio: 0.1}
		}},
		{
			name: "invalid tracing", args: "--tracing-endpoint=https://collector:4317/v1 --tracing-sampling-ratio=NaN",
			wantErr: []string{"--tracing-endpoint=https://collector:4317/v1: must be a host and a port", "--tracing-sampling-ratio=NaN: must be"},
		},
		{name: "tracing without an endpoint", args: "--tracing-insecure", wantErr: []string{"has no effect without --tracing-endpoint"}},
		{name: "version", args: "--version", want: func(o *Options) { o.ShowVersion = true }},
		{name: "unknown flag", args: "--nonsense", wantErr: []string{"--nonsense"}},
		{name: "argument", args: "run", wantErr: []string{`unexpected argument "run"`}},
		{
			name: "AWS", args: "--aws-role-arn=arn:aws:iam::111122223333:role/a/mcs --aws-role-external-id=x:1 --aws-role-session-name=cls1 --aws-namespace-owner=444455556666 --aws-instances-per-namespace=5000",
			want: func(o *Options) {
				o.AWS = AWS{RoleARN: "arn:aws:iam::111122223333:role/a/mcs", ExternalID: "x:1", SessionName: "cls1", NamespaceOwner: "444455556666", InstancesPerNamespace: 5000}
			},
		},
		{
			name: "invalid AWS settings",
			args: "--aws-role-arn=mcs --aws-role-external-id=! --aws-role-session-name=x --aws-namespace-owner=prod --aws-endpoint=localhost:8080 --aws-data-endpoint=localhost:8081 --aws-region=Ireland --aws-instances-per-namespace=0",
			wantErr: []string{
				"--aws-role-arn=mcs: must be the ARN", "--aws-role-external-id=!: must be", "--aws-role-session-name=x: must be",
				"--aws-namespace-owner=prod: must be the 12 digits", "--aws-endpoint=localhost:8080: must be a URL", "--aws-data-endpoint=localhost:8081: must be a URL", "--aws-region=Ireland: must be an AWS Region",
				"--aws-instances-per-namespace=0: must be at least 1",
			},
		},
		{
			name: "role settings without a role", args: "--aws-role-external-id=abc --aws-role-session-name=abc",
			wantErr: []string{"--aws-role-external-id=abc: has no effect without", "--aws-role-session-name=abc: has no effect without"},
		},
		{name: "import from an unknown kind", args: "--import-from=zookeeper,region=x", wantErr: []string{`must begin with the kind of registry, cloudmap or etcd,`}},
		{name: "import from with an unknown setting", args: "--import-from=cloudmap,zone=a", wantErr: []string{`"zone=a": unknown setting of cloudmap; must be one of data-endpoint, endpoint, name, namespace-owner, region`}},
		{name: "import from with an empty setting", args: "--import-from=cloudmap,region", wantErr: []string{`"region": must have a value, as in region=…`}},
		{name: "import from with a repeated setting", args: "--import-from=cloudmap,region=eu-west-1,region=eu-west-2", wantErr: []string{`"region=eu-west-2": region is set twice`}},
		{name: "import from the registry that is exported to", args: "--import-from=cloudmap", wantErr: []string{"--import-from=cloudmap: must differ from"}},
		{name: "import from an invalid Region", args: "--import-from=cloudmap,region=Ireland", wantErr: []string{"--import-from=cloudmap,…,region=Ireland: must be an AWS Region"}},
		{name: "import from an etcd without TLS", args: "--import-from=etcd,endpoints=http://a:2379", wantErr: []string{`--import-from=etcd,…,endpoints=http://a:2379: "http://a:2379" is not encrypted`}},
		{name: "import from etcd without endpoints", args: "--import-from=etcd", wantErr: []string{"--import-from=etcd,…,endpoints=: must be the URL"}},
		{name: "import from with an invalid name", args: "--import-from=cloudmap,name=A_b,region=eu-west-1", wantErr: []string{`name "A_b" must be at most 63`}},
		{
			name: "import from the same source twice", args: "--import-from=cloudmap,region=eu-west-1 --import-from=cloudmap,region=eu-west-1",
			wantErr: []string{"another registry has the same name cloudmap/eu-west-1: set name=…"},
		},
		{name: "unknown registry", args: "--registry=zookeeper", wantErr: []string{"--registry=zookeeper: must be one of cloudmap, etcd"}},
		{name: "etcd", args: "--registry=etcd --etcd-endpoints=https://a:2379,https://b:2379 --etcd-username=u --etcd-password-file=/p", want: func(o *Options) {
			o.Registry.Name = RegistryEtcd
			o.Etcd.Endpoints, o.Etcd.Username, o.Etcd.PasswordFile = "https://a:2379,https://b:2379", "u", "/p"
		}},
		{name: "etcd without TLS", args: "--registry=etcd --etcd-endpoints=http://a:2379", wantErr: []string{`"http://a:2379" is not encrypted`}},
		{name: "etcd without TLS allowed", args: "--registry=etcd --etcd-endpoints=http://a:2379 --etcd-insecure", want: func(o *Options) {
			o.Registry.Name = RegistryEtcd
			o.Etcd.Endpoints, o.Etcd.Insecure = "http://a:2379", true
		}},
		{name: "etcd with mixed schemes", args: "--registry=etcd --etcd-endpoints=http://a:1,https://b:1 --etcd-insecure", wantErr: []string{"all https:// or all http://"}},
		{name: "etcd endpoint with a password", args: "--registry=etcd --etcd-endpoints=https://u:pass@a:2379", wantErr: []string{"--etcd-endpoints: must not contain a user"}},
		{name: "etcd endpoint without a scheme", args: "--registry=etcd --etcd-endpoints=a:2379", wantErr: []string{`"a:2379" must be a URL`}},
		{
			name: "invalid etcd settings", args: "--registry=etcd --etcd-cert=c --etcd-username=u --etcd-prefix=mcs/",
			wantErr: []string{"--etcd-endpoints: must be the URL of at least one member", "--etcd-cert=c: cert and key must", "--etcd-username=u: username and password-file must", "--etcd-prefix=mcs/: must begin"},
		},
		{name: "poll interval too short", args: "--poll-interval=1ms", wantErr: []string{"--poll-interval=1ms: must be at least 100ms"}},
		{name: "legacy poll interval too short", args: "--legacy-poll-interval=10ms", wantErr: []string{"--legacy-poll-interval=10ms: must be at least 1s"}},
		{name: "poll interval with notifications too short", args: "--poll-interval-with-notifications=0", wantErr: []string{"--poll-interval-with-notifications=0s: must be at least 100ms"}},
		{
			name: "peer notifications", args: "--peer-notifications=false --peer-notification-bind-address=10.0.0.1:99 --peer-notification-advertise-address=[2001:db8::1]:100",
			want: func(o *Options) {
				o.PeerNotifications = PeerNotifications{Bind: "10.0.0.1:99", Advertise: "[2001:db8::1]:100"}
			},
		},
		{
			name: "invalid peer notification addresses", args: "--peer-notification-bind-address=8479 --peer-notification-advertise-address=example.com:8479",
			wantErr: []string{"--peer-notification-bind-address=8479: must be an address and a port", "--peer-notification-advertise-address=example.com:8479: it is not an IP address"},
		},
		{name: "peer notification port 0", args: "--peer-notification-bind-address=:0", wantErr: []string{"must be a number from 1 to 65535"}},
		{name: "rates", args: "--aws-rate=RegisterInstance=20/40 --aws-rate=ListServices=0.5/5,GetOperation=1/1", want: func(o *Options) {
			o.AWSRates = Rates{"RegisterInstance": {20, 40}, "ListServices": {0.5, 5}, "GetOperation": {1, 1}}
		}},
		{name: "rate without burst", args: "--aws-rate=RegisterInstance=20", wantErr: []string{"--aws-rate", "such as RegisterInstance=20/40"}},
		{name: "rate without operation", args: "--aws-rate==20/40", wantErr: []string{"must be an operation"}},
		{name: "rate 0", args: "--aws-rate=RegisterInstance=0/40", wantErr: []string{"above 0"}},
		{name: "rate NaN", args: "--aws-rate=RegisterInstance=NaN/40", wantErr: []string{"above 0"}},
		{name: "burst 0", args: "--aws-rate=RegisterInstance=1/0", wantErr: []string{"at least 1"}},
		{name: "heartbeat interval too short", args: "--heartbeat-interval=10ms", wantErr: []string{"--heartbeat-interval=10ms: must be at least 1s"}},
		{name: "stale-after below three heartbeats", args: "--stale-after=30s", wantErr: []string{"--stale-after=30s: must be at least 3 times --heartbeat-interval, which is 36s"}},
		{name: "stale-after of exactly three heartbeats", args: "--stale-after=36s", want: func(o *Options) { o.Registry.StaleAfter = 36 * time.Second }},
		{name: "stale policy", args: "--stale-cluster-policy=keep", want: func(o *Options) { o.Registry.StalePolicy = "keep" }},
		{name: "path health", args: "--path-health=off", want: func(o *Options) { o.Registry.PathHealth = "off" }},
		{name: "unknown path health", args: "--path-health=x", wantErr: []string{"--path-health=x: must be one of off, observe, withdraw"}},
		{name: "unknown stale policy", args: "--stale-cluster-policy=x", wantErr: []string{"--stale-cluster-policy=x: must be one of withdraw, withdraw-all, keep"}},
		{name: "invalid IDs", args: "--cluster-id=a.b --clusterset-id=-", wantErr: []string{`--cluster-id: ID "a.b"`, `--clusterset-id: ID "-"`}},
		{name: "membership", args: "--leave-after=0 --trusted-keys=/keys --trusted-keys-only", want: func(o *Options) {
			o.Membership = Membership{TrustedKeys: "/keys", TrustedKeysOnly: true}
		}},
		{
			name: "invalid membership settings", args: "--leave-after=-1s --trusted-keys-only",
			wantErr: []string{"--leave-after=-1s: must not be negative", "--trusted-keys-only: requires --trusted-keys"},
		},
		{name: "metrics", args: "--metrics-bind-address=:8443 --metrics-cert-dir=/certs", want: func(o *Options) {
			o.Serving.Metrics, o.Serving.MetricsCertDir = ":8443", "/certs"
		}},
		{name: "metrics for everyone", args: "--metrics-secure=false", want: func(o *Options) { o.Serving.MetricsSecure = false }},
		{name: "certificate for metrics over HTTP", args: "--metrics-secure=false --metrics-cert-dir=/c", wantErr: []string{"--metrics-cert-dir=/c: has no effect with --metrics-secure=false"}},
		{name: "status on IPv6 loopback", args: "--status-bind-address=[::1]:9", want: func(o *Options) { o.Serving.Status = "[::1]:9" }},
		{name: "status on a pod address", args: "--status-bind-address=10.0.0.5:8082", wantErr: []string{"must be a loopback address"}},
		{name: "profiles", args: "--pprof-bind-address=127.0.0.1:8083", want: func(o *Options) { o.Serving.Pprof = "127.0.0.1:8083" }},
		{name: "profiles on a pod address", args: "--pprof-bind-address=:8083", wantErr: []string{"--pprof-bind-address=:8083: must be a loopback address"}},
		{name: "status disabled", args: "--status-bind-address=0", want: func(o *Options) { o.Serving.Status = "0" }},
		{name: "status without a host", args: "--status-bind-address=:8082", wantErr: []string{"--status-bind-address=:8082: must be a loopback address"}},
		{name: "status on all addresses", args: "--status-bind-address=0.0.0.0:8082", wantErr: []string{"must be a loopback address"}},
		{name: "namespaces", args: "--export-namespaces=a,b --import-namespaces=team=a --auto-export-selector=mcs", want: func(o *Options) {
			o.Scope = Scope{ExportNamespaces: "a,b", ImportNamespaces: "team=a", AutoExport: "mcs", ExportSlices: "all", ImportMetadata: "*,app.kubernetes.io/*", ClusterPreference: "None", InstanceDNS: "none"}
		}},
		{name: "import policy", args: "--import-policy=/etc/policy.yaml --export-slices=controller", want: func(o *Options) {
			o.Scope.ImportPolicy, o.Scope.ExportSlices = "/etc/policy.yaml", ExportControllerSlices
		}},
		{name: "metadata of imports", args: "--import-metadata=team,example.com/*", want: func(o *Options) { o.Scope.ImportMetadata = "team,example.com/*" }},
		{name: "services of Cloud Map", args: "--cloud-map-services=/etc/services.yaml --cloud-map-services-cluster=ecs", want: func(o *Options) {
			o.CloudMapServices = CloudMapServices{Path: "/etc/services.yaml", Cluster: "ecs"}
		}},
		{name: "invalid pseudo-cluster", args: "--cloud-map-services-cluster=a.b", wantErr: []string{`--cloud-map-services-cluster: ID "a.b"`}},
		{name: "cluster preference", args: "--cluster-preference=PreferSameRegion", want: func(o *Options) { o.Scope.ClusterPreference = "PreferSameRegion" }},
		{name: "records of instances", args: "--instance-dns=srv --instance-dns-vpc=vpc-0a1b2c3d4e5f67890 --instance-dns-ttl=1m --instance-dns-routing=weighted --unready-instances=unhealthy", want: func(o *Options) {
			o.Scope.InstanceDNS, o.Registry.Instances = "srv", Instances{VPC: "vpc-0a1b2c3d4e5f67890", TTL: time.Minute, Routing: "weighted", Unready: "unhealthy", Stale: "keep"}
		}},
		{
			name: "invalid records of instances", args: "--instance-dns=A --instance-dns-vpc=main --instance-dns-ttl=1500ms --instance-dns-routing=simple --unready-instances=no",
			wantErr: []string{
				"--instance-dns=A: must be one of none, auto", "--instance-dns-vpc=main: must be the ID of a VPC", "--instance-dns-ttl=1.5s: must be whole seconds",
				"--instance-dns-routing=simple", "--unready-instances=no",
			},
		},
		{name: "stale instances", args: "--unready-instances=unhealthy --stale-instances=unhealthy", want: func(o *Options) {
			o.Registry.Instances.Unready, o.Registry.Instances.Stale = "unhealthy", "unhealthy"
		}},
		{
			name: "stale instances that cannot be unhealthy", args: "--stale-instances=unhealthy --stale-cluster-policy=keep",
			wantErr: []string{"--stale-instances=unhealthy needs --unready-instances=unhealthy", "--stale-instances=unhealthy has no effect with --stale-cluster-policy=keep"},
		},
		{name: "invalid stale instances", args: "--stale-instances=mark", wantErr: []string{"--stale-instances=mark"}},
		{name: "invalid cluster preference", args: "--cluster-preference=near", wantErr: []string{"--cluster-preference"}},
		{name: "invalid metadata of imports", args: "--import-metadata=", wantErr: []string{"--import-metadata=: \"\" must be a key such as team or example.com/team"}},
		{name: "invalid slices", args: "--export-slices=none", wantErr: []string{"--export-slices=none: must be one of all, controller"}},
		{name: "no hold", args: "--clusterset-ip-hold=0", want: func(o *Options) { o.ClusterSetIPHold = 0 }},
		{name: "negative hold", args: "--clusterset-ip-hold=-1s", wantErr: []string{"--clusterset-ip-hold=-1s: must not be negative"}},
		{
			name: "invalid selectors", args: "--export-namespaces= --import-namespaces=a=b=c --auto-export-selector=!",
			wantErr: []string{"--export-namespaces=: must select", "--import-namespaces=a=b=c: must be a label", "--auto-export-selector=!: must be"},
		},
		{
			name: "invalid Kubernetes settings", args: "--kube-api-qps=0 --kube-api-burst=-1 --concurrency=0",
			wantErr: []string{"--kube-api-qps=0: must be positive", "--kube-api-burst=-1: must be at least", "--concurrency=0: must be at least 1"},
		},
		{name: "invalid log settings", args: "--log-level=loud --log-format=xml", wantErr: []string{"--log-level=loud: must be one of debug, info, error", "--log-format=xml"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(strings.Fields(tt.args))
			if (err != nil) != (len(tt.wantErr) > 0) {
				t.Fatalf("error %v, want %v", err, tt.wantErr)
			}
			for _, text := range tt.wantErr {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q lacks %q", err, text)
				}
			}
			if tt.want == nil {
				return
			}
			want := Default()
			tt.want(&want)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestLogger(t *testing.T) {
	tests := []struct {
		log  Log
		want string
	}{
		{Log{Level: "info", Format: "json"}, `"msg":"shown"`},
		{Log{Level: "info", Format: "text"}, "INFO\tshown"},
	}
	for _, tt := range tests {
		var out strings.Builder
		logger := tt.log.Logger(&out)
		logger.Info("shown")
		logger.V(1).Info("hidden")
		if got := out.String(); !strings.Contains(got, tt.want) || strings.Contains(got, "hidden") {
			t.Errorf("%+v writes %q", tt.log, got)
		}
	}
}

// TestParseHidesPasswords: the error shows no password of a URL, whatever flag it was written in.
func TestParseHidesPasswords(t *testing.T) {
	const at = "https://alice:%s@a.example.com:2379"
	for _, args := range []string{
		"--etcd-endpoints=" + at, "--etcd-endpoint=" + at, "-etcd-endpoints=" + at, "--etcd-endpoints= " + at, "--etcd-ca=x " + at,
		"--import-from=" + at, "--import-from=etcd," + at, "--import-from=etcd,endpoint=" + at, "--import-from=etcd,endpoints=" + at,
		"--import-from=etcd,endpoints=https://b:1;" + at, "--import-from= etcd,endpoints=" + at, "--import-from=etcd,name=" + at,
		"--import-from=etcd,endpoints=" + at + ",endpoints=" + at, "--import-from=etcd,endpoints=" + at + ",username",
		"--import-from=cloudmap,endpoint=" + at, "--import-from=cloudmap,region=" + at, "--import-from=cloudmap,endpoint=" + at + ",name=B",
		"--aws-data-endpoint=" + at, "--import-from=cloudmap,data-endpoint=" + at,
		"--aws-endpoint=" + at, "--aws-endpoint=alice:%s@a", "--poll-interval=" + at, "--aws-rate=" + at, "--registry=" + at,
	} {
		for _, password := range []string{"hunter2", "hunter/2", "hunter%%2", "hunter@2", `hunter"2`, `hunter\2`, "hunter:2#?=;"} {
			var list []string
			for arg := range strings.SplitSeq(args, " ") {
				list = append(list, strings.ReplaceAll(arg, "%s", strings.ReplaceAll(password, "%%", "%")))
			}
			_, err := Parse(append([]string{"--registry=etcd"}, list...))
			if err == nil {
				t.Errorf("%q is accepted", list)
			} else if strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "alice") {
				t.Errorf("%q: the error contains the password: %v", list, err)
			}
		}
	}
}
