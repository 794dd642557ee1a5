package etcd

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
)

// layout returns and parses the keys of a clusterset.
type layout struct{ root, clusterSetID string }

func newLayout(prefix, clusterSetID string) layout {
	return layout{root: strings.TrimRight(prefix, "/") + "/" + clusterSetID + "/", clusterSetID: clusterSetID}
}

// kind is the kind of record that a key has.
type kind int

const (
	kindMember kind = iota
	kindAlive
	kindExport
)

// The keys below a cluster's prefix.
const (
	memberSuffix  = "member"
	aliveSuffix   = "alive"
	exportsSuffix = "exports/"
)

func (l layout) cluster(id string) string { return l.root + id + "/" }
func (l layout) member(id string) string  { return l.cluster(id) + memberSuffix }
func (l layout) alive(id string) string   { return l.cluster(id) + aliveSuffix }
func (l layout) export(id string, key mcs.Key) string {
	return l.cluster(id) + exportsSuffix + key.Namespace + "/" + key.Name
}

// headKeys returns the keys alive and member of clusters.
func (l layout) headKeys(clusters []string) []string {
	keys := make([]string, 0, 2*len(clusters))
	for _, id := range clusters {
		keys = append(keys, l.alive(id), l.member(id))
	}
	return keys
}

// unitOf returns the unit of package belief that the key of an export is.
func unitOf(key mcs.Key) belief.UnitName { return belief.UnitName(key.String()) }

// clusterOf returns the cluster that a key belongs to, or "".
func (l layout) clusterOf(key string) string {
	rest, ok := strings.CutPrefix(key, l.root)
	id, _, more := strings.Cut(rest, "/")
	if !ok || !more || mcs.ValidateClusterID(id) != nil {
		return ""
	}
	return id
}

// parse parses a key of cluster id. Any user with write permission may have created it.
func (l layout) parse(id, key string) (kind, mcs.Key, error) {
	rest := strings.TrimPrefix(key, l.cluster(id))
	switch rest {
	case memberSuffix:
		return kindMember, mcs.Key{}, nil
	case aliveSuffix:
		return kindAlive, mcs.Key{}, nil
	}
	rest, ok := strings.CutPrefix(rest, exportsSuffix)
	namespace, name, _ := strings.Cut(rest, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(name)) > 0 {
		return 0, mcs.Key{}, fmt.Errorf("key %q is ignored: no controller writes such a key", clip(key))
	}
	return kindExport, mcs.Key{Namespace: namespace, Name: name}, nil
}

// exportKey returns the key of the export that a key of cluster id holds; ok is false if it holds
// none.
func (l layout) exportKey(id, key string) (of mcs.Key, ok bool) {
	if l.clusterOf(key) != id {
		return mcs.Key{}, false
	}
	kind, of, err := l.parse(id, key)
	return of, err == nil && kind == kindExport
}

// clip bounds the length of text from other clusters in logs.
func clip(s string) string {
	const most = 200 // room for the prefix, two IDs and a key
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
