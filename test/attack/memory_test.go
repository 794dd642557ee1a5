package attack

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/apiservertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/etcd"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// memoryLimit and goMemLimit are those of the Deployment.
const (
	memoryLimit = 512 << 20
	goMemLimit  = "460MiB"
)

// TestMemoryOfMembers runs the program of the controller while MEMBERS members use their budgets
// up, in every kind at the same time, and prints its resident memory. It takes some minutes, so
// that it runs only if MEMBERS is set; CONTROLLER is the path of the program.
// docs/operations-measurements.md has the results.
func TestMemoryOfMembers(t *testing.T) {
	members := int(registrytest.Setting(t, "MEMBERS", 0))
	if members == 0 {
		t.Skip("measures for minutes: set MEMBERS and CONTROLLER")
	}
	apiservertest.NeedAssets(t)
	env := &envtest.Environment{}
	env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/12").Set("max-requests-inflight", "2000").Set("max-mutating-requests-inflight", "2000")
	k, err := controllertest.StartKubernetesIn(env, "v1beta1", nil, append(controllertest.MCSCRDs(), controllertest.AboutCRDs()...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Env.Stop() })
	limits := config.Default().Budgets
	namespaces := (members*limits.Member[budget.Exports]*5/4)/limits.NamespaceImports + 1
	for i := range namespaces {
		if err := k.Admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("flood-", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	s := startEtcd(t)
	p := s.startController(t, k)
	time.Sleep(10 * time.Second)
	t.Logf("before: %s", p)
	for i := range members {
		id := fmt.Sprint("flood", i)
		m := s.join(identityOf(id), func(cfg *etcd.Config) {
			cfg.StaleAfter, cfg.HeartbeatInterval = config.Default().Registry.StaleAfter, config.Default().Registry.HeartbeatInterval
		})
		for _, exp := range maximum(t, id, namespaces, limits.Member) {
			m.publish(exp)
		}
		imports := settle(t, k, p, min((i+1)*limits.Member[budget.Exports], limits.Total[budget.Exports]))
		t.Logf("%d members, %d imports: %s", i+1, imports, p)
	}
	if rss := p.read("VmHWM"); rss > memoryLimit {
		t.Errorf("the process used %d MiB, its limit is %d MiB", rss>>20, memoryLimit>>20)
	}
}

// settle waits until want services are imported and for half a minute more, or until none has been
// imported for SETTLE seconds, and returns the number of imports.
func settle(t *testing.T, k *controllertest.Kubernetes, p *process, want int) (imports int) {
	t.Helper()
	limit := time.Duration(registrytest.Setting(t, "SETTLE", 300)) * time.Second
	for since, lines := time.Now(), 0; time.Since(since) < limit; time.Sleep(5 * time.Second) {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: mcsv1beta1.GroupName, Version: "v1beta1", Kind: "ServiceImportList"})
		if err := k.Admin.List(t.Context(), &list); err != nil {
			t.Log(err)
			continue
		}
		if n := len(list.Items); n != imports {
			imports, since = n, time.Now()
		}
		if imports >= want {
			limit = min(limit, 30*time.Second)
		}
		if lines++; lines%6 == 0 {
			t.Logf("%d imports: %s", imports, p)
		}
	}
	return imports
}

// maximum returns exports of a member that use up every budget of one member at the same time.
func maximum(t *testing.T, cluster string, namespaces int, limit budget.Amounts) (exports []mcs.Export) {
	t.Helper()
	n := limit[budget.Exports]
	for i := range n {
		exp := webExport(cluster, 1)
		exp.Key = mcs.Key{Namespace: fmt.Sprint("flood-", i%namespaces), Name: fmt.Sprint(cluster, "-", i)}
		exp.Ports, exp.Backends[0].Ports, exp.Backends[0].Endpoints = nil, nil, nil
		for p := range int32(limit[budget.Ports] / n / 2) {
			name := fmt.Sprint("port-", p)
			exp.Ports = append(exp.Ports, mcs.Port{Name: name, Protocol: corev1.ProtocolTCP, Port: 1000 + p})
			exp.Backends[0].Ports = append(exp.Backends[0].Ports, mcs.BackendPort{Name: name, Protocol: corev1.ProtocolTCP, Port: 1000 + p})
		}
		for e := range limit[budget.Endpoints] / n {
			address := netip.AddrFrom4([4]byte{172, byte(16 + i>>12), byte(i >> 4), byte(i<<4 + e)})
			exp.Backends[0].Endpoints = append(exp.Backends[0].Endpoints, mcs.Endpoint{Address: address, Ready: true, Serving: true, Zone: "eu-central-1a"})
		}
		size, err := record.Size(exp)
		if err != nil {
			t.Fatal(err)
		}
		exp.Annotations = map[string]string{}
		for a, rest := 0, limit[budget.Bytes]/n-size-40; rest > 0; a++ {
			part := min(rest, 100)
			exp.Annotations[fmt.Sprintf("flood-%03d", a)] = strings.Repeat(noise(i, a), 2)[:part]
			rest -= part + 20
		}
		exports = append(exports, exp)
	}
	return exports
}

// process is the program of a controller.
type process struct {
	t       *testing.T
	pid     int
	metrics string
}

// startController starts the program as the Deployment does, on etcd and with the API server of k.
func (s *store) startController(t *testing.T, k *controllertest.Kubernetes) *process {
	t.Helper()
	name, passwordFile := s.user(identityOf(importer))
	return startProgram(t, k, "--registry=etcd", "--etcd-endpoints="+strings.Join(s.Endpoints(), ","), "--etcd-ca="+s.CAFile, "--etcd-username="+name,
		"--etcd-password-file="+passwordFile)
}

// startProgram starts the program as the Deployment does, with the API server of k and with further
// arguments.
func startProgram(t *testing.T, k *controllertest.Kubernetes, args ...string) *process {
	t.Helper()
	user, err := k.Env.AddUser(envtest.User{Name: controllertest.ControllerUser}, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.Admin.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.InstallNamespace, Name: names.SigningKeySecret}}); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, metrics: testprocess.FreeAddress(t)}
	cmd := exec.CommandContext(context.Background(), os.Getenv("CONTROLLER"), append(args, //nolint:gosec // the path is the tester's
		"--kubeconfig="+path, "--cluster-id="+importer, "--clusterset-id="+clusterSet, "--leader-elect=false",
		"--leader-election-namespace="+controllertest.InstallNamespace, "--metrics-bind-address="+p.metrics, "--metrics-secure=false",
		"--health-probe-bind-address=0", "--status-bind-address=0")...)
	cmd.Env = append(os.Environ(), "GOMEMLIMIT="+goMemLimit, "AWS_ACCESS_KEY_ID="+keyOf(identityOf(importer)), "AWS_SECRET_ACCESS_KEY=secret")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.pid = cmd.Process.Pid
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() || testing.Verbose() {
			lines := strings.Split(output.String(), "\n")
			t.Logf("the controller printed, at last:\n%s", strings.Join(lines[max(0, len(lines)-15):], "\n"))
		}
	})
	return p
}

// read returns a value of /proc/PID/status in bytes.
func (p *process) read(field string) int {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
	if err != nil {
		p.t.Fatal(err)
	}
	match := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(text)
	if match == nil {
		p.t.Fatalf("no %s in %s", field, text)
	}
	kib, err := strconv.Atoi(string(match[1]))
	if err != nil {
		p.t.Fatal(err)
	}
	return kib << 10
}

// String describes the memory of the process.
func (p *process) String() string {
	text, err := exec.Command("curl", "-s", "http://"+p.metrics+"/metrics").Output() //nolint:gosec // a constant program
	live := "?"
	if match := regexp.MustCompile(`(?m)^go_memstats_next_gc_bytes (\S+)`).FindSubmatch(text); err == nil && match != nil {
		bytes, _ := strconv.ParseFloat(string(match[1]), 64)
		live = fmt.Sprintf("%.0f", bytes/(1<<20))
	}
	alloc := "?"
	if match := regexp.MustCompile(`(?m)^go_memstats_alloc_bytes (\S+)`).FindSubmatch(text); match != nil {
		bytes, _ := strconv.ParseFloat(string(match[1]), 64)
		alloc = fmt.Sprintf("%.0f", bytes/(1<<20))
	}
	gc, cpu := "?", "?"
	if match := regexp.MustCompile(`(?m)^go_gc_duration_seconds_count (\S+)`).FindSubmatch(text); match != nil {
		gc = string(match[1])
	}
	if match := regexp.MustCompile(`(?m)^process_cpu_seconds_total (\S+)`).FindSubmatch(text); match != nil {
		cpu = string(match[1])
	}
	return fmt.Sprintf("resident %d MiB, at most %d, of these files %d; next collection at %s MiB, allocated %s; %s collections, %s s CPU", p.read("VmRSS")>>20, p.read("VmHWM")>>20, p.read("RssFile")>>20, live, alloc, gc, cpu)
}
