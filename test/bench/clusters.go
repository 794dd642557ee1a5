package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

const (
	namespace = "bench"
	manager   = names.Manager
	system    = names.Namespace
)

// clusters are cls1, which exports, and cls2, which imports, with the product installed as in the
// tutorial.
type clusters struct {
	set                *clusterset.Set
	exporter, importer client.WithWatch
}

// bringUp creates new clusters on a registry; cloudmap-local gets the further arguments.
func bringUp(ctx context.Context, registry string, cloudMapArgs ...string) (*clusters, error) {
	if err := clusterset.InstallTools(ctx, registry, os.Stdout); err != nil {
		return nil, err
	}
	set, err := clusterset.Up(ctx, clusterset.Options{Clusters: 2, Registry: registry, CloudMapArgs: cloudMapArgs, Out: os.Stdout})
	if err != nil {
		return nil, err
	}
	c := &clusters{set: set}
	for name, target := range map[string]*client.WithWatch{"cls1": &c.exporter, "cls2": &c.importer} {
		if *target, err = connect(set, name); err == nil {
			err = install(ctx, set, name, *target)
		}
		if err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *clusters) down() {
	if c != nil && c.set != nil {
		c.set.Down(context.Background())
	}
}

func connect(set *clusterset.Set, name string) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), mcsv1beta1.Install(scheme)); err != nil {
		return nil, err
	}
	rules := &clientcmd.ClientConfigLoadingRules{}
	for _, kv := range set.Env() {
		if path, ok := strings.CutPrefix(kv, "KUBECONFIG="); ok {
			rules.ExplicitPath = path
		}
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: name}).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // else the benchmark measures client-go's limit
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

func install(ctx context.Context, set *clusterset.Set, name string, c client.Client) error {
	for _, line := range append(tutorial.Install(set.Registry),
		"kubectl --context CLS apply -f samples/clusterproperty-CLS.yaml",
		"kubectl --context CLS -n "+system+" rollout status deployment/"+manager+" --timeout=90s",
	) {
		line = strings.ReplaceAll(line, "CLS", name)
		if out, err := set.Output(ctx, line); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	if err := createMetricsReader(ctx, set, name); err != nil {
		return err
	}
	return c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
}

// blockPeerNotifications drops the peer notifications of the controllers in the nodes.
func (c *clusters) blockPeerNotifications(ctx context.Context) error {
	for _, node := range []string{"cls1-node1", "cls2-node1"} {
		line := "testbed exec " + node + " -- nft 'table inet bench { chain forward { type filter hook forward priority 0; udp dport 8479 drop; }; }'"
		if out, err := c.set.Output(ctx, line); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

// service has no selector: its endpoints are those of a manual EndpointSlice, so that no kubelet
// and no probe is part of the measurement.
func service(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

// slice has endpoints 10.x.y.z of its own for each number.
func slice(name string, number int) *discoveryv1.EndpointSlice {
	port, protocol, portName := int32(8080), corev1.ProtocolTCP, "http"
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-hand", Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "bench",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &protocol}},
	}
	for i := range endpointsPerExport {
		s.Endpoints = append(s.Endpoints, endpoint(number*endpointsPerExport+i))
	}
	return s
}

func endpoint(number int) discoveryv1.Endpoint {
	ready := true
	return discoveryv1.Endpoint{
		Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 10+number>>16, number>>8&0xff, number&0xff)},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready},
	}
}

func serviceExport(name string) *mcsv1beta1.ServiceExport {
	return &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// imports are the imported EndpointSlices of cls1's services in the importing cluster.
type imports struct {
	mu      sync.Mutex
	slices  map[string]*discoveryv1.EndpointSlice // by name
	changed chan struct{}                         // closed and replaced at each change
}

// follow watches until ctx ends.
func (c *clusters) follow(ctx context.Context) (*imports, error) {
	im := &imports{slices: map[string]*discoveryv1.EndpointSlice{}, changed: make(chan struct{})}
	events, err := c.importer.Watch(ctx, &discoveryv1.EndpointSliceList{},
		client.InNamespace(namespace), client.MatchingLabels{mcsv1beta1.LabelSourceCluster: "cls1"})
	if err != nil {
		return nil, err
	}
	go func() {
		defer events.Stop()
		for event := range events.ResultChan() {
			im.recordEvent(event)
		}
	}()
	return im, nil
}

func (im *imports) recordEvent(event watch.Event) {
	s, ok := event.Object.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	if event.Type == watch.Deleted {
		delete(im.slices, s.Name)
	} else {
		im.slices[s.Name] = s
	}
	close(im.changed)
	im.changed = make(chan struct{})
}

// until waits for met, which it calls after each change.
func (im *imports) until(ctx context.Context, what string, timeout time.Duration, met func(map[string]*discoveryv1.EndpointSlice) bool) error {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	for {
		im.mu.Lock()
		ok, changed := met(im.slices), im.changed
		im.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("not within %v: %s", timeout, what)
		case <-changed:
		}
	}
}
