package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/engine/belief"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// memberRecord is the member record of a cluster, the content of its key member (signedMember).
type memberRecord struct {
	ClusterID    string `json:"clusterID"`
	ClusterSetID string `json:"clusterSetID"`
	// UID is the UID of namespace kube-system. UID and Generation are those of the signedMember.
	UID string `json:"-"`
	// succession is that of the signedMember. propertiesProblem is the reason if the record has
	// unusable Properties.
	succession, propertiesProblem string
	Generation                    int64 `json:"-"`
	// Version is the controller's, Format that of the exports.
	Version string `json:"version"`
	Format  string `json:"format"`
	// Joined is the time at which the cluster became a member, and Heartbeat its last heartbeat,
	// both by its own clock.
	Joined    time.Time `json:"joined"`
	Heartbeat time.Time `json:"beat"`
	// Exports are all exports of the cluster, nil while a new process does not know them yet.
	Exports *exportSet `json:"exports,omitempty"`
	// Properties are the cluster's ClusterProperties as mcs.Properties encodes them, "" if it
	// publishes none.
	Properties string `json:"properties,omitempty"`
	// Imports is the cluster's report of its imports, "" if it has no usable one.
	Imports mcs.ImportReport `json:"imports,omitempty"`
	// Farewell is true if the cluster has left the clusterset with this record.
	Farewell bool `json:"farewell,omitempty"`
}

// exportSet identifies the exports of a cluster. A reader that has exports with this digest has all
// of them, so that the cluster has withdrawn every other one.
type exportSet struct {
	Count  int              `json:"count"`
	Digest belief.SetDigest `json:"digest"`
}

// equalSets reports whether two sets are equal; nil is an unknown set.
func equalSets(a, b *exportSet) bool { return a == b || a != nil && b != nil && *a == *b }

const (
	// maxMemberBytes is more than a record needs: IDs of 63 characters, a UID of 36, a version, two
	// signatures, 1,000 bytes of properties of which escaping makes 2,000, a report of 1,001 bytes.
	maxMemberBytes = 4 << 10
)

func newMemberRecord(identity mcs.Identity, version string) memberRecord {
	return memberRecord{
		ClusterID: identity.ClusterID, ClusterSetID: identity.ClusterSetID, UID: identity.UID,
		Version: version, Format: record.Version(),
	}
}

// time returns the time of r, which orders the records of a cluster.
func (r memberRecord) time() trust.Time {
	return trust.Time{Generation: r.Generation, Heartbeat: r.Heartbeat.UnixMilli()}
}

// withHeartbeat returns r with a new heartbeat, at least a millisecond after the last one.
func (r memberRecord) withHeartbeat(now time.Time) memberRecord {
	now = now.UTC().Truncate(time.Millisecond)
	if !now.After(r.Heartbeat) {
		now = r.Heartbeat.Add(time.Millisecond) // the clock was set back
	}
	r.Heartbeat = now
	if r.Joined.IsZero() {
		r.Joined = now
	}
	return r
}

// latest returns the heartbeat or the generation of r in milliseconds, whichever is later, 0 for
// the zero value.
func (r memberRecord) latest() int64 { return max(r.Heartbeat.UnixMilli(), r.Generation) }

// content returns a digest of the exports that r names, "" if it names none. It has 8 of the 32
// bytes: it orders reads, and proves nothing.
func (r memberRecord) content() string {
	if r.Exports == nil || r.Farewell {
		return ""
	}
	text, _ := r.Exports.Digest.MarshalText()
	return string(text[len(text)-contentLength:])
}

// contentLength is the length of 8 bytes in base64.
const contentLength = 11

// after returns r with a heartbeat and a generation of at least latest.
func (r memberRecord) after(latest int64) memberRecord {
	if at := time.UnixMilli(latest).UTC(); latest != 0 && at.After(r.Heartbeat) {
		r.Heartbeat = at
	}
	r.Generation = max(r.Generation, latest)
	return r
}

// nextGeneration returns a generation later than that of r, over restarts too, because it is the
// time in milliseconds if that is later.
func (r memberRecord) nextGeneration(now time.Time) int64 {
	return max(r.Generation+1, now.UnixMilli())
}

// decodeMember decodes and checks the record in a signed member record. If it is in a later format,
// the identity and the time of the record are valid although there is an error.
func decodeMember(m signedMember, clusterSetID, clusterID string) (memberRecord, error) {
	var r memberRecord
	if err := json.Unmarshal(m.Record, &r); err != nil {
		return memberRecord{}, fmt.Errorf("parsing: %w", err)
	}
	r.UID, r.Generation, r.succession = m.UID, m.Generation, m.Succession
	major, err := majorOf(r.Format)
	switch err := errors.Join(err, record.CheckText("uid", r.UID), record.CheckText("version", r.Version)); {
	case err != nil:
		return memberRecord{}, err
	case r.ClusterID != clusterID:
		return memberRecord{}, fmt.Errorf("it names cluster %q", clip(r.ClusterID))
	case r.ClusterSetID != clusterSetID:
		return memberRecord{}, fmt.Errorf("it names clusterset %q", clip(r.ClusterSetID))
	case r.UID == "":
		return memberRecord{}, errors.New("it has no uid")
	case major > record.Major:
		r.Exports = nil
		return r, &record.NewerError{Major: major}
	}
	if _, err := mcs.DecodeProperties(r.Properties); r.Properties != "" && err != nil {
		r.Properties, r.propertiesProblem = "", fmt.Sprintf("its ClusterProperties cannot be used, so it counts as a cluster without any: %v", err)
	}
	// a cluster is a member without a report
	r.Imports, _ = mcs.ParseImportReport(string(r.Imports))
	return r, nil
}

func majorOf(format string) (int, error) {
	major, _, _ := strings.Cut(format, ".")
	number, err := strconv.ParseUint(major, 10, 8)
	if err != nil || number == 0 {
		return 0, fmt.Errorf("format %q is no version", clip(format))
	}
	return int(number), nil
}
