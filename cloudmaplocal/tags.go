package cloudmaplocal

import "strings"

// newTags checks the tags of a new resource and makes them a map.
func newTags(tags []tag) (map[string]string, error) {
	return addTags(nil, tags, "")
}

// addTags is old with tags added or replaced.
func addTags(old map[string]string, tags []tag, resource string) (map[string]string, error) {
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

// tagsOf finds the tags of the resource that an ARN names, to be read or replaced.
func (r *region) tagsOf(arn string) (*map[string]string, error) {
	if err := (text{"ResourceARN", 1, 1011, nil}).check(arn); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(arn, "arn:") {
		return nil, invalidInput("ResourceARN: '%s' is not an ARN", arn)
	}
	if ns := r.namespaces[r.id("namespace", arn)]; ns != nil && r.shows(ns) {
		return &ns.Tags, nil
	}
	if svc := r.services[r.id("service", arn)]; svc != nil && r.shows(r.namespaces[svc.NamespaceID]) {
		return &svc.Tags, nil
	}
	return nil, resourceNotFound(arn)
}

func (r *region) listTags(in arnInput) (struct{ Tags []tag }, error) {
	var out struct{ Tags []tag }
	tags, err := r.tagsOf(in.ResourceARN)
	if err != nil {
		return out, err
	}
	out.Tags = mapSlice(sortedKeys(*tags), func(key string) tag { return tag{Key: key, Value: (*tags)[key]} })
	return out, nil
}

func (r *region) tagResource(in tagInput) (empty, error) {
	tags, err := r.tagsOf(in.ResourceARN)
	if err != nil {
		return empty{}, err
	}
	all, err := addTags(*tags, in.Tags, in.ResourceARN)
	if err != nil {
		return empty{}, err
	}
	*tags = all
	return empty{}, nil
}

func (r *region) untagResource(in untagInput) (empty, error) {
	tags, err := r.tagsOf(in.ResourceARN)
	if err != nil {
		return empty{}, err
	}
	if n := len(in.TagKeys); n > maxTagsPerCall {
		return empty{}, invalidInput("TagKeys: %d; a request may carry %d", n, maxTagsPerCall)
	}
	*tags = without(*tags, in.TagKeys)
	return empty{}, nil
}
