package model

import "slices"

var (
	exporter  = []Kind{Publish, Withdraw, Announce, Beat}
	reader    = []Kind{ReadRecord, ReadProof, ReadUnit, Save}
	asSet     = []Kind{ReadAll}
	restarts  = []Kind{SaveTimes, Kill, Restart, Silence}
	lives     = []Kind{Leave, Join, Forgets}
	restorers = []Kind{Backup, RestoreAll, RestoreRecord, RestoreUnit, DeleteRecord, DeleteUnit}
	forgers   = []Kind{ForgeRecord, ForgeFarewell, ForgeUnit}
	late      = []Kind{Backup, LateRecord, LateUnit}
)

// Worlds are the worlds that make model explores.
func Worlds() []*World {
	byUnit := slices.Concat(exporter, reader, restarts)
	set := slices.Concat(exporter, reader, asSet, restarts)
	restores := []Kind{Backup, RestoreRecord, RestoreAll, DeleteAll}
	return []*World{
		{Name: "a new cluster, by unit", Clusters: 1, Units: 2, KeysPerUnit: 1, Moves: slices.Concat(byUnit, restorers)},
		{Name: "a new cluster, as a set", Clusters: 1, Units: 2, KeysPerUnit: 1, AsSet: true, Moves: slices.Concat(set, restorers)},
		{Name: "a store that is set back, by unit", Clusters: 1, Units: 2, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(byUnit, restorers)},
		{Name: "a store that is set back, as a set", Clusters: 1, Units: 2, KeysPerUnit: 1, AsSet: true, IsImported: true,
			Moves: slices.Concat(set, restorers)},
		{Name: "farewells, forget and forged records, by unit", Clusters: 1, Units: 1, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(byUnit, lives, forgers, restores)},
		{Name: "farewells and forget, as a set", Clusters: 1, Units: 1, KeysPerUnit: 1, AsSet: true, IsImported: true,
			Moves: slices.Concat(set, lives, restores, []Kind{ForgeUnit, RestoreUnit})},
		{Name: "keys, by unit", Clusters: 1, Units: 1, KeysPerUnit: 1, Sealed: true, IsImported: true,
			Moves: slices.Concat(byUnit, []Kind{Rotate, Rebuild, Trusts, Crash, Start, ForgeRecord, DeleteRecord})},
		{Name: "keys, as a set", Clusters: 1, Units: 2, KeysPerUnit: 1, AsSet: true, Sealed: true,
			Moves: slices.Concat(set, []Kind{Rotate, Rebuild, Trusts, Crash, Start, DeleteRecord, DeleteUnit})},
		{Name: "keys without a seal", Clusters: 1, Units: 1, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(byUnit, []Kind{Rotate, Rebuild, Trusts, Leave, Join, Backup, RestoreRecord})},
		{Name: "late reads of a unit with two exports", Clusters: 1, Units: 1, KeysPerUnit: 2, IsImported: true,
			Moves: slices.Concat(byUnit, late, []Kind{Clone, DeleteRecord})},
		{Name: "namespaces that are imported later", Clusters: 1, Units: 1, KeysPerUnit: 2, Skips: true,
			Moves: slices.Concat(byUnit, []Kind{Use, Backup, LateUnit, RestoreUnit})},
		{Name: "two clusters, one of which writes under the ID of the other", Clusters: 2, Units: 1, KeysPerUnit: 1, IsImported: true,
			Moves: slices.Concat(exporter, reader, []Kind{Kill, Silence, ForgeRecord, ForgeUnit, DeleteAll, Leave})},
	}
}
