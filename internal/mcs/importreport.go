package mcs

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ImportReport is what a cluster reports about its imports from other clusters, in the text of its
// member record: a version, and a sorted list of entries of four characters. An entry is the hash
// of a service of one exporting cluster, or of a namespace of it, that is imported, or of what is
// over the budgets of the importing cluster. "" is no report.
type ImportReport string

const (
	// importReportVersion begins a report.
	importReportVersion = "1"
	// ManyImports is the report of a cluster whose imports do not fit a report.
	ManyImports ImportReport = "-"
	// entryBytes is the number of bytes of a hash: base64 encodes them in entryLength characters,
	// without padding. That one entry stands for a service that is not imported has a probability
	// of 1 to 16,777,216, so that of 250 entries is 1 to 67,000.
	entryBytes, entryLength = 3, 4
	// maxEntries bounds a report to 1,001 characters: an attribute of an AWS Cloud Map instance has
	// at most 1,024.
	maxEntries           = 250
	maxImportReportBytes = len(importReportVersion) + maxEntries*entryLength
	// maxOverBudget bounds the entries of what is over budget, a fifth of all.
	maxOverBudget = 50
)

// OverBudget are the exports of a cluster that another cluster does not import, or has an earlier
// version of, because they are over its budgets.
type OverBudget struct {
	Keys []Key
	// HasOthers is set if there are others, whose keys are not known.
	HasOthers bool
}

// IsEmpty reports whether no export is over budget.
func (o OverBudget) IsEmpty() bool { return len(o.Keys) == 0 && !o.HasOthers }

// With returns the exports of both.
func (o OverBudget) With(other OverBudget) OverBudget {
	return OverBudget{Keys: slices.Concat(o.Keys, other.Keys), HasOthers: o.HasOthers || other.HasOthers}
}

// NewImportReport returns the report of a cluster that imports these services, by exporting
// cluster, and has others over its budgets. If they do not fit, entries of namespaces replace those
// of their services, the namespaces with most services first.
func NewImportReport(imports map[string][]Key, overBudget map[string]OverBudget) ImportReport {
	groups, entries := groupImports(imports), overBudgetSubjects(overBudget)
	count := len(entries)
	for _, g := range groups {
		count += len(g.services)
	}
	for i := 0; count > maxEntries && i < len(groups); i++ {
		g := &groups[i]
		count -= len(g.services) - 1
		g.services = []string{g.namespace}
	}
	if count > maxEntries {
		return ManyImports
	}
	for _, g := range groups {
		entries = append(entries, g.services...)
	}
	for i, subject := range entries {
		entries[i] = importEntry(subject)
	}
	slices.Sort(entries)
	return ImportReport(importReportVersion + strings.Join(slices.Compact(entries), ""))
}

// overBudgetSubjects returns the subjects of the entries of what is over budget: the services, the
// exporting clusters if the services are many or not known, or one for all if these are many too.
func overBudgetSubjects(overBudget map[string]OverBudget) []string {
	var services, exporters []string
	for exporter, over := range overBudget {
		if over.IsEmpty() {
			continue
		}
		exporters = append(exporters, overBudgetOf(exporter))
		for _, key := range over.Keys {
			services = append(services, overBudgetOf(serviceSubject(exporter, key)))
		}
		if over.HasOthers {
			services = append(services, overBudgetOf(exporter))
		}
	}
	switch {
	case len(services) <= maxOverBudget:
		return services
	case len(exporters) <= maxOverBudget:
		return exporters
	}
	return []string{overBudgetOf("")}
}

// importGroup are the imported services of a namespace of one cluster, as subjects of entries.
type importGroup struct {
	namespace string
	services  []string
}

// groupImports groups services by exporting cluster and namespace, the largest group first.
func groupImports(imports map[string][]Key) []importGroup {
	byNamespace := map[string][]string{}
	for exporter, keys := range imports {
		for _, key := range keys {
			namespace := namespaceSubject(exporter, key)
			byNamespace[namespace] = append(byNamespace[namespace], serviceSubject(exporter, key))
		}
	}
	groups := make([]importGroup, 0, len(byNamespace))
	for namespace, services := range byNamespace {
		groups = append(groups, importGroup{namespace: namespace, services: services})
	}
	slices.SortFunc(groups, func(a, b importGroup) int {
		return cmp.Or(cmp.Compare(len(b.services), len(a.services)), strings.Compare(a.namespace, b.namespace))
	})
	return groups
}

// namespaceSubject and serviceSubject return what an entry is the hash of. No part has a slash.
func namespaceSubject(exporter string, key Key) string { return exporter + "/" + key.Namespace }
func serviceSubject(exporter string, key Key) string   { return exporter + "/" + key.String() }

// overBudgetOf returns the subject for what is over budget. No ID of a cluster begins like it.
func overBudgetOf(subject string) string { return "!" + subject }

// importEntry returns the entry of a subject.
func importEntry(subject string) string {
	sum := sha256.Sum256([]byte(subject))
	return base64.RawURLEncoding.EncodeToString(sum[:entryBytes])
}

// ParseImportReport returns the report in the record of another cluster, or an error if it is not
// valid or of a later version.
func ParseImportReport(text string) (ImportReport, error) {
	report := ImportReport(text)
	switch {
	case report == "", report == ManyImports:
		return report, nil
	case len(text) > maxImportReportBytes:
		return "", fmt.Errorf("the report of imports has %d bytes, more than %d", len(text), maxImportReportBytes)
	case !strings.HasPrefix(text, importReportVersion):
		return "", errors.New("the report of imports has another version")
	}
	hashes, err := base64.RawURLEncoding.DecodeString(report.entries()) // which skips line breaks
	if err != nil || len(hashes)%entryBytes != 0 || len(report.entries()) != len(hashes)/entryBytes*entryLength {
		return "", errors.New("the report of imports has other text than entries")
	}
	for i := 1; i < report.count(); i++ {
		if report.entry(i-1) >= report.entry(i) {
			return "", errors.New("the report of imports is not sorted")
		}
	}
	return report, nil
}

// entries returns the text of all entries.
func (r ImportReport) entries() string { return strings.TrimPrefix(string(r), importReportVersion) }

// count returns the number of entries.
func (r ImportReport) count() int {
	if r == "" || r == ManyImports {
		return 0
	}
	return len(r.entries()) / entryLength
}

// entry returns the entry at position i.
func (r ImportReport) entry(i int) string {
	return r.entries()[i*entryLength : (i+1)*entryLength]
}

// has reports whether the report has an entry.
func (r ImportReport) has(entry string) bool {
	i := sort.Search(r.count(), func(i int) bool { return r.entry(i) >= entry })
	return i < r.count() && r.entry(i) == entry
}

// Importers are the other members that an export is for, by what they report about their imports.
// All lists are sorted.
type Importers struct {
	// Recipients are all of them.
	Recipients []string `json:"recipients,omitempty"`
	// Importing report that they import the export.
	Importing []string `json:"importing,omitempty"`
	// ImportingNamespace report that they import exports of this cluster in the namespace, and not
	// which.
	ImportingNamespace []string `json:"importingNamespace,omitempty"`
	// NotReporting do not report their imports.
	NotReporting []string `json:"notReporting,omitempty"`
	// OverBudget report that the export is over their budgets: they do not import it, or have an
	// earlier version. SomeOverBudget report that exports of this cluster are, and not which.
	OverBudget     []string `json:"overBudget,omitempty"`
	SomeOverBudget []string `json:"someOverBudget,omitempty"`
}

// ImportEntries returns the entries of reports that stand for one of these exports of the cluster
// exporter.
func ImportEntries(exporter string, keys []Key) (entries []string) {
	for _, key := range keys {
		entries = append(entries, importEntry(serviceSubject(exporter, key)), importEntry(namespaceSubject(exporter, key)))
	}
	return entries
}

// MayHave reports whether a cluster with the report may import one of the exports of ImportEntries.
func (r ImportReport) MayHave(entries []string) bool {
	return r == "" || r == ManyImports || slices.ContainsFunc(entries, r.has)
}

// FindImporters returns the importers of the export of key by the cluster exporter, from the
// reports of the members that it is for.
func FindImporters(exporter string, key Key, reports map[string]ImportReport) Importers {
	service, namespace := importEntry(serviceSubject(exporter, key)), importEntry(namespaceSubject(exporter, key))
	over := importEntry(overBudgetOf(serviceSubject(exporter, key)))
	someOver, allOver := importEntry(overBudgetOf(exporter)), importEntry(overBudgetOf(""))
	out := Importers{Recipients: slices.Sorted(maps.Keys(reports))}
	for _, id := range out.Recipients {
		report := reports[id]
		switch {
		case report.has(over):
			out.OverBudget = append(out.OverBudget, id)
		case report.has(someOver), report.has(allOver):
			out.SomeOverBudget = append(out.SomeOverBudget, id)
		}
		switch {
		case report == "", report == ManyImports:
			out.NotReporting = append(out.NotReporting, id)
		case report.has(service):
			out.Importing = append(out.Importing, id)
		case report.has(namespace):
			out.ImportingNamespace = append(out.ImportingNamespace, id)
		}
	}
	return out
}

// IsSame reports whether the members report the same as in o.
func (i Importers) IsSame(o Importers) bool {
	return slices.Equal(i.Recipients, o.Recipients) && slices.Equal(i.Importing, o.Importing) &&
		slices.Equal(i.ImportingNamespace, o.ImportingNamespace) && slices.Equal(i.NotReporting, o.NotReporting) &&
		slices.Equal(i.OverBudget, o.OverBudget) && slices.Equal(i.SomeOverBudget, o.SomeOverBudget)
}

// ConditionImported is the type of the ServiceExport condition that reports which clusters import a
// service. It is not part of mcs-api.
const ConditionImported = Domain + "/Imported"

// Reasons of ConditionImported.
const (
	ImportedReasonImported    = "Imported"
	ImportedReasonNotImported = "NotImported"
	ImportedReasonNotReported = "NotReported"
	// ImportedReasonOverBudget means that no cluster imports the service, and that it is over the
	// budgets of some.
	ImportedReasonOverBudget = "OverBudget"
)

// maxImporterNames bounds the clusters of each kind in the message of ConditionImported.
const maxImporterNames = 16

// ExportImported returns the ServiceExport condition ConditionImported. Its message changes only
// with the clusters that it names.
func ExportImported(importers Importers) metav1.Condition {
	c := metav1.Condition{Type: ConditionImported, Status: metav1.ConditionFalse, Reason: ImportedReasonNotImported}
	switch {
	case len(importers.Importing) > 0:
		c.Status, c.Reason = metav1.ConditionTrue, ImportedReasonImported
	case len(importers.ImportingNamespace)+len(importers.NotReporting)+len(importers.SomeOverBudget) > 0:
		c.Status, c.Reason = metav1.ConditionUnknown, ImportedReasonNotReported
	case len(importers.OverBudget) > 0:
		c.Reason = ImportedReasonOverBudget
	}
	var parts []string
	for _, part := range []struct {
		format   string
		clusters []string
	}{
		{"imported by %s", importers.Importing},
		{"imported from the namespace by %s, without a report of the services", importers.ImportingNamespace},
		{"not reported by %s", importers.NotReporting},
		{"over the budgets of %s, where an earlier version or none is imported: kubectl mcs check there names the budget", importers.OverBudget},
		{"over the budgets of %s are some exports of this cluster, without a report of which", importers.SomeOverBudget},
	} {
		if len(part.clusters) > 0 {
			parts = append(parts, fmt.Sprintf(part.format, JoinClusters(part.clusters, maxImporterNames)))
		}
	}
	switch c.Message = strings.Join(parts, "; "); {
	case c.Message != "":
	case len(importers.Recipients) == 0:
		c.Message = "imported by no other cluster"
	default:
		c.Message = "no other cluster has reported that it imports the service: one does if it has the namespace and imports into it, and reports that within 40 seconds; " +
			"kubectl mcs diagnose with its context shows the reason"
	}
	return c
}

// JoinClusters returns at most a number of clusters as text, and how many there are besides.
func JoinClusters(clusters []string, limit int) string {
	if more := len(clusters) - limit; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(clusters[:limit], ", "), more)
	}
	return strings.Join(clusters, ", ")
}
