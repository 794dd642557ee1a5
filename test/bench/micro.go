package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// benchmarkLine is a line of `go test -bench -benchmem`: name-cores, runs, ns/op, B/op, allocs/op; other units may be between.
var benchmarkLine = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op.*?\s(\d+) B/op\s+(\d+) allocs/op`)

// micro runs the benchmarks of the hot code: encoding, decoding, signing, merging, planning.
func micro(ctx context.Context, results *Results) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", ".", "-benchmem",
		"./internal/mcs", "./internal/plan", "./internal/registry/record", "./internal/registry/cloudmap/state", "./internal/registry/trust")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	results.Micro = parseMicro(string(out))
	return nil
}

func parseMicro(text string) []Micro {
	var list []Micro
	folder := ""
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "pkg: "); ok {
			_, folder, _ = strings.Cut(strings.TrimSpace(name), "/internal/")
		}
		m := benchmarkLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		ns, errNS := strconv.ParseFloat(m[2], 64)
		bytes, errBytes := strconv.ParseUint(m[3], 10, 64)
		allocations, errAllocations := strconv.ParseUint(m[4], 10, 64)
		if errNS == nil && errBytes == nil && errAllocations == nil {
			list = append(list, Micro{Name: folder + " " + m[1], Nanoseconds: ns, Bytes: bytes, Allocations: allocations})
		}
	}
	return list
}
