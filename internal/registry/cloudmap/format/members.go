package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/peernotify"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// The attributes of a member record, besides those that it shares with pages.
const (
	AttrClusterSetID = "CLUSTERSET_ID"
	AttrUID          = "UID"
	AttrVersion      = "VERSION"
	AttrJoined       = "JOINED"
	AttrHeartbeat    = "HEARTBEAT"
	AttrPages        = "PAGES"
	AttrNamespaces   = "NAMESPACES"
	AttrNotify       = "NOTIFY"
	AttrProperties   = "PROPERTIES"
	AttrImports      = "IMPORTS"
	AttrKey          = "KEY"
	AttrSuccession   = "SUCCESSION"
	AttrProcess      = "PROCESS"
	AttrFarewell     = "FAREWELL"
)

// CopyID is the instance ID of the copy of the member record in the cluster's catalog, and the
// value of its attribute PAGE. Of a clusterset with sealed policies, only the cluster itself can
// write there.
const CopyID = "record"

// Digests are the digests of a cluster's pages; "" is a page that does not exist.
type Digests [PageCount]string

// Member is a member record.
type Member struct {
	ClusterID, ClusterSetID, UID, Version string
	// Joined is the time at which the cluster became a member, by its own clock: of two clusters
	// with one ID, the older one stays.
	Joined time.Time
	// Generation grows with every write of pages, also across restarts. It orders records and pages
	// by the time of their writes.
	Generation int64
	// Heartbeat grows with every write of the record: the milliseconds since 1970 by the cluster's
	// own clock, or more if that was set back.
	Heartbeat int64
	Pages     Digests
	// Namespaces are the namespaces of the exports in each announced page.
	Namespaces PageNamespaces
	// Contact is the address for peer notifications, ContactProblem the reason if the record has an
	// unusable one.
	Contact        peernotify.Contact
	ContactProblem string
	// Properties are the cluster's ClusterProperties as mcs.Properties encodes them, "" if the
	// cluster publishes none; PropertiesProblem is the reason if the record has unusable ones.
	Properties        string
	PropertiesProblem string
	// Imports is the cluster's report of its imports, "" if the record has no usable one.
	Imports mcs.ImportReport
	// Key is the key that the record is signed with, Succession its signature with the previous
	// key, or "".
	Key        trust.Key
	Succession string
	// Process distinguishes the processes of one cluster (NewProcess).
	Process string
	// Farewell is set in the last record of a cluster that leaves.
	Farewell bool
}

// Author returns the author of the record.
func (m Member) Author() Author {
	return Author{ClusterSetID: m.ClusterSetID, ClusterID: m.ClusterID, UID: m.UID, Key: m.Key}
}

// Problems returns the fields of the record that cannot be used, one line each.
func (m Member) Problems() []string {
	return slices.DeleteFunc([]string{m.ContactProblem, m.PropertiesProblem}, func(problem string) bool { return problem == "" })
}

// Time returns the time of the record among the cluster's records.
func (m Member) Time() trust.Time {
	return trust.Time{Generation: m.Generation, Heartbeat: m.Heartbeat}
}

// NextHeartbeat returns the heartbeat of a record that is written now. It is not earlier than the
// generation, so that the heartbeat alone has to be saved for the next process.
func (m Member) NextHeartbeat(now time.Time) int64 {
	return max(m.Heartbeat+1, m.Generation, now.UnixMilli())
}

// HeartbeatTime returns when the record was written, by the cluster's own clock; zero without a
// record.
func (m Member) HeartbeatTime() time.Time {
	if m.Heartbeat == 0 {
		return time.Time{}
	}
	return time.UnixMilli(m.Heartbeat)
}

// IsLaterThan reports whether r was written after o, a record of the same cluster.
func (m Member) IsLaterThan(o Member) bool { return m.Time().After(o.Time()) }

// IsSameWrite reports whether r and o are the same write of a record.
func (m Member) IsSameWrite(o Member) bool {
	return m.Key == o.Key && m.UID == o.UID && m.Process == o.Process && m.Generation == o.Generation && m.Heartbeat == o.Heartbeat
}

// HasOlderClaimThan reports whether r's cluster keeps the cluster ID if o's cluster uses the same.
func (m Member) HasOlderClaimThan(o Member) bool {
	if !m.Joined.Equal(o.Joined) {
		return m.Joined.Before(o.Joined)
	}
	return m.UID < o.UID
}

// IsOf reports whether r is the record of the cluster with this identity.
func (m Member) IsOf(identity mcs.Identity) bool {
	return m.ClusterID == identity.ClusterID && m.UID == identity.UID
}

// NewProcess returns a Process that began at a time: the milliseconds since 1970, and random
// characters.
func NewProcess(began time.Time, random string) string {
	return strconv.FormatInt(began.UnixMilli(), 10) + "-" + random
}

// IsEarlierProcess reports whether process a began before process b. Of two that began at once, it
// is the same one for all.
func IsEarlierProcess(a, b string) bool {
	began := func(process string) int64 {
		text, _, _ := strings.Cut(process, "-")
		ms, _ := strconv.ParseInt(text, 10, 64)
		return ms
	}
	if began(a) != began(b) {
		return began(a) < began(b)
	}
	return a < b
}

// Instance signs the record and encodes it as an instance of service members.
func (m Member) Instance(signer *trust.Signer) api.Instance {
	var pages []string
	for page, digest := range m.Pages {
		if digest != "" {
			pages = append(pages, PageName(page)+"."+digest)
		}
	}
	attrs := map[string]string{
		AttrClusterID:    m.ClusterID,
		AttrClusterSetID: m.ClusterSetID,
		AttrUID:          m.UID,
		AttrVersion:      m.Version,
		AttrJoined:       m.Joined.UTC().Format(joinedLayout),
		AttrGeneration:   strconv.FormatInt(m.Generation, 10),
		AttrHeartbeat:    strconv.FormatInt(m.Heartbeat, 10),
		AttrFormat:       memberFormat,
		// 64 times "07." and 11 characters, with commas between: 959 of the maximum of 1,024.
		AttrPages: strings.Join(pages, ","),
	}
	if namespaces := encodeNamespaces(m.Pages, m.Namespaces); namespaces != "" {
		attrs[AttrNamespaces] = namespaces
	}
	if m.Contact.Address.IsValid() {
		attrs[AttrNotify] = m.Contact.String()
	}
	if m.Properties != "" {
		attrs[AttrProperties] = m.Properties
	}
	if m.Imports != "" {
		attrs[AttrImports] = string(m.Imports)
	}
	if m.Process != "" {
		attrs[AttrProcess] = m.Process
	}
	if m.Farewell {
		attrs[AttrFarewell] = "true"
	}
	return Sign(api.Instance{ID: m.ClusterID, Attributes: attrs}, signer)
}

// Sign returns a member record with the attributes KEY, SUCCESSION and SIGNATURE of a signer.
func Sign(record api.Instance, signer *trust.Signer) api.Instance {
	attrs := maps.Clone(record.Attributes)
	attrs[AttrKey] = signer.Key().String()
	if succession := signer.Succession(attrs[AttrClusterSetID], record.ID); succession != "" {
		attrs[AttrSuccession] = succession
	}
	attrs[AttrSignature] = signer.Sign(memberStatement(attrs[AttrClusterSetID], record.ID, attrs))
	return api.Instance{ID: record.ID, Attributes: attrs}
}

// CopyOf returns the copy of a member record for the cluster's catalog. Its signature is that of
// the record.
func CopyOf(record api.Instance) api.Instance {
	attrs := maps.Clone(record.Attributes)
	attrs[AttrPage] = CopyID
	return api.Instance{ID: CopyID, Attributes: attrs}
}

// FindCopy returns the copy of the member record among the instances of a cluster's catalog, nil if
// there is none. Any cluster that may write the catalog may have written it.
func FindCopy(instances []api.Instance, clusterID, clusterSetID string) (*Member, error) {
	for _, instance := range instances {
		if instance.ID != CopyID {
			continue
		}
		r, err := ParseMember(api.Instance{ID: clusterID, Attributes: instance.Attributes}, clusterSetID)
		if err != nil {
			return nil, err
		}
		return &r, nil
	}
	return nil, nil
}

// memberStatement returns the signed statement of a member record: all attributes but the
// signature, and PAGE, which only the copy has.
func memberStatement(clusterSetID, clusterID string, attrs map[string]string) trust.Statement {
	var content []byte
	for _, key := range slices.Sorted(maps.Keys(attrs)) {
		if key == AttrSignature || key == AttrPage {
			continue
		}
		for _, text := range []string{key, attrs[key]} {
			content = binary.BigEndian.AppendUint32(content, uint32(len(text))) //nolint:gosec // an instance has at most 5,000 characters
			content = append(content, text...)
		}
	}
	// if it is none, the record is refused later
	generation, _ := strconv.ParseInt(attrs[AttrGeneration], 10, 64)
	return trust.Statement{
		ClusterSetID: clusterSetID, ClusterID: clusterID, UID: attrs[AttrUID], Kind: trust.KindMember, Generation: generation, Content: content,
	}
}

// maxHeartbeat is the end of the year 9999: JSON has no later times.
const maxHeartbeat = 253402300799_999

// memberFormat is the version of the record format (docs/proposals/001-cloud-map-record-format.md).
const memberFormat = "1.2"

// joinedLayout is RFC 3339 in milliseconds.
const joinedLayout = "2006-01-02T15:04:05.000Z07:00"

var (
	digestPattern = regexp.MustCompile(`^[0-9A-Za-z_-]{11}$`)
	formatPattern = regexp.MustCompile(`^([0-9]{1,3})\.([0-9]{1,3})$`)
)

// ParseMember verifies the signature of an instance of service members and decodes it. The key is
// the one that the record has: any cluster may have written it.
func ParseMember(instance api.Instance, clusterSetID string) (Member, error) {
	attrs := instance.Attributes
	key, err := verifyMember(instance, clusterSetID)
	if err != nil {
		return Member{}, err
	}
	r := Member{
		ClusterID:    attrs[AttrClusterID],
		ClusterSetID: attrs[AttrClusterSetID],
		UID:          attrs[AttrUID],
		Version:      attrs[AttrVersion],
		Key:          key, Succession: attrs[AttrSuccession],
		Process:  attrs[AttrProcess],
		Farewell: attrs[AttrFarewell] != "",
	}
	if err := r.checkTexts(instance.ID, clusterSetID); err != nil {
		return r, err
	}
	if err := checkFormat(attrs[AttrFormat]); err != nil {
		return r, err
	}
	if r.Joined, err = time.Parse(joinedLayout, attrs[AttrJoined]); err != nil {
		return r, fmt.Errorf("%s %q is not a time", AttrJoined, attrs[AttrJoined])
	}
	if r.Generation, err = strconv.ParseInt(attrs[AttrGeneration], 10, 64); err != nil || r.Generation > maxGeneration {
		return r, fmt.Errorf("%s %q is not a generation", AttrGeneration, attrs[AttrGeneration])
	}
	if r.Heartbeat, err = strconv.ParseInt(attrs[AttrHeartbeat], 10, 64); err != nil || r.Heartbeat < 0 || r.Heartbeat > maxHeartbeat {
		return r, fmt.Errorf("%s %q is not a number of milliseconds", AttrHeartbeat, attrs[AttrHeartbeat])
	}
	r.Contact, r.ContactProblem = parseNotify(attrs[AttrNotify])
	r.Properties, r.PropertiesProblem = parseProperties(attrs[AttrProperties])
	// a cluster is a member without a report
	r.Imports, _ = mcs.ParseImportReport(attrs[AttrImports])
	r.Pages, err = parsePages(attrs[AttrPages])
	// without them, every changed page is read
	r.Namespaces, _ = parseNamespaces(r.Pages, attrs[AttrNamespaces])
	return r, err
}

// checkTexts returns an error unless the record is that of a cluster of the clusterset, with texts
// of bounded length.
func (m Member) checkTexts(instanceID, clusterSetID string) error {
	if err := mcs.ValidateClusterID(m.ClusterID); err != nil {
		return fmt.Errorf("reading %s: %w", AttrClusterID, err)
	}
	switch {
	case m.ClusterID != instanceID:
		return fmt.Errorf("%s is %q in the record of %q", AttrClusterID, m.ClusterID, instanceID)
	case m.ClusterSetID != clusterSetID:
		return fmt.Errorf("%s is %q, but this is clusterset %q", AttrClusterSetID, m.ClusterSetID, clusterSetID)
	case m.UID == "":
		return fmt.Errorf("%s is missing", AttrUID)
	}
	return errors.Join(record.CheckText(AttrUID, m.UID), record.CheckText(AttrVersion, m.Version), record.CheckText(AttrProcess, m.Process))
}

// verifyMember verifies the signature of a member record and returns its key.
func verifyMember(instance api.Instance, clusterSetID string) (trust.Key, error) {
	attrs := instance.Attributes
	if attrs[AttrSignature] == "" {
		return trust.Key{}, errors.New("it is not signed")
	}
	key, err := trust.ParseKey(attrs[AttrKey])
	if err != nil {
		return trust.Key{}, fmt.Errorf("reading %s: %w", AttrKey, err)
	}
	return key, key.Verify(memberStatement(clusterSetID, instance.ID, attrs), attrs[AttrSignature])
}

// FindMember returns the record with the cluster's ID, nil if there is no valid one.
func FindMember(instances []api.Instance, identity mcs.Identity) *Member {
	for _, instance := range instances {
		if instance.ID != identity.ClusterID {
			continue
		}
		if shown, err := ParseMember(instance, identity.ClusterSetID); err == nil {
			return &shown
		}
	}
	return nil
}

// parseNotify decodes the address for peer notifications. A cluster is a member without one.
func parseNotify(value string) (contact peernotify.Contact, problem string) {
	if value == "" {
		return contact, ""
	}
	contact, err := peernotify.ParseContact(value)
	if err != nil {
		return peernotify.Contact{}, fmt.Sprintf("%s cannot be used, so the cluster gets no peer notifications: %v", AttrNotify, err)
	}
	return contact, ""
}

// parseProperties decodes the properties. A cluster is a member without any.
func parseProperties(value string) (properties, problem string) {
	if value == "" {
		return "", ""
	}
	decoded, err := mcs.DecodeProperties(value)
	if err != nil {
		return "", fmt.Sprintf("%s cannot be used, so the cluster counts as one without ClusterProperties: %v", AttrProperties, err)
	}
	return decoded.Encode(), ""
}

// checkFormat refuses a record of a later major version, which may give the attributes another
// meaning.
func checkFormat(format string) error {
	match := formatPattern.FindStringSubmatch(format)
	if match == nil {
		return fmt.Errorf("%s %q is not a version", AttrFormat, format)
	}
	major, _ := strconv.Atoi(match[1])
	minor, _ := strconv.Atoi(match[2])
	if major > record.Major {
		return &record.NewerError{Major: major, Minor: minor}
	}
	return nil
}

func parsePages(list string) (Digests, error) {
	var pages Digests
	if list == "" {
		return pages, nil
	}
	for entry := range strings.SplitSeq(list, ",") {
		name, digest, _ := strings.Cut(entry, ".")
		page, err := strconv.Atoi(name)
		if err != nil || page < 0 || page >= PageCount || pages[page] != "" || !digestPattern.MatchString(digest) {
			return Digests{}, errors.New(AttrPages + " is not a list of digests")
		}
		pages[page] = digest
	}
	return pages, nil
}
