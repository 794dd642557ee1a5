package attack

// Attacks are all attacks, by actor.
var Attacks = []Attack{
	{
		Name: "Forged record without pages", Actor: Member, Findings: []string{"F3"},
		Does:      "It writes a later record of another cluster that lists no exports, signed with its own key",
		Prevented: "An import of that cluster ends, or the cluster becomes stale",
		Effect:    "The victim logs and reports the record, and writes its own again",
		Test:      "TestAttack_ForgedRecordWithoutPages",
	},
	{
		Name: "Forged farewell", Actor: Member, Findings: []string{"F3"},
		Does:      "It writes a farewell of another cluster",
		Prevented: "The cluster counts as left",
		Effect:    "As above",
		Test:      "TestAttack_ForgedFarewell",
	},
	{
		Name: "Forged page", Actor: Member, Findings: []string{"F1"},
		Does:      "It tags another cluster's catalog as its own, writes a page with its own addresses there, and announces it",
		Prevented: "A cluster that knows the victim imports the addresses",
		Effect:    "The victim cannot write its catalog until an administrator restores the tags, so its changes wait; clusters that see the victim for the first time may believe the page",
		Test:      "TestAttack_ForgedPage",
	},
	{
		Name: "Catalog of another cluster", Actor: SealedMember, Findings: []string{"F1", "F3"},
		Does:      "It writes to another cluster's catalog, also after tagging it, removes its pages, deletes it, and sets `catalog-of`",
		Prevented: "IAM allows one of these writes",
		Effect:    "It can set tags of its own role; reading goes on",
		Test:      "TestAttack_SealedCatalog",
	},
	{
		Name: "Replayed records", Actor: Member, Findings: []string{"F3"},
		Does:      "It writes records and pages of another cluster again that this cluster signed before it withdrew an export",
		Prevented: "The withdrawn export returns in a cluster that saw it end",
		Effect:    "A cluster that sees the victim for the first time imports the old state, if the victim does not run",
		Test:      "TestAttack_ReplayedRecords",
	},
	{
		Name: "Replay from another clusterset", Actor: Member, Findings: []string{"F1"},
		Does:      "It copies records and pages of a cluster that is a member of two clustersets, with one key, from one to the other",
		Prevented: "Exports to one clusterset are imported in the other",
		Effect:    "None: the signature names the clusterset",
		Test:      "TestAttack_ReplayFromOtherClusterset",
	},
	{
		Name: "Older claim to a cluster ID", Actor: Member, Findings: []string{"F8"},
		Does:      "It writes records under another cluster's ID that have joined earlier, and keeps them alive",
		Prevented: "The victim stops exporting",
		Effect:    "None once the victim has joined; a cluster that joins for the first time waits up to twice `--stale-after`",
		Test:      "TestAttack_OlderClaimOfClusterID",
	},
	{
		Name: "Last generation", Actor: Member, Findings: []string{"F8", "F9"},
		Does:      "It writes a record of another cluster with the highest generation and a heartbeat in the year 9999, while that cluster's controller restarts",
		Prevented: "The victim adopts the times, so that its own records become unreadable or never count again",
		Effect:    "A victim without its ConfigMap starts after `--stale-after`, up to five minutes ahead of its clock",
		Test:      "TestAttack_GenerationWithoutSuccessor",
	},
	{
		Name: "Record kept overwritten", Actor: Member, Findings: []string{"F8"},
		Does:      "It overwrites another cluster's record five times a second",
		Prevented: "The victim becomes stale, or its changes stop",
		Effect:    "Changes of the victim take up to a quarter of `--stale-after`",
		Test:      "TestAttack_RecordKeptOverwritten",
	},
	{
		Name: "Deleted record and pages", Actor: Member, Findings: []string{"F3", "F8"},
		Does:      "It deletes the record and all pages of another cluster",
		Prevented: "An import ends",
		Effect:    "Clusters that restart meanwhile keep what they had imported, and cannot read changes",
		Test:      "TestAttack_DeletedRecordAndPages",
	},
	{
		Name: "A thousand junk records", Actor: Member, Findings: []string{"F8"},
		Does:      "It fills the service `members` with records that are not signed, or of clusters that do not exist",
		Prevented: "The others cannot read members, or read a thousand catalogs again and again",
		Effect:    "Each cluster makes eight more reads a second at most; no cluster can join until an administrator removes the records",
		Test:      "TestAttack_ThousandJunkRecords",
	},
}
