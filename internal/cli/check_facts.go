package cli

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/deploy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// clusterFacts are what was gathered of one cluster for check.
type clusterFacts struct {
	context string
	// home is the controller's namespace.
	home string
	// server is the API server's version, nil when it does not answer, for problem; then nothing else is known.
	server  *version.Info
	problem string

	mcs, about apiFact
	// crds are those of the MCS API by name: the release and revision that they say.
	crds       map[string]crdRelease
	crdProblem string

	// pod is the leading controller's, nil when it could not be found, for podProblem. replicas and ready count its Deployment's.
	pod             *corev1.Pod
	podProblem      string
	replicas, ready int
	permissions     permissions
	controller      *status.Status
	statusProblem   string
	// skew is by how much the controller's clock is ahead of this computer's.
	skew time.Duration

	dns        *dnsStatus
	dnsProblem string
	// proxies are kube-proxy's pods, wanted and ready; none when something else takes its place.
	proxies, readyProxies int
	// tried is an imported service that was connected to: one whose endpoints answer, if there is any. nil when there is none to try.
	tried *status.Probe
	// reached are the other clusters that were tried.
	reached []reached
}

// apiFact is whether an API is served, and as what.
type apiFact struct {
	version schema.GroupVersion
	served  bool
	problem string
}

// reached is how an attempt to reach another context's controller came out.
type reached struct {
	context, address, problem string
	// unknown says that it could not be tried.
	unknown bool
}

func (a *app) gatherCluster(ctx context.Context, k *cluster) *clusterFacts {
	f := &clusterFacts{context: k.context, home: a.controllerNamespace}
	var err error
	if f.server, err = k.kube.Discovery().ServerVersion(); err != nil {
		f.problem = err.Error()
		return f
	}
	f.mcs = askedAPI(served.MCS(k.kube.Discovery()))
	f.about = askedAPI(served.About(k.kube.Discovery()))
	if f.crds, err = installedCRDs(ctx, k); err != nil {
		f.crdProblem = err.Error()
	}
	f.permissions = checkPermissions(ctx, k, a.controllerNamespace, managerName)
	f.gatherController(ctx, a, k)
	if dns, err := inspectDNS(ctx, k, ""); err != nil {
		f.dnsProblem = err.Error()
	} else {
		f.dns = &dns
	}
	var proxy appsv1.DaemonSet
	if there, err := find(ctx, k, metav1.NamespaceSystem, "kube-proxy", &proxy); err == nil && there {
		f.proxies, f.readyProxies = int(proxy.Status.DesiredNumberScheduled), int(proxy.Status.NumberReady)
	}
	f.tried = a.tryImport(ctx, k)
	return f
}

func askedAPI(gv schema.GroupVersion, ok bool, err error) apiFact {
	f := apiFact{version: gv, served: ok}
	if err != nil {
		f.problem = err.Error()
	}
	return f
}

func (f *clusterFacts) gatherController(ctx context.Context, a *app, k *cluster) {
	var deployment appsv1.Deployment
	if there, err := find(ctx, k, a.controllerNamespace, managerName, &deployment); err == nil && there {
		f.replicas, f.ready = int(deployment.Status.Replicas), int(deployment.Status.ReadyReplicas)
	}
	var err error
	if f.pod, err = a.leader(ctx, k); err != nil {
		f.podProblem = err.Error()
		return
	}
	began := k.now()
	said, err := askController[status.Status](ctx, a, k, status.PathStatus)
	if err != nil {
		f.statusProblem = err.Error()
		return
	}
	f.controller = &said
	f.skew = said.Time.Sub(began.Add(k.now().Sub(began) / 2))
}

// tryFor bounds the search for a service whose endpoints answer: one that does not takes some seconds, and there may be thousands.
const tryFor = 10 * time.Second

// tryImport probes imported services until the endpoint of one accepts a connection, so that its clusterset IP has to as well.
// Where none does, it returns the last one with an endpoint, and nil where none has any.
func (a *app) tryImport(ctx context.Context, k *cluster) *status.Probe {
	imports, err := listImports(ctx, k, "")
	if err != nil {
		return nil
	}
	var tried *status.Probe
	began := k.now()
	for i := range imports {
		if k.now().Sub(began) >= tryFor {
			break
		}
		if imports[i].Spec.Type == mcsv1beta1.Headless || len(imports[i].Spec.IPs) == 0 || imports[i].Labels[plan.LabelAppManagedBy] != plan.ManagedBy {
			continue
		}
		key := mcs.Key{Namespace: imports[i].Namespace, Name: imports[i].Name}
		probe, err := askController[status.Probe](ctx, a, k, status.ProbePath(key))
		if err != nil || !slices.ContainsFunc(probe.Connections, toEndpoint) {
			continue
		}
		tried = &probe
		if slices.ContainsFunc(probe.Connections, func(c status.Connection) bool { return toEndpoint(c) && c.Problem == "" }) {
			break
		}
	}
	return tried
}

func toEndpoint(c status.Connection) bool { return c.Cluster != "" }

// reachOthers lets the controller of a cluster connect to those of the others.
func (a *app) reachOthers(ctx context.Context, k *cluster, own *clusterFacts, others []*clusterFacts) []reached {
	var out []reached
	for _, other := range others {
		if own.pod == nil || other.pod == nil {
			out = append(out, reached{context: other.context, unknown: true, problem: "a controller is missing"})
			continue
		}
		for _, ip := range sharedFamilies(own.pod, other.pod) {
			r := reached{context: other.context, address: ip}
			said, err := askController[status.Connection](ctx, a, k, status.ReachPath(ip))
			if err != nil {
				r.unknown, r.problem = true, err.Error()
			} else {
				r.address, r.problem = said.Address, said.Problem
			}
			out = append(out, r)
		}
	}
	return out
}

// sharedFamilies are the addresses of a pod in IP families that another one has too.
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

// A crdRelease is what a CRD of the MCS API says of itself, such as v0.5.2 revision 0; empty when it says nothing.
type crdRelease struct{ release, revision string }

func (r crdRelease) String() string {
	if r.release == "" {
		return "of an unknown release"
	}
	return r.release + " revision " + r.revision
}

func releaseOf(labels map[string]string) crdRelease {
	return crdRelease{labels["multicluster.x-k8s.io/release-version"], labels["multicluster.x-k8s.io/crd-schema-revision"]}
}

var crdNames = []string{"serviceexports.multicluster.x-k8s.io", "serviceimports.multicluster.x-k8s.io"}

// installedCRDs are those of crdNames that are installed.
func installedCRDs(ctx context.Context, k *cluster) (map[string]crdRelease, error) {
	found := map[string]crdRelease{}
	for _, name := range crdNames {
		crd := &metav1.PartialObjectMetadata{}
		crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		there, err := find(ctx, k, "", name, crd)
		if err != nil {
			return nil, fmt.Errorf("reading the CRDs: %w", err)
		}
		if there {
			found[name] = releaseOf(crd.Labels)
		}
	}
	return found, nil
}

// ourCRDs is the release of the CRDs that install brings.
func ourCRDs() crdRelease {
	var crd metav1.PartialObjectMetadata
	text, err := deploy.Files.ReadFile("crds/multicluster.x-k8s.io_serviceexports.yaml")
	if err == nil {
		err = yaml.Unmarshal(text, &crd)
	}
	if err != nil {
		panic(err) // it is part of the program
	}
	return releaseOf(crd.Labels)
}

// olderCRDs are the installed CRDs that are of another release than ours and sort before it.
func (f *clusterFacts) olderCRDs(ours crdRelease) []string {
	var older []string
	for _, name := range slices.Sorted(maps.Keys(f.crds)) {
		if r := f.crds[name]; r.release != "" && compareReleases(r, ours) < 0 {
			older = append(older, strings.TrimSuffix(name, "."+mcsv1beta1.GroupName)+" "+r.String())
		}
	}
	return older
}
