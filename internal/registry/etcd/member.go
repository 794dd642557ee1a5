package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// memberRecord is the value of a cluster's key member.
type memberRecord struct {
	ClusterID    string `json:"clusterID"`
	ClusterSetID string `json:"clusterSetID"`
	// UID is the UID of namespace kube-system.
	UID string `json:"uid"`
	// Version is the controller's, Format that of the exports.
	Version string `json:"version"`
	Format  string `json:"format"`
	// Joined is when the cluster became a member, and Heartbeat its last heartbeat, both by its own clock.
	Joined    time.Time `json:"joined"`
	Heartbeat time.Time `json:"beat"`
}

const (
	// maxMemberBytes is far more than a record needs: IDs of 63 characters, a UID of 36, a version.
	maxMemberBytes = 4 << 10
	// maxTextBytes bounds the fields of a record that have no format of their own.
	maxTextBytes = 128
)

func newMemberRecord(identity mcs.Identity, version string) memberRecord {
	return memberRecord{
		ClusterID: identity.ClusterID, ClusterSetID: identity.ClusterSetID, UID: identity.UID,
		Version: version, Format: record.Version(),
	}
}

func (r memberRecord) encode() ([]byte, error) { return json.Marshal(r) }

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

// decodeMember decodes and checks the member record of a cluster.
func decodeMember(data []byte, clusterSetID, clusterID string) (memberRecord, error) {
	var r memberRecord
	if len(data) > maxMemberBytes {
		return r, fmt.Errorf("it takes %d bytes, more than the %d that are allowed", len(data), maxMemberBytes)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("parsing: %w", err)
	}
	major, err := majorOf(r.Format)
	switch {
	case err != nil:
		return r, err
	case major > record.Major:
		return r, &record.NewerError{Major: major}
	case r.ClusterID != clusterID:
		return r, fmt.Errorf("it names cluster %q", clip(r.ClusterID))
	case r.ClusterSetID != clusterSetID:
		return r, fmt.Errorf("it names clusterset %q", clip(r.ClusterSetID))
	case r.UID == "":
		return r, errors.New("it has no uid")
	case len(r.UID) > maxTextBytes || len(r.Version) > maxTextBytes:
		return r, errors.New("a text of it is too long")
	}
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
