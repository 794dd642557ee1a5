package state

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/format"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// TestTagsForUsers: the tags of a catalog are read when its cluster is found, once a day if it is
// sealed, and every ten minutes if it is not, or if they cannot be read. The result of the last
// read is shown.
func TestTagsForUsers(t *testing.T) {
	for name, tt := range map[string]struct {
		owner string
		err   error
		want  registry.Seal
		reads int // in a day
	}{
		"sealed":                    {owner: "cls2", want: registry.Sealed, reads: 1},
		"without the tag":           {want: registry.Unsealed, reads: 144},
		"of another cluster":        {owner: "cls3", want: registry.Unsealed, reads: 144},
		"that cannot be read":       {err: errors.New("access denied"), want: registry.SealUnreadable, reads: 144},
		"of another cluster, error": {owner: "cls3", err: errors.New("throttled"), want: registry.SealUnreadable, reads: 144},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.members(s.record)
			seal := func() registry.Seal { return s.catalogs.list()[0].Seal }
			if got := seal(); got != registry.SealUnknown {
				t.Errorf("before the first read the seal is %q", got)
			}
			reads := 0
			for range 24 * 60 * 60 {
				id, clusters := s.catalogs.tagsForUsers(s.now)
				if id != "" {
					reads++
					s.catalogs.tagsRead(s.now, id, tt.owner, tt.err)
				}
				if id != "" && (id != "cls2" || clusters != 1) {
					t.Fatalf("reads the tags of %s, one of %d clusters", id, clusters)
				}
				s.now = s.now.Add(time.Second)
			}
			if reads < tt.reads-1 || reads > tt.reads || reads == 0 {
				t.Errorf("%d reads in a day, want %d", reads, tt.reads)
			}
			if got := seal(); got != tt.want {
				t.Errorf("the seal is %q, want %q", got, tt.want)
			}
			// An administrator seals it.
			for range 600 {
				if id, _ := s.catalogs.tagsForUsers(s.now); id != "" {
					s.catalogs.tagsRead(s.now, id, "cls2", nil)
				}
				s.now = s.now.Add(time.Second)
			}
			if got := seal(); got != registry.Sealed {
				t.Errorf("ten minutes after the catalog was sealed the seal is %q", got)
			}
		})
	}
}

// TestTagsForUsers_BesideProofs: the tags that are read again and again because they may prove a
// refused key do not put off the reads for users.
func TestTagsForUsers_BesideProofs(t *testing.T) {
	s := newStory(t)
	s.members(s.record)
	s.catalogs.tagsRead(s.now, "cls2", "", nil)
	due := s.catalogs.unsealedAt
	s.catalogs.clusters["cls2"].seal.refused = trust.Key{1}
	s.now = s.now.Add(time.Minute)
	s.catalogs.tagsRead(s.now, "cls2", "", nil)
	if !s.catalogs.unsealedAt.Equal(due) {
		t.Error("a read of tags for a refused key puts off those for users")
	}
	s.catalogs.tagsRead(s.now, "cls2", "", errors.New("throttled"))
	s.catalogs.tagsRead(s.now, "cls2", "cls2", nil)
	if !s.catalogs.sealedAt.Equal(s.now) {
		t.Error("a catalog that could not be read and is sealed now does not bring forward the reads of others")
	}
}

// TestTagsForUsers_Rates: all clusters of a clusterset together read the tags of at most ten
// catalogs a second, and make one request for a list in two seconds.
func TestTagsForUsers_Rates(t *testing.T) {
	for _, n := range []int{1, 2, 50, 99, 100, 900, 4000} {
		if tags := float64(n) / TagsPause(n).Seconds(); tags > 10 {
			t.Errorf("%d clusters read %v tags a second", n, tags)
		}
		pages := (n + 2 + 99) / 100 // with two services that are no catalogs
		if lists := float64(n*pages) / ListPause(n).Seconds(); lists > 0.5 {
			t.Errorf("%d clusters make %v lists a second", n, lists)
		}
	}
}

// TestTagsForUsers_RarePolls: while polls are rare, each reads the tags of several catalogs, so
// that users see the seals of a large clusterset within minutes.
func TestTagsForUsers_RarePolls(t *testing.T) {
	now, c := time.Now(), newCatalogs(testConfig())
	c.synced = true
	for i := range 12 {
		c.cluster(now, fmt.Sprint("cls-", i)).record = &format.Member{}
	}
	poll := func() (reads int) {
		now = now.Add(30 * time.Second)
		for id, _ := c.tagsForUsers(now); id != ""; id, _ = c.tagsForUsers(now) {
			c.tagsRead(now, id, id, nil)
			reads++
		}
		return reads
	}
	poll() // the time of the first list is chosen
	now = now.Add(time.Hour)
	if got := []int{poll(), poll(), poll(), poll()}; !slices.Equal(got, []int{tagsPerPoll, tagsPerPoll, 2, 0}) {
		t.Errorf("polls read the tags of %d catalogs", got)
	}
}
