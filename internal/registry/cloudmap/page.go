package cloudmap

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
)

const (
	// pageCount is fixed for all clusters and all time. 64 digests fit one attribute of the member's record, and 1,000
	// exports of 20 endpoints make pages of one instance each, so that they are published with 64 writes.
	pageCount = 64
	// maxParts bounds a page: 256 instances hold 0.9 MiB of compressed exports, some 500,000 endpoints, and stay clear of
	// the 1,000 instances that a service and a read have room for.
	maxParts = 256

	// Cloud Map's limits of an attribute's value and of all keys and values of an instance.
	maxValue      = 1024
	maxAttributes = 5000
)

// The attributes of a part of a page. The data follows as DATA0, DATA1, …
const (
	attrClusterID  = "CLUSTER_ID"
	attrPage       = "PAGE"
	attrGeneration = "GENERATION"
	attrPart       = "PART"
	attrParts      = "PARTS"
	attrDigest     = "DIGEST"
	attrFormat     = "FORMAT"
	attrData       = "DATA"
)

// maxGeneration is the last generation that is read: the milliseconds since 1970 in the year 287396. What is later is garbage, after
// which there would be no next one.
const maxGeneration = 1 << 53

// pageOf is the page that an export of key belongs to.
func pageOf(key mcs.Key) int {
	return int(sha256.Sum256([]byte(key.String()))[0]) % pageCount
}

// digestOf is a short digest of a page's bytes: 64 bits in 11 characters, so that two versions of a page are taken for
// one another once in 10^19.
func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return base64.RawURLEncoding.EncodeToString(sum[:8])
}

// unwritten is announced of a page for which nothing else can be promised yet: no page has this digest, so that readers keep
// what they know of it, and who knows nothing takes it for unknown, not for empty.
const unwritten = "AAAAAAAAAAA"

// pageName is a page as PAGE names it: "07".
func pageName(page int) string { return fmt.Sprintf("%02d", page) }

// partID is the instance ID of a part: "page-07-0".
func partID(page, part int) string { return fmt.Sprintf("page-%s-%d", pageName(page), part) }

// parsePartID is partID undone; ok is false for every other text.
func parsePartID(id string) (page, part int, ok bool) {
	rest, isPage := strings.CutPrefix(id, "page-")
	name, number, split := strings.Cut(rest, "-")
	page, errPage := strconv.Atoi(name)
	part, errPart := strconv.Atoi(number)
	if !isPage || !split || errPage != nil || errPart != nil || page < 0 || page >= pageCount || part < 0 || part >= maxParts {
		return 0, 0, false
	}
	return page, part, id == partID(page, part)
}

// splitPage spreads the bytes of a page over as few instances as hold them.
func splitPage(clusterID string, page int, generation int64, data []byte) ([]api.Instance, error) {
	text := base64.RawURLEncoding.EncodeToString(data)
	digest := digestOf(data)
	// Every part has the longest part numbers, so that the room does not depend on how many parts there are.
	attributes := func(part, parts int) map[string]string {
		return map[string]string{
			attrClusterID:  clusterID,
			attrPage:       pageName(page),
			attrGeneration: strconv.FormatInt(generation, 10),
			attrPart:       strconv.Itoa(part),
			attrParts:      strconv.Itoa(parts),
			attrDigest:     digest,
			attrFormat:     record.Version(),
		}
	}
	room := dataRoom(attributes(maxParts, maxParts))
	parts := (len(text) + room - 1) / room
	if parts > maxParts {
		return nil, fmt.Errorf("page %s would need %d instances, more than the %d that a page may have: export fewer or smaller services",
			pageName(page), parts, maxParts)
	}
	instances := make([]api.Instance, parts)
	for i := range instances {
		attrs := attributes(i, parts)
		addData(attrs, text[i*room:min((i+1)*room, len(text))])
		instances[i] = api.Instance{ID: partID(page, i), Attributes: attrs}
	}
	return instances, nil
}

// dataRoom is how many characters of data fit an instance beside other attributes.
func dataRoom(others map[string]string) int {
	left := maxAttributes
	for key, value := range others {
		left -= len(key) + len(value)
	}
	room := 0
	for left > len(attrData)+1 {
		// Values are few: DATA0 to DATA4.
		value := min(maxValue, left-len(attrData)-1)
		room += value
		left -= value + len(attrData) + 1
	}
	return room
}

func addData(attrs map[string]string, text string) {
	for i := 0; len(text) > 0; i++ {
		n := min(maxValue, len(text))
		attrs[attrData+strconv.Itoa(i)] = text[:n]
		text = text[n:]
	}
}

// image is one whole generation of a page.
type image struct {
	generation int64
	digest     string
	parts      int
	data       []byte
}

// part is one instance of a page, read.
type part struct {
	number, parts int
	generation    int64
	digest        string
	text          string
}

// joinPage finds the newest generation of a page of which every part is there and the digest is right. Instances of
// other pages are ignored. The error says what is wrong with the newest generation when none is whole.
func joinPage(page int, instances []api.Instance) (image, error) {
	generations := map[int64][]part{}
	var problem error
	for _, instance := range instances {
		if p, _, ok := parsePartID(instance.ID); !ok || p != page {
			continue
		}
		parsed, err := parsePart(instance)
		if err != nil {
			problem = fmt.Errorf("instance %s: %w", instance.ID, err)
			continue
		}
		generations[parsed.generation] = append(generations[parsed.generation], parsed)
	}
	var best image
	var newest int64
	for generation, parts := range generations {
		img, err := joinParts(parts)
		if err == nil && generation > best.generation {
			best = img
		}
		if err != nil && generation > newest {
			newest, problem = generation, err
		}
	}
	switch {
	case best.generation > 0:
		return best, nil
	case problem != nil:
		return image{}, problem
	}
	return image{}, errors.New("no instance of it is there")
}

func parsePart(instance api.Instance) (part, error) {
	_, number, _ := parsePartID(instance.ID)
	attrs := instance.Attributes
	generation, err := strconv.ParseInt(attrs[attrGeneration], 10, 64)
	if err != nil || generation <= 0 || generation > maxGeneration {
		return part{}, fmt.Errorf("%s %q is no number of a generation", attrGeneration, attrs[attrGeneration])
	}
	parts, err := strconv.Atoi(attrs[attrParts])
	if err != nil || parts < 1 || parts > maxParts {
		return part{}, fmt.Errorf("%s %q is no number of parts", attrParts, attrs[attrParts])
	}
	var text strings.Builder
	for i := 0; ; i++ {
		value, ok := attrs[attrData+strconv.Itoa(i)]
		if !ok {
			break
		}
		text.WriteString(value)
	}
	return part{number: number, parts: parts, generation: generation, digest: attrs[attrDigest], text: text.String()}, nil
}

// joinParts puts the parts of one generation together.
func joinParts(parts []part) (image, error) {
	first := parts[0]
	texts := make([]string, first.parts)
	for _, p := range parts {
		if p.parts != first.parts || p.digest != first.digest || p.number >= first.parts {
			return image{}, fmt.Errorf("the parts of generation %d contradict one another", p.generation)
		}
		texts[p.number] = p.text
	}
	for i, text := range texts {
		if text == "" {
			return image{}, fmt.Errorf("part %d of %d of generation %d is missing", i, first.parts, first.generation)
		}
	}
	data, err := base64.RawURLEncoding.DecodeString(strings.Join(texts, ""))
	if err != nil {
		return image{}, fmt.Errorf("the data of generation %d cannot be decoded: %w", first.generation, err)
	}
	if digestOf(data) != first.digest {
		return image{}, fmt.Errorf("the data of generation %d does not match its digest", first.generation)
	}
	return image{generation: first.generation, digest: first.digest, parts: first.parts, data: data}, nil
}

func groupByPage(instances []api.Instance) map[int][]api.Instance {
	pages := map[int][]api.Instance{}
	for _, instance := range instances {
		if page, _, ok := parsePartID(instance.ID); ok {
			pages[page] = append(pages[page], instance)
		}
	}
	return pages
}

// seenParts is how many parts a page has if the ones that were read are all that there are.
func seenParts(page int, instances []api.Instance) int {
	parts := 0
	for _, instance := range instances {
		if p, number, ok := parsePartID(instance.ID); ok && p == page {
			parts = max(parts, number+1)
		}
	}
	return parts
}
