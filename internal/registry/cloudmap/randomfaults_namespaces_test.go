package cloudmap

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
)

const (
	// namespaces are those of a trial's services. Each has two services.
	namespaces = 8
	// fewPages and manyPages are the numbers of pages that the services of a trial are in: a page
	// has exports of eight namespaces, which are more than a member record names of a page, or of
	// two.
	fewPages, manyPages = 2, 8
)

// keysIn returns the keys of a trial's services, in this number of pages.
func keysIn(pages int) (keys [allKeys]mcs.Key) {
	for k := range keys {
		for n := 0; n == 0 || format.PageOf(keys[k]) != k*pages/allKeys; n++ {
			keys[k] = mcs.Key{Namespace: namespaceName(k % namespaces), Name: fmt.Sprintf("web-%d-%d", k, n)}
		}
	}
	return keys
}

func namespaceName(n int) string { return fmt.Sprintf("team-%d", n) }

// usage has the namespaces whose exports a machine uses. Processes ask it at any time.
type usage struct {
	mu sync.Mutex
	// since is the time at which each namespace began to be used, zero if it is not used.
	since [namespaces]time.Time
}

// set begins or ends the use of a namespace, and reports whether that is a change.
func (u *usage) set(n int, isUsed bool) (changed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if isUsed == !u.since[n].IsZero() {
		return false
	}
	u.since[n] = time.Time{}
	if isUsed {
		u.since[n] = time.Now()
	}
	return true
}

// usedSince returns the time since which the namespace of a key is used, zero if it is not.
func (u *usage) usedSince(k int) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.since[k%namespaces]
}

// names implements Config.UsedNamespaces.
func (u *usage) names() (names []string, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for n, since := range u.since {
		if !since.IsZero() {
			names = append(names, namespaceName(n))
		}
	}
	return names, true
}

// wants implements Config.Wanted.
func (u *usage) wants(namespace string) bool {
	names, _ := u.names()
	return slices.Contains(names, namespace)
}

// uses reports whether the cluster uses the namespace of a key.
func (a *actor) uses(k int) bool { return !a.trial.usage[a.number].usedSince(k).IsZero() }

// changeUse begins or ends the use of a namespace, as when an administrator creates or deletes it.
// The exports and imports in it end with it. Its pages are read when it begins to be used again,
// and the other clusters are unknown there until then.
func (tr *trial) changeUse(a *actor) {
	n, isUsed := tr.rnd.IntN(namespaces), tr.rnd.IntN(2) > 0
	if !tr.usage[a.number].set(n, isUsed) {
		return
	}
	tr.history.Logf("%s uses namespace %s: %t", a.identity.ClusterID, namespaceName(n), isUsed)
	// what is known of this namespace counts from now on, or does not count any more
	tr.before = nil
	if isUsed {
		tr.tally.Add("namespace begins to be used", 1)
		return
	}
	tr.tally.Add("namespace is not used any more", 1)
	now := time.Now()
	for k := n; k < allKeys; k += namespaces {
		a.wantEverywhere(now, k, nil)
		clear(tr.imports[a.number][k])
	}
}

// beginUse makes each cluster use one more namespace, when everything is as it was asked for, and
// checks what it knows of the exports there in that moment: all of it, or that it does not know. It
// reports whether that is so.
func (tr *trial) beginUse() bool {
	tr.t.Helper()
	for _, a := range tr.machines {
		n := tr.rnd.IntN(namespaces)
		if !tr.usage[a.number].set(n, true) {
			continue
		}
		tr.history.Logf("%s uses namespace %s in the calm", a.identity.ClusterID, namespaceName(n))
		tr.tally.Add("namespace begins to be used", 1)
		for k := n; k < allKeys; k += namespaces {
			a.read(k)
			for _, other := range tr.clusters {
				id := other.identity.ClusterID
				exp, want := exportOf(a.views[k].View, id), other.wanted(k)
				if other != a && !a.views[k].isOpen(id) && describe(exp) != describe(want) {
					tr.fail("%s, which uses namespace %s now, sees %s's export %d as %s, want %s or unknown", a.identity.ClusterID, namespaceName(n), id, k, describe(exp), describe(want))
				}
			}
		}
	}
	return !tr.t.Failed()
}

// knownSince returns the time from which a key that the controller has seen stays known: it runs
// and uses the namespace.
func (a *actor) knownSince(k int) time.Time {
	if since := a.trial.usage[a.number].usedSince(k); since.After(a.process.began) {
		return since
	}
	return a.process.began
}

// reportImports reports the imports as the controller does.
func (a *actor) reportImports() {
	imported := map[string][]mcs.Key{}
	for k, named := range a.trial.imports[a.number] {
		for id := range named {
			imported[id] = append(imported[id], a.trial.keys[k])
		}
	}
	a.process.SetImports(mcs.NewImportReport(imported, nil))
}

// countUnread counts services in namespaces that are not used: those of which the answer is that a
// cluster is unknown, because its page was not read, or ignored.
func (tr *trial) countUnread() {
	for _, a := range tr.machines {
		for k := range allKeys {
			if view := a.views[k]; !a.uses(k) && view.Has(registry.Unknown) {
				tr.tally.Add("page of an unused namespace not read", 1)
			} else if view.Has(registry.Ignored) {
				tr.tally.Add("export in an unused namespace ignored", 1)
			}
		}
	}
}
