package state

import (
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/budget"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// Config describes this cluster and its part in the clusterset. All durations are positive.
type Config struct {
	Identity mcs.Identity
	// ClientName is the name of the registry's client in metrics.
	ClientName string
	// Version is the controller's version for the own record.
	Version string
	// ReadOnly is set if nothing is written to the registry.
	ReadOnly                                    bool
	PollInterval, HeartbeatInterval, StaleAfter time.Duration
	// LongestPollInterval and LongestHeartbeatInterval are the times between two polls and two
	// heartbeats while nothing changes and peer notifications from every other cluster arrive. They
	// are the others where they are less.
	LongestPollInterval, LongestHeartbeatInterval time.Duration
	Intervals                                     Intervals
	// Signer signs the own records; nil if ReadOnly. Keyring has the keys of the other clusters.
	Signer  *trust.Signer
	Keyring *trust.Keyring
	// Ledger has the budgets of the other clusters; nil has no limits. Wanted reports whether the
	// exports of a namespace are used; nil is all of them.
	Ledger *budget.Ledger
	Wanted func(namespace string) bool
	// UsedNamespaces returns the namespaces for which Wanted is true; ok is false if they are not
	// known. nil is all namespaces.
	UsedNamespaces func() (namespaces []string, ok bool)
	// Process is the Process of the own record. Joined is the time at which the cluster joined
	// under this identity, zero if it never did.
	Process string
	Joined  time.Time
	// AllowsContact reports whether peer notifications may be sent to an address.
	AllowsContact func(netip.Addr) bool
	// InstancesPerNamespace is the quota of the account that owns the control namespace.
	InstancesPerNamespace int
	// Observed is called for each export of another cluster that a read has changed, with the lock
	// of the state; nil is none.
	Observed func(mcs.Export)
	// WallClock returns the time that other clusters' clocks are compared with.
	WallClock func() time.Time
	Logger    logr.Logger
	// Metrics may be nil.
	Metrics *registry.Metrics
}

// Intervals are the intervals of the pages and the claim. They have no setting.
type Intervals struct {
	// Gather is the delay of the first change after a pause: one cause may change several objects.
	Gather time.Duration
	// Quiet is the time without changes after which pages are written, AtMost the longest delay.
	Quiet, AtMost time.Duration
	// Confirm is the time after which a page is written again if the registry does not show it.
	Confirm time.Duration
	// Audit is the time between two reads of all own pages. A read takes one request. The interval
	// bounds how long a page is missing that another writer removed or changed.
	Audit time.Duration
	// Settle is the maximum delay until reads show a write.
	Settle time.Duration
	// Retry is the pause after the first failed write, and MaxRetry the longest pause.
	Retry, MaxRetry time.Duration
	// HealthSettle is the time after which this cluster sees every change of health that another
	// cluster has decided on before it read that this cluster is back.
	HealthSettle time.Duration
}
