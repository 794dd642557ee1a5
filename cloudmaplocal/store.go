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

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
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

// region has all resources of one account in one Region. Methods that answer requests run inside withLock.
//
// Maps of strings (attributes, tags) are immutable once they are stored: answers may refer to them after the lock is
// released.
type region struct {
	key      regionKey
	opts     *Options
	throttle throttle

	mu         sync.Mutex
	now        time.Time // of the current request or effect
	req        request   // the current request
	shares     []Share   // current
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

	services          int // that exist
	reservedInstances int // existing instances and registrations in flight
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
	DNS              *wire.DNSConfig               `json:",omitempty"`
	HealthCheck      *wire.HealthCheckConfig       `json:",omitempty"`
	CustomHealth     *wire.HealthCheckCustomConfig `json:",omitempty"`
	CreatedBy        string                        `json:",omitempty"` // account, if not the owner
	Attributes       map[string]string             `json:",omitempty"`
	Tags             map[string]string             `json:",omitempty"`
	Revision         int64
	Instances        map[string]*instance

	reservedInstances int // existing instances and registrations in flight
	inFlight          int // operations on its instances
}

// instance is one registration. Only its health changes: registering it again replaces it.
type instance struct {
	ID               string
	Attributes       map[string]string
	CreatorRequestID string `json:",omitempty"`
	CreatedBy        string `json:",omitempty"` // account, if not the owner
	OperationID      string // that registered it
	Health           health

	// encoded is Attributes in JSON. DiscoverInstances writes up to 1,000 of them per request; encoding them once makes it
	// several times faster.
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

// withLock applies all effects that are due, runs f with the region locked, and applies the effects that f made due.
func (r *region) withLock(f func() error) error {
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

// advance applies the effects that are due by now: first the operations, in the order of their due times, then the
// changes of the replica.
func (r *region) advance(now time.Time) {
	for op := r.operations.popDue(now); op != nil; op = r.operations.popDue(now) {
		r.now = op.Due
		r.finishOperation(op)
	}
	r.now = now
	r.replica.advance(now)
}

// replicate adds a change to the replica's log.
func (r *region) replicate(c change) {
	c.at = r.now.Add(r.opts.ConsistencyDelay)
	r.replica.log = append(r.replica.log, c)
}

// arn returns the ARN of a resource: kind "namespace" or "service".
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

// id returns the ID of a reference, an ID or an ARN. ARNs of another account, Region or kind have none here.
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
	if ns := r.namespaces[r.id("namespace", ref)]; ns != nil && r.isVisible(ns) {
		return ns, nil
	}
	return nil, namespaceNotFound(ref)
}

// service finds a service by id or ARN.
func (r *region) service(member, ref string) (*service, error) {
	if err := (text{member, 1, maxReferenceLen, nil}).check(ref); err != nil {
		return nil, err
	}
	if svc := r.services[r.id("service", ref)]; svc != nil && r.isVisible(r.namespaces[svc.NamespaceID]) {
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

// random returns n random characters of an alphabet.
func random(alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[rand.IntN(len(alphabet))]
	}
	return string(b)
}

// page returns one page of items, the items after the one that the token names in the order of their keys, and the token
// of the next page. Keys are unique.
func page[T any](items []T, key func(T) string, p wire.Paging) ([]T, string, error) {
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

// sortedKeys returns the keys of a map, sorted.
func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

// mapSlice returns f of every item, never nil: an empty list is encoded as [].
func mapSlice[T, U any](items []T, f func(T) U) []U {
	out := make([]U, 0, len(items))
	for _, item := range items {
		out = append(out, f(item))
	}
	return out
}
