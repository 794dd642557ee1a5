package cloudmap

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
)

// The attributes of a member's record, beside those that a page has too.
const (
	attrClusterSetID = "CLUSTERSET_ID"
	attrUID          = "UID"
	attrVersion      = "VERSION"
	attrJoined       = "JOINED"
	attrHeartbeat    = "HEARTBEAT"
	attrPages        = "PAGES"
	attrNotify       = "NOTIFY"
)

// digests are those of a cluster's pages; "" is a page that does not exist.
type digests [pageCount]string

// memberRecord is what a cluster says of itself in service members.
type memberRecord struct {
	clusterID, clusterSetID, uid, version string
	// joined is when the cluster became a member, by its own clock: of two with one ID, the older one stays.
	joined time.Time
	// generation grows with every write of pages, and over restarts: of two records, and of a page and a record, it tells
	// which was written later.
	generation int64
	// heartbeat grows with every write of the record: the milliseconds since 1970 by the cluster's own clock, or more when that
	// was set back.
	heartbeat int64
	pages     digests
	// contact is where hints are to be sent, notifyProblem why what the record says of it is of no use.
	contact       peernotify.Contact
	notifyProblem string
}

// nextHeartbeat is that of a record written now.
func (r memberRecord) nextHeartbeat(now time.Time) int64 { return max(r.heartbeat+1, now.UnixMilli()) }

// beat is when the record was written, by the cluster's own clock; zero without a record.
func (r memberRecord) beat() time.Time {
	if r.heartbeat == 0 {
		return time.Time{}
	}
	return time.UnixMilli(r.heartbeat)
}

// later says whether r was written after o by the same cluster.
func (r memberRecord) later(o memberRecord) bool {
	return r.generation > o.generation || r.generation == o.generation && r.heartbeat > o.heartbeat
}

// sameWrite says whether r and o are one write of a record.
func (r memberRecord) sameWrite(o memberRecord) bool {
	return r.uid == o.uid && r.generation == o.generation && r.heartbeat == o.heartbeat
}

// older says whether r's cluster has the better right to the ID that o's uses as well.
func (r memberRecord) older(o memberRecord) bool {
	if !r.joined.Equal(o.joined) {
		return r.joined.Before(o.joined)
	}
	return r.uid < o.uid
}

// isMember says whether o is the record of the cluster that identity is.
func (r memberRecord) isMember(identity mcs.Identity) bool {
	return r.clusterID == identity.ClusterID && r.uid == identity.UID
}

// instance is the record as an instance of service members.
func (r memberRecord) instance() api.Instance {
	var pages []string
	for page, digest := range r.pages {
		if digest != "" {
			pages = append(pages, pageName(page)+"."+digest)
		}
	}
	attrs := map[string]string{
		attrClusterID:    r.clusterID,
		attrClusterSetID: r.clusterSetID,
		attrUID:          r.uid,
		attrVersion:      r.version,
		attrJoined:       r.joined.UTC().Format(joinedLayout),
		attrGeneration:   strconv.FormatInt(r.generation, 10),
		attrHeartbeat:    strconv.FormatInt(r.heartbeat, 10),
		attrFormat:       memberFormat,
		// 64 times "07." and 11 characters, with commas between: 959 of the 1,024 that a value may have.
		attrPages: strings.Join(pages, ","),
	}
	if r.contact.Address.IsValid() {
		attrs[attrNotify] = r.contact.String()
	}
	return api.Instance{ID: r.clusterID, Attributes: attrs}
}

// memberFormat is the version of the record's format.
const memberFormat = "1.0"

// joinedLayout is RFC 3339 in milliseconds.
const joinedLayout = "2006-01-02T15:04:05.000Z07:00"

var (
	digestPattern = regexp.MustCompile(`^[0-9A-Za-z_-]{11}$`)
	formatPattern = regexp.MustCompile(`^([0-9]{1,3})\.([0-9]{1,3})$`)
)

// parseMember reads an instance of service members, which anybody may have written.
func parseMember(instance api.Instance, clusterSetID string) (memberRecord, error) {
	attrs := instance.Attributes
	r := memberRecord{
		clusterID:    attrs[attrClusterID],
		clusterSetID: attrs[attrClusterSetID],
		uid:          attrs[attrUID],
		version:      attrs[attrVersion],
	}
	if err := mcs.ValidateClusterID(r.clusterID); err != nil {
		return r, fmt.Errorf("reading %s: %w", attrClusterID, err)
	}
	switch {
	case r.clusterID != instance.ID:
		return r, fmt.Errorf("%s is %q in the record of %q", attrClusterID, r.clusterID, instance.ID)
	case r.clusterSetID != clusterSetID:
		return r, fmt.Errorf("%s is %q, but this is clusterset %q", attrClusterSetID, r.clusterSetID, clusterSetID)
	case r.uid == "":
		return r, fmt.Errorf("%s is missing", attrUID)
	}
	if err := checkFormat(attrs[attrFormat]); err != nil {
		return r, err
	}
	var err error
	if r.joined, err = time.Parse(joinedLayout, attrs[attrJoined]); err != nil {
		return r, fmt.Errorf("%s %q is no time", attrJoined, attrs[attrJoined])
	}
	if r.generation, err = strconv.ParseInt(attrs[attrGeneration], 10, 64); err != nil || r.generation > maxGeneration {
		return r, fmt.Errorf("%s %q is no number of a generation", attrGeneration, attrs[attrGeneration])
	}
	if r.heartbeat, err = strconv.ParseInt(attrs[attrHeartbeat], 10, 64); err != nil {
		return r, fmt.Errorf("%s %q is no number", attrHeartbeat, attrs[attrHeartbeat])
	}
	r.contact, r.notifyProblem = parseNotify(attrs[attrNotify])
	r.pages, err = parsePages(attrs[attrPages])
	return r, err
}

// recordOf is the record with the cluster's ID in a read of members, nil if there is none that can be used.
func recordOf(instances []api.Instance, identity mcs.Identity) *memberRecord {
	for _, instance := range instances {
		if instance.ID != identity.ClusterID {
			continue
		}
		if shown, err := parseMember(instance, identity.ClusterSetID); err == nil {
			return &shown
		}
	}
	return nil
}

// parseNotify reads where hints are to be sent. A cluster is a member without them.
func parseNotify(value string) (contact peernotify.Contact, problem string) {
	if value == "" {
		return contact, ""
	}
	contact, err := peernotify.ParseContact(value)
	if err != nil {
		return peernotify.Contact{}, fmt.Sprintf("%s is of no use, so the cluster is sent no hints: %v", attrNotify, err)
	}
	return contact, ""
}

// checkFormat refuses a record of a later major version: its words may mean something else.
func checkFormat(format string) error {
	match := formatPattern.FindStringSubmatch(format)
	if match == nil {
		return fmt.Errorf("%s %q is no version", attrFormat, format)
	}
	major, _ := strconv.Atoi(match[1])
	minor, _ := strconv.Atoi(match[2])
	if major > record.Major {
		return &record.NewerError{Major: major, Minor: minor}
	}
	return nil
}

func parsePages(list string) (digests, error) {
	var pages digests
	if list == "" {
		return pages, nil
	}
	for entry := range strings.SplitSeq(list, ",") {
		name, digest, _ := strings.Cut(entry, ".")
		page, err := strconv.Atoi(name)
		if err != nil || page < 0 || page >= pageCount || pages[page] != "" || !digestPattern.MatchString(digest) {
			return digests{}, errors.New(attrPages + " is no list of digests")
		}
		pages[page] = digest
	}
	return pages, nil
}
