package dns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/cli/session"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/coredns"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// A beside is the state of the CoreDNS beside the cluster's own.
type beside struct {
	deployment *appsv1.Deployment // nil if it is not deployed
	addresses  []string           // the IPs of its Service
	permission permission
	problem    string // why a node cannot pull its image
}

// A place is where the servers of the cluster's DNS are configured to forward clusterset.local.
type place string

const (
	inCorefile  place = "Corefile"         // ConfigMap kube-system/coredns
	inCustom    place = coredns.CustomName // ConfigMap kube-system/coredns-custom
	inAddOn     place = "EKS add-on"       // the configuration of the EKS add-on, with the AWS API
	inKubeDNS   place = "kube-dns"         // stubDomains of kube-dns on GKE
	inHelmChart place = "HelmChartConfig"  // the values of RKE2's chart
	// nowhere, as on EKS Auto Mode: pods name the server themselves
	inPods place = "pods"
)

// The Deployments of other DNS servers than kube-system/coredns.
const (
	kubeDNSName = "kube-dns"
	rke2Name    = "rke2-coredns-rke2-coredns"
)

// clusterDNS is the state of all DNS servers of a cluster. Its methods do no I/O.
type clusterDNS struct {
	context string
	own     *coreDNS // nil if the cluster has no Deployment kube-system/coredns
	other   string   // the name of the Deployment of another DNS server, if known
	served  []string // as in coreDNS
	beside  beside
	custom  string // the server block in ConfigMap coredns-custom
}

// readClusterDNS reads all facts that the dns commands need.
func readClusterDNS(ctx context.Context, k *session.Cluster, clusterDomain string) (*clusterDNS, error) {
	d := &clusterDNS{context: k.Context}
	var err error
	if d.own, err = readCoreDNS(ctx, k, clusterDomain); err != nil && !errors.Is(err, errNoCoreDNS) {
		return nil, err
	}
	if d.served, err = servedVersions(k); err != nil {
		return nil, err
	}
	if d.beside, err = readBeside(ctx, k); err != nil {
		return nil, err
	}
	if d.own != nil && d.own.readsCustom() {
		d.custom, err = readCustom(ctx, k)
		return d, err
	}
	if d.own != nil {
		return d, nil
	}
	d.other, err = findOtherServer(ctx, k)
	return d, err
}

// findOtherServer returns the name of the Deployment of a known DNS server other than
// kube-system/coredns, or "".
func findOtherServer(ctx context.Context, k *session.Cluster) (string, error) {
	for _, name := range []string{kubeDNSName, rke2Name} {
		_, err := k.Kube.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return name, nil
		}
		if !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("reading Deployment %s/%s: %w", namespace, name, err)
		}
	}
	return "", nil
}

func readBeside(ctx context.Context, k *session.Cluster) (beside, error) {
	var b beside
	var deployment appsv1.Deployment
	exists, err := k.Find(ctx, namespace, coredns.BesideName, &deployment)
	if err != nil {
		return b, fmt.Errorf("reading Deployment %s/%s: %w", namespace, coredns.BesideName, err)
	}
	if exists {
		b.deployment = &deployment
		if b.problem, err = besideImageProblem(ctx, k, &deployment); err != nil {
			return b, err
		}
		if b.permission, err = readPermission(ctx, k, coredns.BesideName); err != nil {
			return b, err
		}
	}
	var service corev1.Service
	if _, err := k.Find(ctx, namespace, coredns.BesideName, &service); err != nil {
		return b, fmt.Errorf("reading Service %s/%s: %w", namespace, coredns.BesideName, err)
	}
	b.addresses = slices.DeleteFunc(slices.Clone(service.Spec.ClusterIPs), func(ip string) bool { return ip == corev1.ClusterIPNone })
	return b, nil
}

// besideImageProblem returns the reason for which a node cannot pull the image of the CoreDNS
// beside the cluster's own, or "".
func besideImageProblem(ctx context.Context, k *session.Cluster, deployment *appsv1.Deployment) (string, error) {
	return k.ImageProblem(ctx, deployment, coredns.BesideLabels(), imageOf(deployment))
}

// place returns where the cluster's DNS is configured. With force, the Corefile of EKS is edited
// although the add-on may overwrite it.
func (d *clusterDNS) place(force bool) place {
	switch {
	case d.own != nil && d.own.readsCustom():
		return inCustom
	case d.own != nil && d.own.isOnEKS() && !force:
		return inAddOn
	case d.own != nil:
		return inCorefile
	case d.other == kubeDNSName:
		return inKubeDNS
	case d.other == rke2Name:
		return inHelmChart
	}
	return inPods
}

// readsCustom reports whether CoreDNS reads server blocks from ConfigMap coredns-custom.
func (c *coreDNS) readsCustom() bool {
	return c.inspection.ImportsServers && slices.ContainsFunc(c.deployment.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool {
		return v.ConfigMap != nil && v.ConfigMap.Name == coredns.CustomName
	})
}

// isForwarded reports whether the cluster's DNS is configured to forward the zone to the CoreDNS
// beside it, at its present or a previous address.
func (d *clusterDNS) isForwarded() bool {
	if d.own == nil {
		return false // it cannot be read
	}
	found := d.own.inspection
	return d.custom != "" || found.ForwardNoted || len(found.Forward) > 0 && slices.Equal(found.Forward, d.beside.addresses)
}

// forwardAddresses returns the addresses to which the cluster's DNS forwards the zone.
func (d *clusterDNS) forwardAddresses() []string {
	if d.custom != "" {
		addresses, _ := coredns.Upstreams(d.custom) // a block that does not parse forwards nowhere
		return addresses
	}
	return d.own.inspection.Forward
}

// usesBeside reports whether a CoreDNS beside the cluster's own is, or was, to serve the zone.
func (d *clusterDNS) usesBeside() bool { return d.beside.deployment != nil || d.isForwarded() }

// forward returns the Corefile with a server block that forwards the zone.
func (d *clusterDNS) forward(corefile, clusterDomain string) (string, error) {
	return coredns.Forward(corefile, clusterDomain, d.beside.addresses)
}

// validateBeside returns an error if the zone cannot be forwarded.
func (d *clusterDNS) validateBeside(clusterDomain string) error {
	if api := apiCheck(d.context, d.served); api.IsFailure() {
		return fmt.Errorf("checking the %s: %s\n%s\nNothing was changed", api.Name, api.Detail, api.Remedy)
	}
	if d.own == nil {
		return nil
	}
	corefile, err := coredns.RemoveForward(d.own.corefile(), d.beside.addresses)
	if err == nil {
		_, err = coredns.ForwardBlock(corefile, clusterDomain, nil)
	}
	return err
}

// runEnableBeside deploys a CoreDNS beside the cluster's own and makes the cluster's DNS forward
// the zone to it.
func runEnableBeside(ctx context.Context, s *session.Session, o options) error {
	if v := coredns.ImageVersion(o.image); v != "" && !coredns.Supports(v) {
		return session.Usagef("--image: CoreDNS %s is too old to serve %s; %s or newer is required", v, coredns.Zone, coredns.MinVersion)
	}
	objects, err := coredns.Beside(o.image)
	if err != nil {
		return err
	}
	if o.print {
		s.Progressf("Standard output has the manifests. When the cluster has them, \"kubectl mcs dns enable --beside\" makes its DNS forward %s to Service %s/%s;\n"+
			"with --dry-run it prints that edit with the IP of the Service.", coredns.Zone, namespace, coredns.BesideName)
		return s.PrintManifests(objects)
	}
	k, err := s.OneCluster()
	if err != nil {
		return err
	}
	d, err := readClusterDNS(ctx, k, o.clusterDomain)
	if err != nil {
		return err
	}
	if err := d.validateBeside(o.clusterDomain); err != nil {
		return err
	}
	d.printWarnings(s, o.force)
	if o.dryRun {
		return printForward(s, d, o)
	}
	if d.beside, err = deployBeside(ctx, s, k, objects, o); err != nil {
		return err
	}
	return forwardZone(ctx, s, k, d, o)
}

// printWarnings prints side effects and risks before anything is changed.
func (d *clusterDNS) printWarnings(s *session.Session, force bool) {
	if d.own == nil {
		return
	}
	if d.place(force) == inCorefile {
		printOwnerWarning(s, d.own)
	}
	printRestartWarnings(s, d.own)
}

// deployBeside applies the objects, waits until the pods are ready, and returns the state.
func deployBeside(ctx context.Context, s *session.Session, k *session.Cluster, objects []*unstructured.Unstructured, o options) (beside, error) {
	if err := applyBeside(ctx, k, objects); err != nil {
		return beside{}, err
	}
	s.Progressf("Applied Deployment %s/%s (image %s) with its Service, ConfigMap, ServiceAccount, ClusterRole and ClusterRoleBinding.",
		namespace, coredns.BesideName, o.image)
	if o.wait > 0 {
		s.Progressf("Waiting up to %s until its pods are ready.", o.wait)
		if err := waitForBeside(ctx, k, o.wait); err != nil {
			return beside{}, err
		}
	}
	b, err := readBeside(ctx, k)
	if err == nil && len(b.addresses) == 0 {
		err = fmt.Errorf("reading Service %s/%s: it has no cluster IP", namespace, coredns.BesideName)
	}
	return b, err
}

// applyBeside applies the objects unless the plugin did not create one of them.
func applyBeside(ctx context.Context, k *session.Cluster, objects []*unstructured.Unstructured) error {
	c, err := k.Objects()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := checkManaged(ctx, k, object); err != nil {
			return fmt.Errorf("applying %s: %w", session.ObjectName(object), err)
		}
	}
	for _, object := range objects {
		if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(names.Plugin), client.ForceOwnership); err != nil {
			return fmt.Errorf("applying %s: %w", session.ObjectName(object), err)
		}
	}
	return nil
}

// checkManaged returns an error if an object of that name exists that the plugin did not create.
func checkManaged(ctx context.Context, k *session.Cluster, object *unstructured.Unstructured) error {
	existing := &metav1.PartialObjectMetadata{}
	existing.SetGroupVersionKind(object.GroupVersionKind())
	exists, err := k.Find(ctx, object.GetNamespace(), object.GetName(), existing)
	if err == nil && exists && !isManaged(existing) {
		err = errNotManaged
	}
	return err
}

// waitForBeside waits until all pods are updated and available, or a node cannot pull their image.
func waitForBeside(ctx context.Context, k *session.Cluster, timeout time.Duration) error {
	const unchanged = "The DNS of the cluster was not changed"
	var d appsv1.Deployment
	err := k.Poll(ctx, timeout, func() (bool, error) {
		exists, err := k.Find(ctx, namespace, coredns.BesideName, &d)
		if err != nil || !exists || session.IsRolledOut(&d) {
			return exists, err
		}
		problem, err := besideImageProblem(ctx, k, &d)
		if err == nil && problem != "" {
			err = fmt.Errorf("a node cannot pull the image %s (%s)\n"+
				"  name an image of CoreDNS %s or newer that the nodes can pull with --image\n%s", imageOf(&d), problem, coredns.MinVersion, unchanged)
		}
		return false, err
	})
	if err == nil {
		return nil
	}
	if !wait.Interrupted(err) {
		return fmt.Errorf("waiting for Deployment %s/%s: %w", namespace, coredns.BesideName, err)
	}
	return session.Incompletef("waiting for Deployment %s/%s: after %s %d of %d pods are updated and available; find the reason with\n"+
		"  kubectl --context %s -n %[1]s describe deployment %[2]s\n%[7]s",
		namespace, coredns.BesideName, timeout, min(d.Status.UpdatedReplicas, d.Status.AvailableReplicas), d.Status.Replicas, k.Context, unchanged)
}

// forwardZone makes the cluster's DNS forward the zone, or prints how to.
func forwardZone(ctx context.Context, s *session.Session, k *session.Cluster, d *clusterDNS, o options) error {
	edit := func(corefile string) (string, error) { return d.forward(corefile, o.clusterDomain) }
	ch := change{enable: true}
	switch d.place(o.force) {
	case inCustom:
		block, err := d.customBlock(o.clusterDomain)
		if err == nil {
			ch.edited, err = writeCustom(ctx, k, block)
		}
		if err != nil {
			return err
		}
	case inCorefile:
		var err error
		if ch.edited, err = writeCorefile(ctx, k, edit); err != nil {
			return err
		}
	case inAddOn:
		edited, err := edit(d.own.corefile())
		if err != nil {
			return err
		}
		if edited != d.own.corefile() {
			return printAddOnConfiguration(s, edited)
		}
	default:
		return instruct(ctx, s, k, d, o)
	}
	return applyChange(ctx, s, k, d.own, o, ch)
}

// customBlock returns the server block for ConfigMap coredns-custom.
func (d *clusterDNS) customBlock(clusterDomain string) (string, error) {
	corefile, err := coredns.RemoveForward(d.own.corefile(), d.beside.addresses)
	if err != nil {
		return "", err
	}
	block, err := coredns.ForwardBlock(corefile, clusterDomain, d.beside.addresses)
	return block + "\n", err
}

// instruct prints how to configure a DNS server that this command cannot edit, unless its pods
// answer for the zone already.
func instruct(ctx context.Context, s *session.Session, k *session.Cluster, d *clusterDNS, o options) error {
	if o.wait > 0 { // pods of the second CoreDNS are ready
		found, err := probeServers(ctx, k)
		if err != nil {
			return err
		}
		if found.isComplete() && found.allAgree(true) {
			s.Progressf("Done: %s.", found.describe(true))
			return nil
		}
	}
	if _, err := fmt.Fprint(s.Out, d.instructions()); err != nil {
		return err
	}
	return session.ErrIncomplete
}

// printForward prints what enable --beside would change.
func printForward(s *session.Session, d *clusterDNS, o options) error {
	s.Progressf("Would apply the objects that --print prints (image %s).", o.image)
	if len(d.beside.addresses) == 0 {
		s.Progressf("Service %s/%s does not exist: SERVICE_IP stands for its IP.", namespace, coredns.BesideName)
		d.beside.addresses = []string{"SERVICE_IP"}
	}
	switch d.place(true) {
	case inCustom:
		block, err := d.customBlock(o.clusterDomain)
		if err != nil {
			return err
		}
		s.Progressf("Would set key %s of ConfigMap %s/%s:", coredns.CustomKey, namespace, coredns.CustomName)
		_, err = fmt.Fprint(s.Out, block)
		return err
	case inCorefile:
		edited, err := d.forward(d.own.corefile(), o.clusterDomain)
		if err != nil {
			return err
		}
		return printDiff(s, d.own.corefile(), edited)
	}
	_, err := fmt.Fprint(s.Out, d.instructions())
	return err
}

// instructions returns how to make DNS servers that cannot be edited with the Kubernetes API
// forward the zone.
func (d *clusterDNS) instructions() string {
	addresses := strings.Join(d.beside.addresses, " ")
	const again = "\nThen run this command again: it checks the result.\n"
	switch d.place(false) {
	case inKubeDNS:
		quoted := `"` + strings.Join(d.beside.addresses, `", "`) + `"`
		return fmt.Sprintf("kube-dns answers in this cluster. Add a stub domain to ConfigMap %s/%s and keep those that are there:\n\n"+
			"data:\n  stubDomains: |\n    {\"%s\": [%s]}\n%s", namespace, kubeDNSName, coredns.Zone, quoted, again)
	case inHelmChart:
		return fmt.Sprintf("RKE2's Helm controller manages the Corefile. Add a server to the values of HelmChartConfig %s/rke2-coredns, behind the servers of the chart,\n"+
			"which the list replaces:\n\nservers:\n- zones: [{zone: %s.}]\n  port: 53\n  plugins:\n  - name: errors\n  - name: forward\n    parameters: . %s\n%s",
			namespace, coredns.Zone, addresses, again)
	}
	return fmt.Sprintf("The DNS of this cluster cannot be configured (EKS Auto Mode), or is not known. Pods resolve %s if their template names the server, which\n"+
		"forwards other names to the DNS of the cluster:\n\ndnsPolicy: None\ndnsConfig:\n  nameservers: [%s]\n"+
		"  searches: [NAMESPACE.svc.cluster.local, svc.cluster.local, cluster.local]\n  options: [{name: ndots, value: \"5\"}]\n",
		coredns.Zone, strings.Join(d.beside.addresses, ", "))
}

// disableBeside makes the cluster's DNS forward the zone no longer, and deletes the CoreDNS beside
// it.
func disableBeside(ctx context.Context, s *session.Session, k *session.Cluster, d *clusterDNS, o options) error {
	if o.dryRun {
		return printRemoval(s, d)
	}
	if d.own == nil {
		if err := checkUnused(ctx, k, d, o.force); err != nil {
			return err
		}
		return deleteBeside(ctx, s, k)
	}
	var ch change
	edit := func(corefile string) (string, error) { return coredns.RemoveForward(corefile, d.beside.addresses) }
	edited, err := edit(d.own.corefile())
	if err != nil {
		return err
	}
	if d.own.isOnEKS() && !o.force && edited != d.own.corefile() {
		return printAddOnConfiguration(s, edited)
	}
	if ch.edited, err = writeCorefile(ctx, k, edit); err != nil {
		return err
	}
	if d.custom != "" {
		if ch.edited, err = writeCustom(ctx, k, ""); err != nil {
			return err
		}
	}
	// The servers are deleted last: until then, CoreDNS pods that still forward the zone get
	// answers.
	if err := applyChange(ctx, s, k, d.own, o, ch); err != nil {
		return err
	}
	return deleteBeside(ctx, s, k)
}

// printRemoval prints what disable would change.
func printRemoval(s *session.Session, d *clusterDNS) error {
	if d.custom != "" {
		s.Progressf("Would delete key %s of ConfigMap %s/%s.", coredns.CustomKey, namespace, coredns.CustomName)
	}
	s.Progressf("Would then delete Deployment %s/%s, its Service, ConfigMap, ServiceAccount, ClusterRole and ClusterRoleBinding.", namespace, coredns.BesideName)
	if d.own == nil {
		return nil
	}
	edited, err := coredns.RemoveForward(d.own.corefile(), d.beside.addresses)
	if err != nil {
		return err
	}
	return printDiff(s, d.own.corefile(), edited)
}

// checkUnused returns an error if a DNS server or a pod uses the CoreDNS beside it, as far as this
// can be read.
func checkUnused(ctx context.Context, k *session.Cluster, d *clusterDNS, force bool) error {
	if force {
		return nil
	}
	found, err := probeServers(ctx, k)
	if err != nil {
		return err
	}
	if found.answered > 0 {
		return fmt.Errorf("disabling %s: %s: first undo in their configuration what \"kubectl mcs dns enable --beside\" printed, or set --force\nNothing was changed",
			coredns.Zone, found.count())
	}
	pods, err := k.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing the pods that use Service %s/%s: %w", namespace, coredns.BesideName, err)
	}
	if users := podsWithServer(pods.Items, d.beside.addresses); len(users) > 0 {
		return fmt.Errorf("disabling %s: the dnsConfig of %d pods, such as %s, names Service %s/%s, and they would lose all DNS: change it first, or set --force\nNothing was changed",
			coredns.Zone, len(users), users[0], namespace, coredns.BesideName)
	}
	return nil
}

// podsWithServer returns the names of the pods whose dnsConfig has one of the addresses.
func podsWithServer(pods []corev1.Pod, addresses []string) []string {
	var found []string
	for _, p := range pods {
		if p.Spec.DNSConfig != nil && slices.ContainsFunc(p.Spec.DNSConfig.Nameservers, func(ip string) bool { return slices.Contains(addresses, ip) }) {
			found = append(found, p.Namespace+"/"+p.Name)
		}
	}
	return found
}

// deleteBeside deletes the objects with the plugin's labels.
func deleteBeside(ctx context.Context, s *session.Session, k *session.Cluster) error {
	c, err := k.Objects()
	if err != nil {
		return err
	}
	objects, err := coredns.Beside("")
	if err != nil {
		return err
	}
	slices.Reverse(objects)
	var deleted []string
	for _, object := range objects {
		existing := &metav1.PartialObjectMetadata{}
		existing.SetGroupVersionKind(object.GroupVersionKind())
		exists, err := k.Find(ctx, object.GetNamespace(), object.GetName(), existing)
		if err == nil && exists && isManaged(existing) {
			deleted = append(deleted, object.GetKind())
			err = client.IgnoreNotFound(c.Delete(ctx, existing))
		}
		if err != nil {
			return fmt.Errorf("deleting %s: %w", session.ObjectName(object), err)
		}
	}
	if len(deleted) > 0 {
		s.Progressf("Deleted %s %s.", strings.Join(deleted, ", "), coredns.BesideName)
	}
	return nil
}
