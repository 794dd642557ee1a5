package belief

import (
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// The digest of a set depends on its content alone, whatever was added and removed in between.
func TestSetDigest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := func(i int) UnitName { return UnitName(strconv.Itoa(i)) }
		sum := func(set map[int]int64) (d SetDigest) {
			for i, generation := range set {
				d = d.With(name(i), generation)
			}
			return d
		}
		var d SetDigest
		set := map[int]int64{}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			i, generation := rapid.IntRange(0, 5).Draw(t, "export"), rapid.Int64Range(1, 3).Draw(t, "generation")
			if before, ok := set[i]; ok {
				d = d.Without(name(i), before)
				delete(set, i)
			}
			if rapid.Bool().Draw(t, "there") {
				d = d.With(name(i), generation)
				set[i] = generation
			}
		}
		if want := sum(set); d != want {
			t.Fatalf("digest %v of %v, want %v", d, set, want)
		}
		if (d == SetDigest{}) != (len(set) == 0) {
			t.Fatalf("digest %v of %v", d, set)
		}
		text, err := d.MarshalText()
		var again SetDigest
		if err == nil {
			err = again.UnmarshalText(text)
		}
		if err != nil || again != d {
			t.Fatalf("%s is read as %v, want %v (%v)", text, again, d, err)
		}
	})
}
