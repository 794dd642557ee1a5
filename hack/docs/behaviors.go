package main

import (
	"fmt"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
)

// behaviors returns the table of the switches of cloudmap-local.
func behaviors() string {
	rows := []string{"| switch | meaning | default | `--pessimistic` | evidence of the default |", "| --- | --- | --- | --- | --- |"}
	for _, s := range cloudmaplocal.Switches() {
		evidence := string(s.Evidence)
		if s.Source != "" {
			evidence += ": " + s.Source
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | `%s` | `%s` | %s |", s.Name, s.Meaning, s.Default, s.Pessimistic, evidence))
	}
	return strings.Join(rows, "\n")
}
