package coredns

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// State is the state of clusterset.local in a Corefile or a cluster.
type State string

// The states.
const (
	Disabled State = "disabled"
	Partial  State = "partial"
	Enabled  State = "enabled"
)

// Inspection is the result of inspecting a Corefile for clusterset.local.
type Inspection struct {
	// ClusterDomain is the zone of the cluster's own Services.
	ClusterDomain string
	State         State
	// Missing are the missing parts, one sentence each. It is empty if the zone is enabled.
	Missing []string
	// Obstacle is the part of the Corefile that prevents an edit because it serves the zone, or "".
	Obstacle string
	// Forward are the addresses to which a server block forwards clusterset.local, and ForwardNoted
	// reports whether [Forward] added it.
	Forward      []string
	ForwardNoted bool
	// ImportsServers reports whether CoreDNS reads more server blocks from files *.server, as in
	// AKS and k3s.
	ImportsServers bool
	// Reload reports whether CoreDNS reads a changed Corefile without a restart.
	Reload bool
}

// Inspect inspects a Corefile. An empty clusterDomain means cluster.local if a kubernetes plugin
// serves it, else the first zone of the first kubernetes plugin that is not a reverse zone.
func Inspect(corefile, clusterDomain string) (Inspection, error) {
	c, err := read(corefile, clusterDomain)
	if err != nil {
		return Inspection{}, err
	}
	return c.inspect(), nil
}

// AnswersZone reports whether the Corefile has a separate server block for the zone. The Corefile
// of a node-local DNS cache needs one, or queries leave the cluster.
func AnswersZone(corefile, zone string) (bool, error) {
	blocks, err := parse(lex(corefile))
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(blocks, func(b *block) bool {
		_, ok := find(b.keys, zone)
		return ok && b.snippet() == ""
	}), nil
}

// A corefile is a parsed Corefile with the cluster domain.
type corefile struct {
	src     string
	domain  string
	blocks  []*block
	imports []token  // the arguments of imports outside of server blocks
	stanzas []stanza // every kubernetes plugin
	targets []stanza // the kubernetes plugins that serve the cluster domain
}

func read(src, domain string) (corefile, error) {
	p := parser{tokens: lex(src)}
	blocks, err := p.blocks()
	if err != nil {
		return corefile{}, err
	}
	c := corefile{src: src, domain: parseOrigin(domain).zone, blocks: blocks, imports: p.imports, stanzas: stanzas(blocks)}
	if c.domain == "" {
		c.domain = clusterDomain(c.stanzas)
	}
	for _, s := range c.stanzas {
		if s.serves(c.domain) {
			c.targets = append(c.targets, s)
		}
	}
	if len(c.targets) == 0 {
		return corefile{}, fmt.Errorf("finding the kubernetes plugin in the Corefile: none serves %q; "+
			"set another cluster domain with --cluster-domain; if an imported file has the plugin, edit that file ("+docs.URL("dns.md")+")", c.domain)
	}
	return c, nil
}

func clusterDomain(all []stanza) string {
	first := ""
	for _, s := range all {
		if s.serves(DefaultClusterDomain) {
			return DefaultClusterDomain
		}
		if first == "" {
			first = s.primaryZone()
		}
	}
	if first == "" {
		return DefaultClusterDomain
	}
	return first
}

func (c corefile) inspect() Inspection {
	found := Inspection{ClusterDomain: c.domain, Reload: c.hasReload(), ImportsServers: c.importsServers()}
	found.Forward, found.ForwardNoted = c.forward()
	obstacle, isServed := c.obstacle()
	if isServed {
		found.State = Enabled
		return found
	}
	found.Obstacle = obstacle
	present := 0
	for _, s := range c.targets {
		if s.serves(Zone) {
			present++
		} else {
			found.Missing = append(found.Missing, fmt.Sprintf("line %d: the kubernetes plugin does not serve the zone %s", s.name.line, Zone))
		}
		if s.isMulticluster(Zone) {
			present++
		} else {
			found.Missing = append(found.Missing, fmt.Sprintf("line %d: the kubernetes plugin lacks the option \"multicluster %s\"", s.name.line, Zone))
		}
	}
	for _, server := range c.targetServers() {
		if !covers(server) {
			found.Missing = append(found.Missing, fmt.Sprintf("line %d: the server block of %q gets no queries for %s", server.keys[0].line, keyTexts(server.keys), Zone))
		}
	}
	found.State = state(present, len(found.Missing) > 0 || obstacle != "")
	return found
}

func state(present int, lacking bool) State {
	switch {
	case !lacking:
		return Enabled
	case present == 0:
		return Disabled
	default:
		return Partial
	}
}

// targetServers returns the server blocks that serve the cluster domain, each once.
func (c corefile) targetServers() []*block {
	var found []*block
	for _, s := range c.targets {
		for _, server := range s.servers {
			if !slices.Contains(found, server) {
				found = append(found, server)
			}
		}
	}
	return found
}

func covers(server *block) bool { return longestCovering(server.keys) >= 0 }

// longestCovering returns the length of the longest zone among keys that contains clusterset.local,
// or -1. CoreDNS sends a query to the server block with the longest match.
func longestCovering(keys []token) int {
	longest := -1
	for _, k := range keys {
		if o := parseOrigin(k.text); o.covers(Zone) {
			longest = max(longest, len(o.zone))
		}
	}
	return longest
}

// obstacle describes another part of the Corefile that serves clusterset.local: the external
// multicluster plugin of a custom CoreDNS image, or a server block with a longer match than the
// cluster's own. isServed reports whether such a server block serves the zone from ServiceImports,
// so that nothing is missing.
func (c corefile) obstacle() (why string, isServed bool) {
	own := c.targetServers()
	for _, b := range c.blocks {
		for _, d := range b.directives {
			if d[0].text == "multicluster" {
				return fmt.Sprintf("line %d loads the external multicluster plugin, which stock CoreDNS neither has nor needs: "+
					"use the stock image and remove this line", d[0].line), false
			}
		}
		if b.snippet() != "" || slices.Contains(own, b) {
			continue
		}
		key, taken := c.competingKey(own, b)
		if !taken {
			continue
		}
		if c.isMulticluster(b) {
			return "", true
		}
		if b.hasNote(c.src) {
			return fmt.Sprintf("line %d: the server block of %q forwards %s to a CoreDNS beside this one: run \"kubectl mcs dns disable\" first",
				key.line, key.text, Zone), false
		}
		return fmt.Sprintf("line %d: the server block of %q receives the queries for %s, possibly for another Multi-Cluster Services implementation: "+
			"remove it first", key.line, key.text, Zone), false
	}
	return "", false
}

// competingKey returns the key with which the block would receive the queries for clusterset.local
// instead of the own server blocks.
func (c corefile) competingKey(own []*block, b *block) (token, bool) {
	for _, server := range own {
		nearest := longestCovering(server.keys)
		if nearest < 0 {
			// Enable adds the key for clusterset.local: only the same key competes
			nearest = len(Zone) - 1
		}
		for _, k := range b.keys {
			o := parseOrigin(k.text)
			competes := slices.ContainsFunc(server.keys, func(t token) bool { return parseOrigin(t.text).sharesPort(o) })
			if competes && o.covers(Zone) && len(o.zone) > nearest {
				return k, true
			}
		}
	}
	return token{}, false
}

// isMulticluster reports whether the server block answers clusterset.local from ServiceImports.
func (c corefile) isMulticluster(b *block) bool {
	return slices.ContainsFunc(c.stanzas, func(s stanza) bool {
		return slices.Contains(s.servers, b) && s.serves(Zone) && s.isMulticluster(Zone)
	})
}

// hasReload reports whether the Corefile loads the reload plugin. One server block that loads it is
// enough.
func (c corefile) hasReload() bool {
	return slices.ContainsFunc(c.blocks, func(b *block) bool {
		return slices.ContainsFunc(b.directives, func(d directive) bool { return d[0].text == "reload" })
	})
}

// forward returns the addresses to which a server block forwards clusterset.local, and whether
// [Forward] added it.
func (c corefile) forward() (addresses []string, noted bool) {
	for _, b := range c.blocks {
		if upstreams := b.upstreams(); upstreams != nil {
			return upstreams, b.hasNote(c.src)
		}
	}
	return nil, false
}

// importsServers reports whether the Corefile imports files *.server outside of its server blocks.
func (c corefile) importsServers() bool {
	return slices.ContainsFunc(c.imports, func(t token) bool { return strings.HasSuffix(t.text, "/*.server") })
}
