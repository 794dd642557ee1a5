package main

import (
	"testing"

	"github.com/prometheus/procfs"
)

func TestBusy(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after procfs.CPUStat
		want          float64
	}{
		"idle":                     {procfs.CPUStat{User: 50, Idle: 100}, procfs.CPUStat{User: 50, Idle: 110}, 0},
		"waits for the disk":       {procfs.CPUStat{}, procfs.CPUStat{Iowait: 10}, 0},
		"programs":                 {procfs.CPUStat{User: 50, Idle: 100}, procfs.CPUStat{User: 51, System: 1, Idle: 108}, 20},
		"nice ones and interrupts": {procfs.CPUStat{}, procfs.CPUStat{Nice: 1, IRQ: 1, SoftIRQ: 1, Idle: 7}, 30},
		"another virtual machine":  {procfs.CPUStat{}, procfs.CPUStat{Steal: 5, Idle: 5}, 50},
		"no time":                  {procfs.CPUStat{Idle: 1}, procfs.CPUStat{Idle: 1}, 0},
	} {
		if got := busy(tt.before, tt.after); got != tt.want {
			t.Errorf("%s: %v %%, want %v", name, got, tt.want)
		}
	}
}
