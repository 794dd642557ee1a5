package mcs

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// AnnotationInstanceAttributes is the annotation of a ServiceExport, or of its Service, with
// attributes of the Cloud Map instances that mirror the export: "name=value" separated by commas or
// lines. A value may refer to facts of the endpoint or the cluster, such as $(zone). The
// ServiceExport's annotation counts if both have one.
const AnnotationInstanceAttributes = Domain + "/instance-attributes"

// The references in values of instance attributes. They are written $(name); $$(name) is the text
// $(name), as in the environment of a container.
const (
	referencePod       = "pod"
	referenceNode      = "node"
	referenceZone      = "zone"
	referenceRegion    = "region"
	referenceCluster   = "cluster"
	referenceNamespace = "namespace"
	referenceService   = "service"
)

var instanceReferences = []string{
	referencePod, referenceNode, referenceZone, referenceRegion, referenceCluster, referenceNamespace, referenceService,
}

// The bounds of instance attributes. AWS Cloud Map allows 30 custom attributes and 5,000 characters
// for an instance. The controller writes up to 15 itself, of some 1,500 characters, and other
// writers may have added some: 10 * (64 + 256) are 3,200.
const (
	maxInstanceAttributes     = 10
	maxInstanceAttributeName  = 64
	MaxInstanceAttributeValue = 256
)

var (
	// AWS Cloud Map also allows other punctuation, which could not be distinguished from the
	// separators of the annotation.
	instanceAttributeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:/-]*$`)
	instanceReference     = regexp.MustCompile(`\$?\$\(([^)]*)\)`)
)

// ReservedInstanceAttributes are the attributes that the controller writes itself. Those that begin
// with AWS_ have a meaning for AWS.
var ReservedInstanceAttributes = []string{
	"AWS_INSTANCE_IPV4", "AWS_INSTANCE_IPV6", "AWS_INSTANCE_PORT", "ENDPOINT_PORT_NAME", "ENDPOINT_PROTOCOL", "SERVICE_PORT", "SERVICE_PORT_NAME",
	"SERVICE_PROTOCOL", "SERVICE_TARGET_PORT", "CLUSTER_ID", "CLUSTERSET_ID", "SERVICE_TYPE", "SERVICE_EXPORT_CREATION_TIMESTAMP", "READY", "HOSTNAME",
	"NODENAME", "K8S_CONTROLLER", "K8S_ATTRIBUTES",
}

// InstanceAttributes are the attributes that a user adds to the Cloud Map instances of an export,
// in canonical form: "name=value" lines, sorted by name.
type InstanceAttributes string

// ParseInstanceAttributes returns the canonical form of an annotation, or an error that names the
// first problem.
func ParseInstanceAttributes(text string) (InstanceAttributes, error) {
	if len(text) > maxAnnotationBytes {
		return "", fmt.Errorf("the list has more than %d bytes", maxAnnotationBytes)
	}
	values := map[string]string{}
	for _, entry := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' || r == '\r' }) {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		name, value, found := strings.Cut(strings.TrimSpace(entry), "=")
		if !found {
			return "", fmt.Errorf("%q is not of the form name=value", abbreviate(entry))
		}
		if err := checkInstanceAttribute(name, value); err != nil {
			return "", err
		}
		if _, twice := values[name]; twice {
			return "", fmt.Errorf("%s is there twice", name)
		}
		values[name] = value
	}
	if len(values) > maxInstanceAttributes {
		return "", fmt.Errorf("%d attributes, at most %d are possible", len(values), maxInstanceAttributes)
	}
	return formatInstanceAttributes(values), nil
}

// checkInstanceAttribute returns an error if AWS Cloud Map, the controller or the annotation does
// not allow an attribute.
func checkInstanceAttribute(name, value string) error {
	switch {
	case len(name) > maxInstanceAttributeName || !instanceAttributeName.MatchString(name):
		return fmt.Errorf("the name %q is not valid: it must have letters, digits and _ . : / - only, and at most %d of them", abbreviate(name), maxInstanceAttributeName)
	case strings.HasPrefix(strings.ToUpper(name), "AWS_") || slices.Contains(ReservedInstanceAttributes, name):
		return fmt.Errorf("%s is reserved", name)
	case len(value) > MaxInstanceAttributeValue:
		return fmt.Errorf("the value of %s has more than %d characters", name, MaxInstanceAttributeValue)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return fmt.Errorf("the value of %s has characters that are not printable ASCII", name)
	}
	for _, match := range instanceReference.FindAllStringSubmatch(value, -1) {
		if !strings.HasPrefix(match[0], "$$") && !slices.Contains(instanceReferences, match[1]) {
			return fmt.Errorf("the value of %s refers to %q; possible are %s", name, abbreviate(match[1]), strings.Join(instanceReferences, ", "))
		}
	}
	return nil
}

func formatInstanceAttributes(values map[string]string) InstanceAttributes {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		lines = append(lines, name+"="+values[name])
	}
	return InstanceAttributes(strings.Join(lines, "\n"))
}

// values returns the attributes with their values as they were written.
func (a InstanceAttributes) values() map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(string(a)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		values[name] = value
	}
	return values
}

// refersTo reports whether a value refers to a fact.
func (a InstanceAttributes) refersTo(fact string) bool {
	return slices.ContainsFunc(instanceReference.FindAllStringSubmatch(string(a), -1), func(match []string) bool {
		return match[1] == fact && !strings.HasPrefix(match[0], "$$")
	})
}

// Of returns the attributes of the instances of an endpoint of e. A fact that is not known is
// empty. Values are cut at MaxInstanceAttributeValue characters.
func (a InstanceAttributes) Of(e Export, ep Endpoint) map[string]string {
	facts := map[string]string{
		referencePod: ep.Pod, referenceNode: ep.Node, referenceZone: ep.Zone, referenceRegion: e.Region, referenceCluster: e.Cluster,
		referenceNamespace: e.Key.Namespace, referenceService: e.Key.Name,
	}
	values := a.values()
	for name, value := range values {
		value = instanceReference.ReplaceAllStringFunc(value, func(reference string) string {
			if strings.HasPrefix(reference, "$$") {
				return reference[1:]
			}
			return facts[strings.TrimSuffix(strings.TrimPrefix(reference, "$("), ")")]
		})
		values[name] = value[:min(len(value), MaxInstanceAttributeValue)]
	}
	return values
}

// InstanceAttributes returns the attributes that the annotation of the ServiceExport, or else of
// the Service, names.
func (src Source) InstanceAttributes() (InstanceAttributes, error) {
	key, text, _ := Annotation(src.ServiceExport.Annotations, AnnotationInstanceAttributes)
	if text == "" {
		key, text, _ = Annotation(src.Service.Annotations, AnnotationInstanceAttributes)
	}
	if text == "" {
		return "", nil
	}
	attributes, err := ParseInstanceAttributes(text)
	if err == nil && attributes == "" {
		err = errors.New("the list is empty")
	}
	if err != nil {
		return "", fmt.Errorf("annotation %s: %w", key, err)
	}
	return attributes, nil
}
