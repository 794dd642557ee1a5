package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/served"
)

// A cluster is what a command needs of one Kubernetes cluster.
type cluster struct {
	// context is its name in the kubeconfig.
	context string
	kube    kubernetes.Interface
	// objects reads and writes any object, the MCS and About APIs under the versions that the cluster serves.
	objects func() (client.Client, error)
	ask     asker
	fetch   fetcher
	now     func() time.Time
	poll    time.Duration // between two looks while waiting
}

// Requests to one API server. A command makes some dozens at once and ends.
const (
	clientQPS   = 100
	clientBurst = 200
)

// connect reads the kubeconfig the usual way: flags, then environment, then files. Nothing is asked of the clusters yet.
func connect(flags *genericclioptions.ConfigFlags, contexts []string) ([]*cluster, error) {
	if len(contexts) == 0 {
		raw, err := flags.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil, fmt.Errorf("reading the kubeconfig: %w", err)
		}
		contexts = []string{raw.CurrentContext}
	}
	var clusters []*cluster
	for _, name := range contexts {
		*flags.Context = name
		config, err := flags.ToRESTConfig()
		if err != nil {
			return nil, fmt.Errorf("reading the kubeconfig: %w", err)
		}
		config.QPS, config.Burst = clientQPS, clientBurst
		kube, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("connecting to the cluster of context %q: %w", name, err)
		}
		clusters = append(clusters, &cluster{
			context: name, kube: kube, now: time.Now, poll: time.Second,
			objects: sync.OnceValues(func() (client.Client, error) { return newClient(config, kube.Discovery()) }),
			ask:     askThrough(config, kube), fetch: fetchThrough(config, kube),
		})
	}
	return clusters, nil
}

// newClient makes a client for all that the commands look at. Where an API is not served, asking for it says so.
func newClient(config *rest.Config, d discovery.DiscoveryInterface) (client.Client, error) {
	scheme, err := newScheme(d)
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	return c, nil
}

func newScheme(d discovery.DiscoveryInterface) (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	mcsVersion, _, err := served.MCS(d)
	if err != nil {
		return nil, err
	}
	aboutVersion, _, err := served.About(d)
	if err != nil {
		return nil, err
	}
	served.AddMCS(scheme, mcsVersion)
	aboutv1beta1.AddToScheme(scheme, aboutVersion)
	return scheme, nil
}

// oneCluster is for commands that are about a single cluster.
func (a *app) oneCluster() (*cluster, error) {
	if len(a.contexts) > 1 {
		return nil, usagef("this command is about one cluster, and --context names %d", len(a.contexts))
	}
	clusters, err := a.connect(a.contexts)
	if err != nil {
		return nil, err
	}
	return clusters[0], nil
}

// clusters are those that --context names.
func (a *app) clusters() ([]*cluster, error) {
	for i, name := range a.contexts {
		if slices.Contains(a.contexts[:i], name) {
			return nil, usagef("--context names %q twice", name)
		}
	}
	return a.connect(a.contexts)
}

// eachCluster gathers something of every cluster at the same time, in their order. What cannot be had of one is its own matter.
func eachCluster[T any](clusters []*cluster, gather func(*cluster) T) []T {
	out := make([]T, len(clusters))
	var all sync.WaitGroup
	for i, k := range clusters {
		all.Go(func() { out[i] = gather(k) })
	}
	all.Wait()
	return out
}

// list reads the objects of a kind, in one namespace or in all when it is "".
func list[L client.ObjectList](ctx context.Context, k *cluster, namespace string, into L, opts ...client.ListOption) error {
	c, err := k.objects()
	if err != nil {
		return err
	}
	return c.List(ctx, into, append(opts, client.InNamespace(namespace))...)
}

// find reads an object and says whether it is there. An API that is not served has no objects.
func find(ctx context.Context, k *cluster, namespace, name string, into client.Object) (bool, error) {
	c, err := k.objects()
	if err != nil {
		return false, err
	}
	err = c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, into)
	if absent(err) {
		return false, nil
	}
	return err == nil, err
}

// joinContexts puts the context's name before each error.
func joinContexts(clusters []*cluster, errs []error) error {
	for i := range errs {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("%s: %w", clusters[i].context, errs[i])
		}
	}
	return errors.Join(errs...)
}

// portNamed is the port of a pod's container of that name, or the usual one.
func portNamed(pod *corev1.Pod, name string, usual int32) int32 {
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == name {
				return p.ContainerPort
			}
		}
	}
	return usual
}

// poll looks again and again until it is met, fails, or took too long (wait.Interrupted). A last look may take longer: a request
// is not cut short by the timeout, because that would look like a failure.
func poll(ctx context.Context, k *cluster, timeout time.Duration, met func() (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, k.poll, timeout, true, func(context.Context) (bool, error) { return met() })
}
