package format

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/api"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/record"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

const (
	// PageCount is the same for all clusters and never changes. 64 digests fit one attribute of the
	// member record, and 1,000 exports of 20 endpoints make pages of one instance each, so that 64
	// writes publish them.
	PageCount = 64
	// MaxParts is the maximum number of instances of a page. 256 instances hold 0.9 MiB of
	// compressed exports, some 500,000 endpoints, far below the 1,000 instances of a service or a
	// read.
	MaxParts = 256

	// Cloud Map's limits for the value of an attribute, and for all keys and values of an instance.
	maxValue      = 1024
	maxAttributes = 5000
	// usedAttributes is the share of maxAttributes that parts of pages use. What is left is for
	// another way of counting than the documented one.
	usedAttributes = maxAttributes * 98 / 100
)

// The attributes of a part of a page. The data follows as DATA0, DATA1, …
const (
	AttrClusterID  = "CLUSTER_ID"
	AttrPage       = "PAGE"
	AttrGeneration = "GENERATION"
	AttrPart       = "PART"
	AttrParts      = "PARTS"
	AttrDigest     = "DIGEST"
	AttrFormat     = "FORMAT"
	AttrSignature  = "SIGNATURE"
	AttrData       = "DATA"
)

// Author is the cluster that signs records. The key belongs to the UID: a cluster that was built
// anew has another one of both.
type Author struct {
	ClusterSetID, ClusterID, UID string
	Key                          trust.Key
}

// pageStatement returns the signed statement of a page.
func (a Author) pageStatement(page int, generation int64, data []byte) trust.Statement {
	return trust.Statement{
		ClusterSetID: a.ClusterSetID, ClusterID: a.ClusterID, UID: a.UID, Kind: trust.KindPage, Name: PageName(page), Generation: generation, Content: data,
	}
}

// maxGeneration is the highest valid generation: the milliseconds since 1970 in the year 287396. A
// higher one is garbage, and would leave no room for the next.
const maxGeneration = 1 << 53

// PageOf returns the page that an export with this key belongs to.
func PageOf(key mcs.Key) int {
	return int(sha256.Sum256([]byte(key.String()))[0]) % PageCount
}

// Digest returns a digest of a page's bytes: 64 bits in 11 characters, so that two versions of a
// page collide once in 10^19.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return base64.RawURLEncoding.EncodeToString(sum[:8])
}

// UnwrittenDigest announces a page that is not written yet. No page has this digest, so readers
// keep what they know of the page, and its exports are unknown to a reader that knows nothing.
const UnwrittenDigest = "AAAAAAAAAAA"

// PageName returns the value of attribute PAGE: "07".
func PageName(page int) string { return fmt.Sprintf("%02d", page) }

// PartID returns the instance ID of a part: "page-07-0".
func PartID(page, part int) string { return fmt.Sprintf("page-%s-%d", PageName(page), part) }

// ParsePartID is the inverse of PartID; ok is false for other IDs.
func ParsePartID(id string) (page, part int, ok bool) {
	rest, isPage := strings.CutPrefix(id, "page-")
	name, number, split := strings.Cut(rest, "-")
	page, errPage := strconv.Atoi(name)
	part, errPart := strconv.Atoi(number)
	if !isPage || !split || errPage != nil || errPart != nil || page < 0 || page >= PageCount || part < 0 || part >= MaxParts {
		return 0, 0, false
	}
	return page, part, id == PartID(page, part)
}

// SplitPage signs the bytes of a page and encodes them as the fewest instances that hold them.
func SplitPage(cluster mcs.Identity, signer *trust.Signer, page int, generation int64, data []byte) ([]api.Instance, error) {
	text := base64.RawURLEncoding.EncodeToString(data)
	digest := Digest(data)
	author := Author{ClusterSetID: cluster.ClusterSetID, ClusterID: cluster.ClusterID, UID: cluster.UID}
	signature := signer.Sign(author.pageStatement(page, generation, data))
	// With the longest part numbers, the room does not depend on the number of parts.
	attributes := func(part, parts int) map[string]string {
		return map[string]string{
			AttrClusterID:  cluster.ClusterID,
			AttrPage:       PageName(page),
			AttrGeneration: strconv.FormatInt(generation, 10),
			AttrPart:       strconv.Itoa(part),
			AttrParts:      strconv.Itoa(parts),
			AttrDigest:     digest,
			AttrFormat:     record.Version(),
			AttrSignature:  signature,
		}
	}
	room := dataRoom(attributes(MaxParts, MaxParts))
	parts := (len(text) + room - 1) / room
	if parts > MaxParts {
		return nil, fmt.Errorf("page %s would need %d instances, more than the %d that a page may have: export fewer or smaller services",
			PageName(page), parts, MaxParts)
	}
	instances := make([]api.Instance, parts)
	for i := range instances {
		attrs := attributes(i, parts)
		addData(attrs, text[i*room:min((i+1)*room, len(text))])
		instances[i] = api.Instance{ID: PartID(page, i), Attributes: attrs}
	}
	return instances, nil
}

// dataRoom returns how many characters of data fit into an instance beside the other attributes.
func dataRoom(others map[string]string) int {
	left := usedAttributes
	for key, value := range others {
		left -= len(key) + len(value)
	}
	room := 0
	for left > len(AttrData)+1 {
		// Values are few: DATA0 to DATA4.
		value := min(maxValue, left-len(AttrData)-1)
		room += value
		left -= value + len(AttrData) + 1
	}
	return room
}

func addData(attrs map[string]string, text string) {
	for i := 0; len(text) > 0; i++ {
		n := min(maxValue, len(text))
		attrs[AttrData+strconv.Itoa(i)] = text[:n]
		text = text[n:]
	}
}

// Page is one complete generation of a page.
type Page struct {
	Generation int64
	Digest     string
	Parts      int
	Data       []byte
	// Author is the one of the authors that signed it.
	Author    Author
	signature string
}

// part is one decoded instance of a page.
type part struct {
	number, parts int
	generation    int64
	digest        string
	signature     string
	text          string
}

// JoinPage returns the newest complete generation of a page: all parts exist, the digest matches,
// and one of the authors signed it. It ignores instances of other pages. If no generation is
// complete, the error is about the newest.
func JoinPage(page int, instances []api.Instance, authors ...Author) (Page, error) {
	generations := map[int64][]part{}
	var problem error
	for _, instance := range instances {
		if p, _, ok := ParsePartID(instance.ID); !ok || p != page {
			continue
		}
		parsed, err := parsePart(instance)
		if err != nil {
			problem = fmt.Errorf("instance %s: %w", instance.ID, err)
			continue
		}
		generations[parsed.generation] = append(generations[parsed.generation], parsed)
	}
	var best Page
	var newest int64
	for generation, parts := range generations {
		img, err := joinSigned(page, parts, authors)
		if err == nil && generation > best.Generation {
			best = img
		}
		if err != nil && generation > newest {
			newest, problem = generation, err
		}
	}
	switch {
	case best.Generation > 0:
		return best, nil
	case problem != nil:
		return Page{}, problem
	}
	return Page{}, errors.New("it has no instances")
}

func parsePart(instance api.Instance) (part, error) {
	_, number, _ := ParsePartID(instance.ID)
	attrs := instance.Attributes
	generation, err := strconv.ParseInt(attrs[AttrGeneration], 10, 64)
	if err != nil || generation <= 0 || generation > maxGeneration {
		return part{}, fmt.Errorf("%s %q is not a generation", AttrGeneration, attrs[AttrGeneration])
	}
	parts, err := strconv.Atoi(attrs[AttrParts])
	if err != nil || parts < 1 || parts > MaxParts {
		return part{}, fmt.Errorf("%s %q is not a number of parts", AttrParts, attrs[AttrParts])
	}
	var text strings.Builder
	for i := 0; ; i++ {
		value, ok := attrs[AttrData+strconv.Itoa(i)]
		if !ok {
			break
		}
		text.WriteString(value)
	}
	return part{number: number, parts: parts, generation: generation, digest: attrs[AttrDigest], signature: attrs[AttrSignature], text: text.String()}, nil
}

// verify sets the author of the page, or returns an error if none of the authors signed it.
func (p *Page) verify(page int, authors []Author) error {
	err := errors.New("the cluster has no key")
	for _, author := range authors {
		if err = author.Key.Verify(author.pageStatement(page, p.Generation, p.Data), p.signature); err == nil {
			p.Author = author
			return nil
		}
	}
	return fmt.Errorf("generation %d is refused: %w", p.Generation, err)
}

// joinSigned joins the parts of one generation and verifies its signature.
func joinSigned(page int, parts []part, authors []Author) (Page, error) {
	img, err := joinParts(parts)
	if err == nil {
		err = img.verify(page, authors)
	}
	return img, err
}

// joinParts joins the parts of one generation.
func joinParts(parts []part) (Page, error) {
	first := parts[0]
	texts := make([]string, first.parts)
	for _, p := range parts {
		if p.parts != first.parts || p.digest != first.digest || p.signature != first.signature || p.number >= first.parts {
			return Page{}, fmt.Errorf("the parts of generation %d contradict one another", p.generation)
		}
		texts[p.number] = p.text
	}
	for i, text := range texts {
		if text == "" {
			return Page{}, fmt.Errorf("part %d of %d of generation %d is missing", i, first.parts, first.generation)
		}
	}
	data, err := base64.RawURLEncoding.DecodeString(strings.Join(texts, ""))
	if err != nil {
		return Page{}, fmt.Errorf("the data of generation %d cannot be decoded: %w", first.generation, err)
	}
	if Digest(data) != first.digest {
		return Page{}, fmt.Errorf("the data of generation %d does not match its digest", first.generation)
	}
	return Page{Generation: first.generation, Digest: first.digest, Parts: first.parts, Data: data, signature: first.signature}, nil
}

// GroupByPage groups the instances of a catalog by page. It ignores instances with other IDs.
func GroupByPage(instances []api.Instance) map[int][]api.Instance {
	pages := map[int][]api.Instance{}
	for _, instance := range instances {
		if page, _, ok := ParsePartID(instance.ID); ok {
			pages[page] = append(pages[page], instance)
		}
	}
	return pages
}

// CountParts returns the number of parts of a page up to the highest among the instances.
func CountParts(page int, instances []api.Instance) int {
	parts := 0
	for _, instance := range instances {
		if p, number, ok := ParsePartID(instance.ID); ok && p == page {
			parts = max(parts, number+1)
		}
	}
	return parts
}
