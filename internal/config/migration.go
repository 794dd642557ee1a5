package config

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// Migration configures the migration from the legacy controller, the AWS Cloud Map MCS Controller
// for K8s.
type Migration struct {
	// ImportFromAWSController imports from clusters that still run the legacy controller, and takes
	// over the objects that it created in this cluster.
	ImportFromAWSController bool
	// PollInterval is the time between two polls of the legacy controllers' instances.
	PollInterval time.Duration
}

func (m *Migration) bind(common, advanced *pflag.FlagSet) {
	common.BoolVar(&m.ImportFromAWSController, "import-from-aws-controller", m.ImportFromAWSController,
		"Also import from clusters that run the AWS Cloud Map MCS Controller for K8s: "+docs.URL("migration.md"))
	advanced.DurationVar(&m.PollInterval, "legacy-poll-interval", m.PollInterval,
		"Interval between polls of the Cloud Map instances of the clusters of --import-from-aws-controller.")
}

// minLegacyPollInterval: a poll costs one request for each service that such clusters export, of an
// account's 3,000 a second.
const minLegacyPollInterval = time.Second

func (m *Migration) validate() error {
	if m.PollInterval < minLegacyPollInterval {
		return fmt.Errorf("--legacy-poll-interval=%s: must be at least %s", m.PollInterval, minLegacyPollInterval)
	}
	return nil
}
