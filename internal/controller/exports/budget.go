package exports

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/log"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// overBudget returns why clusters with the budgets of this one do not import the export as it is,
// or "". Their budgets are not known here.
func overBudget(account *budget.Account, exp mcs.Export) string {
	size, err := record.Size(exp)
	if err != nil {
		return "" // the registry refuses it
	}
	admitted, excess := account.Admit([]budget.Offer{{Key: exp.Key, Created: exp.Created.Unix(), Wanted: budget.Of(exp, size)}})
	if admitted[0] {
		return ""
	}
	return fmt.Sprintf("this cluster exports more than %s: other clusters with the same budget do not import this export, or keep it as it was; "+
		"export fewer or smaller services, or raise the budget in the other clusters", excess[0])
}

// reportBudget warns about an export that exceeds the budgets of this cluster, when that changes.
func (r *Controller) reportBudget(ctx context.Context, exp *mcsv1beta1.ServiceExport, text string) {
	if text == "" {
		return
	}
	log.FromContext(ctx).Info("Exported over budget", "reason", text)
	r.events.Publish(kube.OverBudget(exp, text))
}
