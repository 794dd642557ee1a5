package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// MaxBytes is the size of the largest policy, and of the largest ConfigMap.
const MaxBytes = 1 << 20

// maxProblems bounds the lines about one file.
const maxProblems = 20

// file is the format of --import-policy. docs/security/import-policy.md documents it.
type file struct {
	// Default is allow or deny, for clusters without a rule.
	Default string `json:"default"`
	// Addresses is any or announced, for the clusters whose rule has no podNetworks; "" is any.
	Addresses string `json:"addresses"`
	// Clusters are the rules by cluster ID.
	Clusters map[string]*fileRule `json:"clusters"`
	// SystemNamespaces are the system namespaces that may be imported into.
	SystemNamespaces list `json:"systemNamespaces"`
}

// fileRule is the rule of one cluster.
type fileRule struct {
	Namespaces  list `json:"namespaces"`
	PodNetworks list `json:"podNetworks"`
}

// list is a list that is not set, or has entries. A null, which a key without a value is in YAML,
// must not mean "all".
type list struct {
	set   bool
	items []string
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *list) UnmarshalJSON(data []byte) error {
	l.set = true
	if bytes.Equal(data, []byte("null")) {
		return nil
	}
	if err := json.Unmarshal(data, &l.items); err != nil {
		return errors.New("every list must have texts only: put numbers and the words yes, no, on, off, true, false in quotes")
	}
	return nil
}

// Parse reads a policy. The error has one line for each problem, with the action that solves it.
func Parse(text []byte) (*Policy, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("the policy has more than the %d bytes of a ConfigMap", MaxBytes)
	}
	var f file
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return nil, fmt.Errorf("the policy is not valid YAML with the keys default, addresses, clusters (namespaces, podNetworks) and systemNamespaces: %s", abbreviate(err.Error()))
	}
	var p problems
	out := &Policy{clusters: map[string]rule{}}
	switch f.Default {
	case "allow", "deny":
		out.allow = f.Default == "allow"
	default:
		p.add("default: %q must be allow or deny, for the clusters that the policy does not list", abbreviate(f.Default))
	}
	switch f.Addresses {
	case "", "any", "announced":
		out.announcedOnly = f.Addresses == "announced"
	default:
		p.add("addresses: %q must be any, or announced for the networks that each cluster announces", abbreviate(f.Addresses))
	}
	for _, id := range slices.Sorted(maps.Keys(f.Clusters)) {
		at := "clusters." + abbreviate(id)
		if err := mcs.ValidateClusterID(id); err != nil {
			p.add("%s: %v", at, err)
		}
		if f.Clusters[id] == nil {
			p.add("%s: must not be empty: set namespaces or podNetworks, or write {} to allow everything", at)
			continue
		}
		out.clusters[id] = p.rule(at, f.Clusters[id])
	}
	out.systemNamespaces = p.systemNamespaces(f.SystemNamespaces)
	if err := p.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// problems collects the problems of a file.
type problems []error

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

func (p *problems) err() error {
	if len(*p) > maxProblems {
		return errors.Join(append((*p)[:maxProblems:maxProblems], fmt.Errorf("and %d more problems", len(*p)-maxProblems))...)
	}
	return errors.Join(*p...)
}

func (p *problems) rule(at string, f *fileRule) rule {
	var r rule
	for i, pattern := range p.items(at+".namespaces", f.Namespaces, `write ["*"] for all namespaces, or remove the cluster and set default: deny for none`) {
		name, isPrefix := strings.CutSuffix(pattern, "*")
		if !isNamespace(name, isPrefix) {
			p.add("%s.namespaces[%d]: %q must be the name of a namespace, or the beginning of names followed by *, such as team-a-*", at, i, abbreviate(pattern))
			continue
		}
		r.namespaces = append(r.namespaces, pattern)
	}
	for i, text := range p.items(at+".podNetworks", f.PodNetworks, "remove the key to allow all addresses") {
		network, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			p.add("%s.podNetworks[%d]: %q must be a network such as 10.2.0.0/16 or fd00:2::/48", at, i, abbreviate(text))
		case network.Addr().Is4In6():
			p.add("%s.podNetworks[%d]: %q must be written as an IPv4 network", at, i, abbreviate(text))
		case network != network.Masked():
			p.add("%s.podNetworks[%d]: %q is an address in a network: write the network, %s", at, i, abbreviate(text), network.Masked())
		default:
			r.podNetworks = append(r.podNetworks, network)
		}
	}
	return r
}

// items returns the entries of a list that must have some if it is set, and each once.
func (p *problems) items(at string, l list, alternative string) []string {
	if l.set && len(l.items) == 0 {
		p.add("%s: must not be empty: %s", at, alternative)
	}
	seen := map[string]bool{}
	for i, item := range l.items {
		if seen[item] {
			p.add("%s[%d]: %q is listed twice", at, i, abbreviate(item))
		}
		seen[item] = true
	}
	return l.items
}

func (p *problems) systemNamespaces(l list) []string {
	for i, name := range p.items("systemNamespaces", l, "remove the key") {
		if !isNamespace(name, false) {
			p.add("systemNamespaces[%d]: %q must be the name of a namespace", i, abbreviate(name))
		}
	}
	return l.items
}

// isNamespace reports whether name is the name of a namespace, or the beginning of one.
func isNamespace(name string, isPrefix bool) bool {
	if isPrefix {
		return name == "" || len(validation.IsDNS1123Label(name)) == 0 || strings.HasSuffix(name, "-") && len(validation.IsDNS1123Label(name+"a")) == 0
	}
	return len(validation.IsDNS1123Label(name)) == 0
}

// abbreviateMax bounds texts of the file in messages.
const abbreviateMax = 200

func abbreviate(s string) string {
	if len(s) <= abbreviateMax {
		return s
	}
	return strings.ToValidUTF8(s[:abbreviateMax], "") + "..."
}
