package cli

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

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
)

// Where kubeadm, EKS, AKS, k3s and the testbed keep CoreDNS.
const (
	coreDNSNamespace = metav1.NamespaceSystem
	coreDNSName      = "coredns" // of the Deployment, the ConfigMap and the container
	corefileKey      = "Corefile"
	nodeLocalName    = "node-local-dns" // the ConfigMap of Kubernetes' NodeLocal DNSCache
)

// A coreDNS is what was gathered of a cluster's CoreDNS. The functions on it decide and do no I/O.
type coreDNS struct {
	deployment *appsv1.Deployment
	config     *corev1.ConfigMap
	inspection coredns.Inspection
	version    string // "" when the image does not say
	served     bool   // the API server serves ServiceImport in the version CoreDNS watches
	permission permission
	bypassed   bool // a node-local DNS cache sends clusterset.local past CoreDNS
}

// A permission is whether CoreDNS may read ServiceImports. The asking itself may be forbidden.
type permission string

const (
	granted   permission = "granted"
	denied    permission = "denied"
	unchecked permission = "unchecked"
)

// gather reads all that the dns commands decide on, or fails.
func gather(ctx context.Context, k *cluster, clusterDomain string) (*coreDNS, error) {
	c := &coreDNS{}
	var err error
	c.deployment, err = k.kube.AppsV1().Deployments(coreDNSNamespace).Get(ctx, coreDNSName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("finding CoreDNS: there is no Deployment %s/%s; if this cluster's DNS is not CoreDNS (GKE's kube-dns), "+
			"or CoreDNS has another name, set it up by hand: docs/dns.md", coreDNSNamespace, coreDNSName)
	}
	if err != nil {
		return nil, fmt.Errorf("reading CoreDNS's Deployment: %w", err)
	}
	if c.config, err = readCorefile(ctx, k); err != nil {
		return nil, err
	}
	if c.inspection, err = coredns.Inspect(c.corefile(), clusterDomain); err != nil {
		return nil, err
	}
	c.version = coredns.ImageVersion(c.image())
	if c.served, err = servesServiceImports(k); err != nil {
		return nil, err
	}
	if c.permission, err = readsServiceImports(ctx, k, c.serviceAccount()); err != nil {
		return nil, err
	}
	if c.bypassed, err = bypassed(ctx, k); err != nil {
		return nil, err
	}
	return c, nil
}

func readCorefile(ctx context.Context, k *cluster) (*corev1.ConfigMap, error) {
	config, err := k.kube.CoreV1().ConfigMaps(coreDNSNamespace).Get(ctx, coreDNSName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading CoreDNS's ConfigMap: %w", err)
	}
	if _, ok := config.Data[corefileKey]; !ok {
		return nil, fmt.Errorf("reading CoreDNS's ConfigMap: %s/%s has no key %s", coreDNSNamespace, coreDNSName, corefileKey)
	}
	return config, nil
}

func servesServiceImports(k *cluster) (bool, error) {
	resources, err := k.kube.Discovery().ServerResourcesForGroupVersion(mcsv1alpha1.GroupVersion.String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking the API server for %s: %w", mcsv1alpha1.GroupVersion, err)
	}
	return slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool {
		return r.Name == mcsv1alpha1.ServiceImportPluralName
	}), nil
}

// readsServiceImports asks the API server's authorizer, so it sees a permission wherever it was granted.
func readsServiceImports(ctx context.Context, k *cluster, serviceAccount string) (permission, error) {
	rule := coredns.Rule()
	for _, verb := range rule.Verbs {
		allowed, err := mayServiceAccount(ctx, k, coreDNSNamespace, serviceAccount, authorizationv1.ResourceAttributes{
			Group: rule.APIGroups[0], Resource: rule.Resources[0], Verb: verb,
		})
		if apierrors.IsForbidden(err) {
			return unchecked, nil
		}
		if err != nil {
			return unchecked, fmt.Errorf("asking whether CoreDNS may %s ServiceImports: %w", verb, err)
		}
		if !allowed {
			return denied, nil
		}
	}
	return granted, nil
}

// bypassed looks for a node-local DNS cache whose Corefile does not name the zone.
func bypassed(ctx context.Context, k *cluster) (bool, error) {
	config, err := k.kube.CoreV1().ConfigMaps(coreDNSNamespace).Get(ctx, nodeLocalName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for a node-local DNS cache: %w", err)
	}
	answers, err := coredns.AnswersZone(config.Data[corefileKey], coredns.Zone)
	if err != nil {
		return false, fmt.Errorf("reading the Corefile of ConfigMap %s/%s: %w", coreDNSNamespace, nodeLocalName, err)
	}
	return !answers, nil
}

func (c *coreDNS) corefile() string { return c.config.Data[corefileKey] }

// image is CoreDNS's own among the pod's containers.
func (c *coreDNS) image() string {
	containers := c.deployment.Spec.Template.Spec.Containers
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == coreDNSName })
	if i < 0 {
		i = slices.IndexFunc(containers, func(c corev1.Container) bool { return strings.Contains(c.Image, coreDNSName) })
	}
	if i < 0 {
		return ""
	}
	return containers[i].Image
}

func (c *coreDNS) serviceAccount() string {
	if name := c.deployment.Spec.Template.Spec.ServiceAccountName; name != "" {
		return name
	}
	return "default"
}

// onEKS tells whether EKS installed CoreDNS. Its add-on and its older self-managed Deployment look alike.
func (c *coreDNS) onEKS() bool {
	const key = "eks.amazonaws.com/component"
	return c.deployment.Labels[key] == coreDNSName || c.deployment.Annotations[key] == coreDNSName
}

// owner names who else writes the Corefile and what to do about it, or "".
func (c *coreDNS) owner() string {
	switch {
	case c.config.Annotations["objectset.rio.cattle.io/owner-gvk"] != "":
		return "k3s owns this ConfigMap and may write its own Corefile back when the server restarts: run this command again then"
	case c.config.Labels["addonmanager.kubernetes.io/mode"] == "Reconcile":
		return "the cluster's add-on manager owns this ConfigMap and will write its own Corefile back: ask your provider how to extend it"
	case c.config.Labels["app.kubernetes.io/managed-by"] == "Helm":
		return "Helm owns this ConfigMap: put the zone and the option into the chart's values too, or the next upgrade drops them"
	}
	return ""
}

// restartInterrupts tells whether a rolling restart may take away every pod at a time.
func (c *coreDNS) restartInterrupts() bool {
	replicas := 1
	if c.deployment.Spec.Replicas != nil {
		replicas = int(*c.deployment.Spec.Replicas)
	}
	unavailable := intstr.FromString("25%") // the Deployment's default
	if rolling := c.deployment.Spec.Strategy.RollingUpdate; rolling != nil && rolling.MaxUnavailable != nil {
		unavailable = *rolling.MaxUnavailable
	}
	gone, err := intstr.GetScaledValueFromIntOrPercent(&unavailable, replicas, false)
	return err == nil && gone >= replicas
}
