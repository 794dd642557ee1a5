package plan

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// AnnotationExportTimes is the annotation of a ServiceImport with the creation times by which its
// exports take precedence, as "cls1=1790000000,cls2=1790000060" in seconds since 1970, 0 for an
// export without a time, and "cls3=?1790000060" for a cluster whose export is unknown since the
// import began. An administrator who removes it accepts the creation times that the exports claim
// now.
const AnnotationExportTimes = "multicluster.k8s.aws/export-times"

// EstablishedAfter is the age at which an import is established. Exports that clusters create
// within this time race to the other clusters, and the older one takes precedence even if it
// arrives later.
const EstablishedAfter = time.Minute

// AwaitedFor is the time for which a cluster whose export is unknown when an import begins can take
// precedence in it. A controller that starts reads the records of the clusters one after the other,
// and of some only with their next heartbeat.
const AwaitedFor = 10 * time.Minute

// ReasonPrecedenceConflict is a reason of the ServiceExport condition Conflict beside those of
// mcs-api: an export claims to be older than the others, but appeared when the import was
// established, and it would change the import.
const ReasonPrecedenceConflict mcsv1beta1.ServiceExportConditionReason = "PrecedenceConflict"

// PrecedenceInput is the input of DecidePrecedence.
type PrecedenceInput struct {
	// Import is the ServiceImport, nil if there is none that this controller created.
	Import *mcsv1beta1.ServiceImport
	// Exports are the known exports of all clusters; Unknown are the clusters whose export is
	// unknown.
	Exports []mcs.Export
	Unknown []string
	// Order has the order in which the registry got the exports, by cluster, if the registry knows
	// it. A cluster that is not in it comes last.
	Order map[string]int64
	// Properties are the ClusterProperties of the exporting clusters, as far as they are known.
	Properties map[string]mcs.Properties
	Now        time.Time
}

// Precedence decides which of the exports of a service take precedence.
type Precedence struct {
	// Exports are the exports, with Created as it counts.
	Exports []mcs.Export
	// Created has the times that count by cluster, also of unknown clusters that the import has.
	Created map[string]time.Time
	// Times is the value of AnnotationExportTimes.
	Times string
	// Late are the clusters, sorted, whose exports claim to be older than it counts, if that makes
	// a difference; Fields are the properties of the import that differ.
	Late, Fields []string
	// Properties are those of the input.
	Properties map[string]mcs.Properties
}

// DecidePrecedence bounds the creation times that clusters claim for their exports, because an
// export that claims to be the oldest decides about the service in all clusters.
//
// The exports of an established import keep the times that they have in it. An export that appears
// later is younger than those, whatever it claims, unless its cluster was unknown when the import
// began. So the import changes only when the export that decides changes or ends, or when an
// administrator removes AnnotationExportTimes. Before an import is established, and in clusters
// that do not have it yet, the claimed times count, within the order in which the registry got the
// exports.
func DecidePrecedence(in PrecedenceInput) Precedence {
	stored, awaited := exportTimes(in.Import)
	if len(stored)+len(awaited) == 0 && in.Import != nil {
		// the administrator has accepted the claimed times, or the import is older than the
		// annotation
		in.Order = nil
	}
	counting, latest := in.establishedTimes(stored)
	claimed := in.claimedTimes(counting)
	newcomers := slices.DeleteFunc(slices.Clone(in.Exports), func(e mcs.Export) bool { _, ok := counting[e.Cluster]; return ok })
	slices.SortFunc(newcomers, func(a, b mcs.Export) int {
		return cmp.Or(claimed[a.Cluster].Compare(claimed[b.Cluster]), strings.Compare(a.Cluster, b.Cluster))
	})
	for _, e := range newcomers {
		t := claimed[e.Cluster]
		if !in.isAwaited(awaited[e.Cluster]) && in.isLate(t, latest) {
			t = latest.Add(time.Second)
			latest = t
		}
		counting[e.Cluster] = t
	}
	p := Precedence{Properties: in.Properties, Exports: slices.Clone(in.Exports), Created: counting, Times: formatExportTimes(counting, in.awaitedClusters(len(stored) == 0, awaited, counting))}
	for i, e := range p.Exports {
		p.Exports[i].Created = counting[e.Cluster]
	}
	p.findLate(in.Exports)
	return p
}

// isAwaited reports whether a cluster that is unknown since a time, zero if it is not, can still
// take precedence.
func (in PrecedenceInput) isAwaited(since time.Time) bool { return in.Now.Sub(since) < AwaitedFor }

// awaitedClusters returns the clusters that are unknown since the import began, and the times since
// when. They stay until all of them are known, so that an import of many such clusters is not
// written for each of them.
func (in PrecedenceInput) awaitedClusters(begins bool, awaited, known map[string]time.Time) map[string]time.Time {
	out, pending := map[string]time.Time{}, false
	for cluster, since := range awaited {
		if _, ok := known[cluster]; !ok && in.isAwaited(since) {
			out[cluster], pending = since, pending || slices.Contains(in.Unknown, cluster)
		}
	}
	if begins && len(awaited) == 0 {
		for _, cluster := range in.Unknown {
			out[cluster], pending = in.Now, true
		}
	}
	if !pending {
		return nil
	}
	return out
}

// establishedTimes returns the times of the exports that the import has, by cluster, and the latest
// of them. An export without a time has none to keep. stored are those of AnnotationExportTimes.
func (in PrecedenceInput) establishedTimes(stored map[string]time.Time) (times map[string]time.Time, latest time.Time) {
	times = map[string]time.Time{}
	for _, cluster := range in.Unknown {
		if t, ok := stored[cluster]; ok {
			times[cluster], latest = t, later(latest, t)
		}
	}
	for _, e := range in.Exports {
		t, known := stored[e.Cluster]
		switch {
		case !known, t.IsZero():
			continue
		case e.Created.IsZero():
			times[e.Cluster] = time.Time{}
		default:
			times[e.Cluster] = later(e.Created, t)
		}
		latest = later(latest, times[e.Cluster])
	}
	return times, latest
}

// isLate reports whether an export that is not among those of the import, and claims to be of t, is
// younger than them. latest is the time of the youngest of them.
func (in PrecedenceInput) isLate(t, latest time.Time) bool {
	if t.IsZero() || latest.IsZero() || t.After(latest) {
		return false
	}
	created := in.Import.CreationTimestamp.Time
	return in.Now.Sub(created) >= EstablishedAfter || t.Before(created.Add(-EstablishedAfter))
}

// claimedTimes returns the times that the exports claim, by cluster: an export is not older than
// those that the registry got before it. established are the times that are known already.
func (in PrecedenceInput) claimedTimes(established map[string]time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	latest := time.Time{}
	for _, e := range slices.SortedFunc(slices.Values(in.Exports), func(a, b mcs.Export) int { return compareOrder(in.Order, a.Cluster, b.Cluster) }) {
		t, known := established[e.Cluster]
		if !known {
			t = e.Created
			if len(in.Order) > 0 && !t.IsZero() && !latest.IsZero() && !t.After(latest) {
				t = latest.Add(time.Second)
			}
		}
		out[e.Cluster], latest = t, later(latest, t)
	}
	return out
}

// compareOrder sorts clusters by order; a cluster that is not in it comes last.
func compareOrder(order map[string]int64, a, b string) int {
	position := func(cluster string) int64 {
		if n, ok := order[cluster]; ok {
			return n
		}
		return math.MaxInt64
	}
	return cmp.Or(cmp.Compare(position(a), position(b)), strings.Compare(a, b))
}

// findLate sets Late and Fields. claimed are the exports with the times that they claim.
func (p *Precedence) findLate(claimed []mcs.Export) {
	var late []string
	for i, e := range claimed {
		if p.Exports[i].Created.After(e.Created) && !e.Created.IsZero() {
			late = append(late, e.Cluster)
		}
	}
	if len(late) == 0 {
		return
	}
	if p.Fields = differences(mcs.Merge(claimed), mcs.Merge(p.Exports)); len(p.Fields) > 0 {
		slices.Sort(late)
		p.Late = late
	}
}

// OwnAddresses returns the exports of a service of type t with the endpoints that each cluster
// owns, and those that are left out.
func (p Precedence) OwnAddresses(t mcsv1beta1.ServiceImportType) ([]mcs.Export, []mcs.SharedAddresses) {
	return mcs.OwnAddresses(t, p.Exports, p.Properties)
}

// Merge returns the merge of the exports, with the conflicts about their addresses and their
// precedence.
func (p Precedence) Merge() mcs.Merged {
	m := mcs.Merge(p.Exports)
	_, shared := p.OwnAddresses(m.Type)
	if c := mcs.AddressConflict(shared); c != nil {
		m.Conflicts = append(m.Conflicts, *c)
	}
	if message := p.Message(); message != "" {
		m.Conflicts = append(m.Conflicts, mcs.Conflict{Reason: ReasonPrecedenceConflict, Message: message})
	}
	return m
}

// Message explains what the late exports would change, "" if there are none.
func (p Precedence) Message() string {
	if len(p.Late) == 0 {
		return ""
	}
	late := p.Late
	more := ""
	if n := len(late) - maxLate; n > 0 {
		late, more = late[:maxLate], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("precedence: the export of cluster %s%s claims to be older than the others but appeared after them, so it does not change %s",
		strings.Join(late, ", "), more, strings.Join(p.Fields, ", "))
}

// maxLate is the number of clusters in Message.
const maxLate = 5

// differences returns the names of the properties in which two merges of the same exports differ.
func differences(a, b mcs.Merged) []string {
	var out []string
	differ := func(name string, differs bool) {
		if differs {
			out = append(out, name)
		}
	}
	differ("type", a.Type != b.Type)
	differ("ports", !slices.Equal(sortedPorts(a.Ports), sortedPorts(b.Ports)))
	differ("ipFamilies", !slices.Equal(slices.Sorted(slices.Values(a.IPFamilies)), slices.Sorted(slices.Values(b.IPFamilies))))
	differ("sessionAffinity", a.SessionAffinity != b.SessionAffinity || timeoutOf(a) != timeoutOf(b))
	differ("internalTrafficPolicy", a.InternalTrafficPolicy != b.InternalTrafficPolicy)
	differ("trafficDistribution", a.TrafficDistribution != b.TrafficDistribution)
	differ("clusterSelectors", a.ClusterSelectors != b.ClusterSelectors || a.MinimumReady != b.MinimumReady)
	differ("exportedLabels", !maps.Equal(a.Labels, b.Labels))
	differ("exportedAnnotations", !maps.Equal(a.Annotations, b.Annotations))
	return out
}

func sortedPorts(ports []mcs.Port) []string {
	var out []string
	for _, p := range ports {
		out = append(out, p.String())
	}
	slices.Sort(out)
	return out
}

func timeoutOf(m mcs.Merged) int32 {
	if c := m.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		return *c.ClientIP.TimeoutSeconds
	}
	return 0
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// SetExportTimes sets AnnotationExportTimes of imp.
func SetExportTimes(imp *mcsv1beta1.ServiceImport, times string) {
	imp.Annotations = withKeys(imp.Annotations, map[string]string{AnnotationExportTimes: times})
}

// exportTimes returns the times of AnnotationExportTimes, and the clusters that it has as unknown
// with the times since when. There are none if imp is nil or has no valid annotation.
func exportTimes(imp *mcsv1beta1.ServiceImport) (times, awaited map[string]time.Time) {
	if imp == nil || imp.Annotations[AnnotationExportTimes] == "" {
		return nil, nil
	}
	times, awaited = map[string]time.Time{}, map[string]time.Time{}
	for entry := range strings.SplitSeq(imp.Annotations[AnnotationExportTimes], ",") {
		cluster, text, _ := strings.Cut(entry, "=")
		since, isAwaited := strings.CutPrefix(text, "?")
		seconds, err := strconv.ParseInt(since, 10, 64)
		switch {
		case err != nil:
			return nil, nil
		case isAwaited:
			awaited[cluster] = time.Unix(seconds, 0).UTC()
		case seconds > 0:
			times[cluster] = time.Unix(seconds, 0).UTC()
		default:
			times[cluster] = time.Time{}
		}
	}
	return times, awaited
}

func formatExportTimes(times, awaited map[string]time.Time) string {
	var out []string
	for cluster, t := range times {
		seconds := int64(0)
		if !t.IsZero() {
			seconds = t.Unix()
		}
		out = append(out, cluster+"="+strconv.FormatInt(seconds, 10))
	}
	for cluster, since := range awaited {
		out = append(out, cluster+"=?"+strconv.FormatInt(since.Unix(), 10))
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}
