package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

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

// A Cluster is the connection to the Kubernetes cluster of one context.
type Cluster struct {
	// Context is its name in the kubeconfig.
	Context string
	Kube    kubernetes.Interface
	// Objects returns a client for all kinds of objects. It uses the versions of the MCS and About
	// APIs that the cluster serves.
	Objects func() (client.Client, error)
	// ForwardPort opens a connection to a port of a pod.
	ForwardPort PortForwarder
	Now         func() time.Time
	// PollInterval is the time between two reads of a command that waits.
	PollInterval time.Duration
}

// Client-side rate limit for one API server. A command makes some dozens of requests at once and
// ends.
const (
	clientQPS   = 100
	clientBurst = 200
)

// Connect reads the kubeconfig as kubectl does: flags, then environment, then files. It sends no
// request to the clusters.
func Connect(flags *genericclioptions.ConfigFlags, contexts []string) ([]*Cluster, error) {
	if len(contexts) == 0 {
		raw, err := flags.ToRawKubeConfigLoader().RawConfig()
		if err != nil {
			return nil, fmt.Errorf("reading the kubeconfig: %w", err)
		}
		contexts = []string{raw.CurrentContext}
	}
	var clusters []*Cluster
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
		clusters = append(clusters, &Cluster{
			Context: name, Kube: kube, Now: time.Now, PollInterval: time.Second,
			Objects:     sync.OnceValues(func() (client.Client, error) { return newClient(config, kube.Discovery()) }),
			ForwardPort: newPortForwarder(config, kube),
		})
	}
	return clusters, nil
}

// newClient returns a client for all kinds that the commands use. Reading a kind whose API is not
// served fails with a "no match" error.
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

// OneCluster returns the cluster of a command that takes a single context.
func (s *Session) OneCluster() (*Cluster, error) {
	if len(s.Contexts) > 1 {
		return nil, Usagef("this command takes one context, and --context names %d", len(s.Contexts))
	}
	clusters, err := s.Connect(s.Contexts)
	if err != nil {
		return nil, err
	}
	return clusters[0], nil
}

// Clusters returns the clusters that --context names.
func (s *Session) Clusters() ([]*Cluster, error) {
	for i, name := range s.Contexts {
		if slices.Contains(s.Contexts[:i], name) {
			return nil, Usagef("--context names %q twice", name)
		}
	}
	return s.Connect(s.Contexts)
}

// ClustersAndNamespace returns the clusters that --context names and the namespace of the command,
// "" with allNamespaces.
func (s *Session) ClustersAndNamespace(allNamespaces bool) ([]*Cluster, string, error) {
	clusters, err := s.Clusters()
	if err != nil || allNamespaces {
		return clusters, "", err
	}
	namespace, err := s.Namespace()
	return clusters, namespace, err
}

// ForEachCluster calls gather for all clusters concurrently and returns the results in the order of
// the clusters.
func ForEachCluster[T any](clusters []*Cluster, gather func(*Cluster) T) []T {
	out := make([]T, len(clusters))
	var all sync.WaitGroup
	for i, k := range clusters {
		all.Go(func() { out[i] = gather(k) })
	}
	all.Wait()
	return out
}

// JoinErrors joins the errors of the clusters, each prefixed with its context. The result is an
// IncompleteError only if all of them are.
func JoinErrors(clusters []*Cluster, errs []error) error {
	failed := slices.ContainsFunc(errs, func(err error) bool { return err != nil && !errors.As(err, new(IncompleteError)) })
	for i, err := range errs {
		switch {
		case err == nil:
		case failed && errors.As(err, new(IncompleteError)):
			errs[i] = fmt.Errorf("%s: %s", clusters[i].Context, err.Error())
		default:
			errs[i] = fmt.Errorf("%s: %w", clusters[i].Context, err)
		}
	}
	return errors.Join(errs...)
}

// Poll calls condition every PollInterval until it returns true or an error, or the timeout expires
// (wait.Interrupted). The timeout does not cancel a running call, which would look like a failed
// request. The end of ctx is another error: the user has interrupted the command.
func (k *Cluster) Poll(ctx context.Context, timeout time.Duration, condition func() (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, k.PollInterval, timeout, true, func(context.Context) (bool, error) { return condition() })
	if err != nil && ctx.Err() != nil {
		return errors.New("the command was interrupted")
	}
	return err
}
