package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
	"time"
)

func parse(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatal("no PEM in the certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestNewPKI(t *testing.T) {
	now := time.Now()
	c := NewPlan(Config{Clusters: 1, Nodes: 2, DualStack: true}).Clusters[0]
	pki, err := NewPKI(c, now)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, user string
		group      string
		pair       PEM
		ca         []byte
		hosts      []string
	}{
		{"API server", "kube-apiserver", "", pki.APIServer, pki.CA,
			[]string{"172.30.0.11", "fd00:172:30::11", "172.20.0.1", "fd00:172:20::1", "127.0.0.1", "::1", "kubernetes.default.svc"}},
		{"API server to kubelets", "kube-apiserver-kubelet-client", "system:masters", pki.KubeletClient, pki.CA, nil},
		{"API server to aggregated ones", "front-proxy-client", "", pki.FrontProxyClient, pki.FrontProxyCA, nil},
		{"admin", "admin", "system:masters", pki.Admin, pki.CA, nil},
		{"controllers", "system:kube-controller-manager", "", pki.Controllers, pki.CA, nil},
		{"scheduler", "system:kube-scheduler", "", pki.Scheduler, pki.CA, nil},
		{"proxy", "system:kube-proxy", "", pki.Proxy, pki.CA, nil},
		{"kubelet of node 2", "system:node:cls1-node2", "system:nodes", pki.Kubelets[1].Client, pki.CA, nil},
		{"server of node 2", "system:node:cls1-node2", "system:nodes", pki.Kubelets[1].Serving, pki.CA, []string{"172.30.0.12", "fd00:172:30::12", "cls1-node2"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := tls.X509KeyPair(tt.pair.Cert, tt.pair.Key); err != nil {
				t.Fatalf("certificate and key: %v", err)
			}
			cert := parse(t, tt.pair.Cert)
			if cert.Subject.CommonName != tt.user {
				t.Errorf("user is %s, want %s", cert.Subject.CommonName, tt.user)
			}
			if tt.group != "" && !slices.Contains(cert.Subject.Organization, tt.group) {
				t.Errorf("groups are %v, want %s", cert.Subject.Organization, tt.group)
			}
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(tt.ca)
			for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
				if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
					t.Errorf("verifying: %v", err)
				}
			}
			for _, h := range tt.hosts {
				if err := cert.VerifyHostname(h); err != nil {
					t.Error(err)
				}
			}
		})
	}
	block, _ := pem.Decode(pki.ServiceAccounts.Cert)
	if block == nil || block.Type != "PUBLIC KEY" {
		t.Errorf("service account key is %v, want a public key", block)
	}
}
