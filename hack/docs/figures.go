package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
)

// figures are texts by name. A page contains one as
//
//	<!-- generated:NAME -->TEXT<!-- /generated -->
//
// on one line, or with the markers on lines of their own for tables.
type figures struct {
	texts map[string]string
	used  map[string]bool
}

var markerPattern = regexp.MustCompile(`(?s)(<!-- generated:([a-z-]+) -->)(\n?).*?(<!-- /generated -->)`)

// insert returns page with current figures.
func (f *figures) insert(page string) (string, error) {
	var errs []error
	page = markerPattern.ReplaceAllStringFunc(page, func(marked string) string {
		m := markerPattern.FindStringSubmatch(marked)
		begin, name, newline, end := m[1], m[2], m[3], m[4]
		text, ok := f.texts[name]
		if !ok {
			errs = append(errs, fmt.Errorf("unknown figure %q", name))
			return marked
		}
		f.used[name] = true
		return begin + newline + text + newline + end
	})
	return page, errors.Join(errs...)
}

// checkUsed returns an error if a figure is in no page.
func (f *figures) checkUsed() error {
	var unused []string
	for name := range f.texts {
		if !f.used[name] {
			unused = append(unused, name)
		}
	}
	if slices.Sort(unused); len(unused) > 0 {
		return fmt.Errorf("figures that no page contains: %v", unused)
	}
	return nil
}
