package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"time"
)

// Validity of certificates: longer than any testbed runs, and from a little before now, because
// clocks differ.
const (
	certificateLife = 365 * 24 * time.Hour
	clockSkew       = time.Hour
)

// PEM is a certificate with its key.
type PEM struct{ Cert, Key []byte }

// PKI is every credential of one cluster.
type PKI struct {
	CA               []byte // of the cluster: API server, kubelets, clients
	FrontProxyCA     []byte // of the aggregation layer
	CAKey            []byte // the controller-manager signs CertificateSigningRequests with it
	APIServer        PEM
	KubeletClient    PEM // the API server towards kubelets
	FrontProxyClient PEM // the API server towards aggregated API servers
	ServiceAccounts  PEM // Cert is the public key
	Admin            PEM
	Controllers      PEM
	Scheduler        PEM
	Proxy            PEM
	Kubelets         []KubeletPKI // in the order of the cluster's nodes
}

// KubeletPKI has the serving and the client credentials of one kubelet.
type KubeletPKI struct{ Serving, Client PEM }

// NewPKI creates new credentials for the cluster, valid from now on.
func NewPKI(c Cluster, now time.Time) (PKI, error) {
	ca, err := newAuthority("kubernetes-"+c.Name, now)
	if err != nil {
		return PKI{}, err
	}
	front, err := newAuthority("front-proxy-"+c.Name, now)
	if err != nil {
		return PKI{}, err
	}
	caKey, err := encodeKey(ca.key)
	if err != nil {
		return PKI{}, err
	}
	p := PKI{CA: ca.pem(), CAKey: caKey, FrontProxyCA: front.pem()}
	for _, leaf := range []struct {
		into   *PEM
		from   *authority
		name   string
		groups []string
		hosts  hosts
	}{
		{&p.APIServer, ca, "kube-apiserver", nil, c.apiServerHosts()},
		{&p.KubeletClient, ca, "kube-apiserver-kubelet-client", []string{"system:masters"}, hosts{}},
		{&p.FrontProxyClient, front, "front-proxy-client", nil, hosts{}},
		{&p.Admin, ca, "admin", []string{"system:masters"}, hosts{}},
		{&p.Controllers, ca, "system:kube-controller-manager", nil, hosts{}},
		{&p.Scheduler, ca, "system:kube-scheduler", nil, hosts{}},
		{&p.Proxy, ca, "system:kube-proxy", nil, hosts{}},
	} {
		if *leaf.into, err = leaf.from.issue(leaf.name, leaf.groups, leaf.hosts, now); err != nil {
			return PKI{}, err
		}
	}
	if p.Kubelets, err = kubeletPKI(ca, c.Nodes, now); err != nil {
		return PKI{}, err
	}
	p.ServiceAccounts, err = signingKey()
	return p, err
}

func kubeletPKI(ca *authority, nodes []Node, now time.Time) ([]KubeletPKI, error) {
	var out []KubeletPKI
	for _, n := range nodes {
		user, groups := "system:node:"+n.Name, []string{"system:nodes"}
		serving, err := ca.issue(user, groups, hosts{names: []string{n.Name}, ips: addrs(n.Addresses)}, now)
		if err != nil {
			return nil, err
		}
		client, err := ca.issue(user, groups, hosts{}, now)
		if err != nil {
			return nil, err
		}
		out = append(out, KubeletPKI{Serving: serving, Client: client})
	}
	return out, nil
}

// hosts are the names and addresses a server is reached by.
type hosts struct {
	names []string
	ips   []netip.Addr
}

func (c Cluster) apiServerHosts() hosts {
	h := hosts{
		names: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		ips:   []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()},
	}
	h.ips = append(h.ips, addrs(c.Nodes[0].Addresses)...)
	h.ips = append(h.ips, c.kubernetesServices()...)
	return h
}

func addrs(prefixes []netip.Prefix) []netip.Addr {
	var out []netip.Addr
	for _, p := range prefixes {
		out = append(out, p.Addr())
	}
	return out
}

type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func newAuthority(name string, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of %s: %w", name, err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(certificateLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading back the certificate of %s: %w", name, err)
	}
	return &authority{cert: cert, key: key}, nil
}

func (a *authority) issue(name string, groups []string, h hosts, now time.Time) (PEM, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return PEM{}, fmt.Errorf("making the key of %s: %w", name, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 62))
	if err != nil {
		return PEM{}, fmt.Errorf("choosing a serial number for %s: %w", name, err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(certificateLife),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:     h.names,
	}
	for _, ip := range h.ips {
		template.IPAddresses = append(template.IPAddresses, ip.AsSlice())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return PEM{}, fmt.Errorf("signing the certificate of %s: %w", name, err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		return PEM{}, err
	}
	return PEM{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: encoded}, nil
}

// signingKey returns the key pair that service account tokens are signed and checked with.
func signingKey() (PEM, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return PEM{}, fmt.Errorf("making the service account key: %w", err)
	}
	private, err := encodeKey(key)
	if err != nil {
		return PEM{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return PEM{}, fmt.Errorf("encoding the service account key: %w", err)
	}
	return PEM{Cert: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), Key: private}, nil
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
