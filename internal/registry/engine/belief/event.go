package belief

import (
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// UnitName names a unit of a cluster: a page on Cloud Map, the key of an export on etcd.
type UnitName string

// Version identifies a version of a unit. The zero Version is none.
type Version struct {
	// Generation orders the versions that one key has signed.
	Generation int64
	// Digest is that of the content, "" where the generation is enough.
	Digest string
}

// Place is the place in the store that a record was read from.
type Place int

const (
	// Shared is a place that other members can write too: the service members on Cloud Map.
	Shared Place = iota
	// Own is the place that only the cluster can write: its catalog on Cloud Map, its prefix on
	// etcd. A record there proves the key that it presents (promise 15).
	Own
	// Sent is no place of the store: the cluster has sent the record to this one, and writes it to
	// the store at the same time.
	Sent
)

// Seal is whether only the cluster can write into its own place, for all that the store shows.
type Seal int

const (
	// SealUnknown means that the seal was not read, or could not be read.
	SealUnknown Seal = iota
	// Sealed means that only the cluster can write there: by the tag of the catalog on Cloud Map,
	// by the user of the prefix on etcd.
	Sealed
	// Unsealed means that another member could give itself the right to.
	Unsealed
)

// Record is a member record. The caller has verified that Key has signed it, which does not mean
// that Key is the key of the cluster.
type Record struct {
	Cluster string
	// Place is the place that it was read from, and Seal the seal of that if it is Own.
	Place Place
	Seal  Seal
	// Unproven is the reason for users why the store does not prove the key, "" if there is none.
	Unproven string
	// Key has signed it, and UID is the one that it names. Both identify the author of the units.
	Key trust.Key
	UID string
	// Succession is the signature of Key with the previous key, "" without one.
	Succession string
	At         trust.Time
	// Process distinguishes the processes of the cluster, "" if the store does not.
	Process string
	// Farewell is set in the last record of a cluster that leaves. It has no Manifest.
	Farewell bool
	Manifest Manifest
	// Properties are the ClusterProperties of the cluster. Its exports are notified if they change.
	Properties mcs.Properties
	// Stored is the record as the store has it. RecordOf returns it to the driver.
	Stored any
}

// Unit is a unit as the store shows it.
type Unit struct {
	Name UnitName
	// Version is zero if the store shows none, or only a part of one.
	Version Version
	// Author has signed it, zero if the signature is not valid with that of State.RecordOf.
	Author  Author
	Content Content
	// Order is the order in which the store got the unit, 0 if it does not know it. No cluster can
	// choose it.
	Order int64
}

// Author is the cluster that signs units.
type Author struct {
	Key trust.Key
	UID string
}

// Author returns the cluster that signs the units of a record.
func (r *Record) Author() Author { return Author{Key: r.Key, UID: r.UID} }

// Content is the content of a unit, decoded within the budgets.
type Content struct {
	Exports map[mcs.Key]*mcs.Export
	// Unusable are the exports that cannot be used, because they cannot be decoded or are over
	// budget: the previous version of each stays. Unnamed is set if there are others, whose keys
	// are not known.
	Unusable map[mcs.Key]bool
	Unnamed  bool
	// Ignored are the exports in namespaces that are not imported.
	Ignored map[mcs.Key]bool
}

// isEmpty reports whether nothing of the content is imported, or may be.
func (c *Content) isEmpty() bool { return len(c.Exports)+len(c.Unusable) == 0 && !c.Unnamed }

// Event is an input of State.Step.
type Event interface{ event() }

type (
	// RecordRead is a record that the store shows, or that the cluster has sent.
	RecordRead struct{ Record Record }

	// RecordRefused is a record that the store shows, and that cannot be parsed, or is not signed
	// with the key that it presents.
	RecordRefused struct {
		Cluster string
		Reason  string
		// IsHeartbeat is set if the cluster has signed it, and it is another one than before: a
		// record of a later version.
		IsHeartbeat bool
	}

	// RecordMissing says that the store shows no record of a cluster.
	RecordMissing struct{ Cluster string }

	// ProofRead is the result of ReadProof: the record in the place that only the cluster can
	// write, nil without one, or Failed if it could not be read.
	ProofRead struct {
		Cluster string
		Record  *Record
		Failed  bool
	}

	// Answered says that a cluster with a key has answered this process, after its start: it has
	// written no record later than At.
	Answered struct {
		Cluster string
		Key     trust.Key
		At      trust.Time
	}

	// UnitsRead is the result of ReadUnits, or a change that the store has shown by itself.
	// A Unit without Version is one that is missing. With All, the others are missing as well.
	UnitsRead struct {
		Cluster string
		Units   []Unit
		All     bool
	}

	// Forget drops a cluster until its next record: an administrator says that it is gone.
	Forget struct{ Cluster string }

	// Imported names clusters that imports exist from. Proofs of those that the store does not
	// show are read.
	Imported struct{ Clusters []string }

	// Namespaces sets the namespaces whose exports are imported, nil for all.
	Namespaces struct{ Used []string }

	// ReadAgain makes units be read that were read before, because more of them can be used now.
	ReadAgain struct {
		Cluster string
		Units   []UnitName
	}

	// Tick says that the store has answered since the previous one. Heartbeat is set if it has
	// shown a heartbeat of this cluster.
	Tick struct{ Heartbeat bool }

	// Failed says that the store has not answered: the time until the next Tick makes no cluster
	// stale.
	Failed struct{}
)

func (RecordRead) event()    {}
func (RecordRefused) event() {}
func (RecordMissing) event() {}
func (ProofRead) event()     {}
func (Answered) event()      {}
func (UnitsRead) event()     {}
func (Forget) event()        {}
func (Imported) event()      {}
func (Namespaces) event()    {}
func (ReadAgain) event()     {}
func (Tick) event()          {}
func (Failed) event()        {}

// Actions are the results of State.Step. ReadProofs and ReadUnits are levels: a Step, at the latest
// that of the next Tick, returns them again until they are done. A driver that still carries one
// out ignores it. All lists are sorted.
type Actions struct {
	// ReadProofs are the clusters whose own place has to be read, with its seal (ProofRead).
	ReadProofs []string
	// ReadUnits are the units that have to be read (UnitsRead).
	ReadUnits []UnitsOf
	// Notify are the keys whose View has changed in a cluster that exports or exported them.
	Notify []mcs.Key
	// Decided are the clusters that may have another answer for keys that they do not export. The
	// driver notifies those of them that wait (engine.PendingLookups.AddChangedOf).
	Decided []string
	// Reports are the problems that have begun.
	Reports []Report
}

// UnitsOf are units of a cluster, nil for all.
type UnitsOf struct {
	Cluster string
	Units   []UnitName
}

// Report is a problem of the records of a cluster.
type Report struct {
	Cluster string
	Problem Problem
}

// Problem is the reason why the records of a cluster that the store shows do not count.
type Problem struct {
	Kind ProblemKind
	// Key is the key that was refused or is not proven. An administrator may trust it. Place is
	// that of the record with it.
	Key   trust.Key
	Place Place
	// Reason is the reason of RecordRefused, and that of Keyring.Check.
	Reason string
	// At is the time of the record of Earlier.
	At trust.Time
}

// ProblemKind is the kind of a Problem.
type ProblemKind int

const (
	// NoProblem means that the record counts.
	NoProblem ProblemKind = iota
	// Missing means that the store shows no record.
	Missing
	// Earlier means that the store shows an earlier record than was read before.
	Earlier
	// Unreadable means that the record cannot be parsed, or is not signed.
	Unreadable
	// KeyRefused means that the key of the record is not that of the cluster, for Reason.
	KeyRefused
	// KeyUnproven means that the place that only the cluster can write does not show the key.
	KeyUnproven
)

// Config configures a State.
type Config struct {
	// Own is the ID of this cluster, whose records are no events of this package.
	Own string
	// UnitOf returns the unit that has the export of a key, if the cluster exports it.
	UnitOf func(mcs.Key) UnitName
	// CodeOf returns the code of a namespace in manifests. Several may have the same one. nil is
	// the namespace itself.
	CodeOf func(namespace string) string
	// Poll is the interval of reads, and Eager the pause after each of the first reads in a row
	// that fail. StaleAfter is the time without a heartbeat after which a cluster is stale.
	Poll, Eager, StaleAfter time.Duration
	// Keyring decides about the keys of the clusters, and keeps what the next process has to know.
	// Registry is the name of the store in it.
	Keyring  *trust.Keyring
	Registry string
}
