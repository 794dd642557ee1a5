package imports

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// defaultReportInterval is the interval at which the report of imports is computed, from the cache.
// The next heartbeat publishes it. The keys of the clusters in it are kept from then on.
const defaultReportInterval = 10 * time.Second

// publishReports publishes what this cluster imports.
func (r *Controller) publishReports(ctx context.Context) error {
	ticker := time.NewTicker(r.reportInterval)
	defer ticker.Stop()
	for {
		if session := r.membership.State().Session; session != nil {
			imported, err := r.readImportedServices(ctx, session.Identity.ClusterID)
			if err == nil {
				r.publishReport(ctx, session.Registry, imported)
			} else if ctx.Err() == nil {
				log.FromContext(ctx).Error(err, "Failed to report the imports of this cluster, retrying")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// readImportedServices returns what this cluster imports from others: what the statuses of its
// ServiceImports show, so that a restart changes nothing.
func (r *Controller) readImportedServices(ctx context.Context, own string) (map[string][]mcs.Key, error) {
	var list mcsv1beta1.ServiceImportList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy, client.DisableReadYourWritesConsistency); err != nil {
		return nil, fmt.Errorf("listing ServiceImports: %w", err)
	}
	return importedServices(list.Items, own), nil
}

// publishReport publishes what this cluster imports, and what is over its budgets. It deletes the
// metrics of clusters that are gone: they are not members, and nothing is imported from them. While
// the members are not known, nothing is over budget, and all metrics stay.
func (r *Controller) publishReport(ctx context.Context, reg registry.Registry, imported map[string][]mcs.Key) {
	members, err := reg.Members(ctx)
	overBudget := map[string]mcs.OverBudget{}
	for _, m := range members {
		overBudget[m.ClusterID] = m.OverBudget
	}
	reg.SetImports(mcs.NewImportReport(imported, overBudget))
	registry.KeepKeys(reg, slices.Collect(maps.Keys(imported)))
	if err != nil {
		return
	}
	r.metrics.forgetOthers(func(cluster string) bool {
		return len(imported[cluster]) > 0 || slices.ContainsFunc(members, func(m registry.Member) bool { return m.ClusterID == cluster })
	})
}

// importedServices returns the services that this controller has imported from other clusters than
// own, by exporting cluster.
func importedServices(imports []mcsv1beta1.ServiceImport, own string) map[string][]mcs.Key {
	out := map[string][]mcs.Key{}
	for i := range imports {
		imp := &imports[i]
		if !plan.IsManaged(imp) {
			continue
		}
		for _, c := range imp.Status.Clusters {
			if c.Cluster != own {
				out[c.Cluster] = append(out[c.Cluster], kube.KeyOf(client.ObjectKeyFromObject(imp)))
			}
		}
	}
	return out
}
