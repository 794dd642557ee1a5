package config

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
	"golang.org/x/term"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// FlagGroups are the flags by group, in the order of --help, which shows the common ones. Most
// installations need none of the advanced ones.
type FlagGroups struct {
	Common, Advanced cliflag.NamedFlagSets
}

// group returns the sets for the common and the advanced flags of a group.
func (g *FlagGroups) group(name string) (common, advanced *pflag.FlagSet) {
	return g.Common.FlagSet(name), g.Advanced.FlagSet(name)
}

// all returns the common and the advanced flags together.
func (g *FlagGroups) all() cliflag.NamedFlagSets {
	var sets cliflag.NamedFlagSets
	for _, name := range g.Common.Order {
		set := sets.FlagSet(name)
		set.AddFlagSet(g.Common.FlagSets[name])
		set.AddFlagSet(g.Advanced.FlagSets[name])
	}
	return sets
}

// bindHelp binds --help-all. Like --help, which pflag binds, it makes Parse return pflag.ErrHelp.
func (g *FlagGroups) bindHelp(common, _ *pflag.FlagSet) {
	common.BoolFunc("help-all", "Print all flags, also the advanced ones, and exit.", func(string) error {
		printHelp(os.Stdout, g.all(), terminalWidth())
		return pflag.ErrHelp
	})
}

// Flags returns the flags of all groups in one set.
func (o *Options) Flags() *pflag.FlagSet {
	groups := o.FlagGroups()
	flags := pflag.NewFlagSet("controller", pflag.ContinueOnError)
	flags.Usage = func() { printHelp(os.Stdout, groups.Common, terminalWidth()) }
	for _, set := range groups.all().FlagSets {
		flags.AddFlagSet(set)
	}
	return flags
}

// printHelp writes the help with these flags. It breaks lines at width, unless that is 0.
func printHelp(w io.Writer, flags cliflag.NamedFlagSets, width int) {
	fmt.Fprint(w, "The controller makes Services that one cluster of a clusterset exports available in all of them.\n\nUsage:\n  controller [flags]\n")
	cliflag.PrintSections(w, flags, width)
	fmt.Fprintf(w, "\n--help shows the common flags, --help-all all of them. Reference: %s\n", docs.URL("reference/flags.md"))
}

// terminalWidth returns the number of columns of the terminal, 0 without one.
func terminalWidth() int {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return 0
	}
	return width
}
