package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

const (
	chart = "deploy/charts/cloud-map-mcs-controller"
	crds  = "serviceexports.multicluster.x-k8s.io serviceimports.multicluster.x-k8s.io clusterproperties.about.k8s.io"
	// chartValues are the values for the testbed instead of AWS, with the cluster's identity. CLS
	// stands for the cluster.
	chartValues = " --set aws.region=ap-southeast-2,aws.endpoint=" + clusterset.Endpoint + ",aws.insecure=true,aws.credentialsSecret=aws-credentials" + chartIdentity
	// etcdChartValues are those for the testbed's etcd.
	etcdChartValues = " --set registry=etcd,etcd.endpoints[0]=" + clusterset.EtcdEndpoint + ",etcd.username=" + clusterset.ClusterSetID + ".CLS" +
		",etcd.passwordSecret=etcd-client,etcd.tls.secret=etcd-client,etcd.tls.cert=,etcd.tls.key=" + chartIdentity
	chartIdentity = " --set clusterId=CLS,clusterSetId=" + clusterset.ClusterSetID
)

// TestChart installs, upgrades and uninstalls with the real Helm, in a namespace that holds pods to
// the restricted profile. Like the tutorial, and before it, it begins and ends with empty clusters.
func TestChart(t *testing.T) {
	onlyOn(t, clusterset.CloudMap)
	if touched.Load() {
		t.Fatal("a scenario has installed the product before: one that is not parallel belongs below the tutorial, or into a file whose name comes later")
	}
	both, err := clusters()
	if err != nil {
		t.Fatal(err)
	}
	cls1, cls2 := both[0], both[1]
	each := func(line string) {
		t.Helper()
		if err := atOnce(both, func(c cluster) error { return runLines(t.Context(), c.name, []string{line}) }); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		err := atOnce(both, func(c cluster) error {
			var errs []error
			for _, line := range []string{
				"helm --kube-context CLS -n " + system + " uninstall cloud-map-mcs-controller --ignore-not-found",
				"kubectl --context CLS delete crds " + crds + " --ignore-not-found",
				"kubectl --context CLS delete namespace " + system + " --ignore-not-found --timeout=60s",
			} {
				errs = append(errs, runLines(context.Background(), c.name, []string{line}))
			}
			return errors.Join(errs...)
		})
		if err != nil {
			t.Error(err)
		}
	})

	// An older chart: its CRDs are of an earlier release.
	command(t, cls1, "rm -rf bin/older-chart && cp -r "+chart+" bin/older-chart && sed -i 's/release-version: .*/release-version: v0.5.1/' bin/older-chart/files/crds/multicluster*")
	each("kubectl --context CLS apply -f deploy/manager/namespace.yaml")
	each("kubectl --context CLS -n " + system + " create secret generic aws-credentials --from-env-file=bin/aws/CLS.env")
	each("helm --kube-context CLS -n " + system + " install cloud-map-mcs-controller bin/older-chart --wait --timeout 90s" + chartValues)
	ns := namespace(t, both...)
	publish(t, cls1, ns, 1, asIs)
	var ip string
	eventually(t, soon, func() error { return exporters(t.Context(), cls2, ns, "web", "cls1") })
	eventually(t, soon, func() (err error) { ip, err = importIP(t.Context(), cls2, ns, "web"); return err })

	// The test pods: every cluster is a member.
	each("helm --kube-context CLS -n " + system + " test cloud-map-mcs-controller --timeout 90s")

	// Another set of values and newer CRDs: nothing that is used goes away.
	upgrade := "helm --kube-context CLS -n " + system + " upgrade cloud-map-mcs-controller " + chart + " --wait --timeout 90s" + chartValues +
		" --set replicas=3,networkPolicy.enabled=true,clusterProperties.create=true,peerNotifications.port=9479"
	stop, gone := watchImport(t, cls2, ns, ip)
	each(upgrade)
	eventually(t, soon, func() error { return exporters(t.Context(), cls2, ns, "web", "cls1") })
	stop()
	if err := gone(); err != nil {
		t.Errorf("the import was not there all the time of the upgrade: %v", err)
	}
	for _, c := range both {
		if got := command(t, c, "kubectl --context CLS get crd serviceexports.multicluster.x-k8s.io -o jsonpath='{.metadata.labels}'"); strings.Contains(got, "v0.5.1") {
			t.Errorf("%s: the CRD is still the older one: %s", c.name, got)
		}
		got := command(t, c, "kubectl --context CLS -n "+system+" get deployment,networkpolicy,poddisruptionbudget -o name")
		if n := strings.Count(got, "cloud-map-mcs-controller-manager"); n != 3 {
			t.Errorf("%s has %d of a Deployment, a NetworkPolicy and a PodDisruptionBudget:\n%s", c.name, n, got)
		}
	}
	each("helm --kube-context CLS -n " + system + " test cloud-map-mcs-controller --timeout 90s")

	// Out again.
	for _, c := range both { // one after the other, as the walk-through
		command(t, c, "kubectl mcs leave --context CLS --yes")
	}
	eventually(t, soon, func() error {
		out, err := suite.Output(t.Context(), tutorial.AWS("list-services --query 'Services[].Name' --output text"))
		if err == nil && (strings.Contains(out, "catalog.") || strings.Contains(out, "members")) {
			err = fmt.Errorf("Cloud Map still has %s", out)
		}
		return err
	})
	each("helm --kube-context CLS -n " + system + " uninstall cloud-map-mcs-controller --wait --timeout 60s")
	for _, c := range both {
		// Pods end a moment after Helm has deleted their owners.
		eventually(t, started, func() error { return onlyCRDs(t, c) })
		deleteImports(t, c)
	}
}

// deleteImports deletes imported Services and EndpointSlices with the commands of
// docs/install.md#uninstalling; its CRDs are deleted at the end of the test.
func deleteImports(t *testing.T, c cluster) {
	t.Helper()
	for _, imports := range []string{
		"services -A -l app.kubernetes.io/managed-by=cloud-map-mcs-controller",
		"endpointslices -A -l endpointslice.kubernetes.io/managed-by=cloud-map-mcs-controller",
	} {
		command(t, c, "kubectl --context CLS delete "+imports)
		if left := kubectl(t, c, append([]string{"get", "-o", "name"}, strings.Fields(imports)...)...); left != "" {
			t.Errorf("%s: after kubectl delete %s there are\n%s", c.name, imports, left)
		}
	}
}

// onlyCRDs checks that a cluster has nothing of the product but the CRDs.
func onlyCRDs(t *testing.T, c cluster) error {
	t.Helper()
	left := command(t, c, "kubectl --context CLS get crds,clusterroles,clusterrolebindings,validatingadmissionpolicies -o name && kubectl --context CLS -n "+system+" get all,networkpolicies,pdb -o name")
	for name := range strings.FieldsSeq(crds) {
		if !strings.Contains(left, name) {
			t.Fatalf("%s: uninstalling deleted the CRD %s, and with it every object of its kind", c.name, name)
		}
		left = strings.ReplaceAll(left, name, "")
	}
	if strings.Contains(left, "cloud-map") || strings.Contains(left, "multicluster") {
		return fmt.Errorf("%s: uninstalling left:\n%s", c.name, left)
	}
	return nil
}

// command runs a command line, in which CLS stands for the cluster.
func command(t *testing.T, c cluster, line string) string {
	t.Helper()
	line = strings.ReplaceAll(line, "CLS", c.name)
	out, err := suite.Output(t.Context(), line)
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return out
}

// watchImport polls service web in a cluster until stop is called. gone is then the first time that
// its clusterset IP or its endpoints were not there.
func watchImport(t *testing.T, c cluster, ns, ip string) (stop func(), gone func() error) {
	ctx, cancel := context.WithCancel(t.Context())
	found := make(chan error, 1)
	go func() {
		defer close(found)
		for ctx.Err() == nil {
			got, err := importIP(ctx, c, ns, "web")
			if err == nil && got != ip {
				err = fmt.Errorf("the clusterset IP is %s, and was %s", got, ip)
			}
			slices, sliceErr := imported(ctx, c, ns, "web", "", true)
			if sliceErr == nil && len(slices) == 0 {
				sliceErr = errors.New("no endpoints")
			}
			if err := errors.Join(err, sliceErr); err != nil && ctx.Err() == nil {
				found <- err
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return cancel, func() error { return <-found }
}
