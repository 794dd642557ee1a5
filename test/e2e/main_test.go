// Package e2e holds the scenarios on real clusters. They need root on Linux and the results of
// `make build image`:
//
//	make e2e                # everything
//	make e2e RUN=Readiness  # one scenario
//	make e2e REGISTRY=etcd  # on etcd instead of Cloud Map
//	NIGHTLY=1 make e2e RUN=Tutorial \
//	  CLOUDMAP="--pessimistic --behaviors=$PWD/test/e2e/testdata/one-host.yaml"
//
// All scenarios share two dual-stack clusters of two nodes in different zones; each works in a
// namespace of its own.
package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/tutorial"
)

// suite is the clusterset that all scenarios share.
var suite *clusterset.Set

func TestMain(m *testing.M) {
	if os.Getenv("E2E") == "" {
		fmt.Println("the scenarios on real clusters run with make e2e")
		return
	}
	os.Exit(run(m))
}

// testbedArgs returns the arguments of `testbed up`. E2E_TESTBED overrides them, for example for
// IPv4 clusters; then skip the scenarios about IPv6 with -skip.
func testbedArgs() []string {
	if args, ok := os.LookupEnv("E2E_TESTBED"); ok {
		return strings.Fields(args)
	}
	return []string{"--dual-stack", "--nodes", "2"}
}

// clusterCount returns the number of clusters, which E2E_CLUSTERS overrides: some scenarios do more
// with three.
func clusterCount() int {
	if n, err := strconv.Atoi(os.Getenv("E2E_CLUSTERS")); err == nil && n > 2 {
		return n
	}
	return 2
}

// cloudMapArgs returns further arguments of cloudmap-local.
func cloudMapArgs() []string { return strings.Fields(os.Getenv("E2E_CLOUDMAP")) }

// patience is the factor of the walk-through's time limits, 20 s for most, with --pessimistic. The
// first write of a cluster waits three times for 10 s until IAM sees the tags of its resources. A
// service is in use for a minute after its last instance was removed: with pauses that double, it
// is deleted after 127 s at the latest.
func patience() int {
	if len(cloudMapArgs()) > 0 {
		return 9
	}
	return 1
}

func run(m *testing.M) int {
	ctrllog.SetLogger(logr.Discard()) // of the client that the scenarios use
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	err := clusterset.InstallTools(ctx, clusterset.RegistryName(), os.Stdout)
	if err == nil {
		suite, err = clusterset.Up(ctx, clusterset.Options{
			Clusters: clusterCount(), TestbedArgs: testbedArgs(), Registry: clusterset.RegistryName(), KeepState: true, Out: os.Stdout,
			CloudMapArgs: cloudMapArgs(), Policies: tutorial.ECSPolicies,
		})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	// the scenarios may take longer than any time limit from the start
	end, cancelEnd := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancelEnd()
	if code != 0 {
		suite.Diagnose(end, os.Stderr)
	}
	if os.Getenv("KEEP") == "" {
		suite.Down(context.WithoutCancel(end))
	}
	return code
}
