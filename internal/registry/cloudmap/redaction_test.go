package cloudmap

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/go-logr/logr/funcr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
)

// transcript is everything that was logged, at any level.
type transcript struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *transcript) line(prefix, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(&l.text, prefix, args)
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestNoSecretsLogged lets requests fail in every way that names credentials, with peer
// notifications on, and looks for the credentials in the log.
func TestNoSecretsLogged(t *testing.T) {
	const (
		keyID        = "AKIDLOGGED"
		secret       = "the-secret-access-key"
		sessionToken = "the-session-token"
	)
	c := startCloud(t, cloudmaplocal.Options{Unthrottled: true, AccessKeys: []cloudmaplocal.AccessKey{{ID: admin}, {ID: keyID}}})
	// The server knows only session tokens that it has given away.
	accept := func(_ http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("X-Amz-Security-Token")
		return false
	}
	c.fault.Store(&accept)
	credentials := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: keyID, SecretAccessKey: secret, SessionToken: sessionToken}, nil
	})
	udp := newNetwork()
	var log transcript
	logger := funcr.New(log.line, funcr.Options{Verbosity: 100})
	var regs []*Registry
	secrets := []string{secret, sessionToken}
	for i := range 2 {
		cfg := fast(mcs.Identity{ClusterID: fmt.Sprint("cls", i+1), ClusterSetID: "set1", UID: fmt.Sprint("uid-", i+1)})
		cfg.PeerNotifications, cfg.Logger = udp.config(), logger.WithName(cfg.Identity.ClusterID)
		secrets = append(secrets, string(cfg.Signer.Secret("peer notifications")))
		client := c.clientFor(t, api.Config{Credentials: credentials})
		reg, err := New(client, cfg)
		if err != nil {
			t.Fatal(err)
		}
		start(t, reg)
		regs = append(regs, reg)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	within(t, 15*time.Second, "both see each other", func() bool { return len(membersOf(regs[0])) == 2 && len(membersOf(regs[1])) == 2 })

	// As AWS answers: the canonical request has the header of the session token.
	refusals := map[string]func(r *http.Request) string{
		"InvalidSignatureException": func(r *http.Request) string {
			return fmt.Sprintf("The signature does not match.\\n\\nThe Canonical String for this request should have been\\n'POST\\n/\\n\\nx-amz-security-token:%s\\n'",
				r.Header.Get("X-Amz-Security-Token"))
		},
		"ExpiredTokenException": func(*http.Request) string { return "The security token included in the request is expired" },
		"AccessDeniedException": func(*http.Request) string { return "not allowed" },
		"InternalFailure":       func(*http.Request) string { return "" },
	}
	for code, message := range refusals {
		refuse := func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("X-Amzn-Errortype", code)
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"__type":%q,"message":"%s"}`, code, message(r))
			return true
		}
		c.fault.Store(&refuse)
		within(t, time.Minute, "the log has "+code, func() bool { return strings.Contains(log.String(), code) })
		c.fault.Store(&accept)
		within(t, time.Minute, "it works again after "+code, func() bool { return regs[0].Report().Reading == nil && regs[1].Report().Reading == nil })
	}
	// A forged notification, and one that cannot be read.
	for _, datagram := range []string{"garbage", "mcs1 set1 cls2 1 1 forged"} {
		udp.send(regs[0].cfg.PeerNotifications.Address, []byte(datagram))
	}
	c.broken.Store(true)
	within(t, time.Minute, "reading fails", func() bool { return regs[0].Report().Reading != nil })
	c.broken.Store(false)

	// What kubectl mcs shows comes from these.
	members, err := json.Marshal(membersOf(regs[0]))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range secrets {
		if strings.Contains(log.String(), s) {
			t.Errorf("%q is in the log", s)
		}
		if strings.Contains(string(members), s) {
			t.Errorf("%q is shown of the members: %s", s, members)
		}
	}
}

// TestNoPasswordOfEndpoint: the SDK's error about an endpoint that it cannot use has all of it, and
// every request then fails with it.
func TestNoPasswordOfEndpoint(t *testing.T) {
	for _, endpoint := range []string{"https://user:hunter%zz@127.0.0.1:1", "https://user:hunter2@127.0.0.1:1", "user:hunter 2@127.0.0.1:1"} {
		t.Setenv("AWS_ENDPOINT_URL_SERVICEDISCOVERY", endpoint)
		client, err := api.NewClient(t.Context(), api.Config{Region: "us-east-1"})
		if err == nil {
			_, err = client.ListNamespaces(t.Context())
		}
		if err == nil {
			t.Fatalf("%s can be used", endpoint)
		}
		if strings.Contains(err.Error(), "hunter") {
			t.Errorf("the error about %s has the password: %v", endpoint, err)
		}
	}
}
