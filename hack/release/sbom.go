package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// spdxDocument is an SBOM in the form of SPDX 2.3.
type spdxDocument struct {
	SPDXVersion       string             `json:"spdxVersion"`
	DataLicense       string             `json:"dataLicense"`
	ID                string             `json:"SPDXID"`
	Name              string             `json:"name"`
	DocumentNamespace string             `json:"documentNamespace"`
	CreationInfo      spdxCreation       `json:"creationInfo"`
	Packages          []spdxPackage      `json:"packages"`
	Relationships     []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID               string         `json:"SPDXID"`
	Name             string         `json:"name"`
	Version          string         `json:"versionInfo"`
	Purpose          string         `json:"primaryPackagePurpose"`
	DownloadLocation string         `json:"downloadLocation"`
	FilesAnalyzed    bool           `json:"filesAnalyzed"`
	LicenseConcluded string         `json:"licenseConcluded"`
	LicenseDeclared  string         `json:"licenseDeclared"`
	Copyright        string         `json:"copyrightText"`
	Checksums        []spdxChecksum `json:"checksums,omitempty"`
	ExternalRefs     []spdxRef      `json:"externalRefs,omitempty"`
	// Comment has the checksum of a module in go.sum, for which SPDX has no algorithm.
	Comment string `json:"comment,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const (
	documentID  = "SPDXRef-DOCUMENT"
	programID   = "SPDXRef-Program"
	imageID     = "SPDXRef-Image"
	noAssertion = "NOASSERTION"
)

// A described file is what an SBOM is about: a program, or an image that has the program and
// nothing else.
type described struct {
	// file is the name of the SBOM.
	file, version string
	// program is its name, sum its SHA-256, info what the Go linker has written into it.
	program, sum string
	info         *debug.BuildInfo
	// image is the name of the image, or "".
	image string
	date  time.Time
}

// newSBOM returns the SBOM of a static Go program: its build information has all modules that are
// linked.
func newSBOM(d described) spdxDocument {
	doc := spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", ID: documentID,
		Name: strings.TrimSuffix(d.file, ".spdx.json"), DocumentNamespace: downloadURL(d.version, d.file),
		CreationInfo: spdxCreation{d.date.Format(time.RFC3339), []string{"Tool: hack/release-" + d.version}},
	}
	subject := programID
	if d.image != "" {
		subject = imageID
		doc.Packages = append(doc.Packages, newPackage(imageID, d.image, d.version, "CONTAINER", "Apache-2.0"))
		doc.Relationships = append(doc.Relationships, spdxRelationship{imageID, "CONTAINS", programID})
	}
	program := newPackage(programID, d.program, d.version, "APPLICATION", "Apache-2.0")
	program.Checksums = []spdxChecksum{{"SHA256", d.sum}}
	doc.Packages = append(doc.Packages, program)
	doc.Relationships = append([]spdxRelationship{{documentID, "DESCRIBES", subject}}, doc.Relationships...)

	stdlib := &debug.Module{Path: "stdlib", Version: strings.TrimPrefix(d.info.GoVersion, "go")}
	for i, m := range append([]*debug.Module{stdlib}, d.info.Deps...) {
		if m.Replace != nil {
			m = m.Replace
		}
		id := fmt.Sprintf("SPDXRef-Module-%d", i)
		module := newPackage(id, m.Path, m.Version, "LIBRARY", noAssertion)
		module.ExternalRefs = []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B")}}
		if m.Sum != "" {
			module.Comment = "go.sum: " + m.Sum
		}
		doc.Packages = append(doc.Packages, module)
		doc.Relationships = append(doc.Relationships, spdxRelationship{programID, "DEPENDS_ON", id})
	}
	return doc
}

func newPackage(id, name, version, purpose, license string) spdxPackage {
	return spdxPackage{
		ID: id, Name: name, Version: version, Purpose: purpose, DownloadLocation: noAssertion,
		LicenseConcluded: noAssertion, LicenseDeclared: license, Copyright: noAssertion,
	}
}

// writeSBOM writes the SBOM of the built program at path, or of the image with it.
func (b *builder) writeSBOM(name string, f file, image string) error {
	fmt.Println("describing", name)
	content, err := os.ReadFile(b.binaryPath(f))
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(b.binaryPath(f))
	if err != nil {
		return fmt.Errorf("reading the build information of %s: %w", f.stem(), err)
	}
	sum := sha256.Sum256(content)
	text, err := indented(newSBOM(described{
		file: name, version: b.version, program: f.program, sum: hex.EncodeToString(sum[:]), info: info, image: image, date: b.date,
	}))
	if err != nil {
		return err
	}
	return os.WriteFile(b.path(name), text, 0o644)
}

// indented returns v as JSON that people can read, with a final newline.
func indented(v any) ([]byte, error) {
	out, err := json.MarshalIndent(v, "", " ")
	return append(out, '\n'), err
}
