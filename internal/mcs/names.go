package mcs

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

const (
	derivedNamePrefix = "imported-"
	// derivedNameHash is the number of base32 characters of the hash in a derived name: 20 x 5 =
	// 100 bits. A name that shares the derived name of a given service takes 2^100 hashes, which no
	// computer makes. Two names that share one take 2^50, 14 hours at 22 GH/s, the rate of one GPU:
	// both are of one's own, and only one is imported.
	derivedNameHash = 20
	// shortNameHash is that of versions before 0.1.0: 50 bits. Two names took 2^25 hashes, 25
	// seconds of one core, and a second one to a given name 2^50.
	shortNameHash = 10
)

// DerivedName returns the name of the derived Service of k, which is also the prefix of the names
// of the imported EndpointSlices. It is the same in every cluster, and a DNS label for a key of any
// length. An import that an earlier version created keeps its ShortDerivedName.
func DerivedName(k Key) string { return derivedName(k, derivedNameHash) }

// ShortDerivedName returns the derived name of k in versions before 0.1.0. DerivedName begins with
// it.
func ShortDerivedName(k Key) string { return derivedName(k, shortNameHash) }

func derivedName(k Key, length int) string {
	sum := sha256.Sum256([]byte(k.String()))
	hash := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
	return derivedNamePrefix + strings.ToLower(hash[:length])
}

// IsDerivedNameOf reports whether name is the derived name of k, in this version or an earlier one.
func IsDerivedNameOf(name string, k Key) bool {
	return name == DerivedName(k) || name == ShortDerivedName(k)
}

// ShortenDerivedName returns the ShortDerivedName of the services with the derived name name, which
// is a short one or not.
func ShortenDerivedName(name string) string {
	return name[:min(len(name), len(derivedNamePrefix)+shortNameHash)]
}

// CutDerivedName splits the name of an object into the name of a derived Service, which it begins
// with, and the rest, which begins with a hyphen if there is any.
func CutDerivedName(name string) (derived, rest string, ok bool) {
	hash, isDerived := strings.CutPrefix(name, derivedNamePrefix)
	hash, _, _ = strings.Cut(hash, "-")
	if !isDerived || len(hash) != derivedNameHash && len(hash) != shortNameHash {
		return "", "", false
	}
	length := len(derivedNamePrefix) + len(hash)
	return name[:length], name[length:], true
}

// IsDerivedName reports whether name has the form of the name of a derived Service, of this
// controller or the legacy one.
func IsDerivedName(name string) bool {
	_, rest, ok := CutDerivedName(name)
	return ok && rest == ""
}

// ParseSliceName returns the name of the derived Service and the source cluster in the name of an
// imported slice, such as "imported-abcdefghij0123456789-cls1-ipv4-0". The slices that Kubernetes
// creates for a Service have other names.
func ParseSliceName(s *discoveryv1.EndpointSlice) (derived, cluster string, ok bool) {
	derived, rest, ok := CutDerivedName(s.Name)
	if !ok {
		return "", "", false
	}
	family := "-" + strings.ToLower(string(s.AddressType)) + "-"
	i := strings.LastIndex(rest, family)
	if i < 2 || rest[0] != '-' || !isNumber(rest[i+len(family):]) {
		return "", "", false
	}
	return derived, rest[1:i], true
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// IsImportedSlice reports whether this controller created s for an import. Its name has that, which
// no client can change and which a copy does not have by accident: labels do not matter.
func IsImportedSlice(s *discoveryv1.EndpointSlice) bool {
	_, _, ok := ParseSliceName(s)
	return ok
}

// ImportOf returns the name of the ServiceImport that svc is the derived Service of, "" if it is
// none: its owner, of any implementation, or the label with which the name of svc is a derived
// name. Labels alone, which users copy, do not make a derived Service.
func ImportOf(svc *corev1.Service) string {
	for _, o := range svc.OwnerReferences {
		if isServiceImport(o) {
			return o.Name
		}
	}
	if name := svc.Labels[mcsv1beta1.LabelServiceName]; name != "" && IsDerivedNameOf(svc.Name, Key{Namespace: svc.Namespace, Name: name}) {
		return name
	}
	return ""
}

// ValidateClusterID returns an error if id cannot be the ID of a cluster or a clusterset. KEP-2149
// allows a DNS subdomain, but the ID is also a label value (63 characters) and one label of the DNS
// names of headless endpoints (no dot).
func ValidateClusterID(id string) error {
	if id == "" {
		return fmt.Errorf("the ID is empty: set it to a lower-case DNS label such as %q", "cluster-1")
	}
	if len(validation.IsDNS1123Label(id)) > 0 {
		return fmt.Errorf("ID %q is not a DNS label: use at most %d lower-case letters, digits and '-', "+
			"beginning and ending with a letter or digit", abbreviate(id), validation.DNS1123LabelMaxLength)
	}
	return nil
}

// abbreviateMax bounds values from users or attackers in conditions and log lines: 64 bytes hold
// any valid label value (63).
const abbreviateMax = 64

// abbreviate truncates s for a message.
func abbreviate(s string) string {
	if len(s) <= abbreviateMax {
		return s
	}
	return strings.ToValidUTF8(s[:abbreviateMax], "") + "..."
}
