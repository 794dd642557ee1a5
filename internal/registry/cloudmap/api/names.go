package api

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
)

// ByName returns the namespaces by name. AWS allows several with a name, such as one for DNS and an
// HTTP one, and appends a suffix to the HttpName of the later one (aws-cdk issue 25616). The first
// without a suffix counts, and of several the one with the first ID, whatever the order of all.
// ambiguous has a line for each name with several.
func ByName(all []Namespace) (found map[string]Namespace, ambiguous map[string]string) {
	found, ids := map[string]Namespace{}, map[string][]string{}
	for _, n := range slices.SortedFunc(slices.Values(all), compareNamespaces) {
		if _, taken := found[n.Name]; !taken {
			found[n.Name] = n
		}
		ids[n.Name] = append(ids[n.Name], n.ID)
	}
	maps.DeleteFunc(ids, func(_ string, ids []string) bool { return len(ids) == 1 })
	ambiguous = map[string]string{}
	for name, ids := range ids {
		ambiguous[name] = fmt.Sprintf("AWS Cloud Map has %d namespaces %s, %s: %s counts", len(ids), name, strings.Join(ids, " and "), ids[0])
	}
	return found, ambiguous
}

func compareNamespaces(a, b Namespace) int {
	suffix := func(n Namespace) int {
		if n.HTTPName == n.Name {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(suffix(a), suffix(b)), strings.Compare(a.ID, b.ID))
}

// namespaceNames is what the clients of a process know of the names of namespaces.
type namespaceNames struct {
	log logr.Logger
	// refusesFilter: AWS does not know the filter RESOURCE_OWNER.
	refusesFilter atomic.Bool

	mu       sync.Mutex
	reported map[string]string
}

// report logs each line about a name that has several namespaces when it is new.
func (n *namespaceNames) report(ambiguous map[string]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, line := range ambiguous {
		if n.reported[name] != line {
			n.log.Info("Several namespaces have one name: " + line)
		}
	}
	n.reported = ambiguous
}
