package engine

import (
	"context"
	"fmt"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// Publisher implements Publish and Withdraw of registry.Registry for a backend that embeds it.
type Publisher struct {
	clusterID string
	readOnly  bool
	set       func(key mcs.Key, exp *mcs.Export) error
}

// NewPublisher returns a Publisher for a cluster. It calls set with the desired export of a key,
// nil for a withdrawal; set must not block and returns an error if the export can never be written.
func NewPublisher(clusterID string, readOnly bool, set func(key mcs.Key, exp *mcs.Export) error) Publisher {
	return Publisher{clusterID: clusterID, readOnly: readOnly, set: set}
}

// Publish implements registry.Registry.
func (p *Publisher) Publish(_ context.Context, exp mcs.Export) error {
	if p.readOnly {
		return registry.ErrReadOnly
	}
	if exp.Cluster != p.clusterID {
		reason := fmt.Sprintf("it names cluster %q, but this is cluster %q", exp.Cluster, p.clusterID)
		return &registry.InvalidExportError{Key: exp.Key, Reason: reason}
	}
	return p.set(exp.Key, &exp)
}

// Withdraw implements registry.Registry.
func (p *Publisher) Withdraw(_ context.Context, key mcs.Key) error {
	if p.readOnly {
		return registry.ErrReadOnly
	}
	return p.set(key, nil)
}
