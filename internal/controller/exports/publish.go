package exports

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// publish publishes src as the export of key, or withdraws the export if src is not exported, and
// adds the result to facts.
func (r *Controller) publish(ctx context.Context, reg registry.Registry, src kube.LocalSource, key mcs.Key, facts *exportFacts) error {
	view, err := reg.Lookup(ctx, key)
	facts.synced, facts.readProblem = err == nil, err
	if err != nil && !errors.Is(err, registry.ErrNotSynced) {
		return fmt.Errorf("looking up the exports of %s: %w", key, err)
	}
	if !src.IsExported() {
		return r.withdraw(ctx, reg, key, facts.synced && view.Local.State == registry.Absent)
	}
	exp, err := r.newExport(ctx, src.Source)
	if err == nil {
		err = reg.Publish(ctx, exp)
	}
	if err != nil { // the export is invalid, and a retry would not change that
		facts.problem = err.Error()
		return r.withdraw(ctx, reg, key, false)
	}
	facts.leftOut = r.LeftOut(key)
	if view, err = reg.Lookup(ctx, key); err != nil {
		facts.synced, facts.readProblem = false, err
		facts.unshown = r.unshownFor(key, true)
		return nil //nolint:nilerr // not read yet: the status stays as it is until the registry has been read
	}
	r.reportWarnings(ctx, src.ServiceExport, key, view.Local.Warnings)
	facts.status, facts.unknown = view.Local, len(view.MayExport()) > 0 || view.Incomplete
	facts.unshown = r.unshownFor(key, view.Local.State != registry.Exported)
	if facts.conflicts, err = r.findConflicts(ctx, key, view, exp); err != nil {
		return err
	}
	if importers, known := r.Importers(exp); known {
		facts.importers = &importers
	}
	return r.findRecipients(ctx, reg, exp, facts)
}

// findRecipients adds the members that exp is for to facts.
func (r *Controller) findRecipients(ctx context.Context, reg registry.Registry, exp mcs.Export, facts *exportFacts) error {
	var clusters []string
	if exp.Recipients != "" {
		members, err := reg.Members(ctx)
		if errors.Is(err, registry.ErrNotSynced) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the members that %s is exported to: %w", exp.Key, err)
		}
		for _, m := range members {
			if m.ClusterID != exp.Cluster && !m.Mapped && exp.IsFor(m.Properties.OfCluster(m.ClusterID, r.membership.State().Identity().ClusterSetID)) {
				clusters = append(clusters, m.ClusterID)
			}
		}
		facts.recheck = recipientsInterval
	}
	c := mcs.ExportRecipients(exp.Recipients, clusters)
	facts.recipients = &c
	return nil
}

// recipientsInterval is the interval at which the members that an export is for are read again: the
// registry does not notify of members that export nothing.
const recipientsInterval = 30 * time.Second

// PublishAll publishes every export of this cluster in reg, the registry of a session that begins.
// It reads the cache only: writes to the API server, which an admission webhook may delay or
// refuse, are left to Reconcile, and so are events and conditions.
func (r *Controller) PublishAll(ctx context.Context, identity mcs.Identity, reg registry.Registry) error {
	var found mcsv1beta1.ServiceExportList
	if err := r.client.List(ctx, &found, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing ServiceExports: %w", err)
	}
	for i := range found.Items {
		key := kube.KeyOf(client.ObjectKeyFromObject(&found.Items[i]))
		src, err := kube.ReadLocalSource(ctx, r.client, r.scope, identity, key)
		if err != nil {
			return err
		}
		if !src.IsExported() {
			continue
		}
		src.Region = r.region()
		exp, _, err := mcs.NewExport(src.Source, nil, r.now())
		if err == nil {
			err = reg.Publish(ctx, exp)
		}
		if err != nil {
			// Reconcile reports it
			log.FromContext(ctx).V(1).Info("Left out an export that is not valid", "service", key.String(), "error", err.Error())
		}
	}
	return nil
}

// findConflicts returns the conflicts of exp with the exports that this cluster imports, by the
// precedence that they have in its import.
func (r *Controller) findConflicts(ctx context.Context, key mcs.Key, view registry.View, exp mcs.Export) ([]mcs.Conflict, error) {
	view, _ = r.guard.Filter(key, view)
	exports := view.Exports()
	if len(exports) == 0 {
		return nil, nil
	}
	var imp mcsv1beta1.ServiceImport
	own, _ := r.membership.Properties()
	in := plan.PrecedenceInput{
		Exports: append(exports, exp), Unknown: view.MayExport(), Order: view.Order,
		Properties: view.PropertiesWith(exp.Cluster, own), Now: r.now(),
	}
	found, err := kube.Find(ctx, r.client, kube.NameOf(key), &imp, client.UnsafeDisableDeepCopy)
	if found {
		in.Import = &imp
	}
	return plan.DecidePrecedence(in).Merge().Conflicts, err
}

// region returns this cluster's Region, "" if it is not known.
func (r *Controller) region() string {
	properties, _ := r.membership.Properties()
	return properties[mcs.PropertyRegion]
}

// unshownFor returns how long the registry has not shown the export of key as it is.
func (r *Controller) unshownFor(key mcs.Key, unshown bool) time.Duration {
	if !unshown {
		r.unshown.Delete(key)
		return 0
	}
	now := r.now()
	since, _ := r.unshown.LoadOrStore(key, now)
	return now.Sub(since.(time.Time))
}

// reportWarnings reports the registry's warnings about an export when they change.
func (r *Controller) reportWarnings(ctx context.Context, exp *mcsv1beta1.ServiceExport, key mcs.Key, warnings []string) {
	text := strings.Join(warnings, "; ")
	if before, _ := r.warnings.Swap(key, text); text == "" || before == text {
		return
	}
	log.FromContext(ctx).Info("Exported with warnings", "warnings", text)
	r.events.Publish(kube.InstancesOmitted(exp, text))
}

// withdraw withdraws the export of key, unless the registry shows that it is absent.
func (r *Controller) withdraw(ctx context.Context, reg registry.Registry, key mcs.Key, absent bool) error {
	_, published := r.published.LoadAndDelete(key)
	r.budget.Release(key)
	r.warnings.Delete(key)
	r.unwritten.Delete(key)
	r.unshown.Delete(key)
	if absent {
		return nil
	}
	if err := reg.Withdraw(ctx, key); err != nil {
		return fmt.Errorf("withdrawing %s: %w", key, err)
	}
	if published {
		log.FromContext(ctx).Info("Withdrew service")
	}
	return nil
}

// newExport returns the export of src, and reports changes of it.
func (r *Controller) newExport(ctx context.Context, src mcs.Source) (mcs.Export, error) {
	key := mcs.Key{Namespace: src.ServiceExport.Namespace, Name: src.ServiceExport.Name}
	var previous *mcs.Export
	var before publishedExport
	if value, ok := r.published.Load(key); ok {
		before = value.(publishedExport)
		previous = &before.export
	}
	src.Region = r.region()
	exp, left, err := mcs.NewExport(src, previous, r.now())
	if err != nil {
		return mcs.Export{}, err
	}
	left = append(left, r.describeNotImported(ctx, key)...)
	after := publishedExport{export: exp, leftOut: left, deprecation: src.Deprecation(), since: before.since}
	if after.since.IsZero() {
		after.since = r.now()
	}
	if previous == nil || !previous.Equal(exp) {
		after.overBudget = overBudget(r.budget, exp)
	} else {
		after.overBudget = before.overBudget
	}
	r.published.Store(key, after)
	r.reportExport(ctx, src.ServiceExport, before, after)
	return exp, nil
}

// reportExport logs another shape of an export, and records an event when the parts that are left
// out of it change.
func (r *Controller) reportExport(ctx context.Context, exp *mcsv1beta1.ServiceExport, before, after publishedExport) {
	if isNew := before.since.IsZero(); !isNew && !before.export.HasShapeOf(after.export) {
		now := after.export
		log.FromContext(ctx).Info("Changed export", "type", now.Type, "ports", now.Ports, "recipients", now.Recipients)
	}
	if after.overBudget != before.overBudget {
		r.reportBudget(ctx, exp, after.overBudget)
	}
	if summary := after.leftOut.Summary(); summary != "" && summary != before.leftOut.Summary() {
		log.FromContext(ctx).Info("Exported in part", "leftOut", summary)
		r.events.Publish(kube.PartlyExported(exp, summary))
	}
	if after.deprecation != "" && after.deprecation != before.deprecation {
		r.events.Publish(kube.DeprecatedAnnotation(exp, after.deprecation))
	}
}

// describeNotImported warns about an export of a system namespace, into which clusters import only
// if they list it, as this one does not.
func (r *Controller) describeNotImported(ctx context.Context, key mcs.Key) mcs.LeftOuts {
	denial, err := r.ImportDenial(ctx, key.Namespace)
	if err != nil || denial == "" || !policy.IsSystemNamespace(key.Namespace, "") {
		return nil
	}
	return mcs.LeftOuts{mcs.Note("clusters do not import services of namespace " + key.Namespace + " unless their administrators list it: " + denial)}
}

// ImportDenial returns why no service is imported into the namespace in this cluster and how to
// change that, "" if services are, or if the namespace does not exist.
func (r *Controller) ImportDenial(ctx context.Context, namespace string) (string, error) {
	ns, found, err := kube.ReadNamespace(ctx, r.client, namespace)
	if err != nil || !found {
		return "", err
	}
	return r.scope.ImportDenial(ns), nil
}
