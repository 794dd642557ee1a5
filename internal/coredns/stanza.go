package coredns

import "strings"

// A stanza is one use of CoreDNS's kubernetes plugin.
type stanza struct {
	name    token
	zones   []token   // the arguments; without any, the plugin serves the keys of the server block
	opening token     // the opening brace, the zero token without a block of options
	closing token     // the closing brace, the zero token without a block of options
	options [][]token // the lines of the block
	// the server block that contains the stanza, or all that import the snippet that contains it
	servers []*block
}

// newStanza parses a directive of the kubernetes plugin. It ignores a brace on a later line, which
// CoreDNS rejects.
func newStanza(d directive) stanza {
	s := stanza{name: d[0]}
	rest := d[1:]
	for len(rest) > 0 && rest[0].text != "{" {
		s.zones, rest = append(s.zones, rest[0]), rest[1:]
	}
	if len(rest) < 2 {
		return s
	}
	s.opening, s.closing = rest[0], rest[len(rest)-1]
	body := rest[1 : len(rest)-1]
	for i, t := range body {
		if i == 0 || startsLine(body[i-1], t) {
			s.options = append(s.options, nil)
		}
		last := len(s.options) - 1
		s.options[last] = append(s.options[last], t)
	}
	return s
}

// hasBlock reports whether the plugin has a block for options.
func (s stanza) hasBlock() bool { return s.opening.end > 0 }

// head returns the last token before the block.
func (s stanza) head() token {
	if len(s.zones) > 0 {
		return s.zones[len(s.zones)-1]
	}
	return s.name
}

// serves reports whether the plugin serves the zone.
func (s stanza) serves(zone string) bool {
	if len(s.zones) > 0 {
		_, ok := find(s.zones, zone)
		return ok
	}
	for _, server := range s.servers {
		if _, ok := find(server.keys, zone); !ok {
			return false
		}
	}
	return len(s.servers) > 0
}

// multicluster returns the multicluster option, or nil. CoreDNS uses the last one.
func (s stanza) multicluster() []token {
	var found []token
	for _, option := range s.options {
		if option[0].text == "multicluster" {
			found = option
		}
	}
	return found
}

// isMulticluster reports whether the plugin answers the zone from ServiceImports.
func (s stanza) isMulticluster(zone string) bool {
	option := s.multicluster()
	if option == nil {
		return false
	}
	_, ok := find(option[1:], zone)
	return ok
}

// primaryZone returns the first zone that is not a reverse zone, which CoreDNS uses as the cluster
// domain.
func (s stanza) primaryZone() string {
	zones := s.zones
	if len(zones) == 0 && len(s.servers) > 0 {
		zones = s.servers[0].keys
	}
	for _, t := range zones {
		if o := parseOrigin(t.text); !o.isReverse() && o.zone != Zone {
			return o.zone
		}
	}
	return ""
}

// stanzas returns every use of the kubernetes plugin with the server blocks that contain it.
func stanzas(blocks []*block) []stanza {
	var found []stanza
	for _, b := range blocks {
		for _, d := range b.directives {
			if d[0].text != "kubernetes" {
				continue
			}
			s := newStanza(d)
			s.servers = servers(blocks, b, map[*block]bool{})
			found = append(found, s)
		}
	}
	return found
}

// servers returns b if it is a server block, and the server blocks that import b, directly or not,
// if it is a snippet. seen has the snippets that were visited.
func servers(blocks []*block, b *block, seen map[*block]bool) []*block {
	name := b.snippet()
	if name == "" {
		return []*block{b}
	}
	seen[b] = true
	var found []*block
	for _, other := range blocks {
		if !seen[other] && other.imports(name) {
			found = append(found, servers(blocks, other, seen)...)
		}
	}
	return found
}

// indentation returns the white space at the start of the line that contains the offset.
func indentation(src string, at int) string {
	line := src[lineStart(src, at):at]
	return line[:len(line)-len(strings.TrimLeft(line, " \t"))]
}

func lineStart(src string, at int) int { return strings.LastIndexByte(src[:at], '\n') + 1 }

func lineEnd(src string, at int) int {
	if i := strings.IndexByte(src[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(src)
}
