package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// benchmarkLine is a line of `go test -bench -benchmem`: name-cores, runs, ns/op, B/op, allocs/op;
// other units may be between.
var benchmarkLine = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+([\d.]+) ns/op.*?\s(\d+) B/op\s+(\d+) allocs/op`)

// microRuns are the benchmarks of the hot code, by a pattern: encoding, decoding, signing, merging,
// planning, and what grows with the clusterset. Other benchmarks of budget and etcd are not in
// the results, or need a real etcd.
var microRuns = []struct {
	pattern  string
	packages []string
}{
	{".", []string{"./internal/mcs", "./internal/plan", "./internal/registry/record", "./internal/registry/cloudmap/state", "./internal/registry/trust"}},
	{"^Benchmark(MemberLog|Ledger|Scheduler|Heartbeat|Lookup)$", []string{"./internal/registry", "./internal/registry/budget", "./internal/registry/peernotify", "./internal/registry/etcd"}},
}

// micro runs the benchmarks of the hot code.
func micro(ctx context.Context, rows *Rows) error {
	for _, r := range microRuns {
		out, err := exec.CommandContext(ctx, "go", append([]string{"test", "-run", "^$", "-benchmem", "-bench", r.pattern}, r.packages...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		rows.Micro = append(rows.Micro, parseMicro(string(out))...)
	}
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
