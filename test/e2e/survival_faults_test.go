package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
)

// testNodeKilled kills everything on the node of cls1's leader, as a crash of the machine does, and
// lets the node start again later.
func (s *survival) testNodeKilled(t *testing.T) {
	const killed, other = "cls1-node2", "cls1-node1"
	s.test(t, "the node of the leader is killed and starts again", allowance{}, func(t *testing.T) {
		s.placeLeader(t, killed, other)
		defer killNode(t, killed)()
		began := time.Now()
		if err := s.changePropagates(t.Context()); err != nil {
			t.Error(err)
		}
		t.Logf("a change propagated %s after the end of the node", round(time.Since(began)))
		time.Sleep(settle)
	})
}

// testDeadCluster stops the controllers of cls1 for longer than --stale-after. A service that both
// clusters export shows when the endpoints of cls1 are withdrawn.
func (s *survival) testDeadCluster(t *testing.T) {
	const both = "both"
	s.test(t, "the controllers of a cluster are dead for longer than --stale-after", allowance{}, func(t *testing.T) {
		svc := service(s.ns, both)
		svc.Spec.Selector = map[string]string{"app": "web"}
		create(t, s.cls1, svc)
		create(t, s.cls2, service(s.ns, both))
		create(t, s.cls2, endpoints(s.ns, both, "by-hand", service(s.ns, both).Spec.Ports, endpoint("10.12.250.1", "")))
		defer func() {
			for _, c := range []cluster{s.cls1, s.cls2} {
				remove(t, c, &mcsv1beta1.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: both}})
				kubectl(t, c, "-n", s.ns, "delete", "service", both)
			}
			eventually(t, started, func() error { return noImport(t.Context(), s.cls2, s.ns, both) })
		}()
		export(t, s.cls1, s.ns, both)
		export(t, s.cls2, s.ns, both)
		eventually(t, started, func() error { return exporters(t.Context(), s.cls2, s.ns, both, "cls1", "cls2") })

		restart := killController(t, s.cls1)
		began := time.Now()
		eventually(t, 2*recovery, func() error {
			from, err := imported(t.Context(), s.cls2, s.ns, both, "cls1", false)
			if err == nil && len(from) > 0 {
				err = fmt.Errorf("cls2 has endpoints %v of cls1", from)
			}
			return err
		})
		t.Logf("the endpoints of cls1 were withdrawn %s after the end of its controllers", round(time.Since(began)))
		for _, name := range s.names {
			eventually(t, soon, func() error {
				return staleIs(t.Context(), s.cls2, s.ns, name, "True LastEndpointsKept", "cls1 (endpoints kept)")
			})
		}
		restart()
	})
}

// testSlowWebhook delays each write of an import in another namespace of cls2.
func (s *survival) testSlowWebhook(t *testing.T) {
	const slowness, exports, changes = 10 * time.Second, 20, 5
	s.test(t, "an admission webhook of another namespace takes 10 s", allowance{}, func(t *testing.T) {
		const ns = "e2e-slow-webhook"
		createNamespace(t, ns, s.cls1, s.cls2)
		var requests atomic.Int64
		url, ca := serveWebhook(t, slowness, &requests)
		apply(t, s.cls2, fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: e2e-slow}
webhooks:
- name: slow.example.com
  clientConfig: {url: %q, caBundle: %s}
  rules:
  - {operations: [CREATE, UPDATE], apiGroups: [""], apiVersions: [v1], resources: [services]}
  - {operations: [CREATE, UPDATE], apiGroups: [discovery.k8s.io], apiVersions: [v1], resources: [endpointslices]}
  - {operations: [CREATE, UPDATE], apiGroups: [multicluster.x-k8s.io], apiVersions: ["*"], resources: [serviceimports, serviceimports/status]}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}
  sideEffects: None
  admissionReviewVersions: [v1]
  failurePolicy: Ignore
  timeoutSeconds: 20
`, url, ca, ns))
		defer kubectl(t, s.cls2, "delete", "validatingwebhookconfiguration", "e2e-slow")
		for i := range exports {
			name := fmt.Sprintf("slow-%d", i)
			create(t, s.cls1, service(ns, name))
			create(t, s.cls1, endpoints(ns, name, name, service(ns, name).Spec.Ports, endpoint(fmt.Sprintf("10.11.200.%d", i+1), "")))
			export(t, s.cls1, ns, name)
		}
		eventually(t, started, func() error {
			if n := requests.Load(); n < exports/2 {
				return fmt.Errorf("the webhook got %d requests", n)
			}
			return nil
		})
		for range changes {
			began := time.Now()
			if err := s.changePropagates(t.Context()); err != nil {
				t.Error(err)
			}
			t.Logf("with %d requests to the webhook, a change in another namespace propagated after %s", requests.Load(), round(time.Since(began)))
		}
	})
}

// serveWebhook serves an admission webhook that allows everything after a delay, until the test
// ends. It returns its URL, and the certificate in base64.
func serveWebhook(t *testing.T, delay time.Duration, requests *atomic.Int64) (url, ca string) {
	t.Helper()
	host, _, err := net.SplitHostPort(strings.TrimPrefix(clusterset.Endpoint, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.ParseIP(host)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", host+":0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		var review struct {
			Request struct {
				UID string `json:"uid"`
			} `json:"request"`
		}
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-r.Context().Done():
		case <-time.After(delay):
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`, review.Request.UID)
	}), ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := errors.Join(server.Close(), <-done); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return "https://" + listener.Addr().String(), base64.StdEncoding.EncodeToString(certificate)
}

// testSlowPage makes one operation that writes a page slow.
func (s *survival) testSlowPage(t *testing.T) {
	const slowness = time.Minute
	page := func(name string) int { return format.PageOf(mcs.Key{Namespace: s.ns, Name: name}) }
	slow := watched
	for _, name := range s.names {
		if page(slow) == page(changing) {
			slow = name
		}
	}
	s.test(t, "an operation on one page is pending for a minute, and fails", allowance{}, func(t *testing.T) {
		setFaults(t, fmt.Sprintf(`{"rules": [{"kind": "fail", "delay": %q, "next": 1, "operations": ["RegisterInstance"], "service": %q, "instance": %q}]}`,
			slowness, format.CatalogName("cls1"), format.PartID(page(slow), 0)))
		defer setFaults(t, `{"rules": []}`)
		began := time.Now()
		value := began.Format(time.RFC3339Nano)
		kubectl(t, s.cls1, "-n", s.ns, "patch", "serviceexport", slow, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"exportedAnnotations":{"slow":%q}}}`, value))
		for range 3 {
			other := time.Now()
			if err := s.changePropagates(t.Context()); err != nil {
				t.Error(err)
			}
			t.Logf("a change in another page propagated after %s", round(time.Since(other)))
		}
		if imp, err := serviceImport(t.Context(), s.cls2, s.ns, slow); err != nil || imp.Annotations["slow"] == value {
			t.Errorf("the slow page was not slow: %v", err)
		}
		eventually(t, recovery, func() error {
			imp, err := serviceImport(t.Context(), s.cls2, s.ns, slow)
			if err == nil && imp.Annotations["slow"] != value {
				err = fmt.Errorf("a change of %s has not arrived", slow)
			}
			return err
		})
		t.Logf("the change in the slow page propagated after %s", round(time.Since(began)))
	})
}

// setFaults sets the fault plan of cloudmap-local.
func setFaults(t *testing.T, plan string) { put(t, "/faults", plan) }

// put replaces a setting of cloudmap-local.
func put(t *testing.T, path, value string) {
	t.Helper()
	// Also at the end of a test.
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPut, clusterset.Endpoint+path, strings.NewReader(value))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode >= http.StatusBadRequest {
		t.Fatalf("setting %s of cloudmap-local: %s: %s", path, resp.Status, text)
	}
}

// testTooLarge exports three Services that do not fit into their page, beside another one in the
// same page. A Service has at most 10,000 endpoints, and their host names do not compress.
func (s *survival) testTooLarge(t *testing.T) {
	s.test(t, "a Service is too large for its page", allowance{}, func(t *testing.T) {
		const ns = "e2e-too-large"
		page := format.PageOf(mcs.Key{Namespace: s.ns, Name: changing})
		createNamespace(t, ns, s.cls1) // not in cls2, which has nothing to do with it
		before := s.restarts(t)
		var large []string
		for i := 0; len(large) < 3; i++ {
			if name := fmt.Sprintf("large-%d", i); format.PageOf(mcs.Key{Namespace: ns, Name: name}) == page {
				large = append(large, name)
				s.createLarge(t, ns, name)
			}
		}
		conditions := ""
		eventually(t, started, func() error {
			refused := 0
			for _, name := range large {
				text := kubectl(t, s.cls1, "-n", ns, "get", "serviceexport", name, "-o", "jsonpath={range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{\"\\n\"}{end}")
				if strings.Contains(text, "Ready=False Failed") {
					refused, conditions = refused+1, text
				}
			}
			if refused == 0 {
				return errors.New("none of the Services is refused")
			}
			return nil
		})
		t.Logf("the ServiceExport of one Service has the conditions\n%s", conditions)
		for range 3 {
			began := time.Now()
			if err := s.changePropagates(t.Context()); err != nil {
				t.Error(err)
			}
			t.Logf("a change of another export in the same page propagated after %s", round(time.Since(began)))
		}
		if after := s.restarts(t); fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("containers of controllers restarted: %v became %v", before, after)
		}
	})
}

// createLarge exports a headless Service of 10,000 endpoints from cls1.
func (s *survival) createLarge(t *testing.T, ns, name string) {
	t.Helper()
	svc := service(ns, name)
	svc.Spec.ClusterIP = "None" // kube-proxy has nothing to do with it
	create(t, s.cls1, svc)
	for i := range 10 {
		var of []discoveryv1.Endpoint
		for j := range 1000 {
			hostname := strings.ToLower(rand.Text() + rand.Text() + rand.Text())[:63]
			of = append(of, endpoint(fmt.Sprintf("10.%d.%d.%d", 100+i, j/250, 1+j%250), hostname))
		}
		create(t, s.cls1, endpoints(ns, name, fmt.Sprintf("%s-%d", name, i), svc.Spec.Ports, of...))
	}
	export(t, s.cls1, ns, name)
}

// testShareWithdrawn makes cls2 import from the account of cls1 by a RAM share, and withdraws the
// share for longer than --stale-after. cls2 restarts meanwhile.
func (s *survival) testShareWithdrawn(t *testing.T) {
	const withdrawn = 3 * time.Minute
	share := fmt.Sprintf(`[{"namespace": %q, "with": [%q]}]`, controlNamespace, clusterset.OtherAccount)
	use := func(t *testing.T, file string) {
		t.Helper()
		line := "kubectl --context cls2 -n " + system + " create secret generic aws-credentials --from-env-file=" + file + " --dry-run=client -o yaml | kubectl --context cls2 apply -f -"
		if out, err := suite.Output(context.WithoutCancel(t.Context()), line); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	s.test(t, "the RAM share of an --import-from registry is withdrawn for 3 minutes", allowance{}, func(t *testing.T) {
		env := t.TempDir() + "/shared.env"
		if err := os.WriteFile(env, []byte("AWS_ACCESS_KEY_ID="+clusterset.OtherAccountKey+"\nAWS_SECRET_ACCESS_KEY="+clusterset.OtherAccountSecret+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		put(t, "/shares", share)
		defer func() {
			use(t, "bin/aws/cls2.env") // addArgs restarts the controller at the end
		}()
		use(t, env)
		addArgs(t, s.cls2, "--import-from=cloudmap,name=shared,region="+homeRegion+",endpoint="+clusterset.Endpoint+",namespace-owner="+clusterset.Account)
		eventually(t, started, func() error { return s.changePropagates(t.Context()) })

		put(t, "/shares", "[]")
		began := time.Now()
		time.Sleep(withdrawn / 2)
		kubectl(t, s.cls2, "-n", system, "rollout", "restart", manager)
		kubectl(t, s.cls2, "-n", system, "rollout", "status", manager, "--timeout=90s")
		time.Sleep(time.Until(began.Add(withdrawn)))
		kubectl(t, s.cls1, "-n", s.ns, "patch", "serviceexport", changing, "--type=merge", "-p", `{"spec":{"exportedAnnotations":{"meanwhile":"yes"}}}`)
		put(t, "/shares", share)
		back := time.Now()
		eventually(t, recovery, func() error {
			imp, err := serviceImport(t.Context(), s.cls2, s.ns, changing)
			if err == nil && imp.Annotations["meanwhile"] != "yes" {
				err = errors.New("a change does not arrive")
			}
			return err
		})
		t.Logf("a change arrived %s after the return of the share", round(time.Since(back)))
	})
}
