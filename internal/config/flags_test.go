package config

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/golden"
)

// TestFlagGroups checks that each flag is in exactly one group, and that --help shows each group.
func TestFlagGroups(t *testing.T) {
	options := Default()
	groups := options.FlagGroups()
	found := map[string]int{}
	count := func(f *pflag.Flag) { found[f.Name]++ }
	for _, name := range groups.Common.Order {
		if !groups.Common.FlagSets[name].HasFlags() {
			t.Errorf("the group %q has no common flag", name)
		}
		groups.Common.FlagSets[name].VisitAll(count)
		groups.Advanced.FlagSets[name].VisitAll(count)
	}
	options.Flags().VisitAll(func(f *pflag.Flag) {
		if found[f.Name] != 1 {
			t.Errorf("--%s is in %d groups, want 1", f.Name, found[f.Name])
		}
	})
	common := 0
	for _, set := range groups.Common.FlagSets {
		set.VisitAll(func(*pflag.Flag) { common++ })
	}
	if 2*common > len(found) {
		t.Errorf("%d of %d flags are common: --help shows at most half, make one advanced", common, len(found))
	}
}

// TestHelp compares the common flags with testdata/help.txt, and the names of all with --help-all.
func TestHelp(t *testing.T) {
	options := Default()
	groups := options.FlagGroups()
	var common, all strings.Builder
	printHelp(&common, groups.Common, 0)
	golden.Check(t, filepath.Join("testdata", "help.txt"), common.String())
	printHelp(&all, groups.all(), 0)
	options.Flags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(all.String(), "--"+f.Name+" ") {
			t.Errorf("--help-all does not show --%s", f.Name)
		}
	})
}
