package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// cutPath drops the packets between the pods of cls1 and those of cls2, in both directions, on a
// node of cls2.
const cutPath = `table inet paths {
  chain in { type filter hook prerouting priority -350; ip saddr 10.10.0.0/16 drop; ip6 saddr fd00:10:10::/48 drop; }
  chain out { type filter hook postrouting priority -150; ip daddr 10.10.0.0/16 drop; ip6 daddr fd00:10:10::/48 drop; }
}`

// streak is the number of successful connections in a row which shows that no unreachable endpoint
// is in use. If one of two endpoints in use were unreachable, they would all succeed once in 2^50
// times. A number, unlike a time limit, means the same on a slow machine.
const streak = 50

// TestPathHealth drops the packets between the pods of the two clusters, while both reach the
// registry. After about 31 s no connection of a client in cls2 fails any more: the controller has
// withdrawn the endpoints of cls1 from services that cls2 exports as well. The last endpoints of a
// service stay. When the path is restored, all endpoints are in use again. The test only logs the
// times; package paths tests them with virtual time.
func TestPathHealth(t *testing.T) {
	cls1, cls2 := installed(t)
	ns, command, ip := exportWebAndAlone(t, cls1, cls2)
	eventually(t, started, func() error { return pathIs(t.Context(), cls2, status.PathReachable) })

	nodes := []string{"cls2-node1", "cls2-node2"}
	restore := func() {
		for _, node := range nodes {
			_, _ = suite.Output(context.Background(), "testbed exec "+node+" -- nft delete table inet paths 2>/dev/null")
		}
	}
	t.Cleanup(restore)
	tr := startTraffic(t, networkOf(t, "cls2-node1"), []string{net.JoinHostPort(ip, "80")}, podAddresses(t, ns, "web", cls2))
	for _, node := range nodes {
		if out, err := suite.Output(t.Context(), "testbed exec "+node+" -- nft '"+cutPath+"'"); err != nil {
			t.Fatalf("cutting the path on %s: %v\n%s", node, err, out)
		}
	}
	cut := time.Now()
	eventually(t, started, func() error { return unreachableIs(t.Context(), cls2, ns, "web", "True Withdrawn") })
	t.Logf("the endpoints of cls1 were withdrawn %s after the path was cut", round(time.Since(cut)))
	eventually(t, soon, func() error { return unreachableIs(t.Context(), cls2, ns, "alone", "True LastEndpointsKept") })
	eventually(t, started, func() error { return tr.inARow(streak) })
	count, failures, load := tr.stop()
	last := time.Duration(0)
	for _, f := range failures {
		last = max(last, f.at.Sub(cut))
	}
	t.Logf("%d connections, %d failed, the last of them began %s after the cut; %d more failed together with connections to pod IPs",
		count, len(failures), round(last), load)
	if last == 0 {
		t.Error("no connection failed: the path was not cut")
	}
	says(t, 3, "status --context cls2", "connections to pods of cluster cls1 have timed out for ")

	restore()
	began := time.Now()
	eventually(t, started, func() error { return unreachableIs(t.Context(), cls2, ns, "web", "False NoneUnreachable") })
	t.Logf("the endpoints of cls1 were in use again %s after the path was restored", round(time.Since(began)))
	eventually(t, started, func() error { return answeredBy(t.Context(), cls2, ns, command, "cls1", "cls2") })
}

// pathIs checks the state of the path from a cluster to the other one, and that endpoints answered.
// Its controller must have answered as well, except with etcd, where members have no address.
func pathIs(ctx context.Context, c cluster, want string) error {
	out, err := plugin(ctx, 0, "status -o json --context "+c.name)
	if err != nil {
		return err
	}
	var statuses []struct{ Status status.Status }
	if err := json.Unmarshal([]byte(out), &statuses); err != nil {
		return err
	}
	for _, p := range statuses[0].Status.Paths {
		controller := p.Controller.Reached > 0 || suite.Registry != clusterset.CloudMap
		if p.State == want && controller && p.Endpoints.Reached > 0 {
			return nil
		}
	}
	return fmt.Errorf("%s: paths %+v, want one that is %s", c.name, statuses[0].Status.Paths, want)
}

// unreachableIs checks status and reason of the import's condition Unreachable.
func unreachableIs(ctx context.Context, c cluster, ns, name, want string) error {
	imp, err := serviceImport(ctx, c, ns, name)
	if err != nil {
		return err
	}
	got := ""
	if condition := meta.FindStatusCondition(imp.Status.Conditions, mcs.ConditionUnreachable); condition != nil {
		got = string(condition.Status) + " " + condition.Reason
	}
	if got != want {
		return fmt.Errorf("%s: the import of %s/%s has condition Unreachable %q, want %q", c.name, ns, name, got, want)
	}
	return nil
}
