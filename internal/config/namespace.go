package config

import (
	"os"
	"strings"
)

// podNamespaceFile is where Kubernetes mounts a pod's namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// OwnNamespace returns the controller's own namespace, "" if it runs outside of a cluster and the
// flag is not set.
func (e Election) OwnNamespace() string {
	if e.Namespace != "" {
		return e.Namespace
	}
	namespace, err := os.ReadFile(podNamespaceFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(namespace))
}
