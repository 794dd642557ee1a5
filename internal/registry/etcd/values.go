package etcd

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// Values makes the signed values that a cluster stores, without a Registry: benchmarks write those
// of a thousand clusters. It is not safe for concurrent use.
type Values struct {
	layout layout
	signer *trust.Signer
	author author
	record memberRecord
	// generations are those of the exports.
	generations map[mcs.Key]int64
}

// KeyValue is a key of etcd with its value.
type KeyValue struct{ Key, Value string }

// NewValues returns the Values of a cluster that has stored nothing. An empty prefix is the
// default.
func NewValues(prefix string, identity mcs.Identity, version string, signer *trust.Signer) *Values {
	v := &Values{
		layout: newLayout(cmp.Or(prefix, names.EtcdPrefix), identity.ClusterSetID), signer: signer, record: newMemberRecord(identity, version),
		author:      author{clusterSetID: identity.ClusterSetID, clusterID: identity.ClusterID, uid: identity.UID, key: signer.Key()},
		generations: map[mcs.Key]int64{},
	}
	v.record.Exports = &exportSet{}
	return v
}

// Export returns the value of an export, which is part of the next member record.
func (v *Values) Export(now time.Time, exp mcs.Export) (KeyValue, error) {
	d, err := newDesiredExport(exp)
	if err != nil {
		return KeyValue{}, err
	}
	generation, set := v.record.nextGeneration(now), *v.record.Exports
	if before, exists := v.generations[exp.Key]; exists {
		set.Digest = set.Digest.Without(unitOf(exp.Key), before)
		set.Count--
	}
	set.Digest = set.Digest.With(unitOf(exp.Key), generation)
	set.Count++
	v.generations[exp.Key], v.record.Generation, v.record.Exports = generation, generation, &set
	return KeyValue{v.layout.export(v.author.clusterID, exp.Key), string(signExport(v.signer, v.author, exp.Key, generation, d.data))}, nil
}

// Member returns the member record with a new heartbeat.
func (v *Values) Member(now time.Time) (KeyValue, error) {
	v.record = v.record.withHeartbeat(now)
	value, err := signMember(v.signer, v.record)
	return KeyValue{v.layout.member(v.author.clusterID), string(value)}, err
}

// Alive returns the value of the key that expires with the cluster's lease.
func (v *Values) Alive() KeyValue {
	return KeyValue{v.layout.alive(v.author.clusterID), strconv.FormatInt(v.record.Heartbeat.UnixMilli(), 10)}
}

// Reads makes the reads of a process that starts, without a Registry: benchmarks make those of a
// thousand clusters. It is not safe for concurrent use.
type Reads struct{ store *store }

// NewReads returns the Reads of a cluster. An empty prefix is the default.
func NewReads(client *Client, prefix string, identity mcs.Identity) *Reads {
	return &Reads{&store{client: client, id: identity.ClusterID, layout: newLayout(cmp.Or(prefix, names.EtcdPrefix), identity.ClusterSetID)}}
}

// Head reads the keys of the cluster and the member records of others, and returns the revision
// that they are of.
func (r *Reads) Head(ctx context.Context, others []string) (revision int64, err error) {
	h, err := r.store.head(ctx, others)
	return h.revision, err
}

// Exports reads the exports of a cluster as of a revision.
func (r *Reads) Exports(ctx context.Context, clusterID string, revision int64) error {
	_, err := r.store.readExports(ctx, clusterID, revision)
	return err
}

// List reads all keys of the clusterset.
func (r *Reads) List(ctx context.Context) error {
	_, _, err := r.store.list(ctx)
	return err
}
