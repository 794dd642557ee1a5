package kube

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// Scope is the part of the cluster that the administrator lets export and import, selected by
// labels.
type Scope struct {
	// flags are the settings as they were written, for messages.
	flags config.Scope
	// exports and imports select namespaces, autoExport Services.
	exports, imports, autoExport labels.Selector
	rules                        Rules
}

// Rules are the settings of a Scope that are not flags. The zero value has none.
type Rules struct {
	// OwnNamespace is the controller's own namespace, "" if it has none.
	OwnNamespace string
	// AllowsSystemNamespace reports whether the import policy lists a system namespace; nil means
	// none.
	AllowsSystemNamespace func(namespace string) bool
	// CheckAddress returns an error for addresses that this cluster's endpoints cannot have; nil
	// allows all.
	CheckAddress func(netip.Addr) error
	// HasService reports whether the API server has a Service that the cache does not show; nil
	// relies on the cache.
	HasService func(context.Context, types.NamespacedName) (bool, error)
}

// WithRules returns a copy of s with rules.
func (s *Scope) WithRules(rules Rules) *Scope {
	out := *s
	out.rules = rules
	return &out
}

// NewScope returns the scope that flags describe.
func NewScope(flags config.Scope) (*Scope, error) {
	exports, err := config.NamespaceSelector(flags.ExportNamespaces)
	if err != nil {
		return nil, fmt.Errorf("reading --export-namespaces: %w", err)
	}
	imports, err := config.NamespaceSelector(flags.ImportNamespaces)
	if err != nil {
		return nil, fmt.Errorf("reading --import-namespaces: %w", err)
	}
	autoExport, err := config.ServiceSelector(flags.AutoExport)
	if err != nil {
		return nil, fmt.Errorf("reading --auto-export-selector: %w", err)
	}
	return &Scope{flags: flags, exports: exports, imports: imports, autoExport: autoExport}, nil
}

// ExportDenial returns why no Service of namespace ns is exported and how to change that, or "" if
// they may be exported.
func (s *Scope) ExportDenial(ns *metav1.PartialObjectMetadata) string {
	if s.exports.Matches(labels.Set(ns.Labels)) {
		return ""
	}
	return fmt.Sprintf("namespace %s may not export: this cluster's controller runs with --export-namespaces=%q; "+
		"ask the cluster's administrator to include the namespace there, by its name or its labels, or delete the ServiceExport",
		ns.Name, s.flags.ExportNamespaces)
}

// AllowsImport reports whether services may be imported into namespace ns.
func (s *Scope) AllowsImport(ns *metav1.PartialObjectMetadata) bool { return s.ImportDenial(ns) == "" }

// ImportDenial returns why no service is imported into namespace ns and how to change that, or ""
// if they may be imported. System namespaces exist in every cluster, whether or not the
// administrators of the clusters agree on them, so they must be listed by name.
func (s *Scope) ImportDenial(ns *metav1.PartialObjectMetadata) string {
	selected := s.imports.Matches(labels.Set(ns.Labels))
	isSystem := policy.IsSystemNamespace(ns.Name, s.rules.OwnNamespace)
	listed := isSystem && s.rules.AllowsSystemNamespace != nil && s.rules.AllowsSystemNamespace(ns.Name)
	switch {
	case listed:
		return ""
	case isSystem && (!selected || !namesNamespace(s.imports, ns.Name)):
		return fmt.Sprintf("namespace %s is not imported into unless --import-namespaces names it, or systemNamespaces of --import-policy", ns.Name)
	case !selected:
		return fmt.Sprintf("namespace %s is not imported into: this cluster's controller runs with --import-namespaces=%q", ns.Name, s.flags.ImportNamespaces)
	}
	return ""
}

// namesNamespace reports whether selector selects namespaces by name, and one of them is name.
func namesNamespace(selector labels.Selector, name string) bool {
	requirements, _ := selector.Requirements()
	return slices.ContainsFunc(requirements, func(r labels.Requirement) bool {
		isNamed := r.Operator() == selection.In || r.Operator() == selection.Equals || r.Operator() == selection.DoubleEquals
		return isNamed && r.Key() == corev1.LabelMetadataName && r.Values().Has(name)
	})
}

// Namespaces returns the namespaces whose exports matter here: they exist, and may import or
// export. It answers from the cache of reader.
func (s *Scope) Namespaces(ctx context.Context, reader client.Reader) registry.Namespaces {
	return &namespaces{scope: s, ctx: ctx, reader: reader}
}

type namespaces struct {
	scope  *Scope
	ctx    context.Context //nolint:containedctx // that of the process
	reader client.Reader
}

// Uses implements registry.Namespaces. An error counts as yes.
func (n *namespaces) Uses(namespace string) bool {
	ns, found, err := ReadNamespace(n.ctx, n.reader, namespace)
	return err != nil || found && n.scope.uses(ns)
}

// Used implements registry.Namespaces.
func (n *namespaces) Used() (names []string, ok bool) {
	list := namespaceMetadataList()
	if err := n.reader.List(n.ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, false
	}
	for i := range list.Items {
		if n.scope.uses(&list.Items[i]) {
			names = append(names, list.Items[i].Name)
		}
	}
	return names, true
}

// uses reports whether the exports of a namespace that exists matter here.
func (s *Scope) uses(ns *metav1.PartialObjectMetadata) bool {
	return ns.DeletionTimestamp == nil && (s.AllowsImport(ns) || s.ExportDenial(ns) == "")
}

// SelectsService reports whether svc matches --auto-export-selector.
func (s *Scope) SelectsService(svc *corev1.Service) bool {
	return s.autoExport.Matches(labels.Set(svc.Labels))
}
