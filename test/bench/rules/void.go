package rules

import (
	"fmt"
	"math"
	"slices"
)

const (
	// Runs is how many runs a row needs: the fewest of which one is in the middle.
	Runs = 3
	// tolerance is by how much floors may differ: a quarter. Beyond it a figure says more about the
	// machine than about the product.
	tolerance = 1.25
	// maxOthers is the percentage of processor time that other programs may use. With a tenth, what
	// needs all processors takes a ninth longer, well within the tolerance.
	maxOthers = 10
)

// Run is what one run measured for a row. Times are in milliseconds.
type Run struct {
	// Took is the time of the row, Floor that of the same work without the product, measured beside
	// it.
	Took, Floor float64
	// Clock are the times of a fixed computation before and after the run.
	Clock [2]float64
	// Others is the percentage of processor time that other programs used before or after the run,
	// whichever is more.
	Others float64
}

// Void returns why a row does not count; nothing if it does. hasFloor reports whether it is a time
// with a floor; all others depend on the clock only.
func Void(runs []Run, hasFloor bool) (reasons []string) {
	if len(runs) < Runs {
		reasons = append(reasons, fmt.Sprintf("%d of %d runs", len(runs), Runs))
	}
	var floors, clocks []float64
	for i, r := range runs {
		floors, clocks = append(floors, r.Floor), append(clocks, r.Clock[:]...)
		switch {
		case !hasFloor:
		case r.Floor <= 0:
			reasons = append(reasons, fmt.Sprintf("run %d has no floor", i+1))
		case r.Took < r.Floor:
			reasons = append(reasons, fmt.Sprintf("run %d took %.4g ms, less than its floor of %.4g ms", i+1, r.Took, r.Floor))
		}
		if r.Others > maxOthers {
			reasons = append(reasons, fmt.Sprintf("other programs used %.0f %% of the processors at run %d", r.Others, i+1))
		}
	}
	if hasFloor && differ(floors) {
		reasons = append(reasons, fmt.Sprintf("the floor was between %.4g and %.4g ms", slices.Min(floors), slices.Max(floors)))
	}
	if differ(clocks) {
		reasons = append(reasons, fmt.Sprintf("the same computation took between %.4g and %.4g ms", slices.Min(clocks), slices.Max(clocks)))
	}
	return reasons
}

// differ reports whether times differ by more than the tolerance.
func differ(times []float64) bool {
	low, high := math.Inf(1), 0.0
	for _, t := range times {
		low, high = min(low, t), max(high, t)
	}
	return high > low*tolerance
}
