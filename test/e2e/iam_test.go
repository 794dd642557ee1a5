package e2e

import (
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

// TestIAMKeepsAClusterOffAnothersCatalog: the credentials of cls2's controller cannot write cls1's
// catalog.
func TestIAMKeepsAClusterOffAnothersCatalog(t *testing.T) {
	t.Parallel()
	onlyOn(t, clusterset.CloudMap)
	cls1, cls2 := installed(t)
	ns := namespace(t, cls1, cls2)
	apply(t, cls1, web(ns, "web", 1))
	export(t, cls1, ns, "web")
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "web", 1) })

	find := func(name string) string {
		t.Helper()
		id, err := suite.Output(t.Context(), tutorial.AWS("list-services --query \"Services[?Name=='"+name+"'].Id | [0]\" --output text"))
		if err != nil || !strings.HasPrefix(id, "srv-") {
			t.Fatalf("looking for the service %s: %s %v", name, id, err)
		}
		return strings.TrimSpace(id)
	}
	catalog := find("catalog.cls1")
	for _, args := range []string{
		"register-instance --service-id " + catalog + " --instance-id page-00-0 --attributes A=b",
		"deregister-instance --service-id " + catalog + " --instance-id page-00-0",
		"delete-service --id " + catalog,
	} {
		out, err := suite.Output(t.Context(), suite.AsCluster("cls2")+tutorial.AWS(args))
		if err == nil || !strings.Contains(out, "AccessDeniedException") || !strings.Contains(out, "user/cls2 is not authorized") {
			t.Errorf("%s: %v %s", args, err, out)
		}
	}
	// It can read all catalogs and write its own.
	for _, args := range []string{
		"discover-instances --namespace-name mcs." + clusterset.ClusterSetID + " --service-name catalog.cls1",
		"register-instance --service-id " + find("catalog.cls2") + " --instance-id not-a-page --attributes A=b",
		"deregister-instance --service-id " + find("catalog.cls2") + " --instance-id not-a-page",
	} {
		if out, err := suite.Output(t.Context(), suite.AsCluster("cls2")+tutorial.AWS(args)); err != nil {
			t.Errorf("%s: %v %s", args, err, out)
		}
	}
}
