package cloudmap

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// faultRules are all ways in which a request to AWS may fail: with an error of Cloud Map's model,
// an error that every AWS service may return, a network error, or without a response.
var faultRules = func() map[string]cloudmaplocal.FaultRule {
	all := map[string]cloudmaplocal.FaultRule{
		"unknown error code":               {Kind: cloudmaplocal.FaultError, Code: "SomethingNewException"},
		"executed, then an error":          {Kind: cloudmaplocal.FaultError, Code: "InternalFailure", Applied: true},
		"no response":                      {Kind: cloudmaplocal.FaultHang},
		"executed, then no response":       {Kind: cloudmaplocal.FaultHang, Applied: true},
		"closed connection":                {Kind: cloudmaplocal.FaultDrop},
		"executed, then closed connection": {Kind: cloudmaplocal.FaultDrop, Applied: true},
		"accepted, never executed":         {Kind: cloudmaplocal.FaultLost},
		"accepted, failed":                 {Kind: cloudmaplocal.FaultFail},
		"accepted, failed after 5 s":       {Kind: cloudmaplocal.FaultFail, Delay: cloudmaplocal.Duration(5 * time.Second)},
	}
	for _, code := range []string{
		"CustomHealthNotFound",
		"DuplicateRequest",
		"InstanceNotFound",
		"InvalidInput",
		"NamespaceAlreadyExists",
		"NamespaceNotFound",
		"OperationNotFound",
		"RequestLimitExceeded",
		"ResourceInUse",
		"ResourceLimitExceeded",
		"ResourceNotFoundException",
		"ServiceAlreadyExists",
		"ServiceAttributesLimitExceededException",
		"ServiceNotFound",
		"TooManyTagsException",
		"ThrottlingException",
		"AccessDeniedException",
		"ExpiredTokenException",
		"UnrecognizedClientException",
		"InternalFailure",
		"ServiceUnavailable",
	} {
		all[code] = cloudmaplocal.FaultRule{Kind: cloudmaplocal.FaultError, Code: code}
	}
	return all
}()

// TestEveryFault applies each fault to each operation, for all clusters and one minute, while one
// cluster changes an export, one starts, one restarts and one leaves. Known exports stay known
// during the fault, and after it all changes are complete.
func TestEveryFault(t *testing.T) {
	operations := []string{
		"DiscoverInstances", "RegisterInstance", "DeregisterInstance", "ListInstances", "ListNamespaces", "ListServices",
		"CreateHttpNamespace", "CreateService", "GetNamespace", "GetService", "GetOperation", "ListTagsForResource", "DeleteService",
	}
	for i, operation := range operations {
		for j, name := range slices.Sorted(maps.Keys(faultRules)) {
			f := faultRules[name]
			f.Operations = []string{operation}
			// CI tries each error with a third of the operations, and each operation with a third
			// of the errors.
			if isRefusal := f.Kind == cloudmaplocal.FaultError && !f.Applied; isRefusal && testing.Short() && (i+j)%3 != 0 {
				continue
			}
			isAsync := operation == "RegisterInstance" || operation == "DeregisterInstance"
			if !isAsync && (f.Kind == cloudmaplocal.FaultLost || f.Kind == cloudmaplocal.FaultFail) {
				continue // only asynchronous operations can be lost or fail after their response
			}
			t.Run(operation+"/"+name, func(t *testing.T) {
				inBubble(t, func(t *testing.T) { testFault(t, f) })
			})
		}
	}
}

// testFault is one case of TestEveryFault.
func testFault(t *testing.T, f cloudmaplocal.FaultRule) {
	w := newSimulation(t, 0, cloudmaplocal.Options{Behaviors: cloudmaplocal.Behaviors{ConsistencyDelay: cloudmaplocal.Duration(500 * time.Millisecond), OperationDelay: cloudmaplocal.Duration(100 * time.Millisecond)}})
	id := func(n int) mcs.Identity {
		return mcs.Identity{ClusterID: fmt.Sprint("cls", n), ClusterSetID: "set1", UID: fmt.Sprint("uid-", n)}
	}
	exporter, importer, leaver := w.begin(id(1), nil), w.begin(id(2), nil), w.begin(id(3), nil)
	restarts := w.begin(id(4), nil)
	kept, changed, gone, own := webExport("cls1", 0, 1), webExport("cls1", 1, 1), webExport("cls3", 2, 1), webExport("cls4", 3, 1)
	publish(t, exporter.Registry, kept)
	publish(t, exporter.Registry, changed)
	publish(t, leaver.Registry, gone)
	publish(t, restarts.Registry, own)
	for _, exp := range []mcs.Export{kept, changed, gone, own} {
		w.until(time.Minute, "the importer has read all exports", sees(t, importer.Registry, exp))
	}

	w.plan(1, f)
	restarts.kill()
	restarted := w.begin(id(4), nil)
	publish(t, restarted.Registry, own)
	starter := w.begin(id(5), nil)
	first := webExport("cls5", 4, 1)
	publish(t, starter.Registry, first)
	changed = webExport("cls1", 1, 2)
	publish(t, exporter.Registry, changed)
	leaver.stop(registry.ErrLeave)
	var reported []string
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(500 * time.Millisecond) {
		for _, exp := range []mcs.Export{kept, own} {
			if !sees(t, importer.Registry, exp)() {
				t.Fatalf("after %v the importer has lost an export of %s", time.Since(began), exp.Cluster)
			}
		}
		if view := look(t, exporter.Registry, changed.Key); view.Local.Err != nil {
			reported = append(reported, view.Local.Err.Error())
		}
	}
	if view := look(t, exporter.Registry, changed.Key); view.Local.State == registry.Pending && f.Kind != cloudmaplocal.FaultLost {
		reason := f.Operations[0]
		if f.Kind == cloudmaplocal.FaultFail {
			reason = "INTERNAL_FAILURE" // the error of a failed operation does not name the request
		}
		if !slices.ContainsFunc(reported, func(text string) bool { return strings.Contains(text, reason) }) {
			t.Errorf("no status names %s: %q", reason, slices.Compact(reported))
		}
	}

	w.plan(1)
	for _, exp := range []mcs.Export{kept, changed, own, first} {
		w.until(3*time.Minute, "the importer has read all changes", sees(t, importer.Registry, exp))
	}
	w.until(3*time.Minute, "the changed export is confirmed", isExported(t, exporter.Registry, changed.Key))
	w.until(3*time.Minute, "the export of the restarted cluster is confirmed", isExported(t, restarted.Registry, own.Key))
	w.until(3*time.Minute, "the export of the cluster that left is removed", func() bool { return !sees(t, importer.Registry, gone)() })
	if err := withoutProtected(<-leaver.ended); err != nil {
		t.Errorf("leaving: %v", err)
	}
	for _, l := range []*process{exporter, importer, restarted, starter} {
		l.kill()
	}
}

// TestFullNamespace fills the quota of instances per namespace: changes that need no further
// instance are written, an export that needs one stays as it was, and its status names the quota to
// raise.
func TestFullNamespace(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const quota = 7 // two records, their copies and three instances of pages
		w := newSimulation(t, 0, cloudmaplocal.Options{InstancesPerNamespace: quota})
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		large, small := webExport("cls1", 0, 1), webExport("cls1", 8, 1) // of different pages
		publish(t, exporter.Registry, large)
		publish(t, exporter.Registry, small)
		w.until(time.Minute, "the importer has read both exports", func() bool {
			return sees(t, importer.Registry, large)() && sees(t, importer.Registry, small)()
		})
		tooLarge := webExport("cls1", 0, 1)
		tooLarge.Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(12_000))}
		publish(t, exporter.Registry, tooLarge)
		changed := webExport("cls1", 8, 2)
		publish(t, exporter.Registry, changed)
		w.until(time.Minute, "a change that needs no instance is written", sees(t, importer.Registry, changed))
		own := look(t, exporter.Registry, large.Key).Local
		if own.State != registry.Pending || own.Err == nil || !strings.Contains(own.Err.Error(), "Service Quotas") {
			t.Errorf("the export that is too large is %v, %v; want Pending and the quota", own.State, own.Err)
		}
		late := w.begin(mcs.Identity{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-9"}, nil)
		w.until(time.Minute, "a new importer reads the previous version", sees(t, late.Registry, large))
		// The previous version needs no further instance.
		publish(t, exporter.Registry, large)
		w.until(2*time.Minute, "the export is confirmed", isExported(t, exporter.Registry, large.Key))
		for _, l := range []*process{exporter, importer, late} {
			l.kill()
		}
	})
}

// TestThousandInstances has services with as many instances as one read returns: a catalog is then
// read page by page. Service members cannot have more, and is still read at once.
func TestThousandInstances(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newSimulation(t, 0, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 3000})
		fill := func(service string, n int) {
			admin, _ := w.clientAt("admin", unlimitedRates())
			in, err := admin.ListNamespaces(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			services, err := admin.ListServices(t.Context(), in["mcs.set1"])
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				if _, err := admin.RegisterInstance(t.Context(), services[service].ID, api.Instance{ID: fmt.Sprint("other-", i), Attributes: map[string]string{"I": "1"}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		exporter := w.begin(cls1, nil)
		exp := webExport("cls1", 0, 1)
		publish(t, exporter.Registry, exp)
		w.until(time.Minute, "the export is confirmed", isExported(t, exporter.Registry, exp.Key))
		exporter.kill()
		fill("catalog.cls1", api.MaxDiscovered-2)
		again, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		w.until(time.Minute, "a full catalog is read", sees(t, importer.Registry, exp))
		changed := webExport("cls1", 0, 2)
		publish(t, again.Registry, changed)
		w.until(time.Minute, "a full catalog is adopted and written", sees(t, importer.Registry, changed))

		fill(format.MembersService, api.MaxDiscovered-2)
		next := webExport("cls1", 0, 3)
		publish(t, again.Registry, next)
		w.until(time.Minute, "a full service members is read", sees(t, importer.Registry, next))
	})
}
