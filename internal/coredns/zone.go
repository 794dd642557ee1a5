package coredns

import (
	"net"
	"strings"
)

// An origin is a zone in a Corefile: a key of a server block or a zone argument of a plugin.
type origin struct {
	scheme string // "dns://", with its slashes, or ""
	zone   string // lower case, without the final dot; "" is the root
	port   string // ":53", with its colon, or ""
	comma  string // "," when another key follows it
}

// parseOrigin reads `[scheme://]zone[:port][,]`.
func parseOrigin(text string) origin {
	var o origin
	if rest, ok := strings.CutSuffix(text, ","); ok {
		text, o.comma = rest, ","
	}
	if i := strings.Index(text, "://"); i >= 0 {
		o.scheme, text = text[:i+3], text[i+3:]
	}
	if host, port, err := net.SplitHostPort(text); err == nil {
		text, o.port = host, ":"+port
	}
	o.zone = strings.ToLower(strings.TrimSuffix(text, "."))
	return o
}

// covers reports whether the origin's zone contains name.
func (o origin) covers(name string) bool {
	return o.zone == "" || o.zone == name || strings.HasSuffix(name, "."+o.zone)
}

// isReverse reports whether the zone is a reverse zone.
func (o origin) isReverse() bool {
	return strings.Contains(o.zone, "/") || strings.HasSuffix(o.zone, "in-addr.arpa") || strings.HasSuffix(o.zone, "ip6.arpa")
}

// sharesPort reports whether both origins have the same port; the default is that of the scheme.
func (o origin) sharesPort(other origin) bool {
	return o.portOrDefault() == other.portOrDefault()
}

func (o origin) portOrDefault() string {
	if o.port != "" {
		return o.port
	}
	if o.scheme == "" || o.scheme == "dns://" {
		return ":53"
	}
	return o.scheme
}

// find returns the first token that names the zone.
func find(tokens []token, zone string) (token, bool) {
	for _, t := range tokens {
		if parseOrigin(t.text).zone == zone {
			return t, true
		}
	}
	return token{}, false
}
