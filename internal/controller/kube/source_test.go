package kube_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/controllertest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

func demo(name string) mcs.Key { return mcs.Key{Namespace: "demo", Name: name} }

// readDemo reads the sources of the ServiceExports of a cluster with objects, and returns the
// addresses of those that are exported by name.
func readDemo(t *testing.T, c client.Client, scope *kube.Scope) map[string]string {
	t.Helper()
	var list mcsv1beta1.ServiceExportList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for i := range list.Items {
		key := demo(list.Items[i].Name)
		src, err := kube.ReadLocalSource(t.Context(), c, scope, mcs.Identity{ClusterID: "cls1"}, key)
		if err != nil {
			t.Fatal(err)
		}
		if !src.IsExported() {
			continue
		}
		src.ServiceExport.CreationTimestamp = metav1.Now()
		exp, left, err := mcs.NewExport(src.Source, nil, time.Now())
		if err != nil || len(left) > 0 || exp.Key != key {
			t.Fatalf("export %s, left out %v: %v", exp.Key, left, err)
		}
		var addresses []string
		for _, b := range exp.Backends {
			for _, e := range b.Endpoints {
				addresses = append(addresses, e.Address.String())
			}
		}
		got[key.Name] = strings.Join(addresses, " ")
	}
	return got
}

// TestReadLocalSource_ByName has the exports of a namespace by their names.
func TestReadLocalSource_ByName(t *testing.T) {
	blue, green := "web-blue", "web-green"
	derived := controllertest.Service(demo(mcs.DerivedName(demo("db"))))
	derived.Labels = map[string]string{mcsv1beta1.LabelServiceName: "db"}
	going := controllertest.Service(demo("going"))
	going.DeletionTimestamp, going.Finalizers = new(metav1.Now()), []string{"example.com/x"}
	external := controllertest.Service(demo("external"))
	external.Spec.Type = corev1.ServiceTypeExternalName
	elsewhere := controllertest.Service(mcs.Key{Namespace: "shop", Name: "elsewhere"})
	services := []client.Object{
		controllertest.Service(demo(blue)), controllertest.EndpointSlice(demo(blue), controllertest.Endpoints(1, 1)),
		controllertest.Service(demo(green)), controllertest.EndpointSlice(demo(green), controllertest.Endpoints(2, 1)),
		derived, going, external, elsewhere,
	}
	named := func(name, service string) client.Object { return controllertest.ServiceExportOf(demo(name), service) }
	for name, tt := range map[string]struct {
		exports []client.Object
		want    map[string]string
	}{
		"none":                         {nil, map[string]string{}},
		"the name of the Service":      {[]client.Object{controllertest.ServiceExport(demo(blue))}, map[string]string{blue: "10.1.0.1"}},
		"another name":                 {[]client.Object{named("web", blue)}, map[string]string{"web": "10.1.0.1"}},
		"its own name in words":        {[]client.Object{named(blue, blue)}, map[string]string{blue: "10.1.0.1"}},
		"two names":                    {[]client.Object{named("web", blue), named("shop", blue)}, map[string]string{"web": "10.1.0.1", "shop": "10.1.0.1"}},
		"its own name and another one": {[]client.Object{named("web", blue), controllertest.ServiceExport(demo(blue))}, map[string]string{"web": "10.1.0.1", blue: "10.1.0.1"}},
		"each the name of the other":   {[]client.Object{named(green, blue), named(blue, green)}, map[string]string{green: "10.1.0.1", blue: "10.2.0.1"}},
		"no Service":                   {[]client.Object{named("web", "web-red")}, map[string]string{}},
		"a Service that is deleted":    {[]client.Object{named("web", "going")}, map[string]string{}},
		"another namespace":            {[]client.Object{named("web", "elsewhere")}, map[string]string{}},
		"a derived Service":            {[]client.Object{named("web", derived.Name)}, map[string]string{}},
		"an ExternalName":              {[]client.Object{named("web", "external")}, map[string]string{}},
		"not a name of a Service, although one has the name of the export": {[]client.Object{named(blue, "Web")}, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{corev1.LabelMetadataName: "demo"}}}}
			scope, err := kube.NewScope(config.Default().Scope)
			if err != nil {
				t.Fatal(err)
			}
			c := controllertest.NewClient(slices.Concat(objects, services, tt.exports)...)
			if got := readDemo(t, c, scope); !maps.Equal(got, tt.want) {
				t.Errorf("exported %v, want %v", got, tt.want)
			}
		})
	}
}

// TestReadLocalSource_AsksForServiceThatCacheLacks: an export that has been valid is withdrawn for
// want of its Service only if the API server has none either.
func TestReadLocalSource_AsksForServiceThatCacheLacks(t *testing.T) {
	with := func(reason string, annotation ...string) *mcsv1beta1.ServiceExport {
		exp := controllertest.ServiceExport(demo("web"))
		for _, service := range annotation {
			exp = controllertest.ServiceExportOf(demo("web"), service)
		}
		if reason != "" {
			exp.Status.Conditions = []metav1.Condition{{Type: "Valid", Reason: reason}}
		}
		return exp
	}
	denied := errors.New("denied")
	for name, tt := range map[string]struct {
		export  *mcsv1beta1.ServiceExport
		exists  bool
		err     error
		asked   string
		wantErr string
	}{
		"a Service that the cache lacks":   {export: with("Valid", "web-green"), exists: true, asked: "demo/web-green", wantErr: "the cache does not show Service demo/web-green yet"},
		"one of the name of the export":    {export: with("Valid"), exists: true, asked: "demo/web", wantErr: "the cache does not show Service demo/web yet"},
		"exported without its selectors":   {export: with("InvalidClusterSelector", "web-green"), exists: true, asked: "demo/web-green", wantErr: "yet, which exists"},
		"a Service that does not exist":    {export: with("Valid", "web-green"), asked: "demo/web-green"},
		"the API server does not answer":   {export: with("Valid", "web-green"), err: denied, asked: "demo/web-green", wantErr: "denied"},
		"a new export":                     {export: with("", "web-green"), exists: true},
		"an export that has no Service":    {export: with("NoService", "web-green"), exists: true},
		"an annotation that is not a name": {export: with("Valid", "Web"), exists: true},
	} {
		t.Run(name, func(t *testing.T) {
			asked := ""
			scope, err := kube.NewScope(config.Default().Scope)
			if err != nil {
				t.Fatal(err)
			}
			scope = scope.WithRules(kube.Rules{HasService: func(_ context.Context, name types.NamespacedName) (bool, error) {
				asked = name.String()
				return tt.exists, tt.err
			}})
			src, err := kube.ReadLocalSource(t.Context(), controllertest.NewClient(tt.export), scope, mcs.Identity{}, demo("web"))
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want one that contains %q", err, tt.wantErr)
			}
			if asked != tt.asked || src.IsExported() {
				t.Errorf("asked for %q, want %q; exported: %t", asked, tt.asked, src.IsExported())
			}
		})
	}
}
