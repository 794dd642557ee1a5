package cluster

import (
	"bytes"
	"embed"
	"encoding/base64"
	"fmt"
	"net/netip"
	"path"
	"text/template"
)

//go:embed templates
var templateFiles embed.FS

func render(name string, data any) (string, error) {
	funcs := template.FuncMap{"base64": base64.StdEncoding.EncodeToString}
	t, err := template.New(name).Funcs(funcs).Option("missingkey=error").ParseFS(templateFiles, path.Join("templates", name))
	if err != nil {
		return "", fmt.Errorf("parsing the template of %s: %w", name, err)
	}
	var buf bytes.Buffer
	if err := t.Execute(&buf, data); err != nil {
		return "", fmt.Errorf("rendering %s: %w", name, err)
	}
	return buf.String(), nil
}

// Access is one context of a kubeconfig: a user of a cluster.
type Access struct {
	Context string
	Server  string
	CA      []byte
	Client  PEM
}

// Kubeconfig renders a kubeconfig with one context for each access; the first is current.
func Kubeconfig(access ...Access) (string, error) { return render("kubeconfig.yaml", access) }

// Access returns the path by which client reaches the cluster.
func (c Cluster) Access(pki PKI, client PEM) Access {
	return Access{Context: c.Name, Server: c.APIServer(), CA: pki.CA, Client: client}
}

// CoreDNS renders the manifests of the cluster's DNS, as kubeadm would install them.
func (c Cluster) CoreDNS(image string) (string, error) {
	return render("coredns.yaml", struct {
		Address netip.Addr
		Image   string
	}{c.DNSService(), image})
}
