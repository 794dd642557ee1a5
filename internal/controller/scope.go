package controller

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

// scope is what the cluster's administrator lets take part, decided by labels.
type scope struct {
	// flags are the settings as they were written, for messages.
	flags config.Scope
	// exports and imports select namespaces, autoExport Services.
	exports, imports, autoExport labels.Selector
}

func newScope(flags config.Scope) (*scope, error) {
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
	return &scope{flags: flags, exports: exports, imports: imports, autoExport: autoExport}, nil
}

// mayNotExport says why no Service of namespace ns is exported, and what would have to change; "" when they may be.
func (s *scope) mayNotExport(ns *metav1.PartialObjectMetadata) string {
	if s.exports.Matches(labels.Set(ns.Labels)) {
		return ""
	}
	return fmt.Sprintf("namespace %s may not export: this cluster's controller runs with --export-namespaces=%q; "+
		"ask the cluster's administrator to include the namespace there, by its name or its labels, or delete the ServiceExport",
		ns.Name, s.flags.ExportNamespaces)
}

// mayImport says whether services may be imported into namespace ns.
func (s *scope) mayImport(ns *metav1.PartialObjectMetadata) bool {
	return s.imports.Matches(labels.Set(ns.Labels))
}

// readNamespace reads a namespace. One that is not there has no labels, and nothing in it.
func readNamespace(ctx context.Context, c client.Reader, name string) (ns *metav1.PartialObjectMetadata, found bool, err error) {
	ns = namespaceMetadata()
	found, err = find(ctx, c, types.NamespacedName{Name: name}, ns, client.UnsafeDisableDeepCopy)
	ns.Name = name // for messages about one that is gone
	return ns, found, err
}
