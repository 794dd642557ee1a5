package mcs

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// DefaultMetadataKeys allows keys without a domain, which no tool may read because they are private
// to users, and the recommended labels of Kubernetes. Keys with another domain belong to the tool
// of that domain, such as a service mesh or the controller of a load balancer.
const DefaultMetadataKeys = "*,app.kubernetes.io/*"

// NoMetadataKeys allows no key.
const NoMetadataKeys = "none"

// KeyFilter selects the keys of exported labels and annotations that a cluster sets on its
// ServiceImports. The zero value selects all.
type KeyFilter struct {
	set      bool
	patterns []keyPattern
}

// keyPattern matches keys: a domain, "" for keys without one, "*" for any; and a name, or the
// beginning of one and an asterisk.
type keyPattern struct{ domain, name string }

// ParseKeyFilter parses a list of keys that is separated by commas: a name or domain/name, in which
// the name may end with an asterisk and the domain be one. NoMetadataKeys selects none.
func ParseKeyFilter(text string) (KeyFilter, error) {
	f := KeyFilter{set: true}
	if text == NoMetadataKeys {
		return f, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		domain, name, hasDomain := strings.Cut(strings.TrimSpace(item), "/")
		if !hasDomain {
			domain, name = "", domain
		}
		example := strings.TrimSuffix(name, "*")
		if name == "*" || strings.HasSuffix(name, "*") {
			example += "a"
		}
		if hasDomain && domain != "*" {
			example = domain + "/" + example
		}
		if hasDomain && domain == "" || len(validation.IsQualifiedName(example)) > 0 {
			return KeyFilter{}, fmt.Errorf("%q must be a key such as team or example.com/team, with * at its end for all that begin so, or in place of the domain "+
				"for any; %q for no key", abbreviate(item), NoMetadataKeys)
		}
		f.patterns = append(f.patterns, keyPattern{domain, name})
	}
	return f, nil
}

// allows reports whether f selects key.
func (f KeyFilter) allows(key string) bool {
	if !f.set {
		return true
	}
	domain, name, hasDomain := strings.Cut(key, "/")
	if !hasDomain {
		domain, name = "", domain
	}
	return slices.ContainsFunc(f.patterns, func(p keyPattern) bool {
		if p.domain != domain && (p.domain != "*" || domain == "") {
			return false
		}
		prefix, isPrefix := strings.CutSuffix(p.name, "*")
		return p.name == name || isPrefix && strings.HasPrefix(name, prefix)
	})
}

// Apply removes the labels and annotations of m that f does not select, and returns their keys,
// sorted. Conflicts between the exports stay: they must be the same in every cluster, whichever
// keys each of them imports.
func (f KeyFilter) Apply(m *Merged) (removed []string) {
	for _, pairs := range []*map[string]string{&m.Labels, &m.Annotations} {
		var kept map[string]string
		for key, value := range *pairs {
			if !f.allows(key) {
				removed = append(removed, key)
				continue
			}
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
		*pairs = kept
	}
	slices.Sort(removed)
	return slices.Compact(removed)
}
