package controller

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/memory"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// TestMetrics_RequireAuthorization requests the metrics of a controller that has the shipped RBAC.
func TestMetrics_RequireAuthorization(t *testing.T) {
	a, _ := twoClusters(t)
	namespace := newKey("metrics").Namespace
	a.namespace(t, namespace)
	reader, other := a.token(t, namespace, "prometheus"), a.token(t, namespace, "other")
	var role rbacv1.ClusterRole
	readYAML(t, "../../deploy/rbac/metrics-reader.yaml", &role)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "prometheus"}},
	}
	for _, obj := range []client.Object{&role, binding} {
		a.create(t, obj)
		t.Cleanup(func() { _ = a.admin.Delete(context.Background(), obj) })
	}
	// the controller remembers a refusal for 30 s
	eventually(t, "the permission of the reader", func() error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + namespace + ":prometheus", NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
		}}
		if err := a.admin.Create(t.Context(), review); err != nil || !review.Status.Allowed {
			return fmt.Errorf("allowed is %t: %w", review.Status.Allowed, err)
		}
		return nil
	})
	options := testOptions(flags("cls1"))
	options.Serving.MetricsSecure, options.Serving.Metrics = true, testprocess.FreeAddress(t)
	a.runWith(t, hubRegistry(memory.NewHub()), options)

	url := "https://" + options.Serving.Metrics + "/metrics"
	eventually(t, "the metrics endpoint", func() error {
		_, _, err := scrape(t.Context(), url, "")
		return err
	})
	tests := map[string]struct {
		token string
		want  int
		text  string
	}{
		"no token":                  {"", http.StatusUnauthorized, "Unauthorized"},
		"a token of no user":        {"x", http.StatusInternalServerError, "Authentication failed"},
		"a user without permission": {other, http.StatusForbidden, "Authorization denied"},
		"a reader":                  {reader, http.StatusOK, "go_goroutines"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			code, text, err := scrape(t.Context(), url, tt.token)
			if err != nil || code != tt.want || !strings.Contains(text, tt.text) {
				t.Errorf("%d (%v), want %d and %q in:\n%.300s", code, err, tt.want, tt.text, text)
			}
		})
	}
	// The server may close the connection before the client has read the response.
	if code, text, err := scrape(t.Context(), "http://"+options.Serving.Metrics+"/metrics", reader); err == nil && code != http.StatusBadRequest || strings.Contains(text, "go_goroutines") {
		t.Errorf("over HTTP: %d, want %d:\n%.300s", code, http.StatusBadRequest, text)
	}
}

// TestMetrics_WithoutAuthorization: --metrics-secure=false serves everyone over HTTP.
func TestMetrics_WithoutAuthorization(t *testing.T) {
	a, _ := twoClusters(t)
	options := testOptions(flags("cls1"))
	options.Serving.Metrics = testprocess.FreeAddress(t)
	a.runWith(t, hubRegistry(memory.NewHub()), options)
	eventually(t, "the metrics over HTTP", func() error {
		code, text, err := scrape(t.Context(), "http://"+options.Serving.Metrics+"/metrics", "")
		if err != nil || code != http.StatusOK || !strings.Contains(text, "go_goroutines") {
			return fmt.Errorf("%d (%w): %.300s", code, err, text)
		}
		return nil
	})
}

// TestMetrics_ReloadCertificate replaces the certificate in --metrics-cert-dir while the controller
// runs.
func TestMetrics_ReloadCertificate(t *testing.T) {
	a, _ := twoClusters(t)
	options := testOptions(flags("cls1"))
	dir := t.TempDir()
	options.Serving.MetricsSecure, options.Serving.MetricsCertDir, options.Serving.Metrics = true, dir, testprocess.FreeAddress(t)
	setup := Setup{Options: options, NewRegistry: hubRegistry(memory.NewHub()), Logger: logr.Discard(), Resolver: noResolver}
	if err := Run(t.Context(), a.cfg, setup); err == nil || !strings.Contains(err.Error(), "--metrics-cert-dir="+dir) {
		t.Errorf("without a certificate: %v, want an error with --metrics-cert-dir", err)
	}
	first := writeCertificate(t, dir)
	a.runWith(t, hubRegistry(memory.NewHub()), options)
	verify := func(roots *x509.CertPool) func() error {
		return func() error {
			conn, err := tls.Dial("tcp", options.Serving.Metrics, &tls.Config{RootCAs: roots, ServerName: "metrics.test", NextProtos: []string{"h2", "http/1.1"}})
			if err != nil {
				return err
			}
			defer conn.Close()
			if protocol := conn.ConnectionState().NegotiatedProtocol; protocol != "http/1.1" {
				t.Errorf("the server speaks %q, want HTTP/1.1 only", protocol)
			}
			return nil
		}
	}
	eventually(t, "a connection with the first certificate", verify(first))
	second := writeCertificate(t, dir)
	eventually(t, "a connection with the second certificate", verify(second))
	if err := verify(first)(); err == nil {
		t.Error("the first certificate is still in use")
	}
}

// writeCertificate writes a new certificate for metrics.test into dir, as the kubelet updates a
// Secret, and returns its authority.
func writeCertificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("metrics.test", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return roots
}

// token creates a ServiceAccount and returns a token of it.
func (k *cluster) token(t *testing.T, namespace, name string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	k.create(t, account)
	request := &authenticationv1.TokenRequest{}
	if err := k.admin.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// scrape requests a URL with a token, without a check of the server's certificate.
func scrape(ctx context.Context, url, token string) (code int, text string, err error) {
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // self-signed
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(path))
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestMetrics_OfClustersThatAreGone: when a cluster has left and nothing is imported from it, no
// series has its ID.
func TestMetrics_OfClustersThatAreGone(t *testing.T) {
	s := setUp(t, "gone-metrics")
	s.runB.stopAndWait(t)
	const id = "short-lived"
	metrics, options := prometheus.NewPedanticRegistry(), testOptions(flags("cls2"))
	options.Registry.PathHealth = string(mcs.PathHealthObserve)
	runSetup(t, s.b.cfg, Setup{Options: options, NewRegistry: hubRegistry(s.hub), Registerer: metrics, ReportInterval: 50 * time.Millisecond})
	series := func() (found []string) {
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.Metric {
				for _, label := range m.Label {
					if label.GetValue() == id {
						found = append(found, family.GetName())
					}
				}
			}
		}
		return found
	}
	member := s.hub.Registry(mcs.Identity{ClusterID: id, ClusterSetID: "set", UID: id})
	ctx, leave := context.WithCancelCause(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = member.Run(ctx, func(mcs.Key) {}) }()
	publish := func(n byte) {
		exp := mcs.Export{
			Key: s.key, Cluster: id, Created: time.Now(), Changed: time.Now(), Type: mcsv1beta1.ClusterSetIP, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []mcs.Port{{Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: "80"}}, SessionAffinity: corev1.ServiceAffinityNone,
			Backends: []mcs.Backends{{Ports: []mcs.BackendPort{{Protocol: corev1.ProtocolTCP, Port: 80}}, Endpoints: []mcs.Endpoint{{Address: netip.AddrFrom4([4]byte{10, 9, 0, n}), Ready: true, Serving: true}}}},
		}
		if err := member.Publish(t.Context(), exp); err != nil {
			t.Fatal(err)
		}
	}
	has := func(names ...string) func() error {
		return func() error {
			found := series()
			for _, name := range names {
				if !slices.Contains(found, "cloud_map_mcs_"+name) {
					return fmt.Errorf("no %s among %v", name, found)
				}
			}
			return nil
		}
	}
	// changes from before the session are not measured
	eventually(t, "the member", has("member_stale"))
	n := byte(0)
	eventually(t, "its metrics", func() error {
		// a change is not measured if a slow machine has taken the member for stale meanwhile
		n++
		publish(n)
		return has("member_stale", "imported_endpoints", "propagation_seconds")()
	})
	leave(registry.ErrLeave)
	<-ended
	s.b.notImported(t, s.key)
	eventually(t, "no series of a cluster that is gone", func() error {
		if found := series(); len(found) > 0 {
			return fmt.Errorf("there are %v", found)
		}
		return nil
	})
}
