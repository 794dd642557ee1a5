package main

import "fmt"

// A target limits a value of the results of a section.
type target[T any] struct {
	name  string
	limit float64
	// get returns the measured value; ok is false if the target does not apply.
	get func(T) (value float64, ok bool)
}

// missed returns the targets that a result missed by more than a share of them. of names the
// result.
func missed[T any](targets []target[T], of string, result T, share float64) (misses []string) {
	for _, t := range targets {
		if value, ok := t.get(result); ok && value > t.limit*(1+share) {
			misses = append(misses, fmt.Sprintf("%s: %s: %.3g, the target is %.3g", of, t.name, value, t.limit))
		}
	}
	return misses
}
