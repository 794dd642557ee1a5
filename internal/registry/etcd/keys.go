package etcd

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// layout knows where a clusterset's keys are.
type layout struct{ root string }

func newLayout(prefix, clusterSetID string) layout {
	return layout{root: strings.TrimRight(prefix, "/") + "/" + clusterSetID + "/"}
}

// kind is what a key holds.
type kind int

const (
	kindMember kind = iota
	kindAlive
	kindExport
)

// What follows a cluster's prefix.
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

// clusterOf is whose key it is, "" when nobody's.
func (l layout) clusterOf(key string) string {
	rest, ok := strings.CutPrefix(key, l.root)
	id, _, more := strings.Cut(rest, "/")
	if !ok || !more || mcs.ValidateClusterID(id) != nil {
		return ""
	}
	return id
}

// parse says what a key of cluster id is, which anybody with write permission may have made.
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
		return 0, mcs.Key{}, fmt.Errorf("key %q is none that a controller writes: it is ignored", clip(key))
	}
	return kindExport, mcs.Key{Namespace: namespace, Name: name}, nil
}

// clip keeps somebody else's text from filling a log.
func clip(s string) string {
	const most = 200 // room for the prefix, two IDs and a key
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
