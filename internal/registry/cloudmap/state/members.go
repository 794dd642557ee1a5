package state

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// list returns the members, sorted.
func (c *catalogs) list() []registry.Member {
	var members []registry.Member
	if c.own.hasRecord {
		members = append(members, c.ownMember())
	}
	for id, cluster := range c.clusters {
		problems := c.problems(cluster)
		if cluster.record == nil && len(problems) == 0 {
			continue // it has left, or has no accepted record
		}
		r := cluster.record
		if r == nil {
			r = &format.Member{}
		}
		members = append(members, registry.Member{
			ClusterID:  id,
			UID:        r.UID,
			Version:    r.Version,
			Key:        c.keyOf(cluster),
			RefusedKey: c.refusedKey(cluster),
			Seal:       cluster.seal.shown(id),
			LastSeen:   cluster.lastSeen,
			Joined:     r.Joined,
			Heartbeat:  r.HeartbeatTime(),
			Stale:      c.isStale(id),
			NoRecord:   cluster.record == nil,
			Properties: cluster.properties.Decode(r.Properties),
			Imports:    r.Imports,
			OverBudget: cluster.overBudget(),
			Problems:   slices.Concat(c.contactProblems(r), problems),
			Address:    c.address(r),
		})
	}
	slices.SortFunc(members, func(a, b registry.Member) int { return strings.Compare(a.ClusterID, b.ClusterID) })
	return members
}

// ownMember returns this cluster as a member.
func (c *catalogs) ownMember() registry.Member {
	id, r := c.identity.ClusterID, &c.own.record
	return registry.Member{
		ClusterID: id, UID: r.UID, Version: r.Version, Key: r.Key.String(), RefusedKey: c.own.seal.refusedKey(), Seal: c.own.seal.shown(id), LastSeen: c.own.lastSeen,
		Joined: r.Joined, Heartbeat: r.HeartbeatTime(), Properties: c.own.properties.Decode(r.Properties), Imports: r.Imports,
		Problems: slices.Concat(c.contactProblems(r), c.own.problems()), Address: c.address(r),
	}
}

// imports returns the report of the cluster's imports, "" without one.
func (c *catalog) imports() mcs.ImportReport {
	if c.record == nil {
		return ""
	}
	return c.record.Imports
}

// address returns the address of a cluster's controller, zero if its record has none or this
// cluster sends nothing there.
func (c *catalogs) address(r *format.Member) netip.Addr {
	if address := r.Contact.Address.Addr(); address.IsValid() && c.allowsContact(address) {
		return address
	}
	return netip.Addr{}
}

// keyOf returns the public key of a cluster, "" if none is known.
func (c *catalogs) keyOf(cluster *catalog) string {
	if pin, ok := c.keyring.Pin(cluster.id); ok && pin.Key != (trust.Key{}) {
		return pin.Key.String()
	}
	if cluster.record == nil {
		return ""
	}
	return cluster.record.Key.String()
}

// refusedKey returns the key that was refused: that in the catalog, where fewer can write than into
// service members, or that of the record there; "" if there is none.
func (c *catalogs) refusedKey(cluster *catalog) string {
	if key := cluster.seal.refusedKey(); key != "" {
		return key
	}
	if p := c.belief.ProblemOf(cluster.id); p.Kind == belief.KeyRefused {
		return p.Key.String()
	}
	return ""
}

// contactProblems returns the reason why a cluster gets no peer notifications although its record
// has an address, one line or none.
func (c *catalogs) contactProblems(r *format.Member) []string {
	address := r.Contact.Address
	if !address.IsValid() || c.allowsContact(address.Addr()) {
		return nil
	}
	return []string{fmt.Sprintf("it gets no peer notifications from here: its address %s is not in --peer-notification-networks of this cluster", address)}
}

// problems returns the problems of a cluster's records, one line each.
func (c *catalogs) problems(cluster *catalog) []string {
	var lines []string
	if problem := c.recordProblem(cluster); problem != "" {
		lines = append(lines, problem)
	}
	if cluster.record == nil {
		return lines
	}
	lines = append(lines, cluster.record.Problems()...)
	lines = append(lines, cluster.excessProblems()...)
	for i := range cluster.pages {
		p, trouble := &cluster.pages[i], ""
		switch _, state := c.belief.UnitOf(cluster.id, unitNames[i]); state {
		case belief.Unread, belief.Behind:
			trouble = p.trouble
		case belief.Absent, belief.Shown, belief.Ahead, belief.Skipped:
		}
		lines = append(lines, pageProblems(i, trouble, p.failures, p.problems)...)
	}
	return lines
}

// recordProblem returns the reason why a record of a cluster does not count, "" if it does.
func (c *catalogs) recordProblem(cluster *catalog) string {
	if cluster.copyProblem != "" {
		return registry.RefusedProblem("the record in its catalog", errors.New(cluster.copyProblem))
	}
	switch p := c.belief.ProblemOf(cluster.id); p.Kind {
	case belief.NoProblem:
	case belief.Missing, belief.Earlier:
		if cluster.record != nil {
			return "the member record is missing or older than the one last read, but the cluster did not leave"
		}
	case belief.Unreadable, belief.KeyRefused:
		return registry.RefusedProblem("the member record", errors.New(p.Reason))
	case belief.KeyUnproven:
		return registry.RefusedProblem("the member record", fmt.Errorf("it is signed with key %s, which the cluster's catalog does not show", p.Key))
	}
	return ""
}

// pageProblems returns the problems of a page, one line each: the reason why it cannot be read,
// after a number of failures, and those of the page that was read.
func pageProblems(page int, trouble string, failures int, problems []string) (lines []string) {
	// A single failure is the eventual consistency of Cloud Map.
	if trouble != "" && failures > 1 {
		lines = append(lines, fmt.Sprintf("page %s cannot be read: %s", format.PageName(page), trouble))
	}
	for _, problem := range problems {
		lines = append(lines, fmt.Sprintf("page %s: %s", format.PageName(page), problem))
	}
	return lines
}
