package cloudmaplocal

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kinds of namespace, of service and routing policies, as the API spells them.
const (
	kindHTTP    = "HTTP"
	kindPrivate = "DNS_PRIVATE"
	kindPublic  = "DNS_PUBLIC"

	serviceHTTP    = "HTTP"
	serviceDNSHTTP = "DNS_HTTP"

	routingMultivalue = "MULTIVALUE"
	routingWeighted   = "WEIGHTED"
)

// regionKey names a region.
type regionKey struct{ account, region string }

// region is everything that one account has in one Region. Its methods that answer requests run inside do.
//
// Maps of strings (attributes, tags) are never changed once they are stored, only replaced: answers may hold them after
// the lock is gone.
type region struct {
	key      regionKey
	opts     *Options
	throttle throttle

	mu         sync.Mutex
	now        time.Time // of the request that is being answered, or of the effect that is being applied
	req        request   // that is being answered
	shares     []Share   // in force
	namespaces map[string]*namespace
	services   map[string]*service
	operations operationLog
	replica    replica
}

// namespace is a Cloud Map namespace.
type namespace struct {
	ID               string
	Kind             string
	Name             string
	HTTPName         string
	VPC              string `json:",omitempty"`
	Description      string `json:",omitempty"`
	CreatorRequestID string `json:",omitempty"`
	OperationID      string // that created it
	HostedZoneID     string `json:",omitempty"`
	SOATTL           int64  `json:",omitempty"`
	Created          time.Time
	Tags             map[string]string `json:",omitempty"`

	services int // that exist
	booked   int // instances that exist or are being registered
}

// service is a Cloud Map service with its instances.
type service struct {
	ID               string
	NamespaceID      string
	Name             string
	Kind             string
	Description      string `json:",omitempty"`
	CreatorRequestID string `json:",omitempty"`
	Created          time.Time
	DNS              *dnsConfig               `json:",omitempty"`
	HealthCheck      *healthCheckConfig       `json:",omitempty"`
	CustomHealth     *healthCheckCustomConfig `json:",omitempty"`
	CreatedBy        string                   `json:",omitempty"` // account, if not the owner
	Attributes       map[string]string        `json:",omitempty"`
	Tags             map[string]string        `json:",omitempty"`
	Revision         int64
	Instances        map[string]*instance

	booked   int // instances that exist or are being registered
	inFlight int // operations on its instances
}

// instance is one registration. All but its health stays as it is: registering it again makes a new one.
type instance struct {
	ID               string
	Attributes       map[string]string
	CreatorRequestID string `json:",omitempty"`
	CreatedBy        string `json:",omitempty"` // account, if not the owner
	OperationID      string // that registered it
	Health           health

	// encoded is Attributes in JSON. DiscoverInstances writes up to 1,000 of them, over and over: encoding them once makes
	// it several times faster.
	encoded json.RawMessage
}

func newRegion(key regionKey, opts *Options) *region {
	r := &region{
		key: key, opts: opts,
		namespaces: map[string]*namespace{}, services: map[string]*service{},
		operations: newOperationLog(), replica: newReplica(),
	}
	if !opts.Unthrottled {
		r.throttle = newThrottle(opts.Limits)
	}
	return r
}

// do runs f with the region to itself, after everything that was due has been applied; and what f made due at once is
// applied before it returns.
func (r *region) do(f func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	r.advance(now)
	if err := f(); err != nil {
		return err
	}
	r.advance(now)
	return nil
}

// advance applies what is due until now: first the operations, in the order in which they are due, each at its own time;
// then what the replica was to see by now.
func (r *region) advance(now time.Time) {
	for op := r.operations.popDue(now); op != nil; op = r.operations.popDue(now) {
		r.now = op.Due
		r.finish(op)
	}
	r.now = now
	r.replica.advance(now)
}

// announce puts a change into the replica's log.
func (r *region) announce(c change) {
	c.at = r.now.Add(r.opts.ConsistencyDelay)
	r.replica.log = append(r.replica.log, c)
}

// arn is the name of a resource: kind "namespace" or "service".
func (r *region) arn(kind, id string) string {
	return r.arnPrefix() + kind + "/" + id
}

func (r *region) arnPrefix() string {
	partition := "aws"
	switch {
	case strings.HasPrefix(r.key.region, "cn-"):
		partition = "aws-cn"
	case strings.HasPrefix(r.key.region, "us-gov-"):
		partition = "aws-us-gov"
	}
	return fmt.Sprintf("arn:%s:servicediscovery:%s:%s:", partition, r.key.region, r.key.account)
}

// id is the id that ref, an id or an ARN, means. An ARN of another account, Region or kind means nothing here.
func (r *region) id(kind, ref string) string {
	if strings.HasPrefix(ref, "arn:") {
		id, _ := strings.CutPrefix(ref, r.arn(kind, ""))
		return id
	}
	return ref
}

// namespace finds a namespace by id or ARN.
func (r *region) namespace(member, ref string) (*namespace, error) {
	if err := (text{member, 1, maxReferenceLen, nil}).check(ref); err != nil {
		return nil, err
	}
	if ns := r.namespaces[r.id("namespace", ref)]; ns != nil && r.shows(ns) {
		return ns, nil
	}
	return nil, namespaceNotFound(ref)
}

// service finds a service by id or ARN.
func (r *region) service(member, ref string) (*service, error) {
	if err := (text{member, 1, maxReferenceLen, nil}).check(ref); err != nil {
		return nil, err
	}
	if svc := r.services[r.id("service", ref)]; svc != nil && r.shows(r.namespaces[svc.NamespaceID]) {
		return svc, nil
	}
	return nil, serviceNotFound(ref)
}

// instance finds an instance of a service.
func (r *region) instance(serviceRef, id string) (*service, *instance, error) {
	svc, err := r.service("ServiceId", serviceRef)
	if err != nil {
		return nil, nil, err
	}
	if err := instanceIDText.check(id); err != nil {
		return nil, nil, err
	}
	if inst := svc.Instances[id]; inst != nil {
		return svc, inst, nil
	}
	return nil, nil, instanceNotFound(svc.ID, id)
}

const (
	lower = "abcdefghijklmnopqrstuvwxyz0123456789"
	upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

	// Lengths seen in AWS's examples: ns-ylexjili4cdxy3xm, Z09983722P0QME1B3KC8I,
	// gv4g5meo7ndmeh4fqskygvk23d2fijwa-k9302yzd.
	idLen              = 16
	zoneIDLen          = 20
	operationIDLen     = 32
	operationIDTailLen = 8
)

// random is n characters of an alphabet.
func random(alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[rand.IntN(len(alphabet))]
	}
	return string(b)
}

// page cuts one page out of items: those after the one that token names, in the order of their keys, and the token of the
// next page. Keys are unique.
func page[T any](items []T, key func(T) string, p paging) ([]T, string, error) {
	if err := cmp.Or(checkCount("MaxResults", p.MaxResults, maxPage), text{"NextToken", 0, maxTokenLen, nil}.check(p.NextToken)); err != nil {
		return nil, "", err
	}
	after, err := decodeToken(p.NextToken)
	if err != nil {
		return nil, "", err
	}
	items = slices.DeleteFunc(items, func(item T) bool { return key(item) <= after })
	slices.SortFunc(items, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	size := maxPage
	if p.MaxResults != nil {
		size = *p.MaxResults
	}
	if len(items) <= size {
		return items, "", nil
	}
	return items[:size], encodeToken(key(items[size-1])), nil
}

// sortedKeys of a map, for whatever must not depend on chance.
func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

// mapSlice is f of every item, never nil: an empty list is written as [].
func mapSlice[T, U any](items []T, f func(T) U) []U {
	out := make([]U, 0, len(items))
	for _, item := range items {
		out = append(out, f(item))
	}
	return out
}
