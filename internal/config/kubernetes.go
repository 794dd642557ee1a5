package config

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// RESTConfig is how to reach the cluster's API server: by the kubeconfig if there is one, else by the pod's own service account.
func (k *Kubernetes) RESTConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.Kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: k.Context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the Kubernetes API server (run in a pod, or pass --kubeconfig): %w", err)
	}
	cfg.QPS, cfg.Burst = k.QPS, k.Burst
	cfg.UserAgent = "cloud-map-mcs-controller/" + Version
	return cfg, nil
}
