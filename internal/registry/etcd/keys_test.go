package etcd

import (
	"strings"
	"testing"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

func TestLayout(t *testing.T) {
	l := newLayout("/mcs", "set1")
	web := mcs.Key{Namespace: "demo", Name: "web"}
	tests := []struct {
		key         string
		wantCluster string
		wantKind    kind
		wantKey     mcs.Key
		wantErr     bool
	}{
		{key: "/mcs/set1/cls1/member", wantCluster: "cls1", wantKind: kindMember},
		{key: "/mcs/set1/cls1/alive", wantCluster: "cls1", wantKind: kindAlive},
		{key: "/mcs/set1/cls1/exports/demo/web", wantCluster: "cls1", wantKind: kindExport, wantKey: web},
		{key: "/mcs/set1/cls1/exports/demo", wantCluster: "cls1", wantErr: true},
		{key: "/mcs/set1/cls1/exports/demo/web/more", wantCluster: "cls1", wantErr: true},
		{key: "/mcs/set1/cls1/exports//", wantCluster: "cls1", wantErr: true},
		{key: "/mcs/set1/cls1/exports/demo/UPPER", wantCluster: "cls1", wantErr: true},
		{key: "/mcs/set1/cls1/something", wantCluster: "cls1", wantErr: true},
		{key: "/mcs/set1/cls1/", wantCluster: "cls1", wantErr: true},
		{key: "/mcs/set1/cls1"},
		{key: "/mcs/set1/a.b/member"},
		{key: "/mcs/set10/cls1/member"},
		{key: "/other"},
	}
	for _, tt := range tests {
		id := l.clusterOf(tt.key)
		if id != tt.wantCluster {
			t.Errorf("%s is a key of cluster %q, want %q", tt.key, id, tt.wantCluster)
		}
		if id == "" {
			continue
		}
		gotKind, key, err := l.parse(id, tt.key)
		if (err != nil) != tt.wantErr || err == nil && (gotKind != tt.wantKind || key != tt.wantKey) {
			t.Errorf("%s is %v %v (%v), want %v %v", tt.key, gotKind, key, err, tt.wantKind, tt.wantKey)
		}
	}
	// The prefix of a cluster covers all its keys, and none of a cluster whose ID has the same
	// beginning.
	for _, key := range []string{l.member("cls1"), l.alive("cls1"), l.export("cls1", web)} {
		if !strings.HasPrefix(key, l.cluster("cls1")) || strings.HasPrefix(l.member("cls10"), l.cluster("cls1")) {
			t.Errorf("%s is not below %s, or cls10's keys are", key, l.cluster("cls1"))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, key := range []string{"/mcs/set1/cls1/exports/demo/web", "/mcs/set1/cls1/alive", "/mcs/set1//", "/mcs/set1/a/exports//"} {
		f.Add(key)
	}
	l := newLayout("/mcs", "set1")
	f.Fuzz(func(t *testing.T, key string) {
		id := l.clusterOf(key)
		if id == "" {
			return
		}
		gotKind, exported, err := l.parse(id, key)
		if err != nil {
			return
		}
		if formatted := map[kind]string{kindMember: l.member(id), kindAlive: l.alive(id), kindExport: l.export(id, exported)}[gotKind]; formatted != key {
			t.Errorf("%q is formatted as %q after parsing", key, formatted)
		}
	})
}
