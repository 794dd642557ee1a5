package mcs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PropertyNetworks is the ClusterProperty with the networks of the pods of a cluster, separated by
// commas. The controller derives it from the nodes if no user has created it.
const PropertyNetworks = "networks.multicluster.k8s.aws"

const (
	// maxNetworks is the number of networks of one family that a cluster announces. Six of IPv4 and
	// six of IPv6 have at most 6 * len("255.255.255.255/32,") + 6 *
	// len("ffff:ffff:ffff:ffff::/128,") = 270 bytes of the 1,000 that properties have
	// (maxPropertyBytes).
	maxNetworks = 6
	// minBits4 and minBits6 are the lengths of the shortest prefixes that are announced: 10.0.0.0/8
	// is the largest private network (RFC 1918), and a /32 what an Internet registry gives to a
	// provider (RFC 6177).
	minBits4, minBits6 = 8, 32
)

// ParseNetworks returns the networks of a text that a user or another cluster wrote.
func ParseNetworks(text string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	count := map[bool]int{}
	for item := range strings.SplitSeq(text, ",") {
		network, err := netip.ParsePrefix(strings.TrimSpace(item))
		switch {
		case err != nil || network != network.Masked() || network.Addr().Is4In6():
			return nil, fmt.Errorf("%q must be a network such as 10.2.0.0/16 or fd00:2::/48", abbreviate(item))
		case network.Bits() < minBits(network):
			return nil, fmt.Errorf("%s must have a prefix of at least %d bits", network, minBits(network))
		}
		is4 := network.Addr().Is4()
		if count[is4] == maxNetworks {
			return nil, fmt.Errorf("%q has more than %d networks of one family", abbreviate(text), maxNetworks)
		}
		count[is4]++
		out = append(out, network)
	}
	return out, nil
}

func minBits(network netip.Prefix) int {
	if network.Addr().Is4() {
		return minBits4
	}
	return minBits6
}

// FormatNetworks returns the value of PropertyNetworks for the networks of nodes, "" if there are
// none. Neighbours become one network. If there are more than maxNetworks of a family, the closest
// neighbours are joined with what is between them; a family with more that are further apart than
// the shortest prefix allows is left out.
func FormatNetworks(networks []netip.Prefix) string {
	var texts []string
	for _, is4 := range []bool{true, false} {
		var family []netip.Prefix
		for _, n := range networks {
			if n.IsValid() && n.Addr().Is4() == is4 && !n.Addr().Is4In6() {
				family = append(family, n.Masked())
			}
		}
		for _, n := range joinNetworks(family) {
			texts = append(texts, n.String())
		}
	}
	return strings.Join(texts, ",")
}

// joinNetworks returns at most maxNetworks networks of one family, sorted, that contain list, and
// nothing else if that is possible.
func joinNetworks(list []netip.Prefix) []netip.Prefix {
	list = joinExactly(list)
	for len(list) > maxNetworks {
		best, common := -1, netip.Prefix{}
		for i := range list[1:] {
			if c := commonNetwork(list[i], list[i+1]); best < 0 || c.Bits() > common.Bits() {
				best, common = i, c
			}
		}
		list[best] = common
		list = joinExactly(slices.Delete(list, best+1, best+2))
	}
	if slices.ContainsFunc(list, func(n netip.Prefix) bool { return n.Bits() < minBits(n) }) {
		return nil
	}
	return list
}

// joinExactly returns the fewest networks, sorted, that contain the addresses of list and no
// others.
func joinExactly(list []netip.Prefix) []netip.Prefix {
	list = slices.SortedFunc(slices.Values(list), func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var out []netip.Prefix
	for _, n := range list {
		if len(out) > 0 && out[len(out)-1].Overlaps(n) {
			continue // sorted, so the last one contains n
		}
		out = append(out, n)
		for len(out) > 1 {
			a, b := out[len(out)-2], out[len(out)-1]
			if common := commonNetwork(a, b); a.Bits() != b.Bits() || common.Bits() != a.Bits()-1 {
				break
			}
			out = append(out[:len(out)-2], commonNetwork(a, b))
		}
	}
	return out
}

// commonNetwork returns the smallest network that contains two of one family.
func commonNetwork(a, b netip.Prefix) netip.Prefix {
	bits := min(a.Bits(), b.Bits())
	for bits > 0 {
		if n := netip.PrefixFrom(a.Addr(), bits).Masked(); n.Contains(b.Addr()) {
			return n
		}
		bits--
	}
	return netip.PrefixFrom(a.Addr(), 0).Masked()
}

// Networks returns the networks that a cluster with these properties announces, nil if it announces
// none or the text is not valid.
func (p Properties) Networks() []netip.Prefix {
	text := p[PropertyNetworks]
	if text == "" {
		return nil
	}
	networks, err := ParseNetworks(text)
	if err != nil {
		return nil
	}
	return networks
}

// NetworkOverlap is a network that two clusters announce.
type NetworkOverlap struct {
	// Clusters are sorted.
	Clusters [2]string
	Network  netip.Prefix
}

// OverlappingNetworks returns the networks that several clusters announce, sorted: for each pair of
// clusters the first one. networks are those of each cluster.
func OverlappingNetworks(networks map[string][]netip.Prefix) []NetworkOverlap {
	type announced struct {
		cluster string
		network netip.Prefix
	}
	var all []announced
	for cluster, list := range networks {
		for _, n := range list {
			all = append(all, announced{cluster, n})
		}
	}
	slices.SortFunc(all, func(a, b announced) int {
		return cmp.Or(a.network.Addr().Compare(b.network.Addr()), cmp.Compare(a.network.Bits(), b.network.Bits()), strings.Compare(a.cluster, b.cluster))
	})
	found := map[[2]string]netip.Prefix{}
	var open []announced // those that contain the current one, the largest first
	for _, a := range all {
		for len(open) > 0 && !open[len(open)-1].network.Overlaps(a.network) {
			open = open[:len(open)-1]
		}
		for _, o := range open {
			pair := [2]string{min(o.cluster, a.cluster), max(o.cluster, a.cluster)}
			if _, known := found[pair]; !known && o.cluster != a.cluster {
				found[pair] = a.network
			}
		}
		open = append(open, a)
	}
	var out []NetworkOverlap
	for pair, network := range found {
		out = append(out, NetworkOverlap{Clusters: pair, Network: network})
	}
	slices.SortFunc(out, func(a, b NetworkOverlap) int { return slices.Compare(a.Clusters[:], b.Clusters[:]) })
	return out
}
