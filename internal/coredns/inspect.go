package coredns

import (
	"fmt"
	"slices"
)

// State says how much of what clusterset.local needs is there.
type State string

// The states of a Corefile, and of a cluster.
const (
	Disabled State = "disabled"
	Partial  State = "partial"
	Enabled  State = "enabled"
)

// Inspection is what a Corefile says about clusterset.local.
type Inspection struct {
	// ClusterDomain is the zone of the cluster's own Services, given or found.
	ClusterDomain string
	State         State
	// Missing says, one sentence each, what is not there although it must be. Empty when enabled.
	Missing []string
	// Obstacle says why an edit cannot help: something else in the Corefile claims the zone. Empty when nothing does.
	Obstacle string
	// Reload tells whether CoreDNS picks up a changed Corefile by itself.
	Reload bool
}

// Inspect reads a Corefile. With an empty cluster domain it finds it: cluster.local if a kubernetes plugin serves it,
// else the first zone of names of the first kubernetes plugin.
func Inspect(corefile, clusterDomain string) (Inspection, error) {
	c, err := read(corefile, clusterDomain)
	if err != nil {
		return Inspection{}, err
	}
	return c.inspect(), nil
}

// AnswersZone tells whether the Corefile has a server block of its own for the zone. The one of a node-local DNS
// cache must, or queries leave the cluster.
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

// A corefile is a Corefile that was read with a purpose.
type corefile struct {
	src     string
	domain  string
	blocks  []*block
	stanzas []stanza // every kubernetes plugin
	targets []stanza // those that serve the cluster domain
}

func read(src, domain string) (corefile, error) {
	blocks, err := parse(lex(src))
	if err != nil {
		return corefile{}, err
	}
	c := corefile{src: src, domain: parseOrigin(domain).zone, blocks: blocks, stanzas: stanzas(blocks)}
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
			"if the cluster domain is another, name it with --cluster-domain; if an imported file holds the plugin, edit that file (docs/dns.md)", c.domain)
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
	found := Inspection{ClusterDomain: c.domain, Reload: c.reloads()}
	obstacle, elsewhere := c.obstacle()
	if elsewhere {
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

// targetServers are the server blocks that answer for the cluster domain, each once.
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

// longestCovering is the length of the closest zone over clusterset.local among keys, or -1. CoreDNS gives a query to
// the server block with the longest match.
func longestCovering(keys []token) int {
	longest := -1
	for _, k := range keys {
		if o := parseOrigin(k.text); o.covers(Zone) {
			longest = max(longest, len(o.zone))
		}
	}
	return longest
}

// obstacle looks for what else claims clusterset.local: the multicluster plugin that CoreDNS was once extended with,
// or a server block closer to the zone than the cluster's own. The latter may be somebody's working set-up: elsewhere.
func (c corefile) obstacle() (why string, elsewhere bool) {
	own := c.targetServers()
	for _, b := range c.blocks {
		for _, d := range b.directives {
			if d[0].text == "multicluster" {
				return fmt.Sprintf("line %d loads the external multicluster plugin, which stock CoreDNS does not have and does not need: "+
					"run the stock image and remove this line", d[0].line), false
			}
		}
		if b.snippet() != "" || slices.Contains(own, b) {
			continue
		}
		key, taken := c.claim(own, b)
		if !taken {
			continue
		}
		if c.isMulticluster(b) {
			return "", true
		}
		return fmt.Sprintf("line %d: the server block of %q takes the queries for %s (another Multi-Cluster Services implementation?): "+
			"remove it first", key.line, key.text, Zone), false
	}
	return "", false
}

// claim finds a key by which the block would get the queries for clusterset.local before our own server blocks.
func (c corefile) claim(own []*block, b *block) (token, bool) {
	for _, server := range own {
		nearest := longestCovering(server.keys)
		if nearest < 0 {
			nearest = len(Zone) - 1 // the key for clusterset.local will be added: only the same key competes
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

// isMulticluster tells whether the server block answers clusterset.local from ServiceImports.
func (c corefile) isMulticluster(b *block) bool {
	return slices.ContainsFunc(c.stanzas, func(s stanza) bool {
		return slices.Contains(s.servers, b) && s.serves(Zone) && s.isMulticluster(Zone)
	})
}

// reloads tells whether the reload plugin watches the Corefile. One server block that loads it is enough for all.
func (c corefile) reloads() bool {
	return slices.ContainsFunc(c.blocks, func(b *block) bool {
		return slices.ContainsFunc(b.directives, func(d directive) bool { return d[0].text == "reload" })
	})
}
