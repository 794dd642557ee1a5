// Package attack has the attacks that the controller withstands: a list, from which
// docs/security/threat-model.md is generated, and a test of each. The tests run on the real parts:
// controllers and registries, cloudmap-local with its IAM and the shipped policies, etcd with
// users, an API server. Every test shows that its attack takes place: a control has an effect that
// the attack must not have.
package attack

import (
	"fmt"
	"strings"
)

// Actor is an attacker.
type Actor string

// The actors.
const (
	// Member is a member of the clusterset on Cloud Map. It has its own key, and the policies
	// cluster.json, create.json and instance-view.json.
	Member Actor = "member"
	// SealedMember is a member whose resources an administrator created: it has no create.json.
	SealedMember Actor = "member, sealed"
	// EtcdMember is a member of the clusterset on etcd, with its own user and key.
	EtcdMember Actor = "member, etcd"
	// SourceMember is a member of a registry of --import-from, to which its victim does not export.
	SourceMember Actor = "member, import-from"
	// Registrant may register instances in a service of Cloud Map that is mapped.
	Registrant Actor = "registrant"
	// Reader reads the registry.
	Reader Actor = "reader"
	// Pod is a pod without privileges in one of the clusters.
	Pod Actor = "pod"
	// Tenant has the rights to write ServiceExports, Services and EndpointSlices in one namespace.
	Tenant Actor = "tenant"
	// Thief has the token of the controller's ServiceAccount.
	Thief Actor = "stolen token"
)

// Attack is one entry of the table.
type Attack struct {
	// Name is for the list only: the table shows the actions.
	Name  string
	Actor Actor
	// Does are the actions of the attacker, without the subject. Prevented is the outcome that must
	// not happen; it is for the list only. Effect is the remaining effect. Each is one sentence
	// without a period, in a cell of 120 characters at most.
	Does, Prevented, Effect string
	// Open is set if the attack has an effect that is to be prevented, and is not yet.
	Open bool
	// Findings are the findings of the security review that the attack belongs to.
	Findings []string
	// Test is the name of the test.
	Test string
}

// A right is what an actor has.
type right struct {
	actor Actor
	has   string
}

// rights are the actors in the order of the tables.
var rights = []right{
	{Member, "It has its signing key, and on Cloud Map the policies `cluster.json`, `create.json` and `instance-view.json`."},
	{SealedMember, "The same without `create.json`: an administrator [created the resources](../iam.md#sealed-and-unsealed)."},
	{EtcdMember, "It has its signing key and its user of etcd."},
	{SourceMember, "It is a member of a registry that the victim only imports from."},
	{Registrant, "It may register instances in a [mapped service](../ecs-ec2-lambda.md) of Cloud Map."},
	{Reader, "It may read the registry."},
	{Tenant, "It may write ServiceExports, Services and EndpointSlices in one namespace."},
	{Pod, "It has an address in a cluster's network, and no permissions."},
	{Thief, "It has the token of the controller's ServiceAccount."},
}

// Table returns a Markdown table of the attacks of each actor that have an effect, below a heading.
func Table() string {
	var b strings.Builder
	for _, r := range rights {
		name := string(r.actor)
		fmt.Fprintf(&b, "### %s%s\n\n%s\n\n| attack | remaining effect |\n| --- | --- |\n",
			strings.ToUpper(name[:1]), name[1:], r.has)
		for _, a := range Attacks {
			if a.Actor != r.actor || a.Effect == "None" || strings.HasPrefix(a.Effect, "None:") {
				continue
			}
			effect := a.Effect
			if a.Open {
				effect = "**open:** " + effect
			}
			fmt.Fprintf(&b, "| %s | %s |\n", a.Does, effect)
		}
		b.WriteString("\n")
	}
	return strings.TrimSpace(b.String())
}
