package mcs

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sigsjson "sigs.k8s.io/json"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	aboutv1beta1 "github.com/cloud-map-mcs/cloud-map-mcs-controller/api/about/v1beta1"
)

// ClusterSelector selects clusters of a service (KEP-5939, whose JSON this is).
type ClusterSelector struct {
	PropertySelector *PropertySelector `json:"propertySelector"`
}

// PropertySelector selects clusters by their ClusterProperties. All requirements must match.
type PropertySelector struct {
	MatchProperties  map[string]string     `json:"matchProperties,omitempty"`
	MatchExpressions []PropertyRequirement `json:"matchExpressions,omitempty"`
}

// PropertyRequirement is a requirement on one ClusterProperty, with the operators of a label
// selector.
type PropertyRequirement struct {
	Key      string                       `json:"key"`
	Operator metav1.LabelSelectorOperator `json:"operator"`
	Values   []string                     `json:"values,omitempty"`
}

// SameAsImporter is a value that stands for the value of the importing cluster.
const SameAsImporter = "@SameAsImporter@"

// The keys of spec.exportedAnnotations that have the selectors until ServiceExport has a field for
// them. They are not copied to the ServiceImport like other annotations.
const (
	AnnotationClusterSelectors = Domain + "/cluster-selectors"
	AnnotationMinimumReady     = Domain + "/cluster-selectors-minimum-ready"
)

// Reasons of KEP-5939, which mcs-api does not have yet.
const (
	ReasonInvalidClusterSelector   mcsv1beta1.ServiceExportConditionReason = "InvalidClusterSelector"
	ReasonClusterSelectorsConflict mcsv1beta1.ServiceExportConditionReason = "ClusterSelectorsConflict"
)

const (
	// maxClusterSelectors is the limit of the KEP.
	maxClusterSelectors = 16
	// maxClusterSelectorBytes bounds the canonical list as maxAnnotationBytes bounds other
	// annotations.
	maxClusterSelectorBytes = 2 << 10
)

// ClusterSelectors is the canonical JSON of a list of ClusterSelector, or "". Equal lists have
// equal text.
type ClusterSelectors string

// ParseClusterSelectors returns the canonical form of a list that a user or another cluster wrote,
// "" for an empty one. An error reports that the list as a whole is not valid.
func ParseClusterSelectors(text string) (ClusterSelectors, error) {
	if len(text) > maxAnnotationBytes {
		return "", fmt.Errorf("the list has more than %d bytes", maxAnnotationBytes)
	}
	if strings.TrimSpace(text) == "" {
		return "", nil
	}
	var list []ClusterSelector
	if err := unmarshalStrict(text, &list); err != nil {
		return "", fmt.Errorf("parsing the list: %w", err)
	}
	if len(list) > maxClusterSelectors {
		return "", fmt.Errorf("the list has %d selectors, more than %d", len(list), maxClusterSelectors)
	}
	for i, s := range list {
		if err := s.validate(); err != nil {
			return "", fmt.Errorf("selector %d: %w", i+1, err)
		}
	}
	return encodeClusterSelectors(list)
}

// encodeClusterSelectors returns the canonical form of a valid list.
func encodeClusterSelectors(list []ClusterSelector) (ClusterSelectors, error) {
	if len(list) == 0 {
		return "", nil
	}
	data, err := json.Marshal(list)
	if err != nil {
		return "", fmt.Errorf("encoding the list: %w", err)
	}
	if len(data) > maxClusterSelectorBytes {
		return "", fmt.Errorf("the list has %d bytes without white space, more than %d", len(data), maxClusterSelectorBytes)
	}
	return ClusterSelectors(data), nil
}

// unmarshalStrict decodes text, which is compared by case and must not have unknown or duplicate
// fields.
func unmarshalStrict(text string, into any) error {
	strict, err := sigsjson.UnmarshalStrict([]byte(text), into)
	if err != nil {
		return fmt.Errorf("it is not valid JSON of this kind: %s", abbreviate(err.Error()))
	}
	if len(strict) > 0 {
		return errors.New(abbreviate(strict[0].Error()))
	}
	return nil
}

// List returns the selectors.
func (s ClusterSelectors) List() []ClusterSelector {
	var list []ClusterSelector
	if s == "" || json.Unmarshal([]byte(s), &list) != nil {
		return nil
	}
	return list
}

func (s ClusterSelector) validate() error {
	p := s.PropertySelector
	if p == nil || len(p.MatchProperties)+len(p.MatchExpressions) == 0 {
		return errors.New("propertySelector is empty")
	}
	for _, key := range slices.Sorted(maps.Keys(p.MatchProperties)) {
		if err := checkProperty(key, p.MatchProperties[key]); err != nil {
			return err
		}
	}
	for _, r := range p.MatchExpressions {
		if err := r.validate(); err != nil {
			return err
		}
	}
	return nil
}

func (r PropertyRequirement) validate() error {
	switch r.Operator {
	case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
		if len(r.Values) == 0 {
			return fmt.Errorf("operator %s of %q needs values", r.Operator, abbreviate(r.Key))
		}
	case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			return fmt.Errorf("operator %s of %q has no values", r.Operator, abbreviate(r.Key))
		}
	default:
		return fmt.Errorf("operator %q of %q is none of In, NotIn, Exists, DoesNotExist", abbreviate(string(r.Operator)), abbreviate(r.Key))
	}
	for _, value := range append([]string{""}, r.Values...) {
		if err := checkProperty(r.Key, value); err != nil {
			return err
		}
	}
	return nil
}

// requirements returns all requirements of s, with the value of importer for each SameAsImporter;
// ok is false if importer has no such value, so that s selects no cluster.
func (s ClusterSelector) requirements(importer Properties) (out []PropertyRequirement, ok bool) {
	for key, value := range s.PropertySelector.MatchProperties {
		out = append(out, PropertyRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
	}
	out = append(out, s.PropertySelector.MatchExpressions...)
	for i, r := range out {
		out[i].Values = slices.Clone(r.Values)
		for j, value := range r.Values {
			if value != SameAsImporter {
				continue
			}
			if out[i].Values[j], ok = importer[r.Key]; !ok {
				return nil, false
			}
		}
	}
	return out, true
}

// matches reports whether a cluster with these properties meets r. As for labels, a missing
// property meets NotIn.
func (r PropertyRequirement) matches(properties Properties) bool {
	value, has := properties[r.Key]
	switch r.Operator {
	case metav1.LabelSelectorOpIn:
		return has && slices.Contains(r.Values, value)
	case metav1.LabelSelectorOpNotIn:
		return !has || !slices.Contains(r.Values, value)
	case metav1.LabelSelectorOpExists:
		return has
	case metav1.LabelSelectorOpDoesNotExist:
		return !has
	}
	return false
}

// Tiers returns the clusters that each selector selects for an importer, sorted, in the order of
// the selectors. Endpoints do not matter. It is nil without selectors.
func (s ClusterSelectors) Tiers(importer Properties, clusters map[string]Properties) []Tier {
	var tiers []Tier
	for _, selector := range s.List() {
		tier := Tier{}
		requirements, ok := selector.requirements(importer)
		for _, cluster := range slices.Sorted(maps.Keys(clusters)) {
			if ok && !slices.ContainsFunc(requirements, func(r PropertyRequirement) bool { return !r.matches(clusters[cluster]) }) {
				tier.Clusters = append(tier.Clusters, cluster)
			}
		}
		tiers = append(tiers, tier)
	}
	return tiers
}

// Tier is the result of one selector, with the JSON that the KEP has in
// status.clusterSelectorResults.
type Tier struct {
	Clusters []string `json:"clusters,omitempty"`
}

// maxTierBytes bounds the JSON of tiers, which is an annotation. All annotations of an object have
// 256 KiB (k8s.io/apimachinery/pkg/api/validation, TotalAnnotationSizeLimitB), of which those with
// the IDs of 1,000 exporting clusters have 171 KiB, and exported metadata 20.
const maxTierBytes = 48 << 10

// EncodeTiers returns the JSON of tiers, "" without any and if there are too many clusters.
func EncodeTiers(tiers []Tier) string {
	if len(tiers) == 0 {
		return ""
	}
	data, err := json.Marshal(tiers)
	if err != nil || len(data) > maxTierBytes { // lists of strings always have JSON
		return ""
	}
	return string(data)
}

// DecodeTiers is the inverse of EncodeTiers. Text that this controller did not write has no tiers.
func DecodeTiers(text string) []Tier {
	var tiers []Tier
	if unmarshalStrict(text, &tiers) != nil || len(tiers) > maxClusterSelectors {
		return nil
	}
	return tiers
}

// ClusterPreference is a short form for the selectors that most services need.
type ClusterPreference string

const (
	// PreferSameCluster is for the endpoints of the importing cluster, then all.
	PreferSameCluster ClusterPreference = "PreferSameCluster"
	// PreferSameRegion is for the endpoints of the importing cluster, then those of its Region,
	// then all.
	PreferSameRegion ClusterPreference = "PreferSameRegion"
	// PreferNoCluster is for all endpoints. It overrides the default of the namespace or of the
	// cluster.
	PreferNoCluster ClusterPreference = "None"
)

// ClusterPreferences returns all short forms.
func ClusterPreferences() []string {
	return []string{string(PreferNoCluster), string(PreferSameCluster), string(PreferSameRegion)}
}

// AnnotationClusterPreference is the annotation of a ServiceExport, or of its namespace, with a
// ClusterPreference.
const AnnotationClusterPreference = Domain + "/cluster-preference"

// Selectors returns the selectors that p stands for. "" is PreferNoCluster.
func (p ClusterPreference) Selectors() (ClusterSelectors, error) {
	same := func(property string) ClusterSelector {
		return ClusterSelector{PropertySelector: &PropertySelector{MatchProperties: map[string]string{property: SameAsImporter}}}
	}
	switch p {
	case "", PreferNoCluster:
		return "", nil
	case PreferSameCluster:
		return encodeClusterSelectors([]ClusterSelector{same(aboutv1beta1.ClusterIDProperty)})
	case PreferSameRegion:
		return encodeClusterSelectors([]ClusterSelector{same(aboutv1beta1.ClusterIDProperty), same(PropertyRegion)})
	}
	return "", fmt.Errorf("%q is none of %s", abbreviate(string(p)), strings.Join(ClusterPreferences(), ", "))
}

// SelectionRequest is everything that decides which cluster selectors an export has, by precedence.
type SelectionRequest struct {
	// Exported are spec.exportedAnnotations of the ServiceExport, Export its annotations, Namespace
	// those of its namespace.
	Exported, Export, Namespace map[string]string
	// Default is the preference of the cluster.
	Default ClusterPreference
}

// Selection is the answer to a SelectionRequest.
type Selection struct {
	Selectors ClusterSelectors
	// MinimumReady is the percentage of a tier's endpoints that must be ready or serving for the
	// tier to be used; 0 is one endpoint.
	MinimumReady int32
	// IsOwn reports whether the ServiceExport itself has the selectors or a preference, and not its
	// namespace or the cluster.
	IsOwn bool
}

// Decide returns the selection. With an error there are no selectors: a preference that cannot be
// read must not decide about traffic.
func (r SelectionRequest) Decide() (Selection, error) {
	listKey, text, isList := Annotation(r.Exported, AnnotationClusterSelectors)
	ownKey, preference, isOwn := Annotation(r.Export, AnnotationClusterPreference)
	s := Selection{IsOwn: isList || isOwn}
	var err error
	switch key, fromNamespace, has := Annotation(r.Namespace, AnnotationClusterPreference); {
	case isList:
		if s.Selectors, err = ParseClusterSelectors(text); err != nil {
			return s, fmt.Errorf("exported annotation %s: %w", listKey, err)
		}
	case isOwn:
		if s.Selectors, err = ClusterPreference(preference).Selectors(); err != nil {
			return s, fmt.Errorf("annotation %s: %w", ownKey, err)
		}
	case has:
		if s.Selectors, err = ClusterPreference(fromNamespace).Selectors(); err != nil {
			return s, fmt.Errorf("annotation %s of the namespace: %w", key, err)
		}
	default:
		if s.Selectors, err = r.Default.Selectors(); err != nil {
			return s, err
		}
	}
	minimumKey, text, _ := Annotation(r.Exported, AnnotationMinimumReady)
	minimum, err := ParsePercentage(text)
	if err != nil {
		return Selection{IsOwn: true}, fmt.Errorf("exported annotation %s: %w", minimumKey, err)
	}
	if s.Selectors != "" {
		s.MinimumReady = minimum
	}
	return s, nil
}

// ParsePercentage returns the number of a percentage such as "20%", 0 for "".
func ParsePercentage(text string) (int32, error) {
	if text == "" {
		return 0, nil
	}
	digits, ok := strings.CutSuffix(text, "%")
	n, err := strconv.ParseInt(digits, 10, 32)
	if !ok || err != nil || n < 0 || n > 100 {
		return 0, fmt.Errorf("%q is not a percentage between 0%% and 100%%", abbreviate(text))
	}
	return int32(n), nil
}

// FormatPercentage is the inverse of ParsePercentage.
func FormatPercentage(n int32) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d%%", n)
}
