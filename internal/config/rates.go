package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Rate is a token bucket: so many requests a second in the long run, so many at once.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Rates are rates by AWS operation. As a flag they are given one by one: RegisterInstance=20/40.
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

// Set implements pflag.Value. Several rates may stand in one flag, with commas between.
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
			return errors.New("must be an operation, requests a second above 0 and requests at once from 1 on, such as RegisterInstance=20/40")
		}
		r[operation] = rate
	}
	return nil
}

// maxRate is more than any quota that AWS grants.
const maxRate = 1e6
