package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// cluster is the importing cluster: an API server with its etcd, without nodes.
type cluster struct {
	*controllertest.Kubernetes
	client client.WithWatch
}

// startCluster starts the API server and creates the namespaces. Its etcd does not wait for the
// disk, as that of the testbed.
func startCluster(ctx context.Context, namespaces []string) (*cluster, error) {
	env := &envtest.Environment{}
	env.ControlPlane.GetAPIServer().Configure().Set("service-cluster-ip-range", "10.0.0.0/12").
		Set("max-requests-inflight", "2000").Set("max-mutating-requests-inflight", "2000")
	k, err := controllertest.StartKubernetesIn(env, "v1beta1", nil, append(controllertest.MCSCRDs(), controllertest.AboutCRDs()...)...)
	if err != nil {
		return nil, err
	}
	cl := &cluster{Kubernetes: k}
	unlimited := rest.CopyConfig(k.Env.Config)
	unlimited.QPS = -1 // else the client's limit is measured
	if cl.client, err = client.NewWithWatch(unlimited, client.Options{Scheme: k.Admin.Scheme()}); err != nil {
		return nil, errors.Join(err, k.Env.Stop())
	}
	for _, name := range namespaces {
		if err := cl.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			return nil, errors.Join(err, k.Env.Stop())
		}
	}
	err = cl.client.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.InstallNamespace, Name: names.SigningKeySecret}})
	if err != nil {
		return nil, errors.Join(err, k.Env.Stop())
	}
	return cl, nil
}

func (cl *cluster) stop() {
	if cl != nil {
		_ = cl.Env.Stop()
	}
}

// kubeconfig writes the kubeconfig of the controller into a folder.
func (cl *cluster) kubeconfig(folder string) (string, error) {
	user, err := cl.Env.AddUser(envtest.User{Name: controllertest.ControllerUser}, nil)
	if err != nil {
		return "", err
	}
	text, err := user.KubeConfig()
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "kubeconfig")
	return path, os.WriteFile(path, text, 0o600)
}

// program is the controller as a process.
type program struct {
	cmd     *exec.Cmd
	proc    procfs.Proc
	metrics string
	began   time.Time
	log     string
	ended   chan struct{}
}

// goMemLimit is that of the Deployment.
const goMemLimit = "460MiB"

// startProgram starts the controller with the settings of the Deployment. Its UDP port stays over
// restarts. Paths are not probed: the cluster has no nodes, and nothing answers at the addresses of
// the endpoints.
func startProgram(path, folder, id, kubeconfig, notify string, args ...string) (*program, error) {
	port, err := testprocess.FreePort()
	if err != nil {
		return nil, err
	}
	p := &program{metrics: net.JoinHostPort("127.0.0.1", port), began: time.Now(), log: filepath.Join(folder, "controller.log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.CommandContext(context.Background(), path, append(args, //nolint:gosec // the caller's program
		"--kubeconfig="+kubeconfig, "--cluster-id="+id, "--clusterset-id="+clusterSet, "--leader-elect=false",
		"--leader-election-namespace="+controllertest.InstallNamespace, "--metrics-bind-address="+p.metrics, "--metrics-secure=false",
		"--health-probe-bind-address=0", "--status-bind-address=0", "--path-health=off",
		"--peer-notification-bind-address="+notify, "--peer-notification-advertise-address="+notify)...)
	p.cmd.Env = append(os.Environ(), "GOMEMLIMIT="+goMemLimit, "AWS_ACCESS_KEY_ID=AKIDIMPORTER", "AWS_SECRET_ACCESS_KEY=importer", "AWS_EC2_METADATA_DISABLED=true")
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { defer close(p.ended); _ = p.cmd.Wait() }()
	p.proc, err = procfs.NewProc(p.cmd.Process.Pid)
	return p, err
}

// stop ends the controller as Kubernetes does.
func (p *program) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(30 * time.Second): // the grace period of a pod
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// problem returns an error with the end of the log.
func (p *program) problem(err error) error {
	text, _ := os.ReadFile(p.log)
	return fmt.Errorf("%w; the controller printed at last: %s", err, text[max(0, len(text)-2000):])
}

// usage is what the controller has used so far.
type usage struct {
	cpu           time.Duration
	resident, top uint64
	at            time.Time
}

func (p *program) usage() (usage, error) {
	stat, err := p.proc.Stat()
	if err != nil {
		return usage{}, p.problem(err)
	}
	status, err := p.proc.NewStatus()
	return usage{cpu: time.Duration(stat.CPUTime() * float64(time.Second)), resident: status.VmRSS, top: status.VmHWM, at: time.Now()}, err
}

// forgetTop begins a new maximum of the resident memory.
func (p *program) forgetTop() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0o200)
}

// metric returns the values of a metric by one of its labels, added up. Without a label all are
// under "".
func (p *program) metric(ctx context.Context, name, label string) (map[string]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.metrics+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	sums := map[string]float64{}
	for _, m := range families[name].GetMetric() {
		value := ""
		for _, pair := range m.GetLabel() {
			if pair.GetName() == label {
				value = pair.GetValue()
			}
		}
		sums[value] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return sums, nil
}

// view is what a watch shows of the imports.
type view struct {
	mu sync.Mutex
	// complete are the EndpointSlices with all endpoints, and the ServiceImports with conditions,
	// by name.
	slices, imports map[string]bool
	// clusters is the number of clusters of all ServiceImports.
	clusters map[string]int
	// versions are the resource versions that were seen last, by UID: a watch that ends, after half
	// an hour or more, is followed by one that shows all objects again.
	versions map[types.UID]string
	// markers is when each marker was seen for the first time. last is the time of the last write,
	// writes their number.
	markers map[netip.Addr]time.Time
	last    time.Time
	writes  int
	changed chan struct{}
}

// watchImports watches until ctx ends.
func (cl *cluster) watchImports(ctx context.Context) *view {
	v := &view{slices: map[string]bool{}, imports: map[string]bool{}, clusters: map[string]int{}, versions: map[types.UID]string{}, markers: map[netip.Addr]time.Time{}, changed: make(chan struct{})}
	for _, list := range []client.ObjectList{&discoveryv1.EndpointSliceList{}, &mcsv1beta1.ServiceImportList{}} {
		go v.follow(ctx, cl.client, list)
	}
	return v
}

// follow watches a kind. The API server ends watches of custom resources shortly after their CRD
// was installed, and all of them now and then.
func (v *view) follow(ctx context.Context, c client.WithWatch, list client.ObjectList) {
	for ctx.Err() == nil {
		events, err := c.Watch(ctx, list)
		if err != nil {
			_ = pause(ctx, 100*time.Millisecond)
			continue
		}
		for event := range events.ResultChan() {
			v.record(event)
		}
		events.Stop()
	}
}

func (v *view) record(event watch.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.isNew(event) {
		return
	}
	now := time.Now()
	switch o := event.Object.(type) {
	case *discoveryv1.EndpointSlice:
		if o.Labels[mcsv1beta1.LabelSourceCluster] == "" {
			return
		}
		v.slices[o.Namespace+"/"+o.Name] = event.Type != watch.Deleted && len(o.Endpoints) == EndpointsPerService
		for _, e := range o.Endpoints {
			for _, text := range e.Addresses {
				if address, err := netip.ParseAddr(text); err == nil && isMarker(address) && v.markers[address].IsZero() {
					v.markers[address] = now
				}
			}
		}
	case *mcsv1beta1.ServiceImport:
		v.imports[o.Namespace+"/"+o.Name] = event.Type != watch.Deleted && len(o.Status.Conditions) > 0
		v.clusters[o.Namespace+"/"+o.Name] = len(o.Status.Clusters)
	default:
		return
	}
	v.last = now
	v.writes++
	close(v.changed)
	v.changed = make(chan struct{})
}

// isNew reports whether an event has a version of an object that was not seen before. The caller
// holds v.mu.
func (v *view) isNew(event watch.Event) bool {
	object, ok := event.Object.(client.Object)
	if !ok || v.versions[object.GetUID()] == object.GetResourceVersion() {
		return false
	}
	v.versions[object.GetUID()] = object.GetResourceVersion()
	return true
}

// seen returns the numbers of complete EndpointSlices and ServiceImports, of clusters in all
// ServiceImports, and the time of the last event.
func (v *view) seen() (slices, imports, clusters int, last time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, ok := range v.slices {
		if ok {
			slices++
		}
	}
	for name, ok := range v.imports {
		if ok {
			imports++
			clusters += v.clusters[name]
		}
	}
	return slices, imports, clusters, v.last
}

// writeCount returns the number of writes so far.
func (v *view) writeCount() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.writes
}

// await waits for a marker and returns when it was seen.
func (v *view) await(ctx context.Context, marker netip.Addr, timeout time.Duration) (time.Time, error) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		v.mu.Lock()
		at, changed := v.markers[marker], v.changed
		v.mu.Unlock()
		if !at.IsZero() {
			return at, nil
		}
		select {
		case <-ctx.Done():
			return at, ctx.Err()
		case <-deadline.C:
			return at, fmt.Errorf("a change was not imported within %v", timeout)
		case <-changed:
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
