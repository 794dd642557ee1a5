package doctor

import (
	"context"
	"net/netip"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/crds"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/dns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// clusterFacts are the facts about one cluster from which check decides.
type clusterFacts struct {
	context string
	// namespace is the controller's.
	namespace string
	// server is the version of the API server. If it is nil, problem has the reason and all other
	// facts are unknown.
	server  *version.Info
	problem string

	mcs, about apiFact
	crds       crds.Installed
	crdProblem string

	// pod is the leading controller's, nil if it was not found. replicas and ready count its
	// Deployment's.
	pod             *corev1.Pod
	replicas, ready int
	// lastFailure is that of a replica that does not work, see session.LastFailure.
	lastFailure string
	permissions permissions
	// metricsPermissions are those that the controller requires to authenticate who reads its
	// metrics.
	metricsPermissions permissions
	// controller is the controller's status, nil because of controllerProblem.
	controller        *status.Status
	controllerProblem error
	// skew is the time by which the controller's clock is ahead of this computer's.
	skew time.Duration

	dns        *dns.Status
	dnsProblem string
	// proxies and readyProxies count kube-proxy's desired and ready pods; both are 0 without a
	// DaemonSet kube-proxy.
	proxies, readyProxies int
	proxyProblem          string
	// probe has the connections to an imported service, preferably one with an endpoint that
	// accepts them. It is nil if there is no such service, or because of probeProblem.
	probe        *status.Probe
	probeProblem error
	// seenByOthers are the problems of this cluster's records that the controllers of the other
	// contexts see, with the context.
	seenByOthers []string
	// reached are the connections to the controllers of the other contexts.
	reached []reached
}

// apiFact is the version in which an API is served.
type apiFact struct {
	version schema.GroupVersion
	served  bool
	problem string
}

// reached is the result of a connection to another context's controller.
type reached struct {
	context, address, problem string
	// unknown is set if no connection could be tried.
	unknown bool
}

func gatherCluster(ctx context.Context, s *session.Session, k *session.Cluster) *clusterFacts {
	f := &clusterFacts{context: k.Context, namespace: s.ControllerNamespace}
	var err error
	if f.server, err = k.Kube.Discovery().ServerVersion(); err != nil {
		f.problem = err.Error()
		return f
	}
	f.mcs = newAPIFact(served.MCS(k.Kube.Discovery()))
	f.about = newAPIFact(served.About(k.Kube.Discovery()))
	if f.crds, err = crds.ReadInstalled(ctx, k); err != nil {
		f.crdProblem = err.Error()
	}
	f.permissions = reviewPermissions(ctx, k, roleFile, s.ControllerNamespace, session.ManagerName)
	f.metricsPermissions = reviewPermissions(ctx, k, metricsRoleFile, s.ControllerNamespace, session.ManagerName)
	f.gatherController(ctx, s, k)
	if zone, err := dns.ReadStatus(ctx, k); err != nil {
		f.dnsProblem = err.Error()
	} else {
		f.dns = &zone
	}
	var proxy appsv1.DaemonSet
	if exists, err := k.Find(ctx, metav1.NamespaceSystem, "kube-proxy", &proxy); err != nil {
		f.proxyProblem = err.Error()
	} else if exists {
		f.proxies, f.readyProxies = int(proxy.Status.DesiredNumberScheduled), int(proxy.Status.NumberReady)
	}
	if f.controller != nil {
		f.probe, f.probeProblem = probeImport(ctx, s, k)
	}
	return f
}

func newAPIFact(gv schema.GroupVersion, ok bool, err error) apiFact {
	f := apiFact{version: gv, served: ok}
	if err != nil {
		f.problem = err.Error()
	}
	return f
}

func (f *clusterFacts) gatherController(ctx context.Context, s *session.Session, k *session.Cluster) {
	var deployment appsv1.Deployment
	if exists, err := k.Find(ctx, s.ControllerNamespace, session.ManagerName, &deployment); err == nil && exists {
		f.replicas, f.ready = int(deployment.Status.Replicas), int(deployment.Status.ReadyReplicas)
	}
	var pods corev1.PodList
	if err := k.List(ctx, s.ControllerNamespace, &pods, session.ManagerLabels()); err == nil {
		f.lastFailure = session.LastFailure(pods.Items)
	}
	var err error
	if f.pod, err = s.Leader(ctx, k); err != nil {
		f.controllerProblem = err
		return
	}
	began := k.Now()
	response, err := session.QueryController[status.Status](ctx, s, k, status.PathStatus)
	if err != nil {
		f.controllerProblem = err
		return
	}
	f.controller = &response
	f.skew = response.Time.Sub(began.Add(k.Now().Sub(began) / 2))
}

// probeBudget limits the search for a service with an endpoint that accepts connections: a probe
// without an answer takes some seconds, and there may be thousands of services.
const probeBudget = 10 * time.Second

// probeImport probes imported services until an endpoint of one accepts a connection: then its
// clusterset IP has to accept one as well. If none does, it returns the last probe of a service
// with an endpoint, or nil.
func probeImport(ctx context.Context, s *session.Session, k *session.Cluster) (*status.Probe, error) {
	imports, err := k.ListImports(ctx, "")
	if err != nil {
		return nil, err
	}
	var last *status.Probe
	began := k.Now()
	for i := range imports {
		if k.Now().Sub(began) >= probeBudget {
			break
		}
		if imports[i].Spec.Type == mcsv1beta1.Headless || len(imports[i].Spec.IPs) == 0 || imports[i].Labels[plan.LabelAppManagedBy] != plan.ManagedBy {
			continue
		}
		key := mcs.Key{Namespace: imports[i].Namespace, Name: imports[i].Name}
		probe, err := session.QueryController[status.Probe](ctx, s, k, status.ProbePath(key))
		if err != nil || !slices.ContainsFunc(probe.Connections, isToEndpoint) {
			continue
		}
		last = &probe
		if slices.ContainsFunc(probe.Connections, func(c status.Connection) bool { return isToEndpoint(c) && c.Problem == "" }) {
			break
		}
	}
	return last, nil
}

// isToEndpoint reports whether the connection is to an endpoint, not to the clusterset IP.
func isToEndpoint(c status.Connection) bool { return c.Cluster != "" }

// problemsSeenBy returns the problems of this cluster's records that the controllers of the others
// see.
func (f *clusterFacts) problemsSeenBy(others []*clusterFacts) []string {
	if f.controller == nil || f.controller.Identity == nil {
		return nil
	}
	var problems []string
	for _, other := range others {
		if other.controller == nil || other.controller.Identity == nil || other.controller.Identity.ClusterSetID != f.controller.Identity.ClusterSetID {
			continue
		}
		for _, m := range other.controller.Members {
			if !f.isOwn(m) {
				continue
			}
			for _, p := range subtract(m.Problems, m.Refused) {
				problems = append(problems, other.context+" reports: "+p)
			}
		}
	}
	return problems
}

// reachOthers lets the controller of a cluster connect to the controllers of the others.
func reachOthers(ctx context.Context, s *session.Session, k *session.Cluster, own *clusterFacts, others []*clusterFacts) []reached {
	var out []reached
	for _, other := range others {
		if own.pod == nil || other.pod == nil {
			out = append(out, reached{context: other.context, unknown: true, problem: "only the controllers can test it: see check controller"})
			continue
		}
		for _, ip := range sharedFamilies(own.pod, other.pod) {
			r := reached{context: other.context, address: ip}
			response, err := session.QueryController[status.Connection](ctx, s, k, status.ReachPath(ip))
			if err != nil {
				r.unknown, r.problem = true, err.Error()
			} else {
				r.address, r.problem = response.Address, response.Problem
			}
			out = append(out, r)
		}
	}
	return out
}

// sharedFamilies returns the addresses of pod to in the IP families of pod from.
func sharedFamilies(from, to *corev1.Pod) []string {
	families := map[bool]bool{}
	for _, ip := range from.Status.PodIPs {
		if address, err := netip.ParseAddr(ip.IP); err == nil {
			families[address.Is4()] = true
		}
	}
	var shared []string
	for _, ip := range to.Status.PodIPs {
		if address, err := netip.ParseAddr(ip.IP); err == nil && families[address.Is4()] {
			shared = append(shared, ip.IP)
		}
	}
	return shared
}
