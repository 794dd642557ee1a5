package e2e

import (
	"fmt"
	"net"
	"slices"
	"testing"
)

// TestBlueAndGreen: two clusters export their blue Services under one name, and then the green
// ones, while clients connect to the clusterset IP all the time. No connection fails, and the IP
// stays.
func TestBlueAndGreen(t *testing.T) {
	t.Parallel()
	cls1, cls2 := installed(t)
	both := []cluster{cls1, cls2}
	ns := namespace(t, both...)
	for _, c := range both {
		for _, name := range []string{"web-blue", "web-green"} {
			apply(t, c, web(ns, name, 1))
			kubectl(t, c, "-n", ns, "rollout", "status", "deployment/"+name, "--timeout=90s")
		}
	}
	exportWeb := func(service string, texts ...string) {
		t.Helper()
		says(t, 0, fmt.Sprintf("export %s --name web -n %s --context cls1,cls2", service, ns), texts...)
		eventually(t, started, func() error {
			for _, from := range both {
				want, err := podIPs(t.Context(), from, ns, service)
				if err != nil {
					return err
				}
				for _, in := range both {
					got, err := imported(t.Context(), in, ns, "web", from.name, true)
					if err != nil {
						return err
					}
					if len(want) == 0 || !slices.Equal(got, want) {
						return fmt.Errorf("%s has imported %v from %s, whose Service %s has %v", in.name, got, from.name, service, want)
					}
				}
			}
			return nil
		})
	}
	exportWeb("web-blue", "cls1: exported", "cls2: exported")
	ip, err := importIP(t.Context(), cls2, ns, "web")
	if err != nil {
		t.Fatal(err)
	}
	node, address := networkOf(t, "cls2-node1"), net.JoinHostPort(ip, "80")
	eventually(t, started, func() error { // kube-proxy follows
		conn, err := node.dial(t.Context(), "tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	tr := startTraffic(t, node, []string{address}, podAddresses(t, ns, "web-green", both...))
	eventually(t, started, func() error { return tr.inARow(20) })
	exportWeb("web-green", "cls1: exported", "cls2: exported")
	always(t, quiet, func() error { return tr.inARow(20) })
	count, failures, load := tr.stop()
	t.Logf("%d connections, %d failed, and %d for lack of CPU", count, len(failures), load)
	for _, f := range failures {
		t.Errorf("a connection failed: %v", f)
	}
	if now, err := importIP(t.Context(), cls2, ns, "web"); err != nil || now != ip {
		t.Errorf("the clusterset IP is %q (%v), want still %q", now, err, ip)
	}
	says(t, 0, fmt.Sprintf("diagnose web -n %s --context cls1,cls2", ns), "web-green: ClusterIP 80/TCP")
	says(t, 1, fmt.Sprintf("export web-red --name web -n %s --context cls1", ns), "there is no Service web-red")
}
