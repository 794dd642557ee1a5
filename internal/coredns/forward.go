package coredns

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// forwardNote is the comment above the server block that [Forward] adds, and by which
// [RemoveForward] recognizes it.
const forwardNote = "# kubectl mcs dns enable --beside"

// Forward returns the Corefile with a server block that forwards clusterset.local to the addresses
// of a CoreDNS beside the cluster's own. It replaces a block of the same purpose. Forward fails if
// another part of the Corefile serves the zone, and for a layout that [RemoveForward] could not
// restore byte for byte.
func Forward(src, clusterDomain string, addresses []string) (string, error) {
	without, err := RemoveForward(src, addresses)
	if err != nil {
		return "", err
	}
	block, err := ForwardBlock(without, clusterDomain, addresses)
	if err != nil {
		return "", err
	}
	end := lineBreak(src)
	block = strings.ReplaceAll(forwardNote+"\n"+block, "\n", end)
	if without == "" || strings.HasSuffix(without, "\n") {
		block += end
	} else {
		block = end + block
	}
	forwarded := without + block
	after, err := Inspect(forwarded, clusterDomain)
	if err != nil || !after.ForwardNoted || !slices.Equal(after.Forward, addresses) {
		return "", fmt.Errorf("editing the Corefile: %w", errNoBraces)
	}
	if restored, err := RemoveForward(forwarded, addresses); err != nil || restored != without {
		return "", fmt.Errorf("editing the Corefile: %w", errNoBraces)
	}
	return forwarded, nil
}

// errNoBraces is the error for a layout that CoreDNS accepts and to which no server block can be
// added.
var errNoBraces = errors.New("no server block can be added after its end: write braces around the existing server block, then run this command again")

// RemoveForward returns the Corefile without the server block of [Forward], and without a block
// that was written manually and forwards clusterset.local to the same addresses. It returns a
// Corefile without such a block unchanged.
func RemoveForward(src string, addresses []string) (string, error) {
	blocks, err := parse(lex(src))
	if err != nil {
		return "", err
	}
	var edits edits
	for _, b := range blocks {
		upstreams := b.upstreams()
		if b.end == 0 || upstreams == nil || !b.hasNote(src) && !slices.Equal(upstreams, addresses) {
			continue
		}
		edits.removeBlock(src, b)
	}
	return edits.apply(src), nil
}

// ForwardBlock returns a server block that forwards clusterset.local to the addresses, without a
// final line break. It listens where the server blocks of the Corefile listen that serve the
// cluster domain.
func ForwardBlock(src, clusterDomain string, addresses []string) (string, error) {
	c, err := read(src, clusterDomain)
	if err != nil {
		return "", err
	}
	found := c.inspect()
	switch {
	case found.Obstacle != "":
		return "", fmt.Errorf("editing the Corefile: %s", found.Obstacle)
	case found.State != Disabled:
		return "", fmt.Errorf("editing the Corefile: its kubernetes plugin serves %s: run \"kubectl mcs dns disable\" first", Zone)
	}
	keys := c.zoneKeys()
	if len(keys) == 0 {
		return "", fmt.Errorf("editing the Corefile: no server block answers plain DNS queries for %s", c.domain)
	}
	return fmt.Sprintf("%s {\n    errors\n    forward . %s\n}", strings.Join(keys, " "), strings.Join(addresses, " ")), nil
}

// Upstreams returns the addresses to which a server block of the text forwards clusterset.local, or
// nil.
func Upstreams(src string) ([]string, error) {
	blocks, err := parse(lex(src))
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		if upstreams := b.upstreams(); upstreams != nil {
			return upstreams, nil
		}
	}
	return nil, nil
}

// zoneKeys returns the keys of a server block for clusterset.local beside those that serve the
// cluster domain by plain DNS.
func (c corefile) zoneKeys() []string {
	var keys []string
	for _, server := range c.targetServers() {
		for _, t := range server.keys {
			o := parseOrigin(t.text)
			if !o.covers(Zone) && o.zone != c.domain || o.scheme != "" && o.scheme != "dns://" {
				continue
			}
			port := o.port
			if port == "" {
				port = ":53"
			}
			if key := Zone + port; !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

// upstreams returns the addresses to which the block forwards clusterset.local, or nil if it is not
// a server block for this zone alone.
func (b *block) upstreams() []string {
	for _, key := range b.keys {
		if parseOrigin(key.text).zone != Zone {
			return nil
		}
	}
	var addresses []string
	for _, d := range b.directives {
		if d[0].text != "forward" || len(d) < 2 {
			continue
		}
		for _, t := range d[2:] {
			if t.text == "{" {
				break
			}
			addresses = append(addresses, t.text)
		}
	}
	return addresses
}

// hasNote reports whether the line above the block is the comment of [Forward].
func (b *block) hasNote(src string) bool {
	return len(b.keys) > 0 && strings.TrimSpace(src[b.noteStart(src):lineStart(src, b.keys[0].start)]) == forwardNote
}

// noteStart returns the start of the line above the block.
func (b *block) noteStart(src string) int {
	start := lineStart(src, b.keys[0].start)
	return lineStart(src, max(0, start-1))
}

// removeBlock removes the lines of a block with its comment. At the end of a source without a final
// line break, it removes the line break before the block instead.
func (e *edits) removeBlock(src string, b *block) {
	start, end := lineStart(src, b.keys[0].start), lineEnd(src, b.end)
	if b.hasNote(src) {
		start = b.noteStart(src)
	}
	if rest := strings.TrimSpace(src[b.end:end]); rest != "" {
		end = b.end // the line has more
	}
	if end == len(src) && !strings.HasSuffix(src, "\n") {
		start -= len(src[:start]) - len(strings.TrimSuffix(strings.TrimSuffix(src[:start], "\n"), "\r"))
	}
	e.remove(start, end)
}
