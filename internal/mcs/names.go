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
	// derivedNameHash is how many base32 characters of the hash a derived name carries: 10 x 5 bits. By the birthday
	// bound, 10,000 services of one namespace collide with a probability of 10^8/2^51, one in twenty million.
	derivedNameHash = 10
)

// DerivedName is the name of the Service, and the prefix of the names of the EndpointSlices, that stand behind the
// ServiceImport of k. It is the same in every cluster and a DNS label, however long k is.
func DerivedName(k Key) string {
	sum := sha256.Sum256([]byte(k.String()))
	hash := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
	return derivedNamePrefix + strings.ToLower(hash[:derivedNameHash])
}

// ValidateClusterID says whether id can be a cluster ID, or the ID of a clusterset. KEP-2149 allows a DNS subdomain;
// what the ID is used for allows less: it is a label value (63 characters) and one label of the DNS names of headless
// endpoints (no dot).
func ValidateClusterID(id string) error {
	if id == "" {
		return fmt.Errorf("the ID is empty: set it to a lower-case DNS label such as %q", "cluster-1")
	}
	if len(validation.IsDNS1123Label(id)) > 0 {
		return fmt.Errorf("ID %q is no DNS label: use at most %d lower-case letters, digits and '-', "+
			"beginning and ending with a letter or digit", abbreviate(id), validation.DNS1123LabelMaxLength)
	}
	return nil
}

// abbreviateMax keeps what users write, or an attacker sends, from filling a condition or a log line: 64 bytes show
// any valid label value (63) whole.
const abbreviateMax = 64

// abbreviate cuts s for a message.
func abbreviate(s string) string {
	if len(s) <= abbreviateMax {
		return s
	}
	return strings.ToValidUTF8(s[:abbreviateMax], "") + "..."
}
