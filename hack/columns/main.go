// Command columns fails when a comment of a Go file ends beyond column 100.
//
//	go run ./hack/columns           every file
//	go run ./hack/columns PATH...   these files and folders
package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	args := append([]string{"ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}, os.Args[1:]...)
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "columns: listing the files:", err)
		os.Exit(1)
	}
	failed := false
	for file := range strings.FieldsFuncSeq(string(out), func(r rune) bool { return r == 0 }) {
		source, err := os.ReadFile(file)
		if !strings.HasSuffix(file, ".go") || err != nil { // not Go, or deleted
			continue
		}
		lines, err := wideLines(source)
		if err != nil {
			fmt.Fprintf(os.Stderr, "columns: %s: %v\n", file, err)
			os.Exit(1)
		}
		for line := range slices.Values(lines) {
			failed = true
			fmt.Printf("%s:%d: the comment ends beyond column %d: break it\n", file, line, maxColumn)
		}
	}
	if failed {
		os.Exit(1)
	}
}
