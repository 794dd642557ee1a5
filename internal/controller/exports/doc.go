// Package exports publishes this cluster's exports to the registry and writes the conditions of
// their ServiceExports. With --auto-export-selector it creates the ServiceExports too.
package exports
