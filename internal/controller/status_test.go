package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// getStatus reads path of the status endpoint at address.
func getStatus[T any](t *testing.T, address, path string) (T, error) {
	t.Helper()
	var out T
	resp, err := http.Get("http://" + address + path)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return out, errors.New(resp.Status)
	}
	return out, json.NewDecoder(resp.Body).Decode(&out)
}

func TestStatusEndpoint(t *testing.T) {
	hub := memory.NewHub()
	a, b := twoClusters(t)
	key := newKey("status")
	a.namespace(t, key.Namespace)
	b.namespace(t, key.Namespace)

	options := testOptions(flags("cls1"))
	options.Election = config.Election{Enabled: true, Namespace: installNamespace}
	options.Serving.Status = testprocess.FreeAddress(t)
	leader := options.Serving.Status
	runSetup(t, a.cfg, Setup{Options: options, NewRegistry: hubRegistry(hub), ReportInterval: 50 * time.Millisecond})
	a.leader(t, "")
	options.Serving.Status = testprocess.FreeAddress(t)
	a.runWith(t, hubRegistry(hub), options)
	b.runReporting(t, hub, flags("cls2"))
	a.export(t, key, 1, 2)
	b.export(t, key, 2, 1)

	eventually(t, "what the leader says", func() error {
		got, err := getStatus[status.Status](t, leader, status.PathStatus)
		if err != nil {
			return err
		}
		for i := range got.Members {
			got.Members[i].HeartbeatAge, got.Members[i].UID, got.Members[i].ImportReport = 0, "", ""
		}
		want := []status.Member{{ClusterID: "cls1", Exports: 1, Endpoints: 2}, {ClusterID: "cls2", Exports: 1, Endpoints: 1}}
		if diff := cmp.Diff(want, got.Members); diff != "" || !got.Leader || !got.Synced || got.Identity == nil || got.Identity.ClusterID != "cls1" {
			return fmt.Errorf("%+v: %s", got, diff)
		}
		if len(got.Publications) > 0 {
			return fmt.Errorf("not exported: %v", got.Publications)
		}
		return nil
	})
	var service status.Service
	eventually(t, "the importers of the service", func() (err error) {
		if service, err = getStatus[status.Service](t, leader, status.ServicePath(key)); err == nil && service.Importers == nil {
			err = errors.New("unknown")
		}
		return err
	})
	if service.Own == nil || service.Own.Cluster != "cls1" || len(service.Exports) != 1 || service.Exports[0].Cluster != "cls2" ||
		service.Publication.State != registry.Exported.String() {
		t.Errorf("the service is %+v", service)
	}
	if service.Own == nil {
		return
	}
	eventually(t, "the importers of all services", func() error {
		of, err := getStatus[status.Status](t, leader, status.PathStatus)
		if err != nil {
			return err
		}
		all, err := getStatus[[]status.Service](t, leader, status.PathServices)
		if err != nil || len(all) != 1 || all[0].Key != key {
			return fmt.Errorf("all services are %+v, %w", all, err)
		}
		if all[0].Importers != nil { // each member for each of thousands of exports
			t.Errorf("the list of all services has the importers %+v", all[0].Importers)
		}
		if all[0].NotImported != "" {
			t.Errorf("services are not imported into the namespace: %s", all[0].NotImported)
		}
		if importers := of.ImportersOf(*service.Own); !slices.Equal(importers.Importing, []string{"cls2"}) || !slices.Contains(all[0].ImportedFrom, "cls2") {
			return fmt.Errorf("the importers are %+v, and the service is imported from %v", importers, all[0].ImportedFrom)
		}
		return nil
	})
	probe, err := getStatus[status.Probe](t, leader, status.ProbePath(key))
	if err != nil || probe.Name != key.Name+"."+key.Namespace+".svc.clusterset.local" {
		t.Errorf("the probe is %+v, %v", probe, err)
	}
	standby, err := getStatus[status.Status](t, options.Serving.Status, status.PathStatus)
	if err != nil || standby.Leader || standby.Problem != "this replica is on standby: only the leader answers" {
		t.Errorf("the standby says %+v, %v", standby, err)
	}
	if _, err := getStatus[status.Service](t, options.Serving.Status, status.ServicePath(key)); err == nil {
		t.Error("the standby reports a registry")
	}
}
