package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// Scope selects the namespaces and Services that take part in the clusterset, in the syntax of
// NamespaceSelector and ServiceSelector.
type Scope struct {
	ExportNamespaces, ImportNamespaces string
	AutoExport                         string
	// ExportSlices selects the EndpointSlices that are exported: ExportAllSlices or
	// ExportControllerSlices.
	ExportSlices string
	// ImportMetadata selects the exported labels and annotations that this cluster sets on
	// ServiceImports, as mcs.ParseKeyFilter parses it.
	ImportMetadata string
	// ClusterPreference is the default of the cluster selectors of this cluster's exports: one of
	// mcs.ClusterPreferences.
	ClusterPreference string
	// InstanceDNS is the default of the DNS records of the Cloud Map services of the instance view:
	// one of mcs.InstanceDNSValues.
	InstanceDNS string
	// ImportPolicy is the path of the file with the import policy, "" for none.
	ImportPolicy string
}

// The values of --export-slices.
const (
	ExportAllSlices        = "all"
	ExportControllerSlices = "controller"
)

// allButSystem selects all namespaces except those of Kubernetes itself: their Services belong to
// each cluster, and an administrator can still select them by name.
const allButSystem = corev1.LabelMetadataName + " notin (" + metav1.NamespaceSystem + "," + metav1.NamespacePublic + "," + corev1.NamespaceNodeLease + ")"

func (s *Scope) bindInstances(common, _ *pflag.FlagSet) {
	common.StringVar(&s.InstanceDNS, "instance-dns", s.InstanceDNS,
		"DNS records of the instance view: none, auto, address (A, AAAA) or srv: "+docs.URL("instance-view.md#dns-names"))
}

func (s *Scope) bindExports(common, advanced *pflag.FlagSet) {
	common.StringVar(&s.ExportNamespaces, "export-namespaces", s.ExportNamespaces,
		"Namespaces whose Services may be exported: a list of names (shop,blog) or a label selector (mcs=yes).")
	common.StringVar(&s.AutoExport, "auto-export-selector", s.AutoExport,
		"Label selector of Services for which the controller creates a ServiceExport (default: none).")
	common.StringVar(&s.ClusterPreference, "cluster-preference", s.ClusterPreference,
		"Clusters that clients of the exports prefer: None, PreferSameCluster or PreferSameRegion: "+docs.URL("topology.md#clusters"))
	advanced.StringVar(&s.ExportSlices, "export-slices", s.ExportSlices,
		"EndpointSlices that are exported: all, or controller for those of Kubernetes' EndpointSlice controller only.")
}

func (s *Scope) bindImports(common, advanced *pflag.FlagSet) {
	common.StringVar(&s.ImportNamespaces, "import-namespaces", s.ImportNamespaces,
		"Namespaces into which services may be imported, in the form of --export-namespaces; system namespaces by name only: "+
			docs.URL("security/import-policy.md#system-namespaces"))
	common.StringVar(&s.ImportPolicy, "import-policy", s.ImportPolicy,
		"File with the namespaces and pod networks that each cluster may export (default: all): "+docs.URL("security/import-policy.md"))
	advanced.StringVar(&s.ImportMetadata, "import-metadata", s.ImportMetadata,
		"Keys of exported labels and annotations for ServiceImports, or none: "+docs.URL("security/import-policy.md#labels-and-annotations"))
}

func (s *Scope) validate() error {
	_, exportErr := NamespaceSelector(s.ExportNamespaces)
	_, importErr := NamespaceSelector(s.ImportNamespaces)
	_, autoErr := ServiceSelector(s.AutoExport)
	_, metadataErr := mcs.ParseKeyFilter(s.ImportMetadata)
	return errors.Join(
		invalid("export-namespaces", s.ExportNamespaces, exportErr),
		invalid("import-namespaces", s.ImportNamespaces, importErr),
		invalid("auto-export-selector", s.AutoExport, autoErr),
		invalid("import-metadata", s.ImportMetadata, metadataErr),
		oneOf("cluster-preference", s.ClusterPreference, mcs.ClusterPreferences()),
		oneOf("instance-dns", s.InstanceDNS, mcs.InstanceDNSValues()),
		oneOf("export-slices", s.ExportSlices, []string{ExportAllSlices, ExportControllerSlices}))
}

func invalid(flag, value string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%s=%s: %w", flag, value, err)
}

// namesPattern is a comma-separated list of names that a namespace can have.
var namesPattern = regexp.MustCompile(`^ *[a-z0-9]([-a-z0-9]*[a-z0-9])? *(, *[a-z0-9]([-a-z0-9]*[a-z0-9])? *)*$`)

// NamespaceSelector parses a selector of namespaces: a list of names separated by commas, or a
// label selector in kubectl's syntax.
func NamespaceSelector(text string) (labels.Selector, error) {
	if strings.TrimSpace(text) == "" {
		return nil, fmt.Errorf("must select namespaces; %q selects all, %q selects none", corev1.LabelMetadataName, "!"+corev1.LabelMetadataName)
	}
	if !namesPattern.MatchString(text) {
		return parseSelector(text)
	}
	var names []string
	for name := range strings.SplitSeq(text, ",") {
		names = append(names, strings.TrimSpace(name))
	}
	byName, err := labels.NewRequirement(corev1.LabelMetadataName, selection.In, names)
	if err != nil {
		return nil, fmt.Errorf("must be a list of namespaces: %w", err)
	}
	return labels.NewSelector().Add(*byName), nil
}

// ServiceSelector parses a label selector in kubectl's syntax; "" selects nothing.
func ServiceSelector(text string) (labels.Selector, error) {
	if strings.TrimSpace(text) == "" {
		return labels.Nothing(), nil
	}
	return parseSelector(text)
}

func parseSelector(text string) (labels.Selector, error) {
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("must be a label selector such as %q or %q: %w", "team=shop,tier!=test", "team in (shop,blog)", err)
	}
	return selector, nil
}
