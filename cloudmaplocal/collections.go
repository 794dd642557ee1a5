package cloudmaplocal

import (
	"maps"
	"slices"
)

// sortedKeys returns the keys of a map, sorted.
func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

// mapSlice returns f of every item, never nil: an empty list is encoded as [].
func mapSlice[T, U any](items []T, f func(T) U) []U {
	out := make([]U, 0, len(items))
	for _, item := range items {
		out = append(out, f(item))
	}
	return out
}

func filterSlice[T any](items []T, keep func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(items), func(item T) bool { return !keep(item) })
}

func nonEmptyOr[T any](items, fallback []T) []T {
	if len(items) == 0 {
		return fallback
	}
	return items
}

// merge returns a new map with the entries of both maps; the second map wins.
func merge(a, b map[string]string) map[string]string {
	out := make(map[string]string, len(a)+len(b))
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

// without returns a new map that lacks some keys.
func without(m map[string]string, keys []string) map[string]string {
	out := merge(m, nil)
	for _, key := range keys {
		delete(out, key)
	}
	return out
}

// clone copies the value that p points to; nil stays nil.
func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	copied := *p
	return &copied
}
