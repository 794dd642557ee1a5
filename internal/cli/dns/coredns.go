package dns

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	mcsv1alpha1 "sigs.k8s.io/mcs-api/pkg/apis/v1alpha1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// The names of CoreDNS's objects in kubeadm, EKS, AKS, k3s and the testbed.
const (
	namespace   = metav1.NamespaceSystem
	name        = "coredns" // of the Deployment, the ConfigMap and the container
	corefileKey = "Corefile"
)

// nodeLocalNames are the ConfigMaps of NodeLocal DNSCache: of Kubernetes and Cilium's Local
// Redirect Policy, and of Kubespray.
var nodeLocalNames = []string{"node-local-dns", "nodelocaldns"}

// A coreDNS is the state of a cluster's CoreDNS. Its methods do no I/O.
type coreDNS struct {
	context    string // of the kubeconfig
	deployment *appsv1.Deployment
	config     *corev1.ConfigMap
	inspection coredns.Inspection
	version    string   // "" when the image tag has no version
	served     []string // the versions of ServiceImport that the API server serves
	permission permission
	// the ConfigMap of a node-local DNS cache that does not send queries for clusterset.local to
	// CoreDNS, or ""
	bypassed string
}

// A permission is whether CoreDNS may read ServiceImports. The user may lack the permission to
// check it.
type permission string

const (
	granted   permission = "granted"
	denied    permission = "denied"
	unchecked permission = "unchecked"
)

// errNoCoreDNS is the error for a cluster in which CoreDNS has another name, or that has another
// DNS server.
var errNoCoreDNS = fmt.Errorf("finding CoreDNS: Deployment %s/%s does not exist; if the cluster has another DNS server (such as kube-dns on GKE) "+
	"or none that can be edited (EKS Auto Mode), run kubectl mcs dns enable --beside: "+docs.URL("dns.md"), namespace, name)

// readCoreDNS reads the facts about the cluster's own CoreDNS.
func readCoreDNS(ctx context.Context, k *session.Cluster, clusterDomain string) (*coreDNS, error) {
	c := &coreDNS{context: k.Context}
	var err error
	c.deployment, err = k.Kube.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errNoCoreDNS
	}
	if err != nil {
		return nil, fmt.Errorf("reading the Deployment of CoreDNS: %w", session.WithRule(err, "get", namespace))
	}
	if c.config, err = readCorefile(ctx, k); err != nil {
		return nil, err
	}
	if c.inspection, err = coredns.Inspect(c.corefile(), clusterDomain); err != nil {
		return nil, err
	}
	c.version = coredns.ImageVersion(c.image())
	if c.served, err = servedVersions(k); err != nil {
		return nil, err
	}
	if c.permission, err = readPermission(ctx, k, c.serviceAccount()); err != nil {
		return nil, err
	}
	if c.bypassed, err = findBypass(ctx, k); err != nil {
		return nil, err
	}
	return c, nil
}

func readCorefile(ctx context.Context, k *session.Cluster) (*corev1.ConfigMap, error) {
	config, err := k.Kube.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the ConfigMap of CoreDNS: %w", session.WithRule(err, "get", namespace))
	}
	if _, ok := config.Data[corefileKey]; !ok {
		return nil, fmt.Errorf("reading the ConfigMap of CoreDNS: %s/%s has no key %s", namespace, name, corefileKey)
	}
	return config, nil
}

// servedVersions returns the versions of ServiceImport that the API server serves.
func servedVersions(k *session.Cluster) ([]string, error) {
	var versions []string
	for _, gv := range []metav1.GroupVersion{mcsv1alpha1.GroupVersion, mcsv1beta1.GroupVersion} {
		resources, err := k.Kube.Discovery().ServerResourcesForGroupVersion(gv.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the resources of %s: %w", gv, err)
		}
		if slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == mcsv1alpha1.ServiceImportPluralName }) {
			versions = append(versions, gv.Version)
		}
	}
	return versions, nil
}

// readPermission asks the API server's authorizer, which knows permissions from all roles.
func readPermission(ctx context.Context, k *session.Cluster, serviceAccount string) (permission, error) {
	rule := coredns.Rule()
	for _, verb := range rule.Verbs {
		allowed, err := k.ServiceAccountCan(ctx, namespace, serviceAccount, authorizationv1.ResourceAttributes{
			Group: rule.APIGroups[0], Resource: rule.Resources[0], Verb: verb,
		})
		if apierrors.IsForbidden(err) {
			return unchecked, nil
		}
		if err != nil {
			return unchecked, fmt.Errorf("checking whether CoreDNS may %s ServiceImports: %w", verb, err)
		}
		if !allowed {
			return denied, nil
		}
	}
	return granted, nil
}

// findBypass returns the name of the ConfigMap of a node-local DNS cache without a server block for
// the zone, or "".
func findBypass(ctx context.Context, k *session.Cluster) (string, error) {
	for _, name := range nodeLocalNames {
		config, err := k.Kube.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("reading the ConfigMap of the node-local DNS cache: %w", err)
		}
		answers, err := coredns.AnswersZone(config.Data[corefileKey], coredns.Zone)
		if err != nil {
			return "", fmt.Errorf("reading the Corefile of ConfigMap %s/%s: %w", namespace, name, err)
		}
		if !answers {
			return name, nil
		}
	}
	return "", nil
}

func (c *coreDNS) corefile() string { return c.config.Data[corefileKey] }

func (c *coreDNS) image() string { return imageOf(c.deployment) }

// imageOf returns the image of the CoreDNS container of a Deployment.
func imageOf(deployment *appsv1.Deployment) string {
	containers := deployment.Spec.Template.Spec.Containers
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		i = slices.IndexFunc(containers, func(c corev1.Container) bool { return strings.Contains(c.Image, name) })
	}
	if i < 0 {
		return ""
	}
	return containers[i].Image
}

func (c *coreDNS) serviceAccount() string {
	if account := c.deployment.Spec.Template.Spec.ServiceAccountName; account != "" {
		return account
	}
	return "default"
}

// isOnEKS reports whether EKS installed CoreDNS. Its add-on and its older self-managed Deployment
// have the same label.
func (c *coreDNS) isOnEKS() bool {
	const key = "eks.amazonaws.com/component"
	return c.deployment.Labels[key] == name || c.deployment.Annotations[key] == name
}

// ownerWarning returns a warning about another owner of the ConfigMap, or "".
func (c *coreDNS) ownerWarning() string {
	switch {
	case c.isReverted() && c.readsCustom():
		return "this ConfigMap is managed and the edit will be overwritten: \"kubectl mcs dns enable --beside\" uses ConfigMap " + coredns.CustomName + ", which is kept"
	case c.config.Annotations["objectset.rio.cattle.io/owner-gvk"] != "":
		return "k3s manages this ConfigMap and may overwrite it when the server restarts: run this command again after a restart"
	case c.config.Labels["addonmanager.kubernetes.io/mode"] == "Reconcile":
		return "the cluster's add-on manager manages this ConfigMap and will overwrite it: use your provider's way to extend CoreDNS"
	case c.config.Labels["app.kubernetes.io/managed-by"] == "Helm":
		return "Helm manages this ConfigMap: add the zone and the option to the values of the chart, or the next upgrade removes them"
	}
	return ""
}

// isReverted reports whether k3s or an add-on manager manages the ConfigMap.
func (c *coreDNS) isReverted() bool {
	return c.config.Annotations["objectset.rio.cattle.io/owner-gvk"] != "" || c.config.Labels["addonmanager.kubernetes.io/mode"] == "Reconcile"
}

// restartInterrupts reports whether a rolling restart may stop all pods at the same time.
func (c *coreDNS) restartInterrupts() bool {
	replicas := 1
	if c.deployment.Spec.Replicas != nil {
		replicas = int(*c.deployment.Spec.Replicas)
	}
	unavailable := intstr.FromString("25%") // the default of a Deployment
	if rolling := c.deployment.Spec.Strategy.RollingUpdate; rolling != nil && rolling.MaxUnavailable != nil {
		unavailable = *rolling.MaxUnavailable
	}
	stopped, err := intstr.GetScaledValueFromIntOrPercent(&unavailable, replicas, false)
	return err == nil && stopped >= replicas
}
