package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

const (
	// homeRegion is where the clusters of all scenarios export to, farRegion another one.
	homeRegion = "ap-southeast-2"
	farRegion  = "eu-central-1"
)

// importFrom returns the flag to import from another Region of cloudmap-local.
func importFrom(region string) string {
	return "--import-from=cloudmap,region=" + region + ",endpoint=" + clusterset.Endpoint
}

// membersIn returns the clusters that have a record in a Region.
func membersIn(ctx context.Context, region string) ([]string, error) {
	set, err := suite.Stdout(ctx, "", "aws", "--endpoint-url", clusterset.Endpoint, "--region", region, "servicediscovery", "list-namespaces",
		"--query", "Namespaces[?starts_with(Name,'mcs.')].Name", "--output", "text")
	if err != nil || strings.TrimSpace(set) == "" {
		return nil, err
	}
	out, err := suite.Stdout(ctx, "", "aws", "--endpoint-url", clusterset.Endpoint, "--region", region, "servicediscovery", "discover-instances",
		"--namespace-name", strings.TrimSpace(set), "--service-name", "members", "--query", "Instances[].InstanceId", "--output", "text")
	members := strings.Fields(out)
	slices.Sort(members)
	return members, err
}

// TestAccountsAndRegions: cls2 moves to another Region. cls1, which stays and imports from both,
// serves its clients from cls2 all the time, sees cls2 once, and cls2 imports across Regions in its
// turn.
func TestAccountsAndRegions(t *testing.T) {
	onlyOn(t, clusterset.CloudMap)
	cls1, cls2 := installed(t)
	startRollout(t, cls1, importFrom(farRegion))
	ns := namespace(t, cls1, cls2)
	apply(t, cls2, servers(cls2, ns, "web", 1))
	svc := service(ns, "web")
	svc.Spec.Selector = map[string]string{"app": "web"}
	create(t, cls2, svc)
	export(t, cls2, ns, "web")
	apply(t, cls1, web(ns, "home", 1))
	export(t, cls1, ns, "home")
	startClient(t, cls1, ns)
	rolledOut(t, cls1)
	command := curl("http://" + fqdn(ns, "web"))
	eventually(t, started, func() error { return answeredBy(t.Context(), cls1, ns, command, "cls2") })
	ip, err := importIP(t.Context(), cls1, ns, "web")
	if err != nil {
		t.Fatal(err)
	}

	unanswered := keepAsking(t, cls1, ns, command)
	addArgs(t, cls2, "--aws-region="+farRegion, importFrom(homeRegion))
	eventually(t, started, func() error {
		there, err := membersIn(t.Context(), farRegion)
		if err == nil && !slices.Equal(there, []string{"cls2"}) {
			err = fmt.Errorf("the members in %s are %v, want cls2", farRegion, there)
		}
		return err
	})
	// From now on changes come through the other Region, in both directions.
	kubectl(t, cls2, "-n", ns, "scale", "deployment/cls2-web", "--replicas=2")
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls2, cls1, ns, "web", 2) })
	kubectl(t, cls1, "-n", ns, "scale", "deployment/home", "--replicas=2")
	eventually(t, started, func() error { return sameEndpoints(t.Context(), cls1, cls2, ns, "home", 2) })
	eventually(t, soon, func() error {
		return errors.Join(exporters(t.Context(), cls1, ns, "web", "cls2"), exporters(t.Context(), cls2, ns, "home", "cls1"))
	})
	if failures := unanswered(); len(failures) > 0 {
		t.Errorf("while cls2 moved to another Region, %d requests of a client in cls1 failed, the first: %s", len(failures), failures[0])
	}
	if now, err := importIP(t.Context(), cls1, ns, "web"); err != nil || now != ip {
		t.Errorf("the clusterset IP is %q (%v), want still %q", now, err, ip)
	}
}

// keepAsking repeats a client's command until the returned function is called, which reports
// failures.
func keepAsking(t *testing.T, c cluster, ns, command string) (stop func() []string) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan []string, 1)
	go func() {
		var failures []string
		for ctx.Err() == nil {
			if out, err := ask(ctx, c, ns, "sh", "-c", command); err != nil && ctx.Err() == nil {
				failures = append(failures, fmt.Sprintf("%v: %s", err, out))
			}
		}
		done <- failures
	}()
	return func() []string { cancel(); return <-done }
}
