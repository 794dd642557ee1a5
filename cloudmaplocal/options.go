package cloudmaplocal

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"time"
)

// Defaults of Options.
const (
	// DefaultAccount is the account of callers whose access key names no other: the account of
	// AWS's examples.
	DefaultAccount = "123456789012"
	// DefaultRegion is the Region of unsigned requests, which name none.
	DefaultRegion = "us-east-1"

	// Quotas that AWS raises on request [Cloud Map Developer Guide, quotas].
	defaultNamespaceQuota   = 50
	defaultInstancesPerNS   = 2000
	maxConfigurableDuration = time.Hour
)

var accessKeyPattern = regexp.MustCompile(`^[\w]{1,128}$`)

// Options configure a Server. The zero value is a server with AWS's quotas, no delays and no access
// check.
type Options struct {
	// Account owns the resources that callers create, unless their access key belongs to another
	// account. Default DefaultAccount.
	Account string
	// Region of unsigned requests. Default DefaultRegion.
	Region string
	// AccessKeys that may call. Empty: all requests are accepted, signed or not.
	AccessKeys []AccessKey

	// Roles can be assumed with AssumeRole and AssumeRoleWithWebIdentity of AWS STS, which the
	// server answers too.
	Roles []Role
	// Shares are the namespaces that accounts share with others.
	Shares []Share

	// Behaviors in which AWS may differ from what clients expect.
	Behaviors Behaviors

	// Unthrottled switches the token buckets off.
	Unthrottled bool
	// Limits replaces the default token buckets of the operations that it names.
	Limits map[string]Limit
	// NamespaceQuota is the number of namespaces per account and Region. Default 50.
	NamespaceQuota int
	// InstancesPerNamespace is the number of instances in a namespace. Default 2,000. (A service
	// can always have 1,000.)
	InstancesPerNamespace int

	// StateFile keeps the state over restarts. Empty: in memory only.
	StateFile string
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Logger gets each request at level debug and errors of the state file at level error. Default:
	// discarded.
	Logger *slog.Logger
}

// withDefaults returns a copy of o with the defaults filled in, or an error that names the wrong
// value.
func (o Options) withDefaults() (Options, error) {
	if o.Account == "" {
		o.Account = DefaultAccount
	}
	if o.Region == "" {
		o.Region = DefaultRegion
	}
	if o.NamespaceQuota == 0 {
		o.NamespaceQuota = defaultNamespaceQuota
	}
	if o.InstancesPerNamespace == 0 {
		o.InstancesPerNamespace = defaultInstancesPerNS
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.AccessKeys = slices.Clone(o.AccessKeys)
	for i := range o.AccessKeys {
		if o.AccessKeys[i].Account == "" {
			o.AccessKeys[i].Account = o.Account
		}
		if o.AccessKeys[i].User == "" {
			o.AccessKeys[i].User = o.AccessKeys[i].ID
		}
	}
	limits := maps.Clone(defaultLimits)
	maps.Copy(limits, o.Limits)
	o.Limits = limits
	if err := o.validate(); err != nil {
		return o, err
	}
	var err error
	if o.Behaviors, err = o.Behaviors.withDefaults(); err != nil {
		return o, err
	}
	o.Shares, err = checkShares(o.Shares, o.Account)
	return o, err
}

// validate returns an error for the first invalid value.
func (o Options) validate() error {
	if !accountPattern.MatchString(o.Account) {
		return fmt.Errorf("account %q: must be 12 digits", o.Account)
	}
	if !regionPattern.MatchString(o.Region) {
		return fmt.Errorf("region %q: must be like us-east-1", o.Region)
	}
	if o.NamespaceQuota < 0 || o.InstancesPerNamespace < 0 {
		return fmt.Errorf("quotas of %d namespaces and %d instances per namespace: must not be negative",
			o.NamespaceQuota, o.InstancesPerNamespace)
	}
	return cmp.Or(validateLimits(o.Limits), validateAccessKeys(o.AccessKeys), validateRoles(o.Roles))
}

func validateLimits(limits map[string]Limit) error {
	for name, limit := range limits {
		if !isOperation(name) {
			return fmt.Errorf("limit of %q: no such operation; the operations are %v", name, operationNames())
		}
		if limit.PerSecond <= 0 || limit.Burst < 1 {
			return fmt.Errorf("limit of %s: %v per second with a burst of %d: the rate must be above 0 and the burst at least 1",
				name, limit.PerSecond, limit.Burst)
		}
	}
	return nil
}

func validateAccessKeys(keys []AccessKey) error {
	seen := map[string]bool{}
	for _, key := range keys {
		switch {
		case !accessKeyPattern.MatchString(key.ID):
			return fmt.Errorf("access key %q: must be 1 to 128 letters, digits or underscores", key.ID)
		case !accountPattern.MatchString(key.Account):
			return fmt.Errorf("account %q of access key %s: must be 12 digits", key.Account, key.ID)
		case !userName.MatchString(key.User) && key.User != key.ID:
			return fmt.Errorf("user %q of access key %s: must be 1 to 64 letters, digits or +=,.@_-", key.User, key.ID)
		case seen[key.ID]:
			return fmt.Errorf("access key %s is listed twice", key.ID)
		}
		seen[key.ID] = true
	}
	return nil
}
