package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// Rate is the rate and burst of a rate limiter.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Rates are rates by AWS operation. It is a repeatable flag: RegisterInstance=20/40.
type Rates map[string]Rate

// String implements pflag.Value.
func (r Rates) String() string {
	var list []string
	for _, operation := range slices.Sorted(maps.Keys(r)) {
		list = append(list, fmt.Sprintf("%s=%v/%d", operation, r[operation].PerSecond, r[operation].Burst))
	}
	return strings.Join(list, ",")
}

// Type implements pflag.Value.
func (Rates) Type() string { return "operation=rate/burst" }

// Set implements pflag.Value. It accepts several rates, separated by commas.
func (r Rates) Set(text string) error {
	for entry := range strings.SplitSeq(text, ",") {
		operation, value, _ := strings.Cut(entry, "=")
		perSecond, burst, _ := strings.Cut(value, "/")
		var rate Rate
		var rateErr, burstErr error
		rate.PerSecond, rateErr = strconv.ParseFloat(perSecond, 64)
		rate.Burst, burstErr = strconv.Atoi(burst)
		// NaN is not above 0 either.
		if operation == "" || rateErr != nil || burstErr != nil || !(rate.PerSecond > 0 && rate.PerSecond <= maxRate) || rate.Burst < 1 || rate.Burst > maxRate {
			return errors.New("must be an operation, a rate above 0 and a burst of at least 1, such as RegisterInstance=20/40")
		}
		r[operation] = rate
	}
	return nil
}

func (r Rates) bind(_, advanced *pflag.FlagSet) {
	advanced.Var(r, "aws-rate",
		"Client-side rate limit of a Cloud Map operation, as OPERATION=QPS/BURST. Repeatable: "+docs.URL("cost.md#rates"))
}

// maxRate exceeds every quota that AWS grants.
const maxRate = 1e6
