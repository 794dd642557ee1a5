package coredns

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Enable returns the Corefile with clusterset.local added wherever the kubernetes plugin serves the
// cluster domain (if empty, see [Inspect]). It returns an enabled Corefile unchanged. Enable fails
// if another part of the Corefile serves the zone, and for a layout that [Disable] could not
// restore byte for byte.
func Enable(src, clusterDomain string) (string, error) {
	c, err := read(src, clusterDomain)
	if err != nil {
		return "", err
	}
	before := c.inspect()
	if before.Obstacle != "" {
		return "", fmt.Errorf("editing the Corefile: %s", before.Obstacle)
	}
	if before.State == Enabled {
		return src, nil
	}
	var edits edits
	for _, s := range c.targets {
		if err := edits.enable(src, s, c.domain); err != nil {
			return "", err
		}
	}
	for _, server := range c.targetServers() {
		if err := edits.addKey(server, c); err != nil {
			return "", err
		}
	}
	enabled := edits.apply(src)
	if err := checkEnabled(src, enabled, clusterDomain, before.State); err != nil {
		return "", err
	}
	return enabled, nil
}

// Disable returns the Corefile without clusterset.local in the kubernetes plugins that serve the
// cluster domain, also if it was written manually. It returns a Corefile without the zone
// unchanged.
func Disable(src, clusterDomain string) (string, error) {
	c, err := read(src, clusterDomain)
	if err != nil {
		return "", err
	}
	var edits edits
	for _, s := range c.targets {
		edits.disable(src, s)
	}
	for _, server := range c.targetServers() {
		edits.removeKey(server, c.domain)
	}
	return edits.apply(src), nil
}

// errLayout is the error for a layout that CoreDNS accepts and Enable cannot edit reversibly.
var errLayout = errors.New("the layout of the kubernetes plugin's block cannot be edited reversibly: " +
	"write one option per line and the closing brace on its own line, then run this command again")

// checkEnabled verifies the guarantees of Enable for any layout: the result is enabled, and Disable
// restores the original.
func checkEnabled(src, enabled, clusterDomain string, before State) error {
	after, err := Inspect(enabled, clusterDomain)
	if err != nil || after.State != Enabled {
		return fmt.Errorf("editing the Corefile: %w", errLayout)
	}
	if before != Disabled {
		return nil // a part was written manually, and Disable removes it as well
	}
	restored, err := Disable(enabled, clusterDomain)
	if err != nil || restored != src {
		return fmt.Errorf("editing the Corefile: %w", errLayout)
	}
	return nil
}

// An edit replaces the bytes from start to end.
type edit struct {
	start, end int
	text       string
}

type edits []edit

func (e *edits) insert(at int, text string) { *e = append(*e, edit{start: at, end: at, text: text}) }
func (e *edits) remove(start, end int)      { *e = append(*e, edit{start: start, end: end}) }

// apply returns the source with the edits. Edits at the same offset keep their order.
func (e *edits) apply(src string) string {
	sorted := slices.Clone(*e)
	slices.SortStableFunc(sorted, func(a, b edit) int { return a.start - b.start })
	var out strings.Builder
	at := 0
	for _, ed := range sorted {
		out.WriteString(src[at:max(at, ed.start)])
		out.WriteString(ed.text)
		at = max(at, ed.end)
	}
	out.WriteString(src[at:])
	return out.String()
}

func (e *edits) enable(src string, s stanza, domain string) error {
	if t, ok := find(s.zones, domain); ok && !s.serves(Zone) {
		e.insert(t.end, " "+Zone)
	}
	option := s.multicluster()
	switch {
	case s.isMulticluster(Zone):
	case option != nil:
		e.insert(option[len(option)-1].end, " "+Zone)
	case !s.hasBlock():
		e.insert(s.head().end, ownBlock(src, s))
	default:
		at := lineStart(src, s.closing.start)
		if strings.TrimSpace(src[at:s.closing.start]) != "" {
			return fmt.Errorf("editing the Corefile: line %d: %w", s.closing.line, errLayout)
		}
		e.insert(at, optionIndent(src, s)+"multicluster "+Zone+lineBreak(src))
	}
	return nil
}

func (e *edits) disable(src string, s stanza) {
	if len(s.zones) > 1 {
		e.removeZones(append([]token{s.name}, s.zones...))
	}
	if s.hasBlock() && src[s.head().end:s.closing.end] == ownBlock(src, s) {
		e.remove(s.head().end, s.closing.end)
		return
	}
	before := s.opening
	for _, option := range s.options {
		if option[0].text == "multicluster" {
			e.removeOption(src, before, option)
		}
		before = option[len(option)-1]
	}
}

// removeOption removes the option line, or only clusterset.local if the line has other zones.
func (e *edits) removeOption(src string, before token, option []token) {
	zones := option[1:]
	if _, ok := find(zones, Zone); !ok {
		return
	}
	others := slices.ContainsFunc(zones, func(t token) bool { return parseOrigin(t.text).zone != Zone })
	last := option[len(option)-1]
	switch {
	case others:
		e.removeZones(option)
	case startsLine(before, option[0]):
		e.remove(lineStart(src, option[0].start), lineEnd(src, last.end))
	default:
		e.remove(before.end, last.end)
	}
}

// removeZones removes each clusterset.local from words with the white space before it. The first
// word is a name.
func (e *edits) removeZones(words []token) {
	for i, t := range words {
		if i > 0 && parseOrigin(t.text).zone == Zone {
			e.remove(words[i-1].end, t.end)
		}
	}
}

// addKey adds the key clusterset.local to a server block that does not receive its queries, with
// the port of its key for the cluster domain.
func (e *edits) addKey(server *block, c corefile) error {
	_, has := find(server.keys, Zone)
	inherited := slices.ContainsFunc(c.targets, func(s stanza) bool {
		return len(s.zones) == 0 && slices.Contains(s.servers, server)
	})
	if has || covers(server) && !inherited {
		return nil
	}
	key, ok := find(server.keys, c.domain)
	if !ok {
		return fmt.Errorf("editing the Corefile: line %d: the server block of %q does not receive queries for %s: add the key %s to it and run this command again",
			server.keys[0].line, keyTexts(server.keys), Zone, Zone)
	}
	o := parseOrigin(key.text)
	e.insert(key.end, " "+o.scheme+Zone+o.port+o.comma)
	return nil
}

// removeKey is the inverse of addKey. It keeps the key for the cluster domain, so a block never
// loses its last key.
func (e *edits) removeKey(server *block, domain string) {
	if _, ok := find(server.keys, domain); !ok {
		return
	}
	for i, t := range server.keys {
		switch {
		case parseOrigin(t.text).zone != Zone:
		case i == 0:
			e.remove(t.start, server.keys[1].start)
		case strings.HasSuffix(t.text, ",") || i+1 < len(server.keys):
			e.remove(server.keys[i-1].end, t.end)
		default: // the last key: after a comma CoreDNS would expect another one
			previous := server.keys[i-1]
			e.remove(previous.end-len(parseOrigin(previous.text).comma), t.end)
		}
	}
}

// ownBlock returns the block that Enable adds to a plugin without one. Disable recognizes it by its
// exact text.
func ownBlock(src string, s stanza) string {
	indent := indentation(src, s.name.start)
	end := lineBreak(src)
	return " {" + end + indent + indentUnit(indent) + "multicluster " + Zone + end + indent + "}"
}

// optionIndent returns the indentation of the last option. It is deeper in an empty block, so that
// Disable does not take the block for its own.
func optionIndent(src string, s stanza) string {
	if len(s.options) > 0 {
		return indentation(src, s.options[len(s.options)-1][0].start)
	}
	indent := indentation(src, s.name.start)
	return indent + indentUnit(indent) + indentUnit(indent)
}

func indentUnit(indent string) string {
	if strings.Contains(indent, "\t") {
		return "\t"
	}
	return "    "
}

func lineBreak(src string) string {
	if strings.Contains(src, "\r\n") {
		return "\r\n"
	}
	return "\n"
}
