package cloudmaplocal

import (
	"strings"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// tagHandler has the operations on tags.
type tagHandler struct{ *apiCall }

// newTags validates the tags of a new resource and returns them as a map.
func newTags(tags []wire.Tag) (map[string]string, error) {
	return addTags(nil, tags, "")
}

// addTags returns old with tags added or replaced.
func addTags(old map[string]string, tags []wire.Tag, resource string) (map[string]string, error) {
	if err := checkTags(tags); err != nil {
		return nil, err
	}
	added := make(map[string]string, len(tags))
	for _, t := range tags {
		added[t.Key] = t.Value
	}
	all := merge(old, added)
	if len(all) > maxTags {
		return nil, failure("TooManyTagsException", "%d tags; a resource can have %d.", len(all), maxTags).with("ResourceName", resource)
	}
	return all, nil
}

// tagged is the part of a resource that has its tags.
type tagged struct {
	Tags map[string]string `json:",omitempty"`

	earlier []earlierTags // that policies still see, the newest last
}

// earlierTags are tags that others replace from a time on.
type earlierTags struct {
	until time.Time // in the view of policies
	tags  map[string]string
}

// setTags replaces the tags. Policies see the present ones for a time.
func (t *tagged) setTags(tags map[string]string, now time.Time, lateBy Duration) {
	t.showEarlier(t.Tags, now, lateBy)
	t.Tags = tags
}

// showEarlier has policies see these tags for a time.
func (t *tagged) showEarlier(tags map[string]string, now time.Time, lateBy Duration) {
	if lateBy > 0 {
		t.earlier = append(t.earlier, earlierTags{now.Add(time.Duration(lateBy)), tags})
	}
}

// visibleTags returns the tags that policies see.
func (t *tagged) visibleTags(now time.Time) map[string]string {
	for len(t.earlier) > 0 && !now.Before(t.earlier[0].until) {
		t.earlier = t.earlier[1:]
	}
	if len(t.earlier) > 0 {
		return t.earlier[0].tags
	}
	return t.Tags
}

// tagsOf finds the tags of the resource that an ARN names, to read or replace them.
func (h tagHandler) tagsOf(arn string) (*tagged, error) {
	if err := (textConstraint{"ResourceARN", 1, 1011, nil}).check(arn); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(arn, "arn:") {
		return nil, invalidInput("ResourceARN: '%s' is not an ARN", arn)
	}
	if ns := h.store.namespaces[h.store.resourceID("namespace", arn)]; ns != nil && h.isVisible(ns) {
		return &ns.tagged, nil
	}
	if svc := h.store.services[h.store.resourceID("service", arn)]; svc != nil && h.isVisible(h.store.namespaceOf(svc)) {
		return &svc.tagged, nil
	}
	return nil, resourceNotFound(arn)
}

func (h tagHandler) listTags(in wire.ARNInput) (struct{ Tags []wire.Tag }, error) {
	var out struct{ Tags []wire.Tag }
	tags, err := h.tagsOf(in.ResourceARN)
	if err != nil {
		return out, err
	}
	out.Tags = mapSlice(sortedKeys(tags.Tags), func(key string) wire.Tag { return wire.Tag{Key: key, Value: tags.Tags[key]} })
	return out, nil
}

func (h tagHandler) tagResource(in wire.TagInput) (wire.Empty, error) {
	tags, err := h.tagsOf(in.ResourceARN)
	if err != nil {
		return wire.Empty{}, err
	}
	all, err := addTags(tags.Tags, in.Tags, in.ResourceARN)
	if err != nil {
		return wire.Empty{}, err
	}
	tags.setTags(all, h.now, h.opts.Behaviors.TagsVisibleAfter)
	return wire.Empty{}, nil
}

func (h tagHandler) untagResource(in wire.UntagInput) (wire.Empty, error) {
	tags, err := h.tagsOf(in.ResourceARN)
	if err != nil {
		return wire.Empty{}, err
	}
	if n := len(in.TagKeys); n > maxTagsPerCall {
		return wire.Empty{}, invalidInput("TagKeys: %d; a request may carry %d", n, maxTagsPerCall)
	}
	tags.setTags(without(tags.Tags, in.TagKeys), h.now, h.opts.Behaviors.TagsVisibleAfter)
	return wire.Empty{}, nil
}
