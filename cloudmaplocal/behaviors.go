package cloudmaplocal

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Behaviors are the points in which AWS Cloud Map may differ from what clients expect. The zero
// value is the default of each: what AWS documents, else what others have observed. Switches has
// their meaning, evidence and worst values.
type Behaviors struct {
	StrictHosts        bool               `json:"strictHosts,omitzero"`
	RefuseOwnerFilter  bool               `json:"refuseOwnerFilter,omitzero"`
	HTTPNameSuffix     HTTPNameSuffix     `json:"httpNameSuffix,omitzero"`
	InstanceCount      InstanceCount      `json:"instanceCount,omitzero"`
	MissingService     MissingService     `json:"missingService,omitzero"`
	InUseFor           Duration           `json:"inUseFor,omitzero"`
	ShareAllowsTags    bool               `json:"shareAllowsTags,omitzero"`
	TagsVisibleAfter   Duration           `json:"tagsVisibleAfter,omitzero"`
	MaxAnswerBytes     int                `json:"maxAnswerBytes,omitzero"`
	RevisionBase       int64              `json:"revisionBase,omitzero"`
	RevisionOn         RevisionOn         `json:"revisionOn,omitzero"`
	HealthOnReregister HealthOnReregister `json:"healthOnReregister,omitzero"`
	HealthDelay        Duration           `json:"healthDelay,omitzero"`
	ConsistencyDelay   Duration           `json:"consistencyDelay,omitzero"`
	ConsistencySpread  Duration           `json:"consistencySpread,omitzero"`
	OperationDelay     Duration           `json:"operationDelay,omitzero"`
	DenyAtOnce         bool               `json:"denyAtOnce,omitzero"`
}

// ReadsLate returns the default behaviors with a consistency delay.
func ReadsLate(delay time.Duration) Behaviors { return Behaviors{ConsistencyDelay: Duration(delay)} }

// HTTPNameSuffix is when the HttpName of a new namespace gets a suffix. The zero value is
// SuffixCoexisting.
type HTTPNameSuffix string

// Values of HTTPNameSuffix.
const (
	SuffixCoexisting HTTPNameSuffix = "coexisting" // while another namespace has the name
	SuffixNever      HTTPNameSuffix = "never"
	SuffixReuse      HTTPNameSuffix = "reuse" // also when a deleted namespace had the name
)

// InstanceCount is whether lists have InstanceCount and ServiceCount. The zero value is
// CountPresent.
type InstanceCount string

// Values of InstanceCount.
const (
	CountPresent InstanceCount = "present"
	CountAbsent  InstanceCount = "absent"
)

// MissingService is the answer to RegisterInstance in a service that does not exist. The zero value
// is MissingRefuse.
type MissingService string

// Values of MissingService.
const (
	MissingRefuse MissingService = "refuse" // ServiceNotFound
	MissingAccept MissingService = "accept" // the operation fails later
)

// RevisionOn is when a registration changes the revision of a service. The zero value is
// RevisionOnRegistration.
type RevisionOn string

// Values of RevisionOn.
const (
	RevisionOnRegistration RevisionOn = "registration" // every one
	// of a new instance, or with other attributes
	RevisionOnChange RevisionOn = "change"
)

// HealthOnReregister is the custom health of an instance that is registered again. The zero value
// is HealthReset.
type HealthOnReregister string

// Values of HealthOnReregister.
const (
	HealthReset HealthOnReregister = "reset" // as of a new instance
	HealthKeep  HealthOnReregister = "keep"
)

// Evidence is how the default of a switch is known.
type Evidence string

// Values of Evidence.
const (
	Documented Evidence = "documented" // by AWS
	Observed   Evidence = "observed"   // by others, on AWS
	Unknown    Evidence = "unknown"
)

// Switch describes a field of Behaviors.
type Switch struct {
	// Name is the key in the file.
	Name string
	// Meaning is one sentence for the documentation.
	Meaning string
	// Default and Pessimistic are the values as they are written in the file.
	Default, Pessimistic string
	Evidence             Evidence
	// Source is where the evidence is from.
	Source string
}

// switchDocs has the text of each switch, in the order of the fields of Behaviors.
var switchDocs = []Switch{
	{
		Name: "strictHosts", Evidence: Documented, Source: "SDK 1.40.2; the answer: cognitect-labs/aws-api#175",
		Meaning: "Hosts with `data-` answer only Discover operations, others only the rest, else `UnknownOperationException`",
	},
	{
		Name: "refuseOwnerFilter", Evidence: Documented, Source: "API reference of ListNamespaces, also in China",
		Meaning: "Lists with the filter `RESOURCE_OWNER` get `InvalidInput`",
	},
	{
		Name: "httpNameSuffix", Evidence: Observed, Source: "aws-cdk#25616",
		Meaning: "An HttpName gets a suffix `never`, if another namespace has the name (`coexisting`) or a deleted one had it (`reuse`)",
	},
	{
		Name: "instanceCount", Evidence: Unknown, Source: "documented, but absent in the only real answer that was found (2022)",
		Meaning: "InstanceCount in ListServices and ServiceCount in ListNamespaces are `present` or `absent`",
	},
	{
		Name: "missingService", Evidence: Unknown, Source: "aws-app-mesh-controller-for-k8s PR 119 saw `accept`; the API reference lists ServiceNotFound",
		Meaning: "RegisterInstance in a missing service gets ServiceNotFound (`refuse`), or an operation that fails (`accept`)",
	},
	{
		Name: "inUseFor", Evidence: Unknown, Source: "Terraform retries for 2 minutes, PR 25162 saw 43s",
		Meaning: "DeleteService gets ResourceInUse for this time after the last instance left, and DeleteNamespace after the last service",
	},
	{
		Name: "shareAllowsTags", Evidence: Documented, Source: "Developer Guide, Sharing namespaces; cloudformation-coverage-roadmap#2472",
		Meaning: "Accounts that use a shared namespace may create services with tags there, and tag and untag them",
	},
	{
		Name: "tagsVisibleAfter", Evidence: Unknown,
		Meaning: "Policies see the tags of a namespace or a service as they were this long ago",
	},
	{
		Name: "maxAnswerBytes", Evidence: Unknown, Source: "1,000 instances of 5,000 characters are 5 MB",
		Meaning: "DiscoverInstances answers with as many instances as fit into this number of bytes; 0 is no limit",
	},
	{
		Name: "revisionBase", Evidence: Observed, Source: "AWS's tutorial shows 71462688285136850",
		Meaning: "Revision of a new service",
	},
	{
		Name: "revisionOn", Evidence: Unknown, Source: "the API reference says \"increasing\"",
		Meaning: "Every registration changes the revision (`registration`), or that of a new or different instance (`change`)",
	},
	{
		Name: "healthOnReregister", Evidence: Unknown,
		Meaning: "An instance that is registered again has the health of a new one (`reset`) or `keep`s its own",
	},
	{
		Name: "healthDelay", Evidence: Documented, Source: "containers-roadmap#449: 30s",
		Meaning: "Time until UpdateInstanceCustomHealthStatus shows",
	},
	{
		Name: "consistencyDelay", Evidence: Unknown, Source: "half a second is assumed",
		Meaning: "Age of what DiscoverInstances, DiscoverInstancesRevision and ListInstances show",
	},
	{
		Name: "consistencySpread", Evidence: Unknown,
		Meaning: "Each change of an instance shows up to this much later than consistencyDelay: changes are reordered",
	},
	{
		Name: "operationDelay", Evidence: Observed, Source: "the legacy controller: HTTP namespaces within 0.25s; Terraform: DNS namespaces a minute",
		Meaning: "Duration of asynchronous operations",
	},
	{
		Name: "denyAtOnce", Evidence: Unknown, Source: "AWS documents the code of the operation, ACCESS_DENIED",
		Meaning: "Requests without rights in Route 53 or EC2 get AccessDeniedException, instead of an operation that fails",
	},
}

// Pessimistic returns the worst value of each behavior that is plausible.
//
// A discovery answer is at most 1 MiB, as of other services of AWS (DynamoDB Query). Reads are four
// to ten times as late as assumed. Deletions take more than Terraform saw (43s), and tags ten
// seconds, as other changes of IAM. A private DNS namespace takes a minute, and other operations
// seconds; there is one delay for both.
func Pessimistic() Behaviors {
	return Behaviors{
		StrictHosts:        true,
		RefuseOwnerFilter:  true,
		HTTPNameSuffix:     SuffixReuse,
		InstanceCount:      CountAbsent,
		MissingService:     MissingAccept,
		InUseFor:           Duration(time.Minute),
		ShareAllowsTags:    false,
		TagsVisibleAfter:   Duration(10 * time.Second),
		MaxAnswerBytes:     1 << 20,
		RevisionBase:       71462688285136850,
		RevisionOn:         RevisionOnChange,
		HealthOnReregister: HealthReset,
		HealthDelay:        Duration(30 * time.Second),
		ConsistencyDelay:   Duration(2 * time.Second),
		ConsistencySpread:  Duration(3 * time.Second),
		OperationDelay:     Duration(2 * time.Second),
		DenyAtOnce:         false, // an operation that fails later is found later
	}
}

// Switches describes all behaviors, in the order of their fields.
func Switches() []Switch {
	all := slices.Clone(switchDocs)
	standard, _ := Behaviors{}.withDefaults() // valid
	for i := range all {
		all[i].Default, all[i].Pessimistic = standard.fieldText(i), Pessimistic().fieldText(i)
	}
	return all
}

// fieldText returns the value of the i-th field as it is written in a file.
func (b Behaviors) fieldText(i int) string {
	raw, _ := json.Marshal(reflect.ValueOf(b).Field(i).Interface()) // plain data
	return strings.Trim(string(raw), `"`)
}

// ReadBehaviors reads a file of behaviors, JSON or YAML. Keys that are left out have the value of
// base.
func ReadBehaviors(path string, base Behaviors) (Behaviors, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Behaviors{}, fmt.Errorf("reading the behaviors: %w", err)
	}
	b, err := base.amend(raw)
	if err != nil {
		return b, fmt.Errorf("reading the behaviors %s: %w", path, err)
	}
	return b, nil
}

// ParseBehaviors decodes behaviors, JSON or YAML. Keys that are left out have their default. An
// unknown key, or a value that the key does not have, is an error.
func ParseBehaviors(raw []byte) (Behaviors, error) { return Behaviors{}.amend(raw) }

// amend returns b with the values of a file.
func (b Behaviors) amend(raw []byte) (Behaviors, error) {
	if err := yaml.UnmarshalStrict(raw, &b); err != nil {
		return Behaviors{}, fmt.Errorf("%w; the keys are %s", err, strings.Join(switchNames(), ", "))
	}
	return b.withDefaults()
}

func switchNames() []string {
	return mapSlice(switchDocs, func(s Switch) string { return s.Name })
}

// withDefaults returns the behaviors with the defaults filled in, or an error that names the wrong
// value.
func (b Behaviors) withDefaults() (Behaviors, error) {
	for _, err := range []error{
		fillEnum("httpNameSuffix", &b.HTTPNameSuffix, SuffixCoexisting, SuffixNever, SuffixReuse),
		fillEnum("instanceCount", &b.InstanceCount, CountPresent, CountAbsent),
		fillEnum("missingService", &b.MissingService, MissingRefuse, MissingAccept),
		fillEnum("revisionOn", &b.RevisionOn, RevisionOnRegistration, RevisionOnChange),
		fillEnum("healthOnReregister", &b.HealthOnReregister, HealthReset, HealthKeep),
		checkDuration("inUseFor", b.InUseFor), checkDuration("tagsVisibleAfter", b.TagsVisibleAfter),
		checkDuration("healthDelay", b.HealthDelay), checkDuration("consistencyDelay", b.ConsistencyDelay),
		checkDuration("consistencySpread", b.ConsistencySpread), checkDuration("operationDelay", b.OperationDelay),
	} {
		if err != nil {
			return b, err
		}
	}
	if b.MaxAnswerBytes < 0 || b.RevisionBase < 0 {
		return b, fmt.Errorf("maxAnswerBytes %d, revisionBase %d: must not be negative", b.MaxAnswerBytes, b.RevisionBase)
	}
	return b, nil
}

// fillEnum sets an empty value to the first of the allowed ones.
func fillEnum[T ~string](name string, value *T, allowed ...T) error {
	if *value == "" {
		*value = allowed[0]
	}
	if !slices.Contains(allowed, *value) {
		return fmt.Errorf("%s %q: must be one of %v", name, *value, allowed)
	}
	return nil
}

func checkDuration(name string, d Duration) error {
	if d < 0 || time.Duration(d) > maxConfigurableDuration {
		return fmt.Errorf("%s %s: must be between 0 and %s", name, time.Duration(d), maxConfigurableDuration)
	}
	return nil
}
