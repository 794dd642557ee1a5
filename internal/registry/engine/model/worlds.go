package model

import "slices"

var (
	reads   = []Kind{ReadRecord, ReadProof, ReadUnit, Save}
	setRead = []Kind{ReadRecord, ReadAll, ReadUnit, Save}
)

// PublisherWorlds are the worlds of a cluster that publishes, which make model explores too.
func PublisherWorlds() []*PublisherWorld {
	controller := []StepKind{Change, Cease, Write, Accept}
	return []*PublisherWorld{
		{
			Name: "failing writes and late reads, by unit", Units: 2,
			Steps: slices.Concat(controller, []StepKind{Record, Hold, Mature, Apply, Lost, Refusal, ReadSoon, ReadLate}),
		},
		{
			Name: "failing writes, as a set", Units: 2, AsSet: true,
			Steps: slices.Concat(controller, []StepKind{Record, Hold, Doubt, Apply, Lost, Refusal, ReadLate}),
		},
		{
			Name: "two processes, by unit", Units: 1,
			Steps: slices.Concat(controller, []StepKind{Record, Hold, HoldLate, Snapshot, Mature, Displace, OtherWrites, OtherRecord, Apply, Lost, ReadLate}),
		},
		{
			Name: "two processes, as a set", Units: 2, AsSet: true,
			Steps: slices.Concat(controller, []StepKind{Record, Hold, Doubt, Displace, OtherWrites, OtherRecord, Apply, Lost, ReadLate}),
		},
		{
			Name: "a third party, by unit", Units: 1,
			Steps: slices.Concat(controller, []StepKind{Record, Hold, Mature, Snapshot, Removal, Replay, Displace, OtherWrites, ReadSoon, ReadLate}),
		},
		{
			Name: "a third party, as a set", Units: 2, AsSet: true,
			Steps: slices.Concat(controller, []StepKind{Record, Hold, Doubt, Snapshot, Removal, Replay, ReadLate}),
		},
	}
}

// Worlds are the worlds that make model explores: few kinds of moves in each, so that the search
// gets far.
func Worlds() []*World {
	return []*World{
		{
			Name: "a new cluster, by unit", Clusters: 1, Units: 2, KeysPerUnit: 1,
			Moves: slices.Concat(reads, []Kind{Publish, Announce, Withdraw, Beat, Kill, Silence, DeleteRecord, DeleteUnit}),
		},
		{
			Name: "a new cluster, as a set", Clusters: 1, Units: 2, KeysPerUnit: 1, AsSet: true,
			Moves: slices.Concat(setRead, []Kind{Publish, Withdraw, Beat, Kill, Silence, DeleteRecord, DeleteUnit}),
		},
		{
			Name: "a store that is set back, by unit", Clusters: 1, Units: 2, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(reads, []Kind{Publish, Announce, Withdraw, Kill, Restart, Backup, RestoreAll, RestoreRecord}),
		},
		{
			Name: "a store that is set back, and a slow write", Clusters: 1, Units: 1, KeysPerUnit: 1, IsImported: true,
			Moves: []Kind{ReadRecord, ReadUnit, Publish, Announce, WriteSlowly, Kill, Backup, RestoreAll},
		},
		{
			Name: "a store that is set back, as a set", Clusters: 1, Units: 2, KeysPerUnit: 1, AsSet: true, IsImported: true,
			Moves: slices.Concat(setRead, []Kind{Publish, Withdraw, Beat, Kill, Restart, Backup, RestoreAll, RestoreUnit}),
		},
		{
			Name: "units written again or deleted, by unit", Clusters: 1, Units: 1, KeysPerUnit: 2, IsImported: true,
			Moves: slices.Concat(reads, []Kind{Publish, Announce, Withdraw, Restart, Backup, RestoreUnit, DeleteUnit, ForgeUnit}),
		},
		{
			Name: "units written again or deleted, as a set", Clusters: 1, Units: 2, KeysPerUnit: 1, AsSet: true, IsImported: true,
			Moves: slices.Concat(setRead, []Kind{Publish, Withdraw, Kill, Silence, Backup, RestoreUnit, DeleteUnit, ForgeUnit}),
		},
		{
			Name: "a reader that restarts", Clusters: 1, Units: 1, KeysPerUnit: 1, AsSet: true, IsImported: true,
			Moves: slices.Concat(setRead, []Kind{Publish, Restart, Backup, RestoreUnit, RestoreAll}),
		},
		{
			Name: "farewells, by unit", Clusters: 1, Units: 1, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(reads, []Kind{Announce, Beat, Leave, Join, Publish, Kill, Backup, RestoreRecord, Silence}),
		},
		{
			Name: "farewells, as a set", Clusters: 1, Units: 1, KeysPerUnit: 1, AsSet: true, IsImported: true,
			Moves: slices.Concat(setRead, []Kind{Beat, Leave, Join, Publish, Kill, Backup, RestoreAll, Silence}),
		},
		{
			Name: "forget and forged records", Clusters: 1, Units: 1, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(reads, []Kind{Beat, Leave, Join, Forgets, ForgeRecord, ForgeFarewell, DeleteAll, Kill, Silence}),
		},
		{
			Name: "keys, by unit", Clusters: 1, Units: 1, KeysPerUnit: 1, IsImported: true, Sealed: true,
			Moves: slices.Concat(reads, []Kind{Kill, Restart, Silence, Publish, Announce, Withdraw, Beat, Rotate, Rebuild, Trusts, ForgeRecord, DeleteRecord}),
		},
		{
			Name: "a copy of a record that is older than the units", Clusters: 1, Units: 1, KeysPerUnit: 1, HasOldCopies: true,
			Moves: slices.Concat(reads, []Kind{Publish, Withdraw, Beat, Restart, Kill, ForgeRecord, DeleteRecord}),
		},
		{
			Name: "keys, as a set", Clusters: 1, Units: 2, KeysPerUnit: 1, AsSet: true, IsImported: true, Sealed: true,
			Moves: slices.Concat(setRead, []Kind{Kill, Restart, Silence, Withdraw, Beat, Rotate, Rebuild, Trusts, DeleteRecord, DeleteUnit}),
		},
		{
			Name: "keys of a store that is set back, by unit", Clusters: 1, Units: 1, KeysPerUnit: 1, IsImported: true, Sealed: true,
			Moves: slices.Concat(reads, []Kind{Publish, Withdraw, Beat, Rotate, Rebuild, Backup, RestoreAll, Silence, Kill}),
		},
		{
			Name: "keys of a store that is set back, as a set", Clusters: 1, Units: 1, KeysPerUnit: 1, AsSet: true, IsImported: true, Sealed: true,
			Moves: slices.Concat(setRead, []Kind{Publish, Withdraw, Beat, Rotate, Rebuild, Backup, RestoreAll, Silence, Kill}),
		},
		{
			Name: "keys without a seal", Clusters: 1, Units: 1, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(reads, []Kind{Beat, Withdraw, Rotate, Rebuild, Trusts, Leave, Join, Backup, RestoreRecord, Kill, Silence}),
		},
		{
			Name: "late reads and a clone", Clusters: 1, Units: 1, KeysPerUnit: 2, IsImported: true,
			Moves: slices.Concat(reads, []Kind{Publish, Announce, Withdraw, Clone, Beat, Backup, LateRecord, LateUnit, SaveTimes, Kill}),
		},
		{
			Name: "a record during the write of a unit", Clusters: 1, Units: 2, KeysPerUnit: 1, IsImported: true,
			Moves: []Kind{ReadRecord, ReadUnit, Publish, Announce, AnnounceRest, Backup, LateUnit},
		},
		{
			Name: "a slow write, and a reader that restarts", Clusters: 1, Units: 1, KeysPerUnit: 2, IsImported: true,
			Moves: []Kind{ReadRecord, ReadUnit, Withdraw, Announce, WriteSlowly, Backup, LateUnit, Answer, Kill},
		},
		{
			Name: "records that are sent", Clusters: 1, Units: 2, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(reads, []Kind{Publish, Announce, Withdraw, Send, SendAgain, Backup, LateRecord, LateUnit, Kill, SaveTimes}),
		},
		{
			Name: "records that are sent, and a third party", Clusters: 1, Units: 1, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(reads, []Kind{Publish, Announce, Withdraw, Send, SendAgain, Backup, RestoreAll, RestoreRecord, DeleteRecord, Leave, Join, Restart, Silence}),
		},
		{
			Name: "a cluster that answers a reader that starts", Clusters: 1, Units: 2, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(reads, []Kind{Publish, Announce, Withdraw, Answer, Kill, Backup, RestoreRecord, LateRecord, Rotate, Silence}),
		},
		{
			Name: "namespaces that are imported later", Clusters: 1, Units: 1, KeysPerUnit: 2, Skips: true,
			Moves: slices.Concat(reads, []Kind{Publish, Announce, Withdraw, Use, Kill, Beat, Backup, LateUnit}),
		},
		{
			Name: "two clusters, and a third party that writes under their IDs", Clusters: 2, Units: 1, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(reads, []Kind{Publish, Announce, Withdraw, Kill, ForgeRecord, ForgeUnit, DeleteAll}),
		},
	}
}
