package config

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Migration is how clusters change from the AWS Cloud Map MCS Controller for K8s to this one.
type Migration struct {
	// ImportFromAWSController imports what clusters export that still run the old controller, and takes over what it made in
	// this cluster.
	ImportFromAWSController bool
	// PollInterval is the time between two looks at the old controllers' instances.
	PollInterval time.Duration
}

func (m *Migration) bind(flags *pflag.FlagSet) {
	flags.BoolVar(&m.ImportFromAWSController, "import-from-aws-controller", m.ImportFromAWSController,
		"for a migration: import also from clusters that still run the AWS Cloud Map MCS Controller for K8s, and take over its imports in this cluster (docs/migration.md)")
	flags.DurationVar(&m.PollInterval, "legacy-poll-interval", m.PollInterval,
		"time between two looks at the Cloud Map instances of those clusters")
}

// minMigrationPoll: a look costs a request for each service that such clusters export, of an account's 3,000 a second.
const minMigrationPoll = time.Second

func (m *Migration) validate() error {
	if m.PollInterval < minMigrationPoll {
		return fmt.Errorf("--legacy-poll-interval=%s: must be at least %s", m.PollInterval, minMigrationPoll)
	}
	return nil
}
