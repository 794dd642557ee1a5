// Package union combines several registries into one: this cluster exports to the first and imports
// from all of them. A cluster that is a member of more than one counts once.
package union
