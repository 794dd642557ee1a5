package e2e

import (
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// TestEtcdUsers: with the controllers' credentials a cluster can write below its own prefix only.
func TestEtcdUsers(t *testing.T) {
	onlyOn(t, clusterset.Etcd)
	t.Parallel()
	installed(t)
	as := func(command string) (string, error) {
		// the default of etcdctl, 5 s, is too short on a busy machine
		return suite.Output(t.Context(), "ETCDCTL_USER=demo-set.cls1:$(cat bin/etcd/cls1.password) etcdctl --command-timeout=60s "+command)
	}
	for _, command := range []string{
		"put /mcs/demo-set/cls2/exports/demo/web x", "del --prefix /mcs/demo-set/cls2/", "put /mcs/demo-set/cls10/member x", "get --prefix /mcs/other-set/", "user list",
	} {
		if out, err := as(command); err == nil || !strings.Contains(out, "permission denied") {
			t.Errorf("etcdctl %s as cls1: %v: %s; want permission denied", command, err, out)
		}
	}
	out, err := as("get --prefix --keys-only /mcs/demo-set/")
	if err != nil || !strings.Contains(out, "/mcs/demo-set/cls2/member") {
		t.Errorf("cls1 cannot read the clusterset: %v: %s", err, out)
	}
}
