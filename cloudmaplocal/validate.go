package cloudmaplocal

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// Limits of the API. Source, unless another is given: the service's Smithy model,
// servicediscovery-2017-03-14, as the AWS SDKs carry it.
const (
	maxReferenceLen   = 255 // ResourceId is 64; an ARN is accepted in its place since 2025-08
	maxRequestIDLen   = 64
	maxDescriptionLen = 1024
	maxTTL            = 1<<31 - 1
	maxPage           = 100  // MaxResults of every List operation, and its default
	maxDiscovered     = 1000 // MaxResults of DiscoverInstances; its default is defaultDiscovered
	defaultDiscovered = 100
	maxTokenLen       = 4096
	maxFilterValueLen = 255
	maxThreshold      = 10

	maxCustomAttributes    = 30   // [Developer Guide, quotas]; the AWS_… ones do not count
	maxAttributeChars      = 5000 // keys and values of an instance together [RegisterInstance]
	maxServiceAttributes   = 30
	maxInstancesPerService = 1000 // [Developer Guide, quotas]: the one that AWS does not raise
	maxTags                = 50   // [TooManyTagsException]
	maxTagsPerCall         = 200
	maxServiceNameLen      = 127
)

// Special attributes of an instance [RegisterInstance].
const (
	attrAlias         = "AWS_ALIAS_DNS_NAME"
	attrEC2           = "AWS_EC2_INSTANCE_ID"
	attrInitialHealth = "AWS_INIT_HEALTH_STATUS"
	attrCNAME         = "AWS_INSTANCE_CNAME"
	attrIPv4          = "AWS_INSTANCE_IPV4"
	attrIPv6          = "AWS_INSTANCE_IPV6"
	attrPort          = "AWS_INSTANCE_PORT"
)

var specialAttributes = []string{attrAlias, attrEC2, attrInitialHealth, attrCNAME, attrIPv4, attrIPv6, attrPort}

// textConstraint is the constraint of a string member: its length in characters and its pattern.
type textConstraint struct {
	member   string
	min, max int
	pattern  *regexp.Regexp
}

var (
	instanceIDText  = textConstraint{"InstanceId", 1, 64, regexp.MustCompile(`^[0-9a-zA-Z_/:.@-]+$`)}
	attributeKey    = textConstraint{"Attributes key", 1, 255, regexp.MustCompile(`^[a-zA-Z0-9!-~]+$`)}
	attributeValue  = textConstraint{"Attributes value", 0, 1024, regexp.MustCompile(`^([a-zA-Z0-9!-~][ \ta-zA-Z0-9!-~]*)?[a-zA-Z0-9!-~]?$`)}
	httpNameText    = textConstraint{"Name", 1, 1024, regexp.MustCompile(`^[!-~]+$`)}
	privateNameText = textConstraint{"Name", 1, 253, regexp.MustCompile(`^[!-~]+$`)}
	// The ID of an instance of a service with SRV records is the first label of their target
	// [DnsRecord].
	srvInstanceIDText = textConstraint{"InstanceId", 1, 63, regexp.MustCompile(`^[0-9a-zA-Z_-]+$`)}
	publicNameText    = textConstraint{"Name", 1, 253, regexp.MustCompile(
		`^([a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.)+[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)}
	// A label is a single letter or digit, or 2 to 63 characters that may also begin and end with
	// an underscore.
	serviceNameText = textConstraint{"Name", 1, maxServiceNameLen, regexp.MustCompile(
		`^(([a-zA-Z0-9_][a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_]|[a-zA-Z0-9])(\.([a-zA-Z0-9_][a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_]|[a-zA-Z0-9]))*|\.)$`)}
	namespaceNameText = textConstraint{"NamespaceName", 1, 1024, regexp.MustCompile(`^[!-~]+$`)}
	vpcText           = textConstraint{"Vpc", 1, 64, nil}
	requestIDText     = textConstraint{"CreatorRequestId", 0, maxRequestIDLen, nil}
	descriptionText   = textConstraint{"Description", 0, maxDescriptionLen, nil}
	resourcePathText  = textConstraint{"ResourcePath", 0, 255, nil}
	serviceAttrKey    = textConstraint{"Attributes key", 1, 255, nil}
	serviceAttrValue  = textConstraint{"Attributes value", 0, 1024, nil}
	tagKeyText        = textConstraint{"Tag key", 1, 128, nil}
	tagValueText      = textConstraint{"Tag value", 0, 256, nil}
	filterValueText   = textConstraint{"Filter value", 1, maxFilterValueLen, nil}
)

// check returns an InvalidInput error if value does not satisfy the constraint.
func (t textConstraint) check(value string) error {
	n := utf8.RuneCountInString(value)
	switch {
	case n == 0 && t.min > 0:
		return invalidInput("%s: must not be empty", t.member)
	case n < t.min || n > t.max:
		return invalidInput("Value at '%s' failed to satisfy constraint: Member must have length between %d and %d, not %d",
			t.member, t.min, t.max, n)
	case t.pattern != nil && !t.pattern.MatchString(value):
		return invalidInput("Value '%s' at '%s' failed to satisfy constraint: Member must satisfy regular expression pattern: %s",
			value, t.member, t.pattern)
	}
	return nil
}

// checkCount validates an optional number between 1 and high.
func checkCount(member string, value *int, high int) error {
	if value != nil && (*value < 1 || *value > high) {
		return invalidInput("Value '%d' at '%s' failed to satisfy constraint: Member must be between 1 and %d", *value, member, high)
	}
	return nil
}

// checkOneOf validates a member that is an enumeration.
func checkOneOf(member, value string, allowed ...string) error {
	if !slices.Contains(allowed, value) {
		return invalidInput("Value '%s' at '%s' failed to satisfy constraint: Member must satisfy enum value set: [%s]",
			value, member, strings.Join(allowed, ", "))
	}
	return nil
}

func checkTTL(member string, ttl *int64) error {
	if ttl == nil {
		return invalidInput("%s: must not be empty", member)
	}
	if *ttl < 0 || *ttl > maxTTL {
		return invalidInput("Value '%d' at '%s' failed to satisfy constraint: Member must be between 0 and %d", *ttl, member, maxTTL)
	}
	return nil
}

// checkNamespaceName validates the name for the kind of namespace. A name like an ARN would be
// ambiguous in references.
func checkNamespaceName(kind, name string) error {
	constraint := map[string]textConstraint{kindHTTP: httpNameText, kindPrivate: privateNameText, kindPublic: publicNameText}[kind]
	if strings.HasPrefix(name, "arn:") {
		return invalidInput("Value '%s' at 'Name' failed to satisfy constraint: Member must not begin with arn:", name)
	}
	return constraint.check(name)
}

// checkInstanceAttributes validates the constraints that hold for instances of all services.
func checkInstanceAttributes(attributes map[string]string) error {
	custom, chars := 0, 0
	for _, key := range sortedKeys(attributes) {
		value := attributes[key]
		if err := cmp.Or(attributeKey.check(key), attributeValue.check(value)); err != nil {
			return err
		}
		chars += len(key) + len(value)
		if !slices.Contains(specialAttributes, key) {
			custom++
		}
	}
	if custom > maxCustomAttributes {
		return invalidInput("Attributes: %d custom attributes; an instance may have %d", custom, maxCustomAttributes)
	}
	if chars > maxAttributeChars {
		return invalidInput("Attributes: keys and values have %d characters together; an instance may have %d", chars, maxAttributeChars)
	}
	return checkSpecialAttributes(attributes)
}

// checkSpecialAttributes validates the values of the AWS_… attributes and their combinations.
func checkSpecialAttributes(attributes map[string]string) error {
	if ip, set := attributes[attrIPv4]; set {
		if addr, err := netip.ParseAddr(ip); err != nil || !addr.Is4() {
			return invalidInput("%s: '%s' is not an IPv4 address", attrIPv4, ip)
		}
	}
	if ip, set := attributes[attrIPv6]; set {
		if addr, err := netip.ParseAddr(ip); err != nil || !addr.Is6() || addr.Zone() != "" {
			return invalidInput("%s: '%s' is not an IPv6 address", attrIPv6, ip)
		}
	}
	if port, set := attributes[attrPort]; set {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return invalidInput("%s: '%s' is not a port between 0 and 65535", attrPort, port)
		}
	}
	if health, set := attributes[attrInitialHealth]; set {
		if err := checkOneOf(attrInitialHealth, health, healthy, unhealthy); err != nil {
			return err
		}
	}
	return checkExclusiveAttributes(attributes)
}

func checkExclusiveAttributes(attributes map[string]string) error {
	_, ec2 := attributes[attrEC2]
	_, alias := attributes[attrAlias]
	for _, key := range sortedKeys(attributes) {
		switch {
		case ec2 && key != attrEC2 && key != attrInitialHealth:
			return invalidInput("%s can be combined with %s only, not with %s", attrEC2, attrInitialHealth, key)
		case alias && strings.HasPrefix(key, "AWS_INSTANCE_"):
			return invalidInput("%s can't be combined with %s", attrAlias, key)
		}
	}
	return nil
}

// checkAttributesFor validates that an instance has the attributes that the service's records and
// health checks need.
func checkAttributesFor(svc *service, namespaceKind string, attributes map[string]string) error {
	has := func(key string) bool { return attributes[key] != "" }
	if has(attrInitialHealth) && svc.CustomHealth == nil {
		return invalidInput("%s needs a service with HealthCheckCustomConfig; %s has none", attrInitialHealth, svc.ID)
	}
	if has(attrEC2) && namespaceKind != kindHTTP {
		return invalidInput("%s is for HTTP namespaces only", attrEC2)
	}
	if svc.HealthCheck != nil && !has(attrPort) && !has(attrAlias) {
		return invalidInput("%s is required: the service %s has a health check", attrPort, svc.ID)
	}
	if svc.DNS == nil {
		return nil
	}
	if has(attrAlias) {
		return checkAlias(svc)
	}
	for _, record := range svc.DNS.DnsRecords {
		if err := checkRecordAttributes(svc.ID, record.Type, has); err != nil {
			return err
		}
	}
	return nil
}

// checkInstanceIDFor validates the ID of an instance for the records of its service.
func checkInstanceIDFor(svc *service, id string) error {
	if svc.DNS == nil || svc.DNS.DnsRecords[0].Type != "SRV" {
		return nil
	}
	return srvInstanceIDText.check(id)
}

func checkAlias(svc *service) error {
	for _, record := range svc.DNS.DnsRecords {
		if record.Type != "A" && record.Type != "AAAA" {
			return invalidInput("%s needs a service with A or AAAA records; %s has %s", attrAlias, svc.ID, record.Type)
		}
	}
	if svc.DNS.RoutingPolicy != routingWeighted {
		return invalidInput("%s needs a service with routing policy %s", attrAlias, routingWeighted)
	}
	return nil
}

// recordNeeds has the attributes that a type of record needs; one attribute of each list suffices
// [RegisterInstance].
var recordNeeds = map[string][][]string{
	"A":     {{attrIPv4}},
	"AAAA":  {{attrIPv6}},
	"CNAME": {{attrCNAME}},
	"SRV":   {{attrPort}, {attrIPv4, attrIPv6}},
}

func checkRecordAttributes(serviceID, record string, has func(string) bool) error {
	for _, oneOf := range recordNeeds[record] {
		if !slices.ContainsFunc(oneOf, has) {
			return invalidInput("%s is required: the service %s has a record of type %s", strings.Join(oneOf, " or "), serviceID, record)
		}
	}
	return nil
}

// recordTypes are the sets of record types that a DnsConfig may have, sorted [DnsRecord].
var recordTypes = [][]string{{"A"}, {"AAAA"}, {"A", "AAAA"}, {"SRV"}, {"CNAME"}}

func checkDNSConfig(dns *wire.DNSConfig) error {
	var types []string
	for _, record := range dns.DnsRecords {
		types = append(types, record.Type)
		if err := checkTTL("DnsRecords.TTL", record.TTL); err != nil {
			return err
		}
	}
	slices.Sort(types)
	known := slices.ContainsFunc(recordTypes, func(allowed []string) bool { return slices.Equal(allowed, types) })
	switch {
	case !known:
		return invalidInput("DnsRecords: %v is not one of A, AAAA, A and AAAA, SRV, CNAME", types)
	case types[0] == "CNAME" && dns.RoutingPolicy != routingWeighted:
		return invalidInput("RoutingPolicy: must be %s for CNAME records", routingWeighted)
	}
	return checkOneOf("RoutingPolicy", cmp.Or(dns.RoutingPolicy, routingMultivalue), routingMultivalue, routingWeighted)
}

func checkHealthCheck(check *wire.HealthCheckConfig) error {
	if check == nil {
		return nil
	}
	if check.Type == "TCP" && check.ResourcePath != "" {
		return invalidInput("ResourcePath: can't be given for a health check of type TCP")
	}
	return cmp.Or(
		checkOneOf("HealthCheckConfig.Type", check.Type, "HTTP", "HTTPS", "TCP"),
		checkCount("FailureThreshold", check.FailureThreshold, maxThreshold),
		resourcePathText.check(check.ResourcePath))
}

func checkServiceAttributes(attributes map[string]string) error {
	if len(attributes) < 1 || len(attributes) > maxServiceAttributes {
		return invalidInput("Attributes: must have 1 to %d entries, not %d", maxServiceAttributes, len(attributes))
	}
	for _, key := range sortedKeys(attributes) {
		if err := cmp.Or(serviceAttrKey.check(key), serviceAttrValue.check(attributes[key])); err != nil {
			return err
		}
	}
	return nil
}

func checkTags(tags []wire.Tag) error {
	if len(tags) > maxTagsPerCall {
		return invalidInput("Tags: %d; a request may carry %d", len(tags), maxTagsPerCall)
	}
	seen := map[string]bool{}
	for _, t := range tags {
		if err := cmp.Or(tagKeyText.check(t.Key), tagValueText.check(t.Value)); err != nil {
			return err
		}
		if strings.HasPrefix(strings.ToLower(t.Key), "aws:") {
			return invalidInput("Tag key '%s': aws: is reserved", t.Key)
		}
		if seen[t.Key] {
			return invalidInput("Tag key '%s': duplicate", t.Key)
		}
		seen[t.Key] = true
	}
	return nil
}

// allowedFilters has the conditions that a filter may have, by its name.
type allowedFilters map[string][]string

// check validates a list of filters. A filter without condition means EQ; only IN and BETWEEN take
// several values.
func (a allowedFilters) check(filters []wire.Filter) error {
	for _, f := range filters {
		condition := cmp.Or(f.Condition, "EQ")
		if err := cmp.Or(checkOneOf("Filters.Name", f.Name, sortedKeys(a)...),
			checkOneOf("Filters.Condition", condition, a[f.Name]...)); err != nil {
			return err
		}
		for _, value := range f.Values {
			if err := filterValueText.check(value); err != nil {
				return err
			}
		}
		if err := checkValueCount(f.Name, condition, len(f.Values)); err != nil {
			return err
		}
	}
	return nil
}

func checkValueCount(name, condition string, n int) error {
	switch {
	case condition == "IN" && n >= 1, condition == "BETWEEN" && n == 2,
		condition != "IN" && condition != "BETWEEN" && n == 1:
		return nil
	}
	return invalidInput("Filters: %d values for %s with the condition %s", n, name, condition)
}
