package doctor

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/check"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/crds"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/dns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// healthyCluster returns facts without a failure or a warning.
func healthyCluster() *clusterFacts {
	release := crds.Bundled()
	return &clusterFacts{
		context: "cls1", namespace: "system", server: &version.Info{GitVersion: "v1.37.2"},
		mcs: apiFact{served: true}, about: apiFact{served: true},
		crds: crds.Installed{"serviceexports.multicluster.x-k8s.io": release, "serviceimports.multicluster.x-k8s.io": release},
		pod:  &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "manager"}}, replicas: 2, ready: 2,
		controller: &status.Status{
			Version: "v1", Leader: true, Registry: "cloudmap", Synced: true, Identity: &mcs.Identity{ClusterID: "cls1", ClusterSetID: "set"},
			Members: []status.Member{{ClusterID: "cls1", Version: "v1", Networks: "10.1.0.0/16"}, {ClusterID: "cls2", Version: "v1", Networks: "10.2.0.0/16"}}, PathHealth: "withdraw",
			Paths: []status.Path{{ClusterID: "cls2", State: status.PathReachable, Endpoints: status.PathProbes{Targets: 2, Reached: 2}}},
			DNS:   &status.DNS{State: status.DNSServed},
		},
		dns:     &dns.Status{State: coredns.Enabled, Checks: []check.Check{{Name: "answers", Result: check.OK}}},
		proxies: 3, readyProxies: 3,
		probe: &status.Probe{Connections: []status.Connection{
			{Target: status.Target{Address: "10.96.0.9:80"}}, {Target: status.Target{Address: "10.1.0.1:80", Cluster: "cls2"}},
		}},
		reached: []reached{{context: "cls2", address: "10.2.0.9:8081"}},
	}
}

// warned returns an export whose instances are not as the user asked for.
func warned(warnings ...string) []status.Publication {
	return []status.Publication{{Key: mcs.Key{Namespace: "demo", Name: "web"}, State: "Exported", Warnings: warnings}}
}

// TestChecks_DeniedInstances: denied requests of the instance view are explained by its own check.
func TestChecks_DeniedInstances(t *testing.T) {
	f := healthyCluster()
	f.controller.InstanceWarnings = warned("it needs instance-dns.json")
	f.controller.Requests = []status.Request{{Operation: "RegisterInstance", Result: "denied", Count: 2}}
	if c := f.credentialsCheck(); c.Result != check.Warning || !strings.Contains(c.Remedy, "the check of that name has the policy") {
		t.Errorf("check %+v", c)
	}
}

func TestChecks(t *testing.T) {
	for _, tt := range []struct {
		name       string
		mutate     func(*clusterFacts)
		wantCheck  string // the only check that is not ok, "" if all are
		wantResult check.Result
		wantText   string // in the detail or the remedy
	}{
		{name: "all requirements are met", mutate: func(*clusterFacts) {}},
		{name: "API server does not respond", mutate: func(f *clusterFacts) { f.server, f.problem = nil, "connection refused" },
			wantCheck: "API server", wantResult: check.Failed, wantText: "kubectl --context cls1 version"},
		{name: "Kubernetes is too old", mutate: func(f *clusterFacts) { f.server.GitVersion = "v1.30.9" }, wantCheck: "API server", wantResult: check.Warning, wantText: "1.31"},
		{name: "oldest supported Kubernetes", mutate: func(f *clusterFacts) { f.server.GitVersion = "v1.31.0" }},
		{name: "MCS API not served", mutate: func(f *clusterFacts) { f.mcs.served = false }, wantCheck: "MCS API", wantResult: check.Failed, wantText: "kubectl mcs install --context cls1"},
		{name: "MCS API unknown", mutate: func(f *clusterFacts) { f.mcs.problem = "timeout" }, wantCheck: "MCS API", wantResult: check.Unknown, wantText: "timeout"},
		{name: "CRD of an older release", mutate: func(f *clusterFacts) {
			f.crds["serviceimports.multicluster.x-k8s.io"] = crds.ReleaseOf(map[string]string{"multicluster.x-k8s.io/release-version": "v0.1.0"})
		}, wantCheck: "CRD revision", wantResult: check.Warning, wantText: "serviceimports v0.1.0"},
		{name: "About API not served", mutate: func(f *clusterFacts) { f.about.served = false }, wantCheck: "About API", wantResult: check.Warning, wantText: "--cluster-id"},
		{name: "permissions denied", mutate: func(f *clusterFacts) { f.permissions.missing = []string{"a", "b", "c", "d"} },
			wantCheck: "permissions", wantResult: check.Failed, wantText: "a; b; c; and 1 more"},
		{name: "permissions unknown", mutate: func(f *clusterFacts) { f.permissions.problem = "no" }, wantCheck: "permissions", wantResult: check.Unknown},
		{name: "metrics permissions denied", mutate: func(f *clusterFacts) {
			f.metricsPermissions.missing = []string{"create tokenreviews.authentication.k8s.io"}
		},
			wantCheck: "metrics", wantResult: check.Warning, wantText: "cloud-map-mcs-controller-metrics-auth: kubectl mcs install --context cls1"},
		{name: "metrics without authentication", mutate: func(f *clusterFacts) {
			f.metricsPermissions.missing = []string{"create tokenreviews.authentication.k8s.io"}
			f.pod.Spec.Containers = []corev1.Container{{Args: []string{"--metrics-secure=false"}}}
		}},
		{name: "no metrics", mutate: func(f *clusterFacts) {
			f.metricsPermissions.missing = []string{"create tokenreviews.authentication.k8s.io"}
			f.pod.Spec.Containers = []corev1.Container{{Args: []string{"--metrics-bind-address=0"}}}
		}},
		{name: "a replica is not ready", mutate: func(f *clusterFacts) { f.ready = 1 }, wantCheck: "controller", wantResult: check.Warning, wantText: "1 of 2 replicas"},
		{name: "a replica fails", mutate: func(f *clusterFacts) { f.ready, f.lastFailure = 1, "pod b: a bad flag" },
			wantCheck: "controller", wantResult: check.Warning, wantText: "1 of 2 replicas are ready; pod b: a bad flag"},
		{name: "only a standby responds", mutate: func(f *clusterFacts) { f.controller = &status.Status{Version: "v1", Problem: "this replica stands by"} },
			wantCheck: "controller", wantResult: check.Failed, wantText: "no replica is the leader"},
		{name: "controller of another version", mutate: func(f *clusterFacts) {
			f.controller.Version, f.controller.Members = "v2", nil
		}, wantCheck: "versions", wantResult: check.Warning, wantText: "the controller is v2, this plugin is v1"},
		{name: "another member of another version", mutate: func(f *clusterFacts) { f.controller.Members[1].Version = "v2" },
			wantCheck: "versions", wantResult: check.Warning, wantText: "v2 in cls2"},
		{name: "clock 9 s off", mutate: func(f *clusterFacts) { f.skew = 9 * time.Second }},
		{name: "clock 10 s ahead", mutate: func(f *clusterFacts) { f.skew = 10 * time.Second }, wantCheck: "clock", wantResult: check.Warning, wantText: "10s"},
		{name: "clock 4 minutes behind", mutate: func(f *clusterFacts) { f.skew = -4 * time.Minute }, wantCheck: "clock", wantResult: check.Failed, wantText: "NTP"},
		{name: "registry cannot be written", mutate: func(f *clusterFacts) { f.controller.WriteProblem = "AccessDenied" }, wantCheck: "registry", wantResult: check.Failed, wantText: "AccessDenied"},
		{name: "registry not read", mutate: func(f *clusterFacts) { f.controller.Synced = false }, wantCheck: "registry", wantResult: check.Failed, wantText: "--wait 1m"},
		{name: "members unknown before the first read", mutate: func(f *clusterFacts) {
			f.controller = &status.Status{Version: "v1", Leader: true}
			f.controller.Identity = &mcs.Identity{ClusterID: "cls1"}
		}, wantCheck: "registry", wantResult: check.Failed, wantText: "not read it completely since it started"},
		{name: "requests denied", mutate: func(f *clusterFacts) {
			f.controller.Requests = []status.Request{{Operation: "B", Result: "denied", Count: 2}, {Operation: "A", Result: "denied", Count: 1}, {Operation: "B", Result: "denied", Count: 1}}
		}, wantCheck: "credentials", wantResult: check.Warning, wantText: "4 requests were denied in the last minute: A, B"},
		{name: "requests throttled", mutate: func(f *clusterFacts) {
			f.controller.Requests = []status.Request{{Operation: "A", Result: "throttled", Count: 1}}
		}, wantCheck: "throttling", wantResult: check.Warning, wantText: "1 requests were throttled"},
		{name: "requests denied for a deleted service", mutate: func(f *clusterFacts) {
			f.controller.Requests = []status.Request{{Operation: "A", Result: "denied", Count: 1}}
		}, wantCheck: "credentials", wantResult: check.Warning, wantText: "for a service that was deleted"},
		{name: "identity missing", mutate: func(f *clusterFacts) {
			f.controller.IdentityProblem = "create ClusterProperty cluster.clusterset.k8s.io; it leaves at 2026-11-21T12:05:00Z (--leave-after)"
		}, wantCheck: "identity", wantResult: check.Failed, wantText: "kubectl mcs join --context cls1 --cluster-id=cls1 --clusterset-id=set"},
		{name: "identity changes", mutate: func(f *clusterFacts) {
			f.controller.IdentityProblem, f.controller.Next = "the identity changes: 1 exports are not confirmed", &mcs.Identity{ClusterID: "cls9", ClusterSetID: "set"}
		}, wantCheck: "identity", wantResult: check.Warning, wantText: "wait, or remove the reason; to stay cluster cls1 of clusterset set, run kubectl mcs join --context cls1"},
		{name: "identity changes, after a restart", mutate: func(f *clusterFacts) {
			f.controller.IdentityProblem, f.controller.Next = "the identity changes: 1 exports are not confirmed", f.controller.Identity
		}, wantCheck: "identity", wantResult: check.Warning, wantText: "wait, or remove the reason; the imports of the other clusters stay"},
		{name: "no name resolves, while the pods of CoreDNS answer", mutate: func(f *clusterFacts) {
			f.controller.DNS = &status.DNS{State: status.DNSNotServed, Problem: "no such host", Checked: time.Unix(0, 0)}
		}, wantCheck: "DNS, controller's pod", wantResult: check.Warning, wantText: "no such host (asked at 1970-01-01T00:00:00Z)"},
		{name: "the DNS could not be asked", mutate: func(f *clusterFacts) {
			f.controller.DNS = &status.DNS{State: status.DNSUnknown, Problem: "server misbehaving"}
		}, wantCheck: "DNS, controller's pod", wantResult: check.Unknown, wantText: "server misbehaving"},
		{name: "the controller does not ask the DNS", mutate: func(f *clusterFacts) { f.controller.DNS = nil }},
		{name: "a cluster cannot be reached", mutate: func(f *clusterFacts) { f.controller.Paths[0].State = status.PathUnreachable },
			wantCheck: "paths", wantResult: check.Failed, wantText: "connections to pods time out: cls2"},
		{name: "the fault is here", mutate: func(f *clusterFacts) {
			f.controller.Paths[0].State, f.controller.FaultHere = status.PathUnreachable, true
		},
			wantCheck: "paths", wantResult: check.Failed, wantText: "the fault is probably here"},
		{name: "probes are blocked everywhere", mutate: func(f *clusterFacts) {
			f.controller.Paths[0].State, f.controller.Paths[0].Endpoints.Reached = "Unknown", 0
		},
			wantCheck: "paths", wantResult: check.Warning, wantText: "no probe has reached cls2 yet"},
		{name: "endpoints are blocked", mutate: func(f *clusterFacts) { f.controller.Paths[0].Endpoints.Reached = 0 }},
		{name: "paths are not tested", mutate: func(f *clusterFacts) { f.controller.PathHealth = "off" },
			wantCheck: "paths", wantResult: check.Unknown, wantText: "--path-health=off"},
		{name: "a stale member", mutate: func(f *clusterFacts) { f.controller.Members[1].Stale = true }, wantCheck: "members", wantResult: check.Warning, wantText: "no heartbeat from cls2"},
		{name: "a stale member that does not exist any more", mutate: func(f *clusterFacts) { f.controller.Members[1].Stale = true },
			wantCheck: "members", wantResult: check.Warning, wantText: "kubectl mcs forget cls2 --context cls1"},
		{name: "a refused record", mutate: func(f *clusterFacts) {
			f.controller.Members[1].Problems = []string{"refused page 7: it has no signature"}
			f.controller.Members[1].Refused = f.controller.Members[1].Problems
		}, wantCheck: "signatures", wantResult: check.Warning, wantText: "cls2: refused page 7: it has no signature"},
		{name: "all catalogs are sealed", mutate: func(f *clusterFacts) {
			f.controller.Members[0].Seal, f.controller.Members[1].Seal = status.Sealed, status.Sealed
		}},
		{name: "a catalog that is not sealed", mutate: func(f *clusterFacts) {
			f.controller.Members[0].Seal, f.controller.Members[1].Seal = status.Sealed, status.Unsealed
		}, wantCheck: "catalogs", wantResult: check.Warning, wantText: "not sealed: cls2\nanother member can keep their changes from arriving"},
		{name: "the command that seals", mutate: func(f *clusterFacts) { f.controller.Members[1].Seal = status.Unsealed },
			wantCheck: "catalogs", wantResult: check.Warning, wantText: "kubectl mcs registry seal --context cls1 | sh"},
		{name: "tags of a catalog that cannot be read", mutate: func(f *clusterFacts) {
			f.controller.Members[0].Seal, f.controller.Members[1].Seal = status.Sealed, status.SealUnreadable
		}, wantCheck: "catalogs", wantResult: check.Unknown, wantText: "could not be read: cls2"},
		{name: "own page is missing", mutate: func(f *clusterFacts) { f.controller.Members[0].Problems = []string{"page 7 is missing"} },
			wantCheck: "exports", wantResult: check.Warning, wantText: "does not have all records of this cluster: page 7 is missing"},
		{name: "own page is missing for another cluster", mutate: func(f *clusterFacts) { f.seenByOthers = []string{"cls2 reports: page 7 is missing"} },
			wantCheck: "exports", wantResult: check.Warning, wantText: "cls2 reports: page 7 is missing"},
		{name: "an import is not ready", mutate: func(f *clusterFacts) {
			f.controller.Imports = []status.ImportProblem{{Key: mcs.Key{Namespace: "demo", Name: "web"}, Reason: "Failed", Message: "the derived Service is not managed"}}
		}, wantCheck: "imports", wantResult: check.Failed, wantText: "kubectl mcs diagnose web -n demo --context cls1"},
		{name: "import policy in use", mutate: func(f *clusterFacts) {
			f.controller.ImportPolicy = &status.ImportPolicy{File: "/policy.yaml", Loaded: time.Unix(1790000000, 0)}
		}},
		{name: "import policy never valid", mutate: func(f *clusterFacts) {
			f.controller.ImportPolicy = &status.ImportPolicy{File: "/policy.yaml", Problem: `default: "" must be allow or deny`}
		}, wantCheck: "import policy", wantResult: check.Failed, wantText: `no import begins or changes: default: "" must be allow or deny`},
		{name: "import policy not valid any more", mutate: func(f *clusterFacts) {
			f.controller.ImportPolicy = &status.ImportPolicy{File: "/policy.yaml", Problem: "reading /policy.yaml: no such file", Loaded: time.Unix(1790000000, 0)}
		}, wantCheck: "import policy", wantResult: check.Failed, wantText: "the policy of 2026-09-21T14:13:20Z stays in use: reading /policy.yaml: no such file"},
		{name: "refused exports", mutate: func(f *clusterFacts) {
			for _, name := range []string{"a", "b", "c", "d"} {
				f.controller.Refused = append(f.controller.Refused, status.Refused{
					Key:     mcs.Key{Namespace: "demo", Name: name},
					Refusal: policy.Refusal{Cluster: "cls2", Reason: policy.ReasonNamespace, Message: "not allowed"},
				})
			}
		}, wantCheck: "refused exports", wantResult: check.Warning, wantText: "demo/a: not allowed; demo/b: not allowed; demo/c: not allowed; and 1 more"},
		{name: "held IPs", mutate: func(f *clusterFacts) { f.controller.HeldImports = 3 }},
		{name: "a member with a problem", mutate: func(f *clusterFacts) { f.controller.Members[1].Problems = []string{"page 7"} },
			wantCheck: "members", wantResult: check.Warning, wantText: "cls2: page 7"},
		{name: "mapped services", mutate: func(f *clusterFacts) {
			f.controller.Members = append(f.controller.Members, status.Member{ClusterID: "cloud-map", Version: "AWS Cloud Map", Mapped: true, Exports: 3})
		}},
		{name: "a mapped service that is not read", mutate: func(f *clusterFacts) {
			f.controller.Members = append(f.controller.Members, status.Member{ClusterID: "cloud-map", Mapped: true, Stale: true, Problems: []string{"shop/orders: not read"}})
		}, wantCheck: "mapped services", wantResult: check.Warning, wantText: "shop/orders: not read"},
		{name: "Route 53 is denied", mutate: func(f *clusterFacts) {
			f.controller.InstanceWarnings = warned("the endpoints are not shown as Cloud Map instances: check that the IAM role allows route53:ChangeResourceRecordSets, which need instance-dns.json")
		}, wantCheck: "instance view", wantResult: check.Warning, wantText: "demo/web: the endpoints are not shown as Cloud Map instances: check that the IAM role allows route53:ChangeResourceRecordSets"},
		{name: "records in an HTTP namespace", mutate: func(f *clusterFacts) {
			f.controller.InstanceWarnings = warned("the Cloud Map namespace demo has the type HTTP", "2 endpoints are not shown")
		}, wantCheck: "instance view", wantResult: check.Warning, wantText: "demo/web: the Cloud Map namespace demo has the type HTTP; demo/web: 2 endpoints are not shown"},
		{name: "an export is not written yet", mutate: func(f *clusterFacts) { f.controller.Publications = []status.Publication{{}} }, wantCheck: "exports", wantResult: check.Warning, wantText: "yet"},
		{name: "an export failed", mutate: func(f *clusterFacts) {
			f.controller.Publications = []status.Publication{{}, {Key: mcs.Key{Namespace: "demo", Name: "web"}, Problem: "too large"}}
		}, wantCheck: "exports", wantResult: check.Failed, wantText: "kubectl mcs diagnose web -n demo --context cls1"},
		{name: "DNS unknown", mutate: func(f *clusterFacts) { f.dns, f.dnsProblem = nil, "forbidden" }, wantCheck: "DNS", wantResult: check.Unknown, wantText: "forbidden"},
		{name: "DNS disabled", mutate: func(f *clusterFacts) { f.dns.State = coredns.Disabled }, wantCheck: "DNS", wantResult: check.Failed, wantText: "kubectl mcs dns enable --context cls1"},
		{name: "a DNS check is missing", mutate: func(f *clusterFacts) { f.dns.Checks[0].Result = check.Missing }, wantCheck: "DNS, answers", wantResult: check.Missing},
		{name: "no kube-proxy", mutate: func(f *clusterFacts) { f.proxies, f.readyProxies = 0, 0 }, wantCheck: "kube-proxy", wantResult: check.Unknown},
		{name: "a kube-proxy is not ready", mutate: func(f *clusterFacts) { f.readyProxies = 2 }, wantCheck: "kube-proxy", wantResult: check.Warning, wantText: "2 of 3"},
		{name: "no import to probe", mutate: func(f *clusterFacts) { f.probe = nil }, wantCheck: "clusterset IP", wantResult: check.Unknown},
		{name: "the clusterset IP refuses connections", mutate: func(f *clusterFacts) { f.probe.Connections[0].Problem = "refused" },
			wantCheck: "clusterset IP", wantResult: check.Failed, wantText: "kube-proxy or its replacement in cls1"},
		{name: "no endpoint accepts connections", mutate: func(f *clusterFacts) {
			f.probe.Connections[0].Problem, f.probe.Connections[1].Problem = "refused", "no route"
		}, wantCheck: "clusterset IP", wantResult: check.Unknown, wantText: "no route"},
		{name: "another cluster's pods are unreachable", mutate: func(f *clusterFacts) { f.reached[0].problem = "no answer" },
			wantCheck: "pod network to cls2", wantResult: check.Failed, wantText: "allow traffic from pods of cls1 to pods of cls2"},
		{name: "one context", mutate: func(f *clusterFacts) { f.reached = nil }, wantCheck: "pod network", wantResult: check.Unknown, wantText: "--context"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := healthyCluster()
			tt.mutate(f)
			found := check.Check{}
			for _, c := range f.checks("v1") {
				if c.Result == check.OK || c.Result == check.Unknown && tt.wantResult != check.Unknown {
					continue
				}
				if found.Name != "" {
					t.Errorf("unexpected: %+v", c)
				}
				found = c
			}
			if found.Name != tt.wantCheck || found.Result != tt.wantResult || !strings.Contains(found.Detail+"\n"+found.Remedy, tt.wantText) {
				t.Errorf("found %+v, want %s %s with %q", found, tt.wantCheck, tt.wantResult, tt.wantText)
			}
			if found.Result == check.Warning && found.Remedy == "" || found.Result == check.Failed && found.Remedy == "" {
				t.Errorf("%+v has no remedy", found)
			}
		})
	}
}

// TestPermissionsOfAnotherVersion: the permissions are those that a controller of the plugin's own
// version requires. Whether another version requires them too is not known.
func TestPermissionsOfAnotherVersion(t *testing.T) {
	denied := permissions{missing: []string{"create tokenreviews.authentication.k8s.io"}}
	tests := map[string]struct {
		controller *status.Status
		want       check.Result
		wantText   string
	}{
		"the same version":            {&status.Status{Version: "v2"}, check.Failed, "the controller's service account does not have permission to create tokenreviews"},
		"an earlier version":          {&status.Status{Version: "v1"}, check.Unknown, "does not have permission to create tokenreviews.authentication.k8s.io; v2 requires it, and the running v1 may not"},
		"the controller is not known": {nil, check.Failed, "does not have permission"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := healthyCluster()
			f.controller, f.permissions, f.metricsPermissions = tt.controller, denied, denied
			f.controllerProblem = errors.New("no answer")
			service := ServiceFacts{controller: tt.controller, permissions: denied, plugin: "v2"}
			metrics := f.metricsCheck("v2")
			if len(metrics) != 1 || (metrics[0].Result == check.Unknown) != (tt.want == check.Unknown) {
				t.Errorf("the check of metrics is %+v", metrics)
			}
			for _, list := range [][]check.Check{f.checks("v2"), {service.permissionsStep()}} {
				i := slices.IndexFunc(list, func(c check.Check) bool { return c.Name == "permissions" })
				if i < 0 || list[i].Result != tt.want || !strings.Contains(list[i].Detail, tt.wantText) {
					t.Errorf("the checks are %+v", list)
				}
			}
		})
	}
}

// If requests are denied and the registry cannot be written, the credentials are the problem, or
// the services were deleted.
func TestCredentialsCheckWithProblem(t *testing.T) {
	f := healthyCluster()
	f.controller.Requests = []status.Request{{Operation: "RegisterInstance", Result: "denied", Count: 3}}
	f.controller.WriteProblem = "AccessDenied"
	c := f.credentialsCheck()
	if c.Result != check.Failed || !strings.Contains(c.Remedy, docs.URL("iam.md")) || !strings.Contains(c.Remedy, "deleted services") {
		t.Errorf("check %+v", c)
	}
}

// What the controller has not read yet is unknown, not in order.
func TestChecksBeforeFirstRead(t *testing.T) {
	f := healthyCluster()
	f.controller.Synced, f.controller.Members = false, nil
	for _, c := range f.checks("v1") {
		if want := check.Unknown; slices.Contains([]string{"members", "signatures", "exports"}, c.Name) && c.Result != want {
			t.Errorf("%+v, want %s", c, want)
		}
	}
}

func TestProblemsSeenBy(t *testing.T) {
	own, other, elsewhere := healthyCluster(), healthyCluster(), healthyCluster()
	own.controller.Identity.UID, own.controller.Members[0].UID = "uid-1", "uid-1"
	other.context, elsewhere.context = "cls2", "cls3"
	other.controller.Members = []status.Member{
		{ClusterID: "cls1", UID: "uid-1", Problems: []string{"page 7 is missing", "refused page 8: x"}, Refused: []string{"refused page 8: x"}},
		{ClusterID: "cls3", UID: "uid-3", Problems: []string{"page 9 is missing"}},
	}
	elsewhere.controller.Identity.ClusterSetID = "another"
	elsewhere.controller.Members = other.controller.Members
	if diff := cmp.Diff([]string{"cls2 reports: page 7 is missing"}, own.problemsSeenBy([]*clusterFacts{other, elsewhere, {context: "cls4"}})); diff != "" {
		t.Error(diff)
	}
}

func TestPrintReports(t *testing.T) {
	plain := func(text string, _ int) string { return text }
	for _, tt := range []struct {
		result check.Result
		mark   string
		fails  bool
	}{
		{check.OK, "√", false}, {check.Warning, "‼", false}, {check.Unknown, "?", false}, {check.Failed, "×", true}, {check.Missing, "×", true},
	} {
		for _, format := range []session.Format{"table", "wide", "json", "yaml"} {
			var out bytes.Buffer
			err := printReports(&out, format, []contextReport{{"cls1", []check.Check{{Name: "x", Result: tt.result, Detail: "d\x1b", Remedy: "r"}}}}, plain)
			if got := errors.Is(err, session.ErrIncomplete); got != tt.fails {
				t.Errorf("%s as %s: error %v", tt.result, format, err)
			}
			text := out.String()
			if format == "table" && !strings.Contains(text, tt.mark+" x: d \n") {
				t.Errorf("%s: printed %q", tt.result, text)
			}
			if hasRemedy := strings.Contains(text, "    r\n"); (format == "table" || format == "wide") && hasRemedy != (tt.result != check.OK || format == "wide") {
				t.Errorf("%s as %s: remedy printed %v", tt.result, format, hasRemedy)
			}
		}
	}
}

func TestWaitForChecks(t *testing.T) {
	failing := []contextReport{{"cls1", []check.Check{{Result: check.Missing}}}}
	passing := []contextReport{{"cls1", []check.Check{{Result: check.Warning}}}}
	calls := 0
	after := func(n int) func(context.Context) []contextReport {
		calls = 0
		return func(context.Context) []contextReport {
			if calls++; calls > n {
				return passing
			}
			return failing
		}
	}
	if got := waitForChecks(t.Context(), time.Millisecond, time.Minute, after(2)); got[0].hasFailure() || calls != 3 {
		t.Errorf("after %d calls: %+v", calls, got)
	}
	if got := waitForChecks(t.Context(), time.Millisecond, 0, after(2)); !got[0].hasFailure() || calls != 1 {
		t.Errorf("without waiting, after %d calls: %+v", calls, got)
	}
}

// TestCostChecks: the bill is that of the instances and of the discovery requests of the last
// minute.
func TestCostChecks(t *testing.T) {
	reads := []status.Request{
		{Operation: "DiscoverInstances", Result: "ok", Count: 12}, {Operation: "DiscoverInstancesRevision", Result: "ok", Count: 8}, {Operation: "RegisterInstance", Result: "ok", Count: 5},
	}
	for name, tt := range map[string]struct {
		status status.Status
		want   string // in the detail, "" for no check
	}{
		"AWS Cloud Map": {
			status.Status{Registry: "cloudmap", Synced: true, Stored: &status.Stored{Records: 37, View: 500}, Requests: reads},
			// 20 × 43,800 = 876,000
			"about $55 a month for this cluster: $50 for the instance view (500 instances), $3.70 for records (37), $0.88 for requests",
		},
		"an older controller":       {status.Status{Registry: "cloudmap", Synced: true, Requests: reads}, ""},
		"etcd":                      {status.Status{Registry: "etcd", Synced: true, Requests: []status.Request{{Operation: "Range", Result: "ok", Count: 5}}}, ""},
		"mapped services with etcd": {status.Status{Registry: "etcd", Synced: true, Requests: reads}, "about $0.88 a month"},
	} {
		t.Run(name, func(t *testing.T) {
			checks := (&clusterFacts{controller: &tt.status}).costChecks()
			if (tt.want == "") != (len(checks) == 0) {
				t.Fatalf("%d checks", len(checks))
			}
			if tt.want != "" && (checks[0].Result != check.OK || !strings.Contains(checks[0].Detail, tt.want)) {
				t.Errorf("check %+v, want %q", checks[0], tt.want)
			}
		})
	}
}

// TestChecks_OnlyControllerResolves: what the controller resolves is the only evidence for a user
// without permissions in kube-system.
func TestChecks_OnlyControllerResolves(t *testing.T) {
	f := healthyCluster()
	f.dns, f.dnsProblem = nil, "you may not"
	f.controller.DNS = &status.DNS{State: status.DNSNotServed, Problem: "no such host"}
	if checks := f.dnsChecks(); len(checks) != 2 || checks[0].Result != check.Unknown || checks[1].Result != check.Failed {
		t.Errorf("checks %+v", checks)
	}
}
