package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

// quiet is the pause before the machine is measured, in which the processes of a run end, and the
// duration of that measurement.
const quiet = 5 * time.Second

// machine is how busy and how fast the machine is while no run is measured.
type machine struct {
	// others is the percentage of processor time that other programs use, clock the time of a fixed
	// computation in milliseconds.
	others, clock float64
}

func measureMachine(ctx context.Context) (m machine, err error) {
	if err := pause(ctx, quiet); err != nil {
		return m, err
	}
	before, err := processors()
	if err != nil {
		return m, err
	}
	if err := pause(ctx, quiet); err != nil {
		return m, err
	}
	after, err := processors()
	m.others, m.clock = hundredths(busy(before, after)), milliseconds(clock())
	return m, err
}

// processors reads the time that all processors have been used so far.
func processors() (procfs.CPUStat, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return procfs.CPUStat{}, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return procfs.CPUStat{}, fmt.Errorf("reading the use of the processors: %w", err)
	}
	return stat.CPUTotal, nil
}

// busy returns the percentage of time in which the processors worked, or worked for other virtual
// machines.
func busy(before, after procfs.CPUStat) float64 {
	used := func(s procfs.CPUStat) float64 { return s.User + s.Nice + s.System + s.IRQ + s.SoftIRQ + s.Steal }
	idle := func(s procfs.CPUStat) float64 { return s.Idle + s.Iowait }
	work, rest := used(after)-used(before), idle(after)-idle(before)
	if work+rest <= 0 {
		return 0
	}
	return 100 * work / (work + rest)
}

// clock times sorting a million numbers on each processor: the median of five.
func clock() time.Duration {
	numbers := make([]uint64, 1<<20)
	for i, random := 0, rand.New(rand.NewPCG(1, 2)); i < len(numbers); i++ { //nolint:gosec // not a secret
		numbers[i] = random.Uint64()
	}
	var times []time.Duration
	for range 5 {
		var all sync.WaitGroup
		began := time.Now()
		for range runtime.NumCPU() {
			all.Go(func() { slices.Sort(slices.Clone(numbers)) })
		}
		all.Wait()
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return times[len(times)/2]
}
