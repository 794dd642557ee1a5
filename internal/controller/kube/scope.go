package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
)

// Scope is the part of the cluster that the administrator lets export and import, selected by labels.
type Scope struct {
	// flags are the settings as they were written, for messages.
	flags config.Scope
	// exports and imports select namespaces, autoExport Services.
	exports, imports, autoExport labels.Selector
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

// ExportDenial returns why no Service of namespace ns is exported and how to change that, or "" if they may be exported.
func (s *Scope) ExportDenial(ns *metav1.PartialObjectMetadata) string {
	if s.exports.Matches(labels.Set(ns.Labels)) {
		return ""
	}
	return fmt.Sprintf("namespace %s may not export: this cluster's controller runs with --export-namespaces=%q; "+
		"ask the cluster's administrator to include the namespace there, by its name or its labels, or delete the ServiceExport",
		ns.Name, s.flags.ExportNamespaces)
}

// AllowsImport reports whether services may be imported into namespace ns.
func (s *Scope) AllowsImport(ns *metav1.PartialObjectMetadata) bool {
	return s.imports.Matches(labels.Set(ns.Labels))
}

// UsesNamespace returns a function that reports whether the exports of a namespace matter here: it exists, and may import or export. It answers from the
// cache of reader. An error counts as yes.
func (s *Scope) UsesNamespace(ctx context.Context, reader client.Reader) func(namespace string) bool {
	return func(namespace string) bool {
		ns, found, err := ReadNamespace(ctx, reader, namespace)
		return err != nil || found && ns.DeletionTimestamp == nil && (s.AllowsImport(ns) || s.ExportDenial(ns) == "")
	}
}

// SelectsService reports whether svc matches --auto-export-selector.
func (s *Scope) SelectsService(svc *corev1.Service) bool {
	return s.autoExport.Matches(labels.Set(svc.Labels))
}
