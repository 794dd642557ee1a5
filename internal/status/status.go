// Package status is the status endpoint of the controller: the types that the controller and the
// kubectl plugin share, and the HTTP handler. It is read-only and listens on a loopback address:
// only users with permission to port-forward to the controller's pods can read it.
package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/pathhealth"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/policy"
)

// PortName is the name of the endpoint's port in the pod.
const PortName = "status"

// Leftover is a resource of the registry that stayed when the cluster left, and the command that
// deletes it. IsProtected: the cluster has no right to.
type Leftover struct {
	Resource    string `json:"resource"`
	Command     string `json:"command"`
	Reason      string `json:"reason"`
	IsProtected bool   `json:"isProtected,omitempty"`
}

// Status is the state of one replica of the controller. Only the leader reads the registry.
type Status struct {
	// Version is the version of the controller, Time its clock.
	Version string    `json:"version"`
	Time    time.Time `json:"time"`
	// Leader reports whether this replica is active. A standby replica sets only Version and Time.
	Leader bool `json:"leader"`
	// Registry is the kind of registry, such as cloudmap.
	Registry string `json:"registry"`
	// Identity is that of the cluster while it is a member, nil otherwise; then Problem is the
	// reason.
	Identity *mcs.Identity `json:"identity,omitempty"`
	Problem  string        `json:"problem,omitempty"`
	// IdentityProblem is the reason why Identity is not that of the ClusterProperties or flags:
	// they are missing or not valid, or the identity changes.
	IdentityProblem string `json:"identityProblem,omitempty"`
	// Next is the identity that the cluster changes to, nil if it does not change. After a restart,
	// Identity is that one already.
	Next *mcs.Identity `json:"next,omitempty"`
	// Leaving are identities whose content is being removed from the registry, or will be.
	Leaving []mcs.Identity `json:"leaving,omitempty"`
	// Leftovers are the resources of the registry that stayed when the cluster left.
	Leftovers []Leftover `json:"leftovers,omitempty"`
	// Synced reports whether the registry has been read completely since this replica became the
	// leader.
	Synced bool `json:"synced"`
	// ReadProblem and WriteProblem are the current problems of reading and writing the registry.
	ReadProblem  string `json:"readProblem,omitempty"`
	WriteProblem string `json:"writeProblem,omitempty"`
	// Audited is the time at which all records of this cluster in the registry were read last, to
	// find those that others have deleted. It is nil before, and in a registry that shows such
	// changes at once.
	Audited *time.Time `json:"audited,omitempty"`
	// Stored counts the instances of this cluster that AWS Cloud Map stores and bills, nil in
	// another registry.
	Stored *Stored `json:"stored,omitempty"`
	// Members are the clusters of the clusterset, sorted by ID.
	Members []Member `json:"members,omitempty"`
	// PathHealth is --path-health. Paths are the paths from this cluster to the others, sorted by
	// ID; none if it is off. FaultHere reports whether most of them fail.
	PathHealth string `json:"pathHealth,omitempty"`
	Paths      []Path `json:"paths,omitempty"`
	FaultHere  bool   `json:"faultHere,omitempty"`
	// DNS is whether the cluster's DNS serves clusterset.local, nil on a standby.
	DNS *DNS `json:"dns,omitempty"`
	// Services is the number of services of the clusterset, Conflicts their conflicts, sorted by
	// key.
	Services  int        `json:"services"`
	Conflicts []Conflict `json:"conflicts,omitempty"`
	// Publications are this cluster's exports whose state is not Exported, sorted by key.
	Publications []Publication `json:"publications,omitempty"`
	// InstanceWarnings are this cluster's exports that Cloud Map's instances do not show as asked
	// for, sorted by key.
	InstanceWarnings []Publication `json:"instanceWarnings,omitempty"`
	// Imports are this cluster's imports that are not Ready or cannot be written, sorted by key.
	// HeldImports is the number of ended imports whose clusterset IPs are held, and Held are those
	// held longest, at most MaxHeld, the oldest first.
	Imports     []ImportProblem `json:"imports,omitempty"`
	HeldImports int             `json:"heldImports,omitempty"`
	Held        []HeldImport    `json:"held,omitempty"`
	// Budgets are the budgets for the exports of the other clusters. OverBudget are the imports
	// that wait because their namespace has too many.
	Budgets    []Budget  `json:"budgets,omitempty"`
	OverBudget []mcs.Key `json:"overBudget,omitempty"`
	// ImportPolicy is the state of --import-policy, nil if there is none. Refused are the parts of
	// other clusters' exports that this cluster refuses, sorted by key.
	ImportPolicy *ImportPolicy `json:"importPolicy,omitempty"`
	Refused      []Refused     `json:"refused,omitempty"`
	// Requests counts the requests to the registry within RequestWindow, sorted.
	Requests []Request `json:"requests,omitempty"`
}

// Stored counts instances in AWS Cloud Map.
type Stored struct {
	// Records are those of the member record and the pages, View those of the instance view.
	Records int `json:"records"`
	View    int `json:"view"`
}

// ImportPolicy is the state of the file of --import-policy.
type ImportPolicy struct {
	File string `json:"file"`
	// Problem is the reason why the content of the file is not in use, "" if it is. Loaded is the
	// time at which the policy in use was read, the zero time if there is none: then imports stay
	// as they are.
	Problem string    `json:"problem,omitempty"`
	Loaded  time.Time `json:"loaded,omitzero"`
}

// Refused is a refused part of a service.
type Refused struct {
	Key mcs.Key `json:"key"`
	policy.Refusal
}

// NoLeader describes a cluster in which only standby replicas respond.
const NoLeader = "no replica is the leader: a standby becomes the leader when the Lease of the previous one expires, within 15 seconds"

// Budget is the use of one budget.
type Budget struct {
	// Scope is member (the cluster that uses most), total or namespace (the namespace with most).
	// Kind is the unit.
	Scope string `json:"scope"`
	Kind  string `json:"kind"`
	Used  int    `json:"used"`
	Limit int    `json:"limit"`
}

// nearLimit is the share of a budget from which it is reported, as the alert CloudMapMCSNearBudget
// does.
const nearLimit = 0.8

// IsNear reports whether more than 80 % of the budget is used.
func (b Budget) IsNear() bool { return float64(b.Used) > nearLimit*float64(b.Limit) }

// String describes the budget, with the flag that sets it.
func (b Budget) String() string {
	of := "one cluster"
	switch b.Scope {
	case "total":
		of = "all clusters"
	case "namespace":
		of = "one namespace"
	}
	return fmt.Sprintf("%d of the budget of %d %s of %s are used (--budget-scale)", b.Used, b.Limit, b.Kind, of)
}

// ImportProblem is the reason why a ServiceImport is not Ready.
type ImportProblem struct {
	Key     mcs.Key `json:"key"`
	Reason  string  `json:"reason"`
	Message string  `json:"message"`
}

// MaxHeld bounds the ended imports that a Status lists.
const MaxHeld = 100

// HeldImport is an ended import whose clusterset IPs are held for some time (--clusterset-ip-hold).
type HeldImport struct {
	Key mcs.Key  `json:"key"`
	IPs []string `json:"ips"`
	// Since is the time at which the import ended.
	Since time.Time `json:"since"`
}

// Member is a cluster of the clusterset as this cluster sees it.
type Member struct {
	ClusterID string `json:"clusterID"`
	UID       string `json:"uid"`
	Version   string `json:"version"`
	// Key is the public key that its records are signed with, as --trusted-keys has it.
	Key string `json:"key,omitempty"`
	// RefusedKey is the key of a record under its ID that was refused because of it, "" if there is
	// none.
	RefusedKey string `json:"refusedKey,omitempty"`
	// Seal is Sealed if only the cluster can write into its catalog in AWS Cloud Map, Unsealed if
	// another member can give itself the right to, Unreadable if the tags of the catalog cannot be
	// read, and "" if they were not read yet or the registry is another one.
	Seal string `json:"seal,omitempty"`
	// HeartbeatAge is the time since its heartbeat was last seen to advance, in seconds.
	HeartbeatAge float64 `json:"heartbeatAgeSeconds"`
	Stale        bool    `json:"stale,omitempty"`
	// Mapped is true for the pseudo-cluster of mapped services of AWS Cloud Map. HeartbeatAge is
	// then the time since Cloud Map answered.
	Mapped bool `json:"mapped,omitempty"`
	// Drain is the part of its endpoints that other clusters do not use, "" for none.
	Drain mcs.Drain `json:"drain,omitempty"`
	// Networks are those of its pods that it announces, as mcs.PropertyNetworks, "" for none.
	Networks string `json:"networks,omitempty"`
	// Zones are its zones with their IDs that it announces, as mcs.PropertyZones, "" for none.
	Zones string `json:"zones,omitempty"`
	// ImportReport is what it reports about its imports, in hashes. ImportersOf reads it.
	ImportReport mcs.ImportReport `json:"importReport,omitempty"`
	// Exports and Endpoints are the numbers that could be read. Unknown is the number of services
	// of the clusterset whose state in this cluster is unknown.
	Exports   int      `json:"exports"`
	Endpoints int      `json:"endpoints"`
	Unknown   int      `json:"unknown,omitempty"`
	Problems  []string `json:"problems,omitempty"`
	// Refused are those of the Problems that are about records which the cluster did not sign.
	Refused []string `json:"refused,omitempty"`
	// OverBudget are those of the Problems that are about exports which exceed a budget of this
	// cluster.
	OverBudget []string `json:"overBudget,omitempty"`
}

// The values of Member.Seal.
const (
	Sealed         = "Sealed"
	Unsealed       = "Unsealed"
	SealUnreadable = "Unreadable"
)

// Path is the path from this cluster to the pods of another one.
type Path struct {
	ClusterID string `json:"clusterID"`
	// State is Reachable, Unreachable, Unknown, or "" while it is not decided. Seconds is the time
	// in it.
	State   string  `json:"state,omitempty"`
	Seconds float64 `json:"seconds"`
	// Controller and Endpoints are the last probes.
	Controller PathProbes `json:"controller"`
	Endpoints  PathProbes `json:"endpoints"`
	// NotificationAge is the time since the last peer notification of the cluster, in seconds; nil
	// if there was none.
	NotificationAge *float64 `json:"notificationAgeSeconds,omitempty"`
}

// The values of Path.State.
const (
	PathReachable   = string(pathhealth.Reachable)
	PathUnreachable = string(pathhealth.Unreachable)
)

// DNS is what the cluster's DNS answers to the controller's pod.
type DNS struct {
	// State is Served, NotServed or Unknown. Problem is the reason, "" if it is Served.
	State   string `json:"state"`
	Problem string `json:"problem,omitempty"`
	// Checked is the time of the last check, the zero time before the first one.
	Checked time.Time `json:"checked,omitzero"`
}

// The values of DNS.State.
const (
	DNSServed    = "Served"
	DNSNotServed = "NotServed"
	DNSUnknown   = "Unknown"
)

// PathProbes are the last probes of one kind.
type PathProbes struct {
	// Targets is the number of addresses to probe, and Reached that of those that answered the last
	// time.
	Targets int `json:"targets"`
	Reached int `json:"reached"`
}

// Conflict lists the conflicts between the exports of a service.
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
	// Warnings are problems that the other clusters do not notice, such as endpoints without an
	// instance in Cloud Map. Each has an action for the user.
	Warnings []string `json:"warnings,omitempty"`
}

// RequestWindow is the period that the counts of Requests cover.
const RequestWindow = time.Minute

// Request is the number of requests of one kind to the registry.
type Request struct {
	Registry  string `json:"registry"`
	Operation string `json:"operation"`
	// Result is ok, throttled, denied, not_found, conflict, invalid, canceled or error.
	Result string `json:"result"`
	Count  int    `json:"count"`
}

// Service is the state of one key as the leader sees it.
type Service struct {
	Key mcs.Key `json:"key"`
	// Own is this cluster's export as it was last published, nil if there is none. Publication is
	// its state.
	Own         *mcs.Export  `json:"own,omitempty"`
	Publication *Publication `json:"publication,omitempty"`
	// LeftOut is what Own lacks of the Service and the ServiceExport, with the reasons.
	LeftOut mcs.LeftOuts `json:"leftOut,omitempty"`
	// Exports are those of the other clusters, as read from the registry, sorted by cluster.
	Exports []mcs.Export `json:"exports,omitempty"`
	// Ignored are clusters that export the service while services are not imported into its
	// namespace here: nothing else is known of these exports.
	Ignored []string `json:"ignored,omitempty"`
	// NotImported is the reason why services are not imported into the namespace here, "" if they
	// are or if the namespace does not exist.
	NotImported string `json:"notImported,omitempty"`
	// Unknown are clusters whose export could not be read yet, Stale those in Exports without
	// heartbeats.
	Unknown []string `json:"unknown,omitempty"`
	Stale   []string `json:"stale,omitempty"`
	// Conflicts are the conflicts between the exports.
	Conflicts []string `json:"conflicts,omitempty"`
	// NotFor are the clusters, sorted, whose exports are for other clusters than this one.
	NotFor []string `json:"notFor,omitempty"`
	// Importers are the other members that Own is for, with the state of their imports; nil while
	// these are not known, and in lists, for which Status.ImportersOf has them.
	Importers *mcs.Importers `json:"importers,omitempty"`
	// ImportedFrom are the clusters in the status of this cluster's ServiceImport, empty if there
	// is none. It is nil where it is not known: outside of lists, and from older controllers.
	ImportedFrom []string `json:"importedFrom,omitzero"`
	// Refused are the parts of the exports that this cluster refuses.
	Refused []policy.Refusal `json:"refused,omitempty"`
	// Mapped is the service of AWS Cloud Map that is mapped to the key in this cluster, nil if
	// there is none.
	Mapped *MappedService `json:"mapped,omitempty"`
}

// MappedService is a service of AWS Cloud Map that is mapped to a key.
type MappedService struct {
	// ClusterID is the pseudo-cluster. Namespace and Service are the names in Cloud Map.
	ClusterID string `json:"clusterID"`
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// Instances is the number of its instances at the last read that succeeded, ReadAge the time
	// since then in seconds, nil if there was none.
	Instances int      `json:"instances"`
	ReadAge   *float64 `json:"readAgeSeconds,omitempty"`
	// Problems are those of the pseudo-cluster that are about this service.
	Problems []string `json:"problems,omitempty"`
}

// Probe is the result of a test of an imported service from the controller's pod.
type Probe struct {
	Key mcs.Key `json:"key"`
	// Name is the DNS name that was resolved. Addresses is the result, LookupProblem the reason if
	// there is none.
	Name          string   `json:"name"`
	Addresses     []string `json:"addresses,omitempty"`
	LookupProblem string   `json:"lookupProblem,omitempty"`
	// Connections are the attempted TCP connections.
	Connections []Connection `json:"connections,omitempty"`
}

// Connection is an attempted TCP connection.
type Connection struct {
	Target
	// Problem is the reason of a failure, "" if the connection was accepted. Milliseconds is the
	// duration.
	Problem      string `json:"problem,omitempty"`
	Milliseconds int64  `json:"milliseconds"`
}

// Target is the destination of a connection.
type Target struct {
	Address string `json:"address"`
	// Cluster is the source cluster of an endpoint; "" is the clusterset IP.
	Cluster string `json:"cluster,omitempty"`
}

// Calls returns the number of requests to the registry within RequestWindow.
func (s *Status) Calls() int {
	calls := 0
	for _, r := range s.Requests {
		calls += r.Count
	}
	return calls
}

// Unanswered returns the reason why a controller with this status knows no services, "" if it does.
func (s *Status) Unanswered() string {
	switch {
	case !s.Leader:
		return NoLeader
	case s.Identity == nil:
		return "the cluster is not a member of a clusterset: " + s.Problem
	case !s.Synced:
		return "the controller has not read the registry: " + cmp.Or(s.ReadProblem, "this takes a few seconds after a start")
	}
	return ""
}

// ImportersOf returns the other members that an export of this cluster is for, by what they report.
// Recipients is empty if the export is for some clusters: which these are is not known here.
func (s *Status) ImportersOf(exp mcs.Export) mcs.Importers {
	reports := map[string]mcs.ImportReport{}
	for _, m := range s.Members {
		// a member without UID and version has no record that this cluster has accepted
		if m.ClusterID != exp.Cluster && !m.Mapped && (m.UID != "" || m.Version != "") {
			reports[m.ClusterID] = m.ImportReport
		}
	}
	importers := mcs.FindImporters(exp.Cluster, exp.Key, reports)
	if exp.Recipients != "" {
		importers.Recipients = nil
	}
	return importers
}
