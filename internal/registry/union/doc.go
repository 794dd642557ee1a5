// Package union makes one registry of several: this cluster exports to the first and imports from all of them. A cluster
// that is seen in more than one counts once.
package union
