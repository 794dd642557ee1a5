package kube

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// TestLogConstructor: the lines about the controller itself are for debugging, those about a
// request and all errors are not.
func TestLogConstructor(t *testing.T) {
	req := RequestFor(mcs.Key{Namespace: "shop", Name: "web"})
	for name, tt := range map[string]struct {
		verbosity int
		req       *reconcile.Request
		err       error
		want      string
	}{
		"the controller":           {},
		"the controller, debug":    {verbosity: 1, want: `"msg"="Starting EventSource" "controller"="serviceimport"`},
		"an error of the caches":   {err: errors.New("no answer"), want: `"error"="no answer"`},
		"a request of a reconcile": {req: &req, want: `"controller"="serviceimport" "ServiceImport"={"name"="web" "namespace"="shop"} "namespace"="shop" "name"="web"`},
	} {
		t.Run(name, func(t *testing.T) {
			var lines strings.Builder
			log := LogConstructor(funcr.New(func(_, args string) { lines.WriteString(args) }, funcr.Options{Verbosity: tt.verbosity}), "serviceimport", "ServiceImport")(tt.req)
			if tt.err != nil {
				log.Error(tt.err, "Failed to wait for the caches")
			} else {
				log.Info("Starting EventSource")
			}
			if got := lines.String(); (got != "") != (tt.want != "") || !strings.Contains(got, tt.want) {
				t.Errorf("the log is %q, want %q", got, tt.want)
			}
		})
	}
}
