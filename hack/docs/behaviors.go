package main

import (
	"fmt"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
)

// behaviors returns the table of the switches of cloudmap-local.
func behaviors() string {
	rows := []string{"| switch | meaning | default | `--pessimistic` |", "| --- | --- | --- | --- |"}
	for _, s := range cloudmaplocal.Switches() {
		rows = append(rows, fmt.Sprintf("| `%s` | %s | `%s` | `%s` |", s.Name, s.Meaning, s.Default, s.Pessimistic))
	}
	return strings.Join(rows, "\n")
}
