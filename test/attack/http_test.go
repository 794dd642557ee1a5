package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/registrytest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/testprocess"
)

// The addresses of the pods: the whole network 127.0.0.0/8 is local.
const (
	prometheusAddress = "127.0.0.1"
	attackerAddress   = "127.0.0.66"
)

// scrapeTimeout is Prometheus' default for an answer.
const scrapeTimeout = 10 * time.Second

// dialer connects from an address.
func dialer(from string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
}

// scrape requests the metrics as the pod with an address does.
func scrape(ctx context.Context, from, address, token string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	transport := &http.Transport{
		DialContext: dialer(from).DialContext, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // self-signed
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// prometheus creates a ServiceAccount that may read metrics, and returns a function for new tokens
// of it.
func (k *kubernetes) prometheus() func() string {
	k.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: k.key.Namespace, Name: "prometheus"}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: k.key.Namespace}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	}
	for _, obj := range []client.Object{account, role, binding} {
		k.create(obj)
		k.t.Cleanup(func() { _ = k.Admin.Delete(context.Background(), obj) })
	}
	return func() string {
		k.t.Helper()
		request := &authenticationv1.TokenRequest{}
		if err := k.Admin.SubResource("token").Create(k.t.Context(), account, request); err != nil {
			k.t.Fatal(err)
		}
		return request.Status.Token
	}
}

func TestAttack_OccupiedMetrics(t *testing.T) {
	address := testprocess.FreeAddress(t)
	k := inKubernetes(t, func(o *config.Options) { o.Serving.Metrics, o.Serving.MetricsSecure = address, true })
	newToken := k.prometheus()
	k.eventually("a scrape", func() error {
		code, err := scrape(t.Context(), prometheusAddress, address, newToken())
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("code %d", code)
		}
		return err
	})
	ctx, stop := context.WithCancel(t.Context())
	var pod sync.WaitGroup
	defer pod.Wait()
	defer stop()
	var sent atomic.Int64
	for range 64 {
		pod.Go(func() {
			for ctx.Err() == nil {
				_, _ = scrape(ctx, attackerAddress, address, fmt.Sprint("invented-", sent.Add(1)))
				// the attacker leaves the processors to the others
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	k.eventually("the attack", func() error {
		if n := sent.Load(); n < 64 {
			return fmt.Errorf("%d requests were sent", n)
		}
		return nil
	})
	isRefused := false // control: the requests of the attacker occupy what its address may use
	for range 20 {
		if code, err := scrape(t.Context(), attackerAddress, address, newToken()); err != nil || code != http.StatusOK {
			isRefused = true
		}
	}
	if !isRefused {
		t.Error("the attack does not occupy anything")
	}
	for i := range 5 {
		// no token is cached
		if code, err := scrape(t.Context(), prometheusAddress, address, newToken()); err != nil || code != http.StatusOK {
			t.Errorf("scrape %d of Prometheus: %d, %v", i, code, err)
		}
	}
}

func TestAttack_LargeHeaders(t *testing.T) {
	metrics, probes := testprocess.FreeAddress(t), testprocess.FreeAddress(t)
	k := inKubernetes(t, func(o *config.Options) {
		o.Serving.Metrics, o.Serving.MetricsSecure, o.Serving.Probes = metrics, true, probes
	})
	newToken := k.prometheus()
	for _, url := range []string{"https://" + metrics + "/metrics", "http://" + probes + "/healthz"} {
		k.eventually(url, func() error { _, err := request(t, url, ""); return err })
	}
	const connections, size = 300, 900 << 10
	// it does not end
	header := append([]byte("GET /healthz HTTP/1.1\r\nHost: x\r\nX: "), bytes.Repeat([]byte("x"), size)...)
	var received atomic.Int64
	peak := registrytest.HeapPeak(func() {
		var open sync.WaitGroup
		release := make(chan struct{})
		for i := range connections {
			open.Go(func() {
				conn, err := dialer(attackerAddress).DialContext(t.Context(), "tcp", []string{metrics, probes}[i%2])
				if err != nil {
					return
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				var stream io.ReadWriter = conn
				if i%2 == 0 {
					stream = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the pod does not care
				}
				n, _ := stream.Write(header)
				received.Add(int64(n))
				<-release
			})
		}
		time.Sleep(5 * time.Second) // the requests stay open
		for what, get := range map[string]func() (int, error){
			"a probe":  func() (int, error) { return request(t, "http://"+probes+"/healthz", "") },
			"a scrape": func() (int, error) { return scrape(t.Context(), prometheusAddress, metrics, newToken()) },
		} {
			if code, err := get(); err != nil || code != http.StatusOK {
				t.Errorf("%s meanwhile: %d, %v", what, code, err)
			}
		}
		close(release)
		open.Wait()
	})
	if received.Load() == 0 { // control
		t.Error("nothing was sent")
	}
	if peak > 64<<20 {
		t.Errorf("the heap grew by %d MiB with %d MiB of headers", peak>>20, connections*size>>20)
	}
}
