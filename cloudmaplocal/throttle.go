package cloudmaplocal

import (
	"net/http"
	"time"

	"golang.org/x/time/rate"
)

// Limit is a token bucket: a sustained rate and a burst.
type Limit struct {
	PerSecond float64
	Burst     int
}

// defaultLimits are the quotas per account and Region.
//
// Only the first two are published [Cloud Map Developer Guide, request throttling]; no burst is
// given for the revision, so one second's worth is assumed. The others are the rates that AWS's own
// controller keeps itself to (aws-cloud-map-mcs-controller-for-k8s, ratelimiter.go) and the 50/s
// that external-dns users met on ListInstances and GetService (#2505, #2507). Other operations get
// the limit of the most similar known operation.
var defaultLimits = map[string]Limit{
	"DiscoverInstances":         {1000, 2000},
	"DiscoverInstancesRevision": {3000, 3000},

	"ListNamespaces":     {0.5, 5},
	"ListServices":       {2, 10},
	"GetOperation":       {100, 200},
	"RegisterInstance":   {50, 100},
	"DeregisterInstance": {50, 100},
	"CreateService":      {5, 50},

	"ListInstances": {50, 100},
	"GetService":    {50, 100},

	// like CreateHttpNamespace in AWS's controller
	"CreateHttpNamespace":       {0.5, 5},
	"CreatePrivateDnsNamespace": {0.5, 5},
	"CreatePublicDnsNamespace":  {0.5, 5},
	"UpdateHttpNamespace":       {0.5, 5},
	"UpdatePrivateDnsNamespace": {0.5, 5},
	"UpdatePublicDnsNamespace":  {0.5, 5},
	"DeleteNamespace":           {0.5, 5},
	// like CreateService
	"UpdateService":           {5, 50},
	"DeleteService":           {5, 50},
	"UpdateServiceAttributes": {5, 50},
	"DeleteServiceAttributes": {5, 50},
	"TagResource":             {5, 50},
	"UntagResource":           {5, 50},
	// like ListServices
	"ListOperations": {2, 10},
	// like GetService
	"GetNamespace":                     {50, 100},
	"GetInstance":                      {50, 100},
	"GetServiceAttributes":             {50, 100},
	"GetInstancesHealthStatus":         {50, 100},
	"ListTagsForResource":              {50, 100},
	"UpdateInstanceCustomHealthStatus": {50, 100},
}

// operationNames returns the names of all operations of the API, sorted.
func operationNames() []string { return sortedKeys(defaultLimits) }

// isOperation reports whether the API has an operation.
func isOperation(name string) bool {
	_, exists := defaultLimits[name]
	return exists
}

// throttle holds the token buckets of one account and Region. The zero value admits everything.
type throttle map[string]*rate.Limiter

func newThrottle(limits map[string]Limit) throttle {
	t := throttle{}
	for operation, limit := range limits {
		t[operation] = rate.NewLimiter(rate.Limit(limit.PerSecond), limit.Burst)
	}
	return t
}

// admit takes a token, or returns the error of AWS if there is none; the data plane and the control
// plane have different errors.
func (t throttle) admit(operation string, now time.Time) error {
	bucket := t[operation]
	if bucket == nil || bucket.AllowN(now, 1) {
		return nil
	}
	if isDiscovery(operation) {
		err := failure("RequestLimitExceeded", "The request rate of %s exceeds %v per second.", operation, bucket.Limit())
		err.status = http.StatusTooManyRequests
		return err
	}
	return failure("ThrottlingException", "Rate exceeded")
}
