package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A publisher pushes a release to a registry.
type publisher struct {
	options
	work string
	// signing are the flags of cosign for the key, or none to sign keyless.
	signing []string
}

func (o options) newPublisher() (*publisher, error) {
	work, err := os.MkdirTemp("", "release-")
	if err != nil {
		return nil, err
	}
	p := &publisher{options: o, work: work, signing: []string{"--yes"}}
	if o.key == "" {
		return p, nil
	}
	// No service logs or timestamps the signature: it is made with the key alone, without a
	// network.
	p.signing = append(p.signing, "--key", o.key)
	for name, text := range map[string]string{
		"signing-config": `{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"}`,
		"trusted-root":   `{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`,
	} {
		path := filepath.Join(work, name+".json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, errors.Join(err, os.RemoveAll(work))
		}
		p.signing = append(p.signing, "--"+name, path)
	}
	return p, nil
}

func (p *publisher) close() error { return os.RemoveAll(p.work) }

// signChecksums signs the checksums, and with them all files.
func (o options) signChecksums() (err error) {
	p, err := o.newPublisher()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	return p.cosign("sign-blob", "--bundle", o.path(checksumsFile+".sigstore.json"), o.path(checksumsFile))
}

// cosign runs a signing command of cosign.
func (p *publisher) cosign(name string, args ...string) error {
	return execute(nil, "cosign", append(append([]string{name}, p.signing...), args...)...)
}

// registryFlags returns the flags for a registry without TLS, if it is one.
func (p *publisher) registryFlags(flags ...string) []string {
	if p.insecure {
		return flags
	}
	return nil
}

// publish pushes images and chart, signs them, and attaches SBOMs and provenance.
func (o options) publish() (err error) {
	p, err := o.newPublisher()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	text, err := os.ReadFile(p.path("images.txt"))
	if err != nil {
		return err
	}
	predicate, err := p.writePredicate()
	if err != nil {
		return err
	}
	for _, i := range parseImages(string(text)) {
		if err := p.publishImage(i, predicate); err != nil {
			return err
		}
	}
	return p.publishChart()
}

// writePredicate writes the predicate of the provenance, which cosign puts into a statement about
// each image.
func (p *publisher) writePredicate() (string, error) {
	text, err := os.ReadFile(p.path("provenance.json"))
	if err != nil {
		return "", err
	}
	var s statement
	if err := json.Unmarshal(text, &s); err != nil {
		return "", fmt.Errorf("reading provenance.json: %w", err)
	}
	predicate, err := indented(s.Predicate)
	if err != nil {
		return "", err
	}
	path := filepath.Join(p.work, "predicate.json")
	return path, os.WriteFile(path, predicate, 0o600)
}

func (p *publisher) publishImage(i image, predicate string) error {
	layout := filepath.Join(p.work, i.name)
	if err := os.MkdirAll(layout, 0o755); err != nil {
		return err
	}
	if err := execute(nil, "tar", "-xf", p.path(imageArchive(i.name, p.version)), "-C", layout); err != nil {
		return err
	}
	tag := p.to + "/" + i.name + ":" + p.version
	insecure := p.registryFlags("--insecure")
	if err := execute(nil, "crane", append([]string{"push", layout, tag}, insecure...)...); err != nil {
		return err
	}
	plainHTTP := p.registryFlags("--allow-http-registry")
	if err := p.cosign("sign", append(plainHTTP, i.ref(p.to))...); err != nil {
		return err
	}
	if err := p.cosign("attest", append(plainHTTP, "--type", "slsaprovenance1", "--predicate", predicate, i.ref(p.to))...); err != nil {
		return err
	}
	sboms, err := filepath.Glob(p.path(imageSBOM(i.name, p.version, "*")))
	if err != nil {
		return err
	}
	for _, sbom := range sboms {
		platform := platformOfSBOM(i.name, p.version, filepath.Base(sbom))
		digest, err := output("crane", append([]string{"digest", "--platform", platform, tag}, insecure...)...)
		if err != nil {
			return err
		}
		one := image{i.name, strings.TrimSpace(digest)}
		if err := p.cosign("attest", append(plainHTTP, "--type", "spdxjson", "--predicate", sbom, one.ref(p.to))...); err != nil {
			return err
		}
	}
	return nil
}

func (p *publisher) publishChart() error {
	src, err := readSource()
	if err != nil {
		return err
	}
	number := strings.TrimPrefix(p.version, "v")
	archive := p.path(chartName + "-" + number + ".tgz")
	// Helm puts the time of the file into the manifest, and with it into the digest.
	if err := os.Chtimes(archive, src.date, src.date); err != nil {
		return err
	}
	push := append([]string{"push", archive, "oci://" + p.to + "/charts"}, p.registryFlags("--plain-http")...)
	if err := execute(nil, "helm", push...); err != nil {
		return err
	}
	tag := p.to + "/charts/" + chartName + ":" + strings.ReplaceAll(number, "+", "_")
	digest, err := output("crane", append([]string{"digest", tag}, p.registryFlags("--insecure")...)...)
	if err != nil {
		return err
	}
	chart := image{"charts/" + chartName, strings.TrimSpace(digest)}
	return p.cosign("sign", append(p.registryFlags("--allow-http-registry"), chart.ref(p.to))...)
}
