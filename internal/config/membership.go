package config

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Membership configures when the cluster leaves its clusterset, and which clusters it trusts.
type Membership struct {
	// LeaveAfter is the time without a ClusterProperty after which the cluster leaves; 0 is never.
	LeaveAfter time.Duration
	// TrustedKeys is the path of a file with the public keys of clusters. TrustedKeysOnly ignores
	// all other clusters.
	TrustedKeys     string
	TrustedKeysOnly bool
}

func (m *Membership) bind(common, advanced *pflag.FlagSet) {
	advanced.DurationVar(&m.LeaveAfter, "leave-after", m.LeaveAfter,
		"Time without a valid ClusterProperty after which the cluster leaves its clusterset. 0 disables it.")
	common.StringVar(&m.TrustedKeys, "trusted-keys", m.TrustedKeys,
		"File with the public keys of other clusters, one \"CLUSTER: KEY\" in a line. These never have other keys.")
	advanced.BoolVar(&m.TrustedKeysOnly, "trusted-keys-only", m.TrustedKeysOnly,
		"Ignore the clusters that are not in --trusted-keys.")
}

func (m *Membership) validate() error {
	var problems []error
	if m.LeaveAfter < 0 {
		problems = append(problems, fmt.Errorf("--leave-after=%s: must not be negative", m.LeaveAfter))
	}
	if m.TrustedKeysOnly && m.TrustedKeys == "" {
		problems = append(problems, errors.New("--trusted-keys-only: requires --trusted-keys"))
	}
	return errors.Join(problems...)
}
