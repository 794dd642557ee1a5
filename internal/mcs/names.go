package mcs

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	derivedNamePrefix = "imported-"
	// derivedNameHash is the number of base32 characters of the hash in a derived name: 10 x 5 bits. By the birthday
	// bound, 10,000 services of one namespace collide with a probability of 10^8/2^51, one in twenty million.
	derivedNameHash = 10
)

// DerivedName returns the name of the derived Service of k, which is also the prefix of the names of the imported
// EndpointSlices. It is the same in every cluster, and a DNS label for a key of any length.
func DerivedName(k Key) string {
	sum := sha256.Sum256([]byte(k.String()))
	hash := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
	return derivedNamePrefix + strings.ToLower(hash[:derivedNameHash])
}

// CutDerivedName splits the name of an object into the name of a derived Service, which it begins with, and the rest.
func CutDerivedName(name string) (derived, rest string, ok bool) {
	const length = len(derivedNamePrefix) + derivedNameHash
	if len(name) < length || !strings.HasPrefix(name, derivedNamePrefix) {
		return "", "", false
	}
	return name[:length], name[length:], true
}

// ValidateClusterID returns an error if id cannot be the ID of a cluster or a clusterset. KEP-2149 allows a DNS subdomain, but the
// ID is also a label value (63 characters) and one label of the DNS names of headless endpoints (no dot).
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

// abbreviateMax bounds values from users or attackers in conditions and log lines: 64 bytes hold any valid label value (63).
const abbreviateMax = 64

// abbreviate truncates s for a message.
func abbreviate(s string) string {
	if len(s) <= abbreviateMax {
		return s
	}
	return strings.ToValidUTF8(s[:abbreviateMax], "") + "..."
}
