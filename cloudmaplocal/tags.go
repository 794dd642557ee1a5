package cloudmaplocal

import (
	"strings"

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

// tagsOf finds the tags of the resource that an ARN names, to read or replace them.
func (h tagHandler) tagsOf(arn string) (*map[string]string, error) {
	if err := (textConstraint{"ResourceARN", 1, 1011, nil}).check(arn); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(arn, "arn:") {
		return nil, invalidInput("ResourceARN: '%s' is not an ARN", arn)
	}
	if ns := h.store.namespaces[h.store.resourceID("namespace", arn)]; ns != nil && h.isVisible(ns) {
		return &ns.Tags, nil
	}
	if svc := h.store.services[h.store.resourceID("service", arn)]; svc != nil && h.isVisible(h.store.namespaceOf(svc)) {
		return &svc.Tags, nil
	}
	return nil, resourceNotFound(arn)
}

func (h tagHandler) listTags(in wire.ARNInput) (struct{ Tags []wire.Tag }, error) {
	var out struct{ Tags []wire.Tag }
	tags, err := h.tagsOf(in.ResourceARN)
	if err != nil {
		return out, err
	}
	out.Tags = mapSlice(sortedKeys(*tags), func(key string) wire.Tag { return wire.Tag{Key: key, Value: (*tags)[key]} })
	return out, nil
}

func (h tagHandler) tagResource(in wire.TagInput) (wire.Empty, error) {
	tags, err := h.tagsOf(in.ResourceARN)
	if err != nil {
		return wire.Empty{}, err
	}
	all, err := addTags(*tags, in.Tags, in.ResourceARN)
	if err != nil {
		return wire.Empty{}, err
	}
	*tags = all
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
	*tags = without(*tags, in.TagKeys)
	return wire.Empty{}, nil
}
