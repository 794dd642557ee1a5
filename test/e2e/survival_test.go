package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

const (
	// exportCount is the number of services that cls1 exports while the scenarios of
	// TestImportsSurvive run.
	exportCount = 50
	// watched is the export that scenarios about one service change: ten connections a second go to
	// it. changing is the one that is changed to test that changes still propagate.
	watched, changing = "svc-00", "svc-01"
	// settle is the time for which a scenario observes after the fault. Without protection, imports
	// were removed within 8 s.
	settle = 10 * time.Second
	// recovery limits the time until everything works again.
	recovery = 3 * time.Minute
)

// inCI are the scenarios that run with -short, by registry: the faults that ended imports once, and
// are over within seconds. Those that are the same on each registry run on one.
var inCI = map[string][]string{
	clusterset.CloudMap: {
		"both ClusterProperties are deleted and created again",
		"the member record is deregistered",
		"the namespace is deleted with everything in it",
		"another member overwrites the member record with one without pages",
	},
	clusterset.Etcd: {
		"root deletes the member key",
		"root deletes all keys",
	},
}

// TestImportsSurvive does to a clusterset of 50 exports what users, tools, and other members can do
// to it. Nothing but the word of the exporting cluster ends an import. docs/reliability-tests.md
// has the results. All scenarios take 45 minutes (NIGHTLY=1); those in inCI take one.
func TestImportsSurvive(t *testing.T) {
	s := newSurvival(t)
	s.testIdentity(t)
	if suite.Registry == clusterset.CloudMap {
		s.testCloudMap(t)
	} else {
		s.testEtcd(t)
	}
	if !testing.Short() {
		s.testOutage(t)
		s.testObjects(t)
		s.testLargeService(t)
		s.testSlowWebhook(t)
		s.testNodeFailure(t)
		s.testNodeKilled(t)
		s.testDeadCluster(t)
		s.testKeys(t)
		s.testLeaving(t)
	}
	// A controller reports for an hour that another member wrote a record under its ID, and the
	// status of the next tests is not to show it.
	for _, c := range []cluster{s.cls1, s.cls2} {
		kubectl(t, c, "-n", system, "rollout", "restart", manager)
	}
}

// survival is the clusterset of TestImportsSurvive.
type survival struct {
	cls1, cls2 cluster
	ns         string
	// node is the node of cls2 that connects to the clusterset IPs.
	node  nodeNetwork
	names []string
	// pods are the addresses of the web servers.
	pods  []string
	store content
	// rows are the measurements.
	rows []string
}

// content reads the records of a cluster in the registry.
type content interface {
	// complete checks that the registry has the record and all exports of a cluster.
	complete(ctx context.Context, cluster string) error
}

// allowance limits the effect of a scenario on users. The zero value allows none.
type allowance struct {
	// missing is the number of imports that may be missing for moments, at most absence long.
	missing int
	absence time.Duration
	// failures is the time for which connections to the missing imports may fail.
	failures time.Duration
}

// newSurvival exports the services from cls1 and waits until cls2 has imported them.
func newSurvival(t *testing.T) *survival {
	t.Helper()
	cls1, cls2 := installed(t)
	s := &survival{cls1: cls1, cls2: cls2, ns: namespace(t, cls1, cls2), node: networkOf(t, "cls2-node1")}
	// On the first node, which no scenario stops.
	apply(t, cls1, strings.Replace(web(s.ns, "web", 2), "      containers:", "      nodeSelector: {kubernetes.io/hostname: cls1-node1}\n      containers:", 1))
	kubectl(t, cls1, "-n", s.ns, "rollout", "status", "deployment/web", "--timeout=90s")
	for i := range exportCount {
		s.names = append(s.names, fmt.Sprintf("svc-%02d", i))
	}
	s.export(t, s.names[:exportCount/2])
	s.store = s.openContent(t)
	s.export(t, s.names[exportCount/2:])
	ips, err := podIPs(t.Context(), cls1, s.ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range ips {
		s.pods = append(s.pods, ip+":80")
	}
	t.Cleanup(func() { t.Logf("measured on %s:\n%s", suite.Registry, strings.Join(s.rows, "\n")) })
	return s
}

// export exports services with the two web servers as endpoints, and waits until they are imported.
func (s *survival) export(t *testing.T, names []string) {
	t.Helper()
	for _, name := range names {
		svc := service(s.ns, name)
		svc.Spec.Selector = map[string]string{"app": "web"}
		create(t, s.cls1, svc)
		export(t, s.cls1, s.ns, name)
	}
	eventually(t, started, func() error { return s.allReady(t.Context(), len(names)) })
}

// test runs a scenario: it connects and records imports while fault runs, until everything works
// again. fault returns when the cause of the fault is over.
func (s *survival) test(t *testing.T, name string, allowed allowance, fault func(t *testing.T)) {
	if testing.Short() && !slices.Contains(inCI[suite.Registry], name) {
		return
	}
	t.Run(name, func(t *testing.T) {
		eventually(t, recovery, func() error { return s.works(t.Context()) })
		imports := recordImports(t, s.cls2, s.ns)
		tr := startTraffic(t, s.node, s.addresses(t, imports), s.pods)
		t.Cleanup(func() {
			if t.Failed() {
				s.repair()
			}
		})

		var took time.Duration
		defer func() { s.judge(t, name, allowed, imports, tr, took) }() // also when fault fails
		fault(t)
		over := time.Now()
		err := clusterset.Eventually(t.Context(), recovery, func() error { return s.works(t.Context()) })
		if err == nil {
			err = s.changePropagates(t.Context())
		}
		took = time.Since(over)
		time.Sleep(max(0, settle-took))
		if err != nil {
			t.Errorf("it does not recover: %v", err)
		}
	})
}

// judge compares the effects on users with those that the scenario allows, and adds them to the
// table.
func (s *survival) judge(t *testing.T, name string, allowed allowance, imports *importRecord, tr *traffic, took time.Duration) {
	t.Helper()
	count, failures, load := tr.stop()
	if err := imports.stop(); err != nil {
		t.Errorf("recording the imports: %v", err)
	}
	row := fmt.Sprintf("| %s | %d for %s | %d | %d of %d in %s | %s |", name, imports.fewest, round(imports.fewer), len(imports.changed),
		len(failures), count, round(duration(failures)), round(took))
	if load > 0 {
		row += fmt.Sprintf(" (%d more failed while direct connections to pods failed, too)", load)
	}
	t.Log(row)
	s.rows = append(s.rows, row)
	if imports.fewest < exportCount-allowed.missing || imports.fewer > allowed.absence {
		t.Errorf("there were %d imports of %d, and not all for %s; %d may be missing for %s", imports.fewest, exportCount, imports.fewer,
			allowed.missing, allowed.absence)
	}
	if changes := slices.Sorted(maps.Values(imports.changed)); len(changes) > 0 {
		t.Errorf("%d imports got other clusterset IPs, the first: %s", len(changes), changes[0])
	}
	if d := duration(failures); d > allowed.failures {
		t.Errorf("%d connections failed within %s, %s is allowed; the first: %s: %v", len(failures), d, allowed.failures, failures[0].address, failures[0].err)
	}
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// addresses returns the addresses to connect to, the watched service first. Its IP is that of its
// DNS name.
func (s *survival) addresses(t *testing.T, imports *importRecord) []string {
	t.Helper()
	ip, err := s.node.resolve(t.Context(), fqdn(s.ns, watched))
	if err != nil {
		t.Fatal(err)
	}
	if len(imports.before) != exportCount || imports.before[watched][0] != ip {
		t.Fatalf("%s has %d imports, and %s resolves to %s, want %v", s.cls2.name, len(imports.before), watched, ip, imports.before[watched])
	}
	out := []string{ip + ":80"}
	for _, name := range s.names[1:] {
		out = append(out, imports.before[name][0]+":80")
	}
	return out
}

// works checks that all exports and imports are ready, and that the registry has them.
func (s *survival) works(ctx context.Context) error {
	return errors.Join(s.allReady(ctx, exportCount), s.store.complete(ctx, "cls1"))
}

// allReady checks that at least n services are exported and imported, and that every ServiceExport
// and ServiceImport is ready.
func (s *survival) allReady(ctx context.Context, n int) error {
	var exports mcsv1beta1.ServiceExportList
	if err := s.cls1.List(ctx, &exports, client.InNamespace(s.ns)); err != nil {
		return err
	}
	var imports mcsv1beta1.ServiceImportList
	if err := s.cls2.List(ctx, &imports, client.InNamespace(s.ns)); err != nil {
		return err
	}
	if len(exports.Items) < n || len(imports.Items) != len(exports.Items) {
		return fmt.Errorf("there are %d exports and %d imports, want %d", len(exports.Items), len(imports.Items), n)
	}
	for _, e := range exports.Items {
		if !meta.IsStatusConditionTrue(e.Status.Conditions, "Ready") {
			return fmt.Errorf("the ServiceExport %s has the conditions %+v", e.Name, e.Status.Conditions)
		}
	}
	for _, imp := range imports.Items {
		if len(imp.Spec.IPs) == 0 || !meta.IsStatusConditionTrue(imp.Status.Conditions, "Ready") {
			return fmt.Errorf("the ServiceImport %s has the IPs %v and the conditions %+v", imp.Name, imp.Spec.IPs, imp.Status.Conditions)
		}
		if stale := meta.FindStatusCondition(imp.Status.Conditions, mcs.ConditionStale); stale != nil && stale.Status != metav1.ConditionFalse {
			return fmt.Errorf("the ServiceImport %s is stale: %+v", imp.Name, stale)
		}
	}
	return nil
}

// changePropagates changes an export and waits for the change in cls2.
func (s *survival) changePropagates(ctx context.Context) error {
	const annotation = "changed"
	value := time.Now().Format(time.RFC3339Nano)
	patch := fmt.Sprintf(`{"spec":{"exportedAnnotations":{%q:%q}}}`, annotation, value)
	if _, err := suite.Kubectl(ctx, s.cls1.name, "-n", s.ns, "patch", "serviceexport", changing, "--type=merge", "-p", patch); err != nil {
		return err
	}
	return clusterset.Eventually(ctx, started, func() error {
		imp, err := serviceImport(ctx, s.cls2, s.ns, changing)
		if err != nil {
			return err
		}
		if got := imp.Annotations[annotation]; got != value {
			return fmt.Errorf("a change of the export %s does not reach cls2: it has %q, want %q", changing, got, value)
		}
		return nil
	})
}

// repair restores the clusterset for the next scenario after one that failed.
func (s *survival) repair() {
	ctx, cancel := context.WithTimeout(context.Background(), started)
	defer cancel()
	for _, c := range []cluster{s.cls1, s.cls2} {
		for _, line := range []string{
			"apply -f samples/clusterproperty-" + c.name + ".yaml",
			"-n " + system + " rollout restart " + manager,
			"-n " + system + " rollout status " + manager + " --timeout=60s",
		} {
			// the next scenario fails if this does
			_, _ = suite.Kubectl(ctx, c.name, strings.Fields(line)...)
		}
	}
}

// restartControllers replaces the processes of both controllers and waits until the new ones run.
func (s *survival) restartControllers(t *testing.T) {
	t.Helper()
	for _, c := range []cluster{s.cls1, s.cls2} {
		kubectl(t, c, "-n", system, "rollout", "restart", manager)
	}
	for _, c := range []cluster{s.cls1, s.cls2} {
		kubectl(t, c, "-n", system, "rollout", "status", manager, "--timeout=90s")
	}
}

// testIdentity has the scenarios in which the cluster's identity is missing for moments.
func (s *survival) testIdentity(t *testing.T) {
	const sample = "samples/clusterproperty-cls1.yaml"
	s.test(t, "both ClusterProperties are deleted and created again", allowance{}, func(t *testing.T) {
		kubectl(t, s.cls1, "replace", "--force", "-f", sample)
	})
	s.test(t, "the CRD of ClusterProperties is deleted and created again", allowance{}, func(t *testing.T) {
		const crd = "deploy/crds/about.k8s.io_clusterproperties.yaml"
		kubectl(t, s.cls1, "replace", "--force", "-f", crd)
		kubectl(t, s.cls1, "wait", "--for=condition=Established", "-f", crd)
		eventually(t, soon, func() error { // the API server serves the new kind moments later
			_, err := suite.Kubectl(t.Context(), s.cls1.name, "apply", "-f", sample)
			return err
		})
	})
	s.test(t, "the controller restarts while both ClusterProperties are missing", allowance{}, func(t *testing.T) {
		kubectl(t, s.cls1, "delete", "-f", sample)
		kubectl(t, s.cls1, "-n", system, "rollout", "restart", manager)
		kubectl(t, s.cls1, "-n", system, "rollout", "status", manager, "--timeout=90s")
		time.Sleep(settle)
		kubectl(t, s.cls1, "apply", "-f", sample)
	})
}

// outage returns how long the registry is down: E2E_OUTAGE, or 10 minutes.
func outage(t *testing.T) time.Duration {
	text, ok := os.LookupEnv("E2E_OUTAGE")
	if !ok {
		return 10 * time.Minute
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("E2E_OUTAGE: %v", err)
	}
	return d
}

// testOutage has the scenarios in which the registry or controllers do not run.
func (s *survival) testOutage(t *testing.T) {
	down := outage(t)
	s.test(t, fmt.Sprintf("the registry is down for %s while both controllers restart", down), allowance{}, func(t *testing.T) {
		if err := suite.StopRegistry(t.Context()); err != nil {
			t.Fatal(err)
		}
		up := time.Now().Add(down)
		defer func() {
			time.Sleep(time.Until(up))
			if err := suite.StartRegistry(t.Context()); err != nil {
				t.Fatal(err)
			}
		}()
		s.restartControllers(t)
	})
	s.test(t, "both controllers are killed", allowance{}, func(t *testing.T) {
		for _, restart := range []func(){killController(t, s.cls1), killController(t, s.cls2)} {
			restart()
		}
		began := time.Now()
		// Whatever the status is before the registry has been read, it must not be that exports
		// end. The new processes wait until the leases expire, which takes 15 to 20 s, before they
		// start.
		eventually(t, started, func() error {
			out, err := suite.Output(t.Context(), "kubectl mcs status --context cls1,cls2")
			if strings.Contains(out, "is being removed") {
				t.Fatalf("status after a restart: %s", out)
			}
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		})
		t.Logf("the status of both clusters was without a problem %s after the controllers were started again", round(time.Since(began)))
	})
}

// testObjects has the scenarios in which users change objects.
func (s *survival) testObjects(t *testing.T) {
	moment := allowance{missing: 1, absence: 5 * time.Second, failures: 5 * time.Second}
	s.test(t, "the derived Service loses its label and is deleted", allowance{failures: 5 * time.Second}, func(t *testing.T) {
		derived, err := derivedService(t.Context(), s.cls2, s.ns, watched)
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, s.cls2, "-n", s.ns, "label", "service", derived.Name, "app.kubernetes.io/managed-by=foo", "--overwrite")
		eventually(t, 5*time.Second, func() error {
			now, err := derivedService(t.Context(), s.cls2, s.ns, watched)
			if err == nil && now.Labels["app.kubernetes.io/managed-by"] == "foo" {
				err = errors.New("the derived Service has the label of a user")
			}
			return err
		})
		remove(t, s.cls2, derived)
		eventually(t, 5*time.Second, func() error {
			now, err := derivedService(t.Context(), s.cls2, s.ns, watched)
			if err == nil && now.UID == derived.UID {
				err = errors.New("the deleted Service is still there")
			}
			return err
		})
	})
	s.test(t, "imported EndpointSlices are edited, relabelled and deleted", allowance{failures: 5 * time.Second}, func(t *testing.T) {
		before, err := importedSlices(t.Context(), s.cls2, s.ns, watched, "cls1")
		if err != nil || len(before) == 0 {
			t.Fatalf("cls2 has %d slices of %s: %v", len(before), watched, err)
		}
		repaired := func() error {
			ips, err := podIPs(t.Context(), s.cls1, s.ns, watched)
			if err != nil {
				return err
			}
			now, err := importedSlices(t.Context(), s.cls2, s.ns, watched, "cls1")
			for _, slice := range now {
				if label := slice.Labels[plan.LabelManagedBy]; label != plan.ManagedBy {
					err = errors.Join(err, fmt.Errorf("the slice %s is managed by %q", slice.Name, label))
				}
			}
			return errors.Join(err, sameEndpoints(t.Context(), s.cls1, s.cls2, s.ns, watched, len(ips)))
		}
		for _, line := range []string{
			"patch endpointslice " + before[0].Name + ` --type=json -p=[{"op":"replace","path":"/endpoints","value":[]}]`,
			"label endpointslice " + before[0].Name + " " + plan.LabelManagedBy + "=foo --overwrite",
			"delete endpointslices -l " + mcsv1beta1.LabelServiceName + "=" + watched,
		} {
			kubectl(t, s.cls2, append([]string{"-n", s.ns}, strings.Fields(line)...)...)
			began := time.Now()
			eventually(t, 5*time.Second, repaired)
			t.Logf("repaired %s after: kubectl %s", round(time.Since(began)), line)
		}
	})
	s.test(t, "a ServiceImport is deleted", moment, func(t *testing.T) {
		remove(t, s.cls2, &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: watched}})
	})
	s.test(t, "a ServiceExport is deleted and applied again", moment, func(t *testing.T) {
		remove(t, s.cls1, &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: watched}})
		export(t, s.cls1, s.ns, watched)
	})
	s.test(t, "a ServiceExport is deleted for 10 s", allowance{missing: 1, absence: 20 * time.Second, failures: 20 * time.Second}, func(t *testing.T) {
		remove(t, s.cls1, &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: watched}})
		eventually(t, soon, func() error { return noImport(t.Context(), s.cls2, s.ns, watched) })
		time.Sleep(10 * time.Second)
		export(t, s.cls1, s.ns, watched)
	})
}

// testLeaving has the two ways in which all imports of a cluster end. The clusterset IPs are the
// same when the cluster returns.
func (s *survival) testLeaving(t *testing.T) {
	ended := allowance{missing: exportCount, absence: time.Minute, failures: time.Minute}
	gone := func() error {
		var imports mcsv1beta1.ServiceImportList
		err := s.cls2.List(t.Context(), &imports, client.InNamespace(s.ns))
		if err == nil && len(imports.Items) > 0 {
			err = fmt.Errorf("cls2 still has %d imports", len(imports.Items))
		}
		return err
	}
	run := func(t *testing.T, line string) {
		t.Helper()
		if out, err := plugin(t.Context(), 0, line); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	s.test(t, "kubectl mcs leave and join", ended, func(t *testing.T) {
		run(t, "leave --yes --context cls1")
		eventually(t, soon, gone)
		run(t, "join --cluster-id cls1 --clusterset-id "+clusterset.ClusterSetID+" --context cls1")
	})
	s.test(t, "kubectl mcs forget of a dead cluster, which returns", ended, func(t *testing.T) {
		restart := killController(t, s.cls1)
		run(t, "forget cls1 --yes --force --context cls2")
		eventually(t, soon, gone)
		restart()
	})
}

// statusOf returns the status of the leader of a cluster.
func statusOf(ctx context.Context, c cluster) (status.Status, error) {
	out, err := suite.Stdout(ctx, "", "kubectl", "mcs", "status", "--context", c.name, "-o", "json")
	if out == "" {
		return status.Status{}, err // the exit code reports problems
	}
	var statuses []struct{ Status *status.Status }
	if err := json.Unmarshal([]byte(out), &statuses); err != nil {
		return status.Status{}, fmt.Errorf("reading the status of %s: %w", c.name, err)
	}
	if len(statuses) != 1 || statuses[0].Status == nil {
		return status.Status{}, fmt.Errorf("%s has no status: %s", c.name, out)
	}
	return *statuses[0].Status, nil
}

// memberProblems returns the problems that a cluster shows at another one.
func memberProblems(ctx context.Context, c cluster, member string) ([]string, error) {
	st, err := statusOf(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, m := range st.Members {
		if m.ClusterID == member {
			return m.Problems, nil
		}
	}
	return nil, fmt.Errorf("%s does not show the member %s: %+v", c.name, member, st.Members)
}
