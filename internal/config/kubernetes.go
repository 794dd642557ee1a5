package config

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// RESTConfig returns the client configuration for the API server: from the kubeconfig if there is
// one, otherwise from the pod's service account.
func (k *Kubernetes) RESTConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.Kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: k.Context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("finding the Kubernetes API server (run in a pod, or pass --kubeconfig): %w", err)
	}
	cfg.QPS, cfg.Burst = k.QPS, k.Burst
	cfg.UserAgent = names.Product + "/" + Version
	return cfg, nil
}
