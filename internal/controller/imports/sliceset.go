package imports

import (
	"context"
	"fmt"
	"slices"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/kube"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/plan"
)

// sliceSet writes the EndpointSlices of one import. A refused write affects only its slice, and the
// endpoints in it that have ended leave it in another way if there is one.
type sliceSet struct {
	client   client.Client
	key      mcs.Key
	exported plan.Exported
	out      *outcome
	// written gets the names of the slices, for the next reconcile.
	written *sync.Map
	// current are the slices as they are after the writes.
	current []*discoveryv1.EndpointSlice
	// arrived are the clusters whose slices were created or updated, refused those of which a
	// creation or an update was refused.
	arrived, refused map[string]bool
	// failed reports whether a creation or an update failed for another reason, so that a retry
	// comes soon.
	failed bool
}

// newSliceSet returns the existing slices of an import with these exports of all clusters but the
// unknown ones. What the slices of an unknown cluster have, it still exports: no record says that
// it has ended.
func (r *Controller) newSliceSet(f importFacts, exports []mcs.Export, unknown []string, out *outcome) *sliceSet {
	exported := plan.ExportedAddresses(exports)
	for _, cluster := range unknown {
		exported.AddSlices(cluster, f.slices)
	}
	return &sliceSet{
		client: r.client, key: f.key, exported: exported, out: out, written: &r.written, current: slices.Clone(f.slices),
		arrived: map[string]bool{}, refused: map[string]bool{},
	}
}

// planSlices returns the writes that bring the slices of set in sync with the decision.
func (r *Controller) planSlices(f importFacts, d importDecision, o importObjects, set *sliceSet) plan.SliceSteps {
	return plan.Slices(plan.SliceInput{
		Key:          f.key,
		Merged:       o.usable,
		Exports:      d.wanted(),
		Unknown:      d.unchanged(),
		LocalCluster: f.cluster,
		Derived:      nameOrDefault(o.derived, f.derivedName),
		PortNames:    o.ports.Names,
		Families:     o.sliceFamilies(),
		Owner:        r.ownerOf(o.imp),
		Existing:     set.current,
	}).Steps(set.current, set.exported)
}

// applySlices writes the slices. Endpoints that others replace are withdrawn last, and only when
// those are written. If slices of a cluster are refused, it decides again with the endpoints that
// these slices have, and returns that decision.
func (r *Controller) applySlices(ctx context.Context, f importFacts, d importDecision, o importObjects, set *sliceSet) importDecision {
	steps := r.planSlices(f, d, o, set)
	set.write(ctx, steps.Removals)
	set.write(ctx, steps.Additions)
	if refused := set.refusedClusters(); len(refused) > 0 {
		d = d.withRefused(f, refused, set.current)
		steps = r.planSlices(f, d, o, set)
		set.write(ctx, steps.Removals)
		set.write(ctx, steps.Additions)
	}
	set.withdraw(ctx, steps.Withdrawals)
	return d
}

// refusedClusters returns the clusters of which a slice was refused, sorted.
func (s *sliceSet) refusedClusters() (clusters []string) {
	for cluster, isRefused := range s.refused {
		if isRefused {
			clusters = append(clusters, cluster)
		}
	}
	slices.Sort(clusters)
	return clusters
}

// write attempts each of writes.
func (s *sliceSet) write(ctx context.Context, writes []plan.SliceWrite) {
	for _, w := range writes {
		cluster := plan.SourceCluster(w.Slice)
		err := s.send(ctx, w)
		// A slice of another owner has the name until that owner deletes it.
		isWritten, isRefused := s.out.add(err), kube.IsRefused(err) || apierrors.IsAlreadyExists(err)
		if w.Verb != plan.VerbDelete {
			s.arrived[cluster] = s.arrived[cluster] || isWritten
			s.refused[cluster] = s.refused[cluster] || isRefused
			s.failed = s.failed || !isWritten && !isRefused
		}
		if isRefused {
			s.removeEnded(ctx, w)
		}
	}
}

// withdraw writes the withdrawals. If a creation or an update may not have been made, it removes
// only the endpoints that have ended: what shall replace the others may be missing.
func (s *sliceSet) withdraw(ctx context.Context, writes []plan.SliceWrite) {
	if !s.failed {
		s.write(ctx, writes)
		return
	}
	for _, w := range writes {
		s.removeEnded(ctx, w)
	}
}

// removeEnded removes the endpoints that have ended from a slice whose update or deletion was
// refused: an update that adds nothing, or the deletion of a slice with ended endpoints only, may
// be allowed.
func (s *sliceSet) removeEnded(ctx context.Context, w plan.SliceWrite) {
	if w.Verb == plan.VerbCreate {
		return
	}
	less, ok := plan.WithoutEnded(w.From, s.exported)
	if !ok {
		return
	}
	err := s.send(ctx, less)
	s.out.add(err)
	if kube.IsRefused(err) && len(less.Slice.Endpoints) == 0 && w.Verb != plan.VerbDelete {
		s.out.add(s.send(ctx, plan.SliceWrite{Verb: plan.VerbDelete, Slice: w.From, From: w.From}))
	}
}

// send makes one write.
func (s *sliceSet) send(ctx context.Context, w plan.SliceWrite) error {
	written, _ := s.written.Load(s.key)
	names, _ := written.([]string)
	s.written.Store(s.key, append(slices.Clone(names), w.Slice.Name))
	var err error
	switch w.Verb {
	case plan.VerbCreate:
		err = s.client.Create(ctx, w.Slice)
	case plan.VerbUpdate:
		err = s.client.Update(ctx, w.Slice)
	case plan.VerbDelete:
		if err = kube.Delete(ctx, s.client, w.Slice); err != nil {
			return err
		}
	}
	if err != nil {
		return fmt.Errorf("%s EndpointSlice %s/%s: %w", gerunds[w.Verb], w.Slice.Namespace, w.Slice.Name, err)
	}
	s.current = slices.DeleteFunc(s.current, func(e *discoveryv1.EndpointSlice) bool { return e.Name == w.Slice.Name })
	if w.Verb != plan.VerbDelete {
		s.current = append(s.current, w.Slice)
	}
	return nil
}

// gerunds are the verbs in errors.
var gerunds = map[plan.Verb]string{plan.VerbCreate: "creating", plan.VerbUpdate: "updating"}
