// Package status is what a controller tells people of itself: the types, which the controller and the kubectl plugin share,
// and the HTTP handler. It is read only, and it is served on a loopback address: whoever may port-forward to the controller's
// pods may look, and nobody else.
package status

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

// DefaultPort is the port of the status endpoint unless --status-bind-address says otherwise, and PortName what the pod's
// container calls it.
const (
	DefaultPort = 8082
	PortName    = "status"
)

// Status is what one replica of the controller knows of the clusterset. Only the leader knows the registry.
type Status struct {
	// Version is the controller's, Time its clock.
	Version string    `json:"version"`
	Time    time.Time `json:"time"`
	// Leader says whether this replica works; another one stands by and knows only its own version and time.
	Leader bool `json:"leader"`
	// Registry is the kind of registry, such as cloudmap.
	Registry string `json:"registry"`
	// Identity is who the cluster is while it is a member, nil otherwise; then Problem says why.
	Identity *mcs.Identity `json:"identity,omitempty"`
	Problem  string        `json:"problem,omitempty"`
	// Leaving are earlier identities under which the cluster may still have something in the registry: it is being removed.
	Leaving []mcs.Identity `json:"leaving,omitempty"`
	// Synced says whether the registry has been read whole since this replica leads.
	Synced bool `json:"synced"`
	// ReadProblem and WriteProblem are why the registry cannot be read or written at this moment.
	ReadProblem  string `json:"readProblem,omitempty"`
	WriteProblem string `json:"writeProblem,omitempty"`
	// Members are the clusters of the clusterset, sorted by ID.
	Members []Member `json:"members,omitempty"`
	// Services is how many services the clusterset has, Conflicts what their exports disagree about, sorted by key.
	Services  int        `json:"services"`
	Conflicts []Conflict `json:"conflicts,omitempty"`
	// Publications are this cluster's own that are not exported, sorted by key.
	Publications []Publication `json:"publications,omitempty"`
	// Requests are those to the registry within RequestWindow, sorted.
	Requests []Request `json:"requests,omitempty"`
}

// Member is one cluster of the clusterset as this cluster sees it.
type Member struct {
	ClusterID string `json:"clusterID"`
	UID       string `json:"uid"`
	Version   string `json:"version"`
	// HeartbeatAge is how long ago its heartbeat was last seen to advance, in seconds.
	HeartbeatAge float64 `json:"heartbeatAgeSeconds"`
	Stale        bool    `json:"stale,omitempty"`
	// Exports and Endpoints are how many it has, as far as they could be read; Unknown is how many services of the clusterset
	// have an unknown state there.
	Exports   int      `json:"exports"`
	Endpoints int      `json:"endpoints"`
	Unknown   int      `json:"unknown,omitempty"`
	Problems  []string `json:"problems,omitempty"`
}

// Conflict is what the exports of one service disagree about.
type Conflict struct {
	Key      mcs.Key  `json:"key"`
	Problems []string `json:"problems"`
}

// Publication is an export of this cluster.
type Publication struct {
	Key mcs.Key `json:"key"`
	// State is Absent, Pending or Exported.
	State   string `json:"state"`
	Problem string `json:"problem,omitempty"`
}

// RequestWindow is the time that the counts of Requests cover.
const RequestWindow = time.Minute

// Request counts one kind of request to the registry.
type Request struct {
	Registry  string `json:"registry"`
	Operation string `json:"operation"`
	// Result is ok, throttled, denied, not_found, conflict, invalid, canceled or error.
	Result string `json:"result"`
	Count  int    `json:"count"`
}

// Service is what the leader knows of one key.
type Service struct {
	Key mcs.Key `json:"key"`
	// Own is this cluster's export as it was last published, nil when it exports none; Publication says how that stands.
	Own         *mcs.Export  `json:"own,omitempty"`
	Publication *Publication `json:"publication,omitempty"`
	// Exports are the other clusters', as read from the registry, sorted by cluster.
	Exports []mcs.Export `json:"exports,omitempty"`
	// Unknown are clusters whose export could not be read yet, Stale those in Exports that show no sign of life.
	Unknown []string `json:"unknown,omitempty"`
	Stale   []string `json:"stale,omitempty"`
	// Conflicts are what the exports disagree about.
	Conflicts []string `json:"conflicts,omitempty"`
}

// Probe is what a pod in the cluster, the controller's, sees of an imported service.
type Probe struct {
	Key mcs.Key `json:"key"`
	// Name is the DNS name that was asked for, Addresses the answer or LookupProblem why there is none.
	Name          string   `json:"name"`
	Addresses     []string `json:"addresses,omitempty"`
	LookupProblem string   `json:"lookupProblem,omitempty"`
	// Connections are the TCP connections that were tried.
	Connections []Connection `json:"connections,omitempty"`
}

// Connection is one TCP connection that was tried.
type Connection struct {
	Target
	// Problem is why it failed, "" when it was accepted; Milliseconds is how long that took.
	Problem      string `json:"problem,omitempty"`
	Milliseconds int64  `json:"milliseconds"`
}

// Target is where a connection is tried to.
type Target struct {
	Address string `json:"address"`
	// Cluster is the source cluster of an endpoint; "" is the clusterset IP.
	Cluster string `json:"cluster,omitempty"`
}

// Calls is how many requests to the registry were made within RequestWindow.
func (s *Status) Calls() int {
	calls := 0
	for _, r := range s.Requests {
		calls += r.Count
	}
	return calls
}
