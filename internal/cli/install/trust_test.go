package install

import (
	"strings"
	"testing"
)

// TestChooseKey: contexts that disagree about the cluster lead to no key.
func TestChooseKey(t *testing.T) {
	const key, other = "key", "other"
	in := func(clusterSet string, isOwn bool, pinned, refused string) keyFacts {
		return keyFacts{clusterSetID: clusterSet, isOwn: isOwn, pinned: pinned, refused: refused}
	}
	importer := in("set1", false, "lost", key)
	for name, tt := range map[string]struct {
		facts        []keyFacts
		named        string
		want         string
		wantVerified bool
		wantErr      string
	}{
		"the cluster's own key":      {facts: []keyFacts{importer, in("set1", true, key, "")}, want: key, wantVerified: true},
		"a refused key":              {facts: []keyFacts{importer}, want: key},
		"a named key":                {facts: []keyFacts{importer}, named: other, want: other, wantVerified: true},
		"two contexts of one":        {facts: []keyFacts{importer, in("set1", true, key, ""), in("set1", true, key, "")}, want: key, wantVerified: true},
		"two clusters with this ID":  {facts: []keyFacts{importer, in("set1", true, key, ""), in("set1", true, other, "")}, wantErr: "several clusters have the ID cls1, with different keys (key, other)"},
		"these, with a named key":    {facts: []keyFacts{importer, in("set1", true, key, ""), in("set1", true, other, "")}, named: other, wantErr: "several clusters have the ID cls1"},
		"several clustersets":        {facts: []keyFacts{importer, in("set2", true, key, "")}, wantErr: "the contexts are of several clustersets (set1, set2)"},
		"several, with a named key":  {facts: []keyFacts{importer, in("set2", false, "", "")}, named: key, wantErr: "several clustersets"},
		"the cluster itself only":    {facts: []keyFacts{in("set1", true, key, "")}, wantErr: "trusts itself"},
		"another key than its own":   {facts: []keyFacts{importer, in("set1", true, key, "")}, named: other, wantErr: "and not with --key"},
		"several keys were refused":  {facts: []keyFacts{importer, in("set1", false, "", other)}, wantErr: "several keys of cluster cls1 were refused"},
		"no key was refused":         {facts: []keyFacts{in("set1", false, key, "")}, wantErr: "no record of cluster cls1 was refused"},
		"its own key is not known":   {facts: []keyFacts{importer, in("set1", true, "", "")}, want: key},
		"one of the two has no key":  {facts: []keyFacts{importer, in("set1", true, "", ""), in("set1", true, key, "")}, want: key, wantVerified: true},
		"the same key refused twice": {facts: []keyFacts{importer, importer}, want: key},
	} {
		t.Run(name, func(t *testing.T) {
			got, isVerified, err := chooseKey(tt.facts, trustOptions{clusterID: "cls1", key: tt.named})
			if got != tt.want || isVerified != tt.wantVerified {
				t.Errorf("key %q, verified %t; want %q, %t", got, isVerified, tt.want, tt.wantVerified)
			}
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}
