package registrytest

import (
	"maps"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry"
)

// ViewOf returns a view with exports of live clusters whose properties are not known.
func ViewOf(exports ...mcs.Export) registry.View {
	var view registry.View
	for _, exp := range exports {
		view.Set(exp.Cluster, registry.ClusterView{State: registry.Exports, Export: new(exp)})
	}
	return view
}

// With returns a copy of view with clusters in a state, which is not Exports.
func With(view registry.View, state registry.ClusterState, clusters ...string) registry.View {
	view.Clusters = maps.Clone(view.Clusters)
	for _, id := range clusters {
		view.Set(id, registry.ClusterView{State: state})
	}
	return view
}

// WithLiveness returns a copy of view in which clusters have a liveness.
func WithLiveness(view registry.View, liveness registry.LivenessState, clusters ...string) registry.View {
	view.Clusters = maps.Clone(view.Clusters)
	for _, id := range clusters {
		c := view.Clusters[id]
		c.Liveness = liveness
		view.Set(id, c)
	}
	return view
}
