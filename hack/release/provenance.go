package main

import (
	"maps"
	"slices"
	"strings"
)

// statement is an in-toto statement with SLSA provenance (https://in-toto.io/Statement/v1,
// https://slsa.dev/provenance/v1).
type statement struct {
	Type          string     `json:"_type"`
	Subject       []subject  `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     provenance `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

type provenance struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string            `json:"buildType"`
	ExternalParameters   map[string]string `json:"externalParameters"`
	InternalParameters   map[string]string `json:"internalParameters"`
	ResolvedDependencies []subject         `json:"resolvedDependencies"`
}

type runDetails struct {
	Builder map[string]string `json:"builder"`
}

// newProvenance returns the provenance of a release. It has no time and no ID of the run, because
// the same commit gives the same file. builder is the URI of the workflow, or that of the
// instructions to release by hand. sums are the SHA-256 of the files.
func newProvenance(version, commit, toolchain, builder string, sums map[string]string, images []image) statement {
	s := statement{
		Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1",
		Predicate: provenance{
			BuildDefinition: buildDefinition{
				BuildType:          sourceURL + "/blob/main/RELEASE.md#build",
				ExternalParameters: map[string]string{"version": version, "source": "git+" + sourceURL},
				InternalParameters: map[string]string{"go": toolchain},
				ResolvedDependencies: []subject{
					{URI: "git+" + sourceURL + "@refs/tags/" + version, Digest: map[string]string{"gitCommit": commit}},
				},
			},
			RunDetails: runDetails{Builder: map[string]string{"id": builder}},
		},
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		s.Subject = append(s.Subject, subject{Name: name, Digest: map[string]string{"sha256": sums[name]}})
	}
	for _, i := range images {
		s.Subject = append(s.Subject, subject{Name: repository + "/" + i.name, Digest: map[string]string{"sha256": strings.TrimPrefix(i.digest, "sha256:")}})
	}
	return s
}
