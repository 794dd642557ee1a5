package cloudmap

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

// answers are all that AWS may say instead of doing what it was asked for: the errors of Cloud Map's model, those of AWS's
// front door, those of networks, and silence.
var answers = func() map[string]cloudmaplocal.FaultRule {
	all := map[string]cloudmaplocal.FaultRule{
		"an error of tomorrow":               {Kind: cloudmaplocal.FaultError, Code: "SomethingNewException"},
		"carried out, and an error":          {Kind: cloudmaplocal.FaultError, Code: "InternalFailure", Applied: true},
		"no answer":                          {Kind: cloudmaplocal.FaultHang},
		"carried out, and no answer":         {Kind: cloudmaplocal.FaultHang, Applied: true},
		"a closed connection":                {Kind: cloudmaplocal.FaultDrop},
		"carried out, and closed":            {Kind: cloudmaplocal.FaultDrop, Applied: true},
		"accepted, and never carried out":    {Kind: cloudmaplocal.FaultLost},
		"accepted, and failed":               {Kind: cloudmaplocal.FaultFail},
		"accepted, and failed a while later": {Kind: cloudmaplocal.FaultFail, Delay: cloudmaplocal.Duration(5 * time.Second)},
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

// TestEveryAnswer gives every answer to every operation, to all clusters and for a minute, while one cluster changes an
// export, one starts, one restarts and one leaves. What was known before stays known, and afterwards everything is as it
// was asked for.
func TestEveryAnswer(t *testing.T) {
	warmUp(t)
	operations := []string{
		"DiscoverInstances", "RegisterInstance", "DeregisterInstance", "ListInstances", "ListNamespaces", "ListServices",
		"CreateHttpNamespace", "CreateService", "GetNamespace", "GetService", "GetOperation", "ListTagsForResource", "DeleteService",
	}
	for _, operation := range operations {
		for name, f := range answers {
			f.Operations = []string{operation}
			accepts := operation == "RegisterInstance" || operation == "DeregisterInstance"
			if !accepts && (f.Kind == cloudmaplocal.FaultLost || f.Kind == cloudmaplocal.FaultFail) {
				continue // the others answer with what was done
			}
			t.Run(operation+"/"+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { answerAll(t, f) })
			})
		}
	}
}

// answerAll is one case of TestEveryAnswer.
func answerAll(t *testing.T, f cloudmaplocal.FaultRule) {
	w := newWorld(t, 0, cloudmaplocal.Options{ConsistencyDelay: 500 * time.Millisecond, OperationDelay: 100 * time.Millisecond})
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
		w.until(time.Minute, "everything is known", sees(t, importer.Registry, exp))
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
	var said []string
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(500 * time.Millisecond) {
		for _, exp := range []mcs.Export{kept, own} {
			if !sees(t, importer.Registry, exp)() {
				t.Fatalf("after %v an export of %s is not known any more", time.Since(began), exp.Cluster)
			}
		}
		if view := look(t, exporter.Registry, changed.Key); view.Local.Err != nil {
			said = append(said, view.Local.Err.Error())
		}
	}
	if view := look(t, exporter.Registry, changed.Key); view.Local.State == registry.Pending && f.Kind != cloudmaplocal.FaultLost {
		reason := f.Operations[0]
		if f.Kind == cloudmaplocal.FaultFail {
			reason = "INTERNAL_FAILURE" // the operation has no other name than what it was for
		}
		if !slices.ContainsFunc(said, func(text string) bool { return strings.Contains(text, reason) }) {
			t.Errorf("the user is not reported what is wrong with %s, but %q", f.Operations[0], slices.Compact(said))
		}
	}

	w.plan(1)
	for _, exp := range []mcs.Export{kept, changed, own, first} {
		w.until(3*time.Minute, "everything is as it was asked for", sees(t, importer.Registry, exp))
	}
	w.until(3*time.Minute, "the changed export is confirmed", isExported(t, exporter.Registry, changed.Key))
	w.until(3*time.Minute, "who restarted has its export confirmed", isExported(t, restarted.Registry, own.Key))
	w.until(3*time.Minute, "who left is gone", func() bool { return !sees(t, importer.Registry, gone)() })
	if err := <-leaver.ended; err != nil {
		t.Errorf("leaving: %v", err)
	}
	for _, l := range []*life{exporter, importer, restarted, starter} {
		l.kill()
	}
}

// TestNoRoom is a namespace that is full: what needs no more room goes on, what does stays as it was, and the user is
// reported which quota to raise.
func TestNoRoom(t *testing.T) {
	warmUp(t)
	synctest.Test(t, func(t *testing.T) {
		const room = 7 // two records, their copies and three instances of pages
		w := newWorld(t, 0, cloudmaplocal.Options{InstancesPerNamespace: room})
		exporter, importer := w.begin(cls1, nil), w.begin(cls2, nil)
		large, small := webExport("cls1", 0, 1), webExport("cls1", 8, 1) // of different pages
		publish(t, exporter.Registry, large)
		publish(t, exporter.Registry, small)
		w.until(time.Minute, "both are known", func() bool {
			return sees(t, importer.Registry, large)() && sees(t, importer.Registry, small)()
		})
		tooLarge := webExport("cls1", 0, 1)
		tooLarge.Annotations = map[string]string{"example.com/noise": base64.StdEncoding.EncodeToString(noise(12_000))}
		publish(t, exporter.Registry, tooLarge)
		changed := webExport("cls1", 8, 2)
		publish(t, exporter.Registry, changed)
		w.until(time.Minute, "what needs no room is written", sees(t, importer.Registry, changed))
		own := look(t, exporter.Registry, large.Key).Local
		if own.State != registry.Pending || own.Err == nil || !strings.Contains(own.Err.Error(), "Service Quotas") {
			t.Errorf("of what there is no room for the user gets %v, %v; want Pending and the quota", own.State, own.Err)
		}
		late := w.begin(mcs.Identity{ClusterID: "cls2", ClusterSetID: "set1", UID: "uid-9"}, nil)
		w.until(time.Minute, "who reads now reads what was there before", sees(t, late.Registry, large))
		// There is room again.
		publish(t, exporter.Registry, large)
		w.until(2*time.Minute, "it is confirmed", isExported(t, exporter.Registry, large.Key))
		for _, l := range []*life{exporter, importer, late} {
			l.kill()
		}
	})
}

// TestThousandInstances has services with as many instances as one read shows: a catalog is then read page by page, and service members, which has no more,
// is read all the same.
func TestThousandInstances(t *testing.T) {
	warmUp(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, cloudmaplocal.Options{Unthrottled: true, InstancesPerNamespace: 3000})
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
		w.until(time.Minute, "it is confirmed", isExported(t, exporter.Registry, exp.Key))
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
