package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

// oldFormat is the format number in the records of the earlier version: hack/build-old sets it. No
// version writes it, and it has the major number of this one.
const oldFormat = "1.99"

// formats are command lines that print the format numbers in the records of the cluster CLS: that
// of its member record, then those of its pages. On etcd the member record has the format number of
// the exports.
var formats = map[string]string{
	clusterset.CloudMap: tutorial.AWS("discover-instances --namespace-name mcs."+clusterset.ClusterSetID+
		" --service-name members --query \"Instances[?InstanceId=='CLS'].Attributes.FORMAT\" --output text") + " && " +
		tutorial.AWS("discover-instances --namespace-name mcs."+clusterset.ClusterSetID+" --service-name catalog.CLS --query 'Instances[].Attributes.FORMAT' --output text"),
	clusterset.Etcd: "etcdctl get /mcs/" + clusterset.ClusterSetID + `/CLS/member --print-value-only | grep -o '"format":"[^"]*' | cut -d '"' -f 4`,
}

// version is a version of the product: the repository at one commit, with the plugin in bin.
type version struct {
	// tree is the directory, from the root of the repository.
	tree string
	// name is the version that the controller reports.
	name string
}

// appVersion is the version in the chart.
var appVersion = regexp.MustCompile(`(?m)^appVersion: (\S+)$`)

// versionIn returns the version in a directory.
func versionIn(t *testing.T, tree string) version {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(suite.Root, tree, chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	m := appVersion.FindSubmatch(text)
	if m == nil {
		t.Fatalf("the chart in %s has no appVersion", tree)
	}
	return version{tree, string(m[1])}
}

// installer is a way to install the product. In its command lines CLS stands for the cluster and
// TREE for the directory of the version.
type installer struct {
	name string
	// first are the lines before the first installation.
	first []string
	// install installs the version, or replaces another one by it.
	install string
	// join makes the cluster a member, once. It is empty if install does.
	join string
	// remove are the lines that remove the installation.
	remove []string
}

// installers returns the ways to install the product on a registry.
func installers(registry string) []installer {
	var first, apply []string
	for _, line := range tutorial.Install(registry) {
		if strings.Contains(line, " apply -k ") {
			apply = append(apply, strings.Replace(line, " -k ", " -k TREE/", 1))
		} else {
			first = append(first, line)
		}
	}
	values := chartValues
	if registry == clusterset.Etcd {
		values = etcdChartValues
	}
	uninstall := []string{
		"kubectl mcs uninstall --crds --yes --context CLS",
		"kubectl --context CLS wait namespace/" + system + " --for=delete --timeout=90s",
	}
	all := []installer{
		{
			name: "Helm", first: first,
			install: "helm --kube-context CLS -n " + system + " upgrade --install cloud-map-mcs-controller TREE/" + chart + " --wait --timeout 90s" + values,
			remove: []string{
				"kubectl mcs leave --yes --context CLS",
				"kubectl mcs dns disable --context CLS",
				"helm --kube-context CLS -n " + system + " uninstall cloud-map-mcs-controller --ignore-not-found --wait --timeout 60s",
				"kubectl --context CLS delete crds " + crds + " --ignore-not-found",
				"kubectl --context CLS delete namespace " + system + " --ignore-not-found --timeout=60s",
			},
		},
		{
			name: "kustomize", first: append(slices.Clip(first), "kubectl --context CLS apply -k deploy/guard"),
			install: strings.Join(apply, " && ") + " && kubectl --context CLS -n " + system + " rollout status " + manager + " --timeout=90s",
			join:    "sed s/cls2/CLS/ TREE/samples/clusterproperty-cls2.yaml | kubectl --context CLS apply -f -",
			remove:  append(slices.Clip(uninstall), "kubectl --context CLS delete -k deploy/guard --ignore-not-found"),
		},
	}
	// kubectl mcs install mounts no files, and etcd's users and certificates are files
	if registry == clusterset.CloudMap {
		all = slices.Insert(all, 0, installer{
			name: "kubectl mcs", first: first,
			install: "TREE/bin/kubectl-mcs install --context CLS --env-secret aws-credentials -- --aws-region=ap-southeast-2 --aws-endpoint=" +
				clusterset.Endpoint + " --aws-insecure",
			join:   "TREE/bin/kubectl-mcs join --cluster-id CLS --clusterset-id " + clusterset.ClusterSetID + " --context CLS",
			remove: uninstall,
		})
	}
	for i := range all {
		all[i].remove = append(slices.Clip(all[i].remove), tutorial.Uninstall(registry)...)
	}
	return all
}

// TestUpgrade upgrades and downgrades one cluster after the other, between an earlier version and
// the present one, with each installer of the registry. The earlier version writes its records with
// a minor format number of its own. Clients in both clusters connect to clusterset IPs ten times a
// second all the time: no connection fails, no import goes, and no IP changes. After each step,
// services that each cluster begins and ends to export reach the other one. Like the tutorial, and
// before it, it begins and ends with empty clusters.
func TestUpgrade(t *testing.T) {
	if testing.Short() {
		t.Skip("CI does not build an earlier version: NIGHTLY=1 does")
	}
	if touched.Load() {
		t.Fatal("a scenario has installed the product before: one that is not parallel belongs below the tutorial, or into a file whose name comes later")
	}
	both, err := clusters()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := suite.Output(t.Context(), "testbed load-image dist/controller-old.tar"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	earlier, present := versionIn(t, "dist/old"), versionIn(t, ".")
	for _, i := range installers(suite.Registry) {
		t.Run(i.name, func(t *testing.T) {
			u := startUpgrade(t, i, both[0], both[1], earlier)
			for _, step := range []struct {
				cluster cluster
				to      version
			}{
				{u.cls2, present}, // cls1 earlier, cls2 present
				{u.cls2, earlier},
				{u.cls1, present}, // cls1 present, cls2 earlier
				{u.cls2, present},
				{u.cls1, earlier},
				{u.cls2, earlier},
			} {
				u.change(t, step.cluster, step.to)
			}
			u.finish(t)
		})
	}
}

// upgrade is a clusterset of two clusters whose versions change.
type upgrade struct {
	installer
	cls1, cls2 cluster
	ns         string
	// versions are the names of the versions that the clusters have now, and earlier is that of the
	// earlier one.
	versions map[string]string
	earlier  string
	clients  []*upgradeClient
	steps    int
}

// upgradeClient connects to the imports of a cluster and records their changes.
type upgradeClient struct {
	cluster cluster
	traffic *traffic
	imports *importRecord
	// before are the imports at the start (importObjects).
	before map[string]string
}

// startUpgrade installs a version in both clusters, exports services, and starts the clients.
func startUpgrade(t *testing.T, i installer, cls1, cls2 cluster, v version) *upgrade {
	t.Helper()
	u := &upgrade{installer: i, cls1: cls1, cls2: cls2, versions: map[string]string{}, earlier: v.name}
	t.Cleanup(func() { u.uninstall(t) })
	for _, c := range u.all() {
		for _, line := range i.first {
			command(t, c, line)
		}
		u.install(t, c, v)
		if i.join != "" {
			command(t, c, inTree(i.join, v))
		}
		// the check of the clusterset needs it
		command(t, c, "kubectl mcs dns enable --context CLS")
	}
	u.ns = namespace(t, cls1, cls2)
	u.exportAll(t)
	u.checkVersions(t)
	for _, c := range u.all() {
		u.clients = append(u.clients, u.startClient(t, c))
	}
	return u
}

func (u *upgrade) all() []cluster { return []cluster{u.cls1, u.cls2} }

// other returns the other cluster.
func (u *upgrade) other(c cluster) cluster {
	if c.name == u.cls1.name {
		return u.cls2
	}
	return u.cls1
}

// inTree returns a command line of an installer for a version.
func inTree(line string, v version) string { return strings.ReplaceAll(line, "TREE", v.tree) }

// install installs a version in a cluster.
func (u *upgrade) install(t *testing.T, c cluster, v version) {
	t.Helper()
	command(t, c, inTree(u.installer.install, v))
	u.versions[c.name] = v.name
}

// uninstall removes the product from both clusters.
func (u *upgrade) uninstall(t *testing.T) {
	t.Helper()
	for _, c := range u.all() {
		for _, line := range u.remove {
			line = strings.ReplaceAll(line, "CLS", c.name)
			if out, err := suite.Output(context.Background(), line); err != nil {
				t.Errorf("%s: %v: %s", line, err, out)
			}
		}
	}
}

// services returns the services of the clusterset by the clusters that export them.
func (u *upgrade) services() map[string][]cluster {
	return map[string][]cluster{"both": u.all(), "of-cls1": {u.cls1}, "of-cls2": {u.cls2}}
}

// exportAll exports the services, with a server in each cluster, and waits until both clusters have
// imported them.
func (u *upgrade) exportAll(t *testing.T) {
	t.Helper()
	for _, c := range u.all() {
		apply(t, c, servers(c, u.ns, "web", 1))
		kubectl(t, c, "-n", u.ns, "rollout", "status", "deployment/"+c.name+"-web", "--timeout=90s")
	}
	for name, exporting := range u.services() {
		for _, c := range exporting {
			u.export(t, c, name)
		}
	}
	for name, exporting := range u.services() {
		for _, in := range u.all() {
			for _, from := range exporting {
				eventually(t, started, func() error { return sameEndpoints(t.Context(), from, in, u.ns, name, 1) })
			}
		}
	}
}

// export exports a service of the web server from a cluster. The returned function ends that.
func (u *upgrade) export(t *testing.T, c cluster, name string) (end func()) {
	t.Helper()
	svc := service(u.ns, name)
	svc.Spec.Selector = map[string]string{"app": "web"}
	create(t, c, svc)
	e := export(t, c, u.ns, name)
	return func() {
		t.Helper()
		remove(t, c, e)
		remove(t, c, svc)
	}
}

// startClient starts a client on a node of a cluster: ten times a second it connects to the service
// that only the other cluster exports, and as often to the other services in turn.
func (u *upgrade) startClient(t *testing.T, c cluster) *upgradeClient {
	t.Helper()
	node := networkOf(t, c.name+"-node1")
	remote := "of-" + u.other(c).name
	addresses := []string{""}
	for name := range u.services() {
		ip, err := importIP(t.Context(), c, u.ns, name)
		if err != nil {
			t.Fatal(err)
		}
		address := net.JoinHostPort(ip, "80")
		eventually(t, started, func() error { // kube-proxy follows the EndpointSlices
			conn, err := node.dial(t.Context(), "tcp", address)
			if err != nil {
				return err
			}
			return conn.Close()
		})
		if name == remote {
			addresses[0] = address
		} else {
			addresses = append(addresses, address)
		}
	}
	before, err := importObjects(t.Context(), c, u.ns)
	if err != nil {
		t.Fatal(err)
	}
	return &upgradeClient{
		cluster: c, before: before, imports: recordImports(t, c, u.ns),
		traffic: startTraffic(t, node, addresses, podAddresses(t, u.ns, "both", u.all()...)),
	}
}

// importObjects returns UID and IPs of each ServiceImport, and those of its derived Service.
func importObjects(ctx context.Context, c cluster, ns string) (map[string]string, error) {
	imports, err := (&importRecord{cluster: c, ns: ns}).list(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, imp := range imports.Items {
		var derived corev1.Service
		if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: plan.DerivedName(mcs.Key{Namespace: ns, Name: imp.Name}, &imp)}, &derived); err != nil {
			return nil, fmt.Errorf("%s: the derived Service of %s: %w", c.name, imp.Name, err)
		}
		out[imp.Name] = fmt.Sprintf("ServiceImport %s %v, Service %s %v", imp.UID, imp.Spec.IPs, derived.UID, derived.Spec.ClusterIPs)
	}
	return out, nil
}

// change replaces the version of a cluster, and checks the clusterset.
func (u *upgrade) change(t *testing.T, c cluster, to version) {
	t.Helper()
	from, began := u.versions[c.name], time.Now()
	u.steps++
	u.install(t, c, to)
	u.checkVersions(t)
	took := time.Since(began)
	for _, c := range u.all() {
		other := u.other(c)
		name := fmt.Sprintf("step-%d-%s", u.steps, c.name)
		end := u.export(t, c, name)
		eventually(t, started, func() error { return sameEndpoints(t.Context(), c, other, u.ns, name, 1) })
		eventually(t, started, func() error { return exported(t.Context(), c, u.ns, name) })
		end()
		eventually(t, started, func() error { return noImport(t.Context(), other, u.ns, name) })
		eventually(t, started, func() error { return noImport(t.Context(), c, u.ns, name) })
	}
	says(t, 0, "check --context cls1,cls2", " 0 failed")
	for _, one := range u.clients {
		eventually(t, started, func() error { return one.traffic.inARow(streak) })
		now, err := importObjects(t.Context(), one.cluster, u.ns)
		if d := cmp.Diff(one.before, now); d != "" || err != nil {
			t.Errorf("%s: the imports have changed (-before +now): %v\n%s", one.cluster.name, err, d)
		}
	}
	t.Logf("%s: %s became %s after %s; now %v", c.name, from, to.name, round(took), u.versions)
}

// checkVersions waits until both clusters have written their records in the format of their
// versions, and both controllers read the records of both, with their versions and without
// problems.
func (u *upgrade) checkVersions(t *testing.T) {
	t.Helper()
	for _, c := range u.all() {
		eventually(t, started, func() error { return u.checkFormats(t.Context(), c) })
		eventually(t, started, func() error {
			st, err := statusOf(t.Context(), c)
			if err != nil {
				return err
			}
			if st.Version != u.versions[c.name] {
				err = fmt.Errorf("%s: the leader has version %s, want %s", c.name, st.Version, u.versions[c.name])
			}
			got := map[string]string{}
			for _, m := range st.Members {
				got[m.ClusterID] = m.Version
				if m.Stale || len(m.Problems) > 0 || m.Unknown > 0 {
					err = errors.Join(err, fmt.Errorf("%s: the member %s has a problem: %+v", c.name, m.ClusterID, m))
				}
			}
			if d := cmp.Diff(u.versions, got); d != "" {
				err = errors.Join(err, fmt.Errorf("%s: versions of the members (-want +got):\n%s", c.name, d))
			}
			return err
		})
	}
}

// checkFormats returns an error unless the records of a cluster have the format number of its
// version. After a change of the version, pages that have not changed may keep theirs.
func (u *upgrade) checkFormats(ctx context.Context, c cluster) error {
	out, err := suite.Output(ctx, strings.ReplaceAll(formats[suite.Registry], "CLS", c.name))
	if err != nil {
		return fmt.Errorf("%s: reading the format numbers: %w: %s", c.name, err, out)
	}
	got := strings.Fields(out)
	if len(got) == 0 {
		return fmt.Errorf("%s: no record has a format number", c.name)
	}
	if u.steps > 0 {
		got = got[:1]
	}
	isEarlier := u.versions[c.name] == u.earlier
	if slices.ContainsFunc(got, func(format string) bool { return (format == oldFormat) != isEarlier }) {
		return fmt.Errorf("%s: version %s has written records of the formats %s; the earlier version writes %s, and the present one another",
			c.name, u.versions[c.name], got, oldFormat)
	}
	return nil
}

// finish ends the clients, and checks that their connections have not failed and that all imports
// were there all the time.
func (u *upgrade) finish(t *testing.T) {
	t.Helper()
	for _, one := range u.clients {
		count, failures, load := one.traffic.stop()
		if err := one.imports.stop(); err != nil {
			t.Errorf("recording the imports: %v", err)
		}
		t.Logf("%s, %s: %d connections during %d changes of the version, %d failed; %d more failed together with connections to pod IPs",
			u.name, one.cluster.name, count, u.steps, len(failures), load)
		for _, f := range failures {
			t.Errorf("%s: a connection to %s failed at %s: %v", one.cluster.name, f.address, f.at.Format(time.StampMilli), f.err)
		}
		if n := len(one.before); one.imports.fewest != n || len(one.imports.changed) > 0 {
			t.Errorf("%s: there were %d imports of %d, not all for %s, and these changed: %v", one.cluster.name, one.imports.fewest, n, one.imports.fewer, one.imports.changed)
		}
	}
}
