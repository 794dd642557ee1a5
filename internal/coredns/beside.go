package coredns

import (
	_ "embed"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// BesideName names the objects of the CoreDNS beside the cluster's own, in namespace kube-system.
// Other servers forward clusterset.local to its Service, whose IPs stay while its pods change.
const BesideName = names.ClustersetDNS

// BesideImage is the default image of that CoreDNS. The testbed has the same version.
const BesideImage = "registry.k8s.io/coredns/coredns:v1.15.0"

// The ConfigMap from which the CoreDNS of AKS, k3s and others imports server blocks, and the key of
// clusterset.local in it.
const (
	CustomName = "coredns-custom"
	CustomKey  = BesideName + ".server"
)

//go:embed beside.yaml
var besideManifests string

// BesideLabels returns the labels that select the pods.
func BesideLabels() map[string]string { return map[string]string{"app.kubernetes.io/name": BesideName} }

// Beside returns the objects of a CoreDNS beside the cluster's own, in the order in which they can
// be created.
func Beside(image string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for text := range strings.SplitSeq(strings.ReplaceAll(besideManifests, "image: IMAGE", "image: "+strconv.Quote(image)), "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
			return nil, fmt.Errorf("reading the manifests of %s: %w", BesideName, err)
		}
		labels := BesideLabels()
		maps.Copy(labels, Labels())
		object.SetLabels(labels)
		objects = append(objects, object)
	}
	return objects, nil
}
