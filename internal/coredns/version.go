package coredns

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// MinVersion is the first CoreDNS release whose kubernetes plugin has the multicluster option.
const MinVersion = "1.12.2"

// ImageVersion reads CoreDNS's version from an image reference such as
// registry.k8s.io/coredns/coredns:v1.12.2 or …/eks/coredns:v1.12.2-eksbuild.3. It returns "" for a
// reference without a version: a digest, latest, a private tag.
func ImageVersion(image string) string {
	name, _, _ := strings.Cut(image, "@")
	colon := strings.LastIndexByte(name, ':')
	if colon < strings.LastIndexByte(name, '/') || colon < 0 {
		return ""
	}
	v, err := version.ParseGeneric(name[colon+1:])
	if err != nil || len(v.Components()) < 3 {
		return ""
	}
	return v.String()
}

// Supports reports whether a version returned by [ImageVersion] can serve clusterset.local.
func Supports(found string) bool {
	v, err := version.ParseGeneric(found)
	return err == nil && v.AtLeast(version.MustParseGeneric(MinVersion))
}
