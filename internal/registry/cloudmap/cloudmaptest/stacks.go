package cloudmaptest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"sigs.k8s.io/yaml"
)

// The templates of CloudFormation in deploy/iam, with the parameters that they need: one stack for
// the clusterset, and one for each cluster.
const (
	ClustersetTemplate = "clusterset.yaml"
	ClusterTemplate    = "cloudformation.yaml"
)

// The types of the resources of Cloud Map in templates.
const (
	TypeNamespace = "AWS::ServiceDiscovery::HttpNamespace"
	TypeService   = "AWS::ServiceDiscovery::Service"
)

// Resource is a namespace or a service of Cloud Map.
type Resource struct {
	Type, Name string
	Tags       map[string]string
}

// template is the part of a template that is read here.
type template struct {
	Parameters map[string]struct{ Default string }
	// Conditions compare a parameter with a value.
	Conditions map[string]map[string]any
	Resources  map[string]struct {
		Type, Condition string
		Properties      map[string]any
	}
}

// Stacks returns the resources of Cloud Map that the templates in a folder create for a clusterset
// and its clusters, with the defaults of their parameters, in the order of their creation.
func Stacks(dir fs.FS, clusterSetID string, clusterIDs ...string) ([]Resource, error) {
	all, err := stack(dir, ClustersetTemplate, map[string]string{"ClustersetID": clusterSetID})
	for _, id := range clusterIDs {
		if err != nil {
			break
		}
		var further []Resource
		further, err = stack(dir, ClusterTemplate, map[string]string{"ClustersetID": clusterSetID, "ClusterID": id})
		all = append(all, further...)
	}
	return all, err
}

// stack returns the resources of Cloud Map of one template, namespaces first.
func stack(dir fs.FS, file string, parameters map[string]string) (all []Resource, err error) {
	raw, err := fs.ReadFile(dir, file)
	if err != nil {
		return nil, err
	}
	var t template
	if err := yaml.Unmarshal(raw, &t); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, id := range slices.Sorted(maps.Keys(t.Resources)) {
		r := t.Resources[id]
		if r.Type != TypeNamespace && r.Type != TypeService || r.Condition != "" && !t.holds(r.Condition) {
			continue
		}
		resource := Resource{Type: r.Type, Name: text(r.Properties["Name"], parameters), Tags: map[string]string{}}
		tags, _ := r.Properties["Tags"].([]any)
		for _, node := range tags {
			tag, _ := node.(map[string]any)
			resource.Tags[text(tag["Key"], parameters)] = text(tag["Value"], parameters)
		}
		all = append(all, resource)
	}
	slices.SortStableFunc(all, func(a, b Resource) int { return strings.Compare(a.Type, b.Type) })
	return all, nil
}

// holds reports whether a condition holds with the default of its parameter.
func (t template) holds(condition string) bool {
	sides, _ := t.Conditions[condition]["Fn::Equals"].([]any)
	if len(sides) != 2 {
		return false
	}
	ref, _ := sides[0].(map[string]any)
	return t.Parameters[fmt.Sprint(ref["Ref"])].Default == fmt.Sprint(sides[1])
}

// text returns a string of a template, with the parameters in place of their names in Fn::Sub.
func text(node any, parameters map[string]string) string {
	if sub, ok := node.(map[string]any); ok {
		node = sub["Fn::Sub"]
		for name, value := range parameters {
			node = strings.ReplaceAll(fmt.Sprint(node), "${"+name+"}", value)
		}
	}
	return fmt.Sprint(node)
}

// Create creates resources as CloudFormation does, with the rights of sdk. The services are in the
// namespace before them.
func Create(ctx context.Context, sdk *servicediscovery.Client, resources []Resource) error {
	namespace := ""
	for _, r := range resources {
		tags := make([]types.Tag, 0, len(r.Tags))
		for _, key := range slices.Sorted(maps.Keys(r.Tags)) {
			tags = append(tags, types.Tag{Key: aws.String(key), Value: aws.String(r.Tags[key])})
		}
		var err error
		if r.Type == TypeNamespace {
			namespace, err = createNamespace(ctx, sdk, r.Name, tags)
		} else {
			_, err = sdk.CreateService(ctx, &servicediscovery.CreateServiceInput{Name: &r.Name, NamespaceId: &namespace, Tags: tags})
		}
		if err != nil {
			return fmt.Errorf("creating %s: %w", r.Name, err)
		}
	}
	return nil
}

// createNamespace returns the ID of a new namespace once it exists.
func createNamespace(ctx context.Context, sdk *servicediscovery.Client, name string, tags []types.Tag) (string, error) {
	created, err := sdk.CreateHttpNamespace(ctx, &servicediscovery.CreateHttpNamespaceInput{Name: &name, Tags: tags})
	if err != nil {
		return "", err
	}
	for {
		got, err := sdk.GetOperation(ctx, &servicediscovery.GetOperationInput{OperationId: created.OperationId})
		switch {
		case err != nil:
			return "", err
		case got.Operation.Status == types.OperationStatusSuccess:
			return got.Operation.Targets[string(types.OperationTargetTypeNamespace)], nil
		case got.Operation.Status == types.OperationStatusFail:
			return "", errors.New(aws.ToString(got.Operation.ErrorMessage))
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
