package main

import (
	"strings"

	"sigs.k8s.io/yaml"
)

// krewPlugin is the manifest of a plugin in the index of krew
// (krew.googlecontainertools.github.com/v1alpha2).
type krewPlugin struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   krewMetadata `json:"metadata"`
	Spec       krewSpec     `json:"spec"`
}

type krewMetadata struct {
	Name string `json:"name"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector krewSelector `json:"selector"`
	URI      string       `json:"uri"`
	SHA256   string       `json:"sha256"`
	Bin      string       `json:"bin"`
	Files    []krewFile   `json:"files"`
}

type krewSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

type krewFile struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// krewManifest returns the manifest of the plugin for some platforms. sums are the SHA-256 of the
// release's files by name.
func krewManifest(version string, platforms []string, sums map[string]string) ([]byte, error) {
	m := krewPlugin{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2",
		Kind:       "Plugin",
		Metadata:   krewMetadata{Name: "mcs"},
		Spec: krewSpec{
			Version:          version,
			Homepage:         sourceURL,
			ShortDescription: "Manage multi-cluster services and their clusterset",
			Description: "Installs and operates the Cloud Map MCS Controller, which implements the Multi-Cluster\n" +
				"Services API (KEP-1645): install, join, export, check, diagnose, and commands to see\n" +
				"what the clusters of a clusterset share.\n",
		},
	}
	for _, platform := range platforms {
		f := file{plugin, version, platform}
		os, arch, _ := strings.Cut(platform, "/")
		m.Spec.Platforms = append(m.Spec.Platforms, krewPlatform{
			Selector: krewSelector{map[string]string{"os": os, "arch": arch}},
			URI:      downloadURL(version, f.archive()),
			SHA256:   sums[f.archive()],
			Bin:      f.binary(),
			Files:    []krewFile{{f.binary(), "."}, {"LICENSE", "."}},
		})
	}
	return yaml.Marshal(m)
}
