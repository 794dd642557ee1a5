package main

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
)

const policyFolder = "../../deploy/iam"

// TestRoleHasThePolicies: with its parameters filled in, the template has the policies that the tests of the registry run under.
func TestRoleHasThePolicies(t *testing.T) {
	values := map[string]string{
		"ClustersetID": "set1", "ClusterID": "cls1", "EKSCluster": "blue",
		"AWS::Partition": "aws", "AWS::Region": cloudmaplocal.DefaultRegion, "AWS::AccountId": cloudmaplocal.DefaultAccount,
	}
	resources := readTemplate(t)["Resources"].(map[string]any)
	for _, p := range policies {
		resource := resources[p.resource].(map[string]any)
		if condition, _ := resource["Condition"].(string); condition != p.condition {
			t.Errorf("%s has condition %q, want %q", p.resource, condition, p.condition)
		}
		got := resolve(t, resource["Properties"].(map[string]any)["PolicyDocument"], values)
		raw, err := cloudmaptest.PolicyDocument(os.DirFS(policyFolder), p.file+".json", mcs.Identity{ClusterSetID: "set1", ClusterID: "cls1"})
		if err != nil {
			t.Fatal(err)
		}
		var want any
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is\n%v, want that of %s.json:\n%v", p.resource, got, p.file, want)
		}
	}
}

// TestPoliciesFitRole: AWS allows 10,240 characters in all inline policies of a role, white space not counted
// (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html). IDs are DNS labels, of 63 characters at most.
func TestPoliciesFitRole(t *testing.T) {
	const quota = 10240
	label, characters := strings.Repeat("a", 63), 0
	for _, p := range policies {
		raw, err := cloudmaptest.PolicyDocument(os.DirFS(policyFolder), p.file+".json", mcs.Identity{ClusterSetID: label, ClusterID: label})
		if err != nil {
			t.Fatal(err)
		}
		characters += len(bytes.Join(bytes.Fields(raw), nil))
	}
	if characters > quota {
		t.Errorf("the policies have %d characters, want at most %d", characters, quota)
	}
}

// TestPolicyVariables: a variable of IAM is not one of CloudFormation.
func TestPolicyVariables(t *testing.T) {
	got := parameterize("${aws:username}/<cluster>")
	if want := substitute("${!aws:username}/${ClusterID}"); !reflect.DeepEqual(got, want) {
		t.Errorf("parameterize() = %v, want %v", got, want)
	}
}

func readTemplate(t *testing.T) object {
	t.Helper()
	generated, err := generate(os.DirFS(policyFolder))
	if err != nil {
		t.Fatal(err)
	}
	var template object
	if err := yaml.Unmarshal(generated, &template); err != nil {
		t.Fatal(err)
	}
	return template
}

// resolve replaces Fn::Sub as CloudFormation does.
func resolve(t *testing.T, node any, values map[string]string) any {
	t.Helper()
	switch node := node.(type) {
	case map[string]any:
		if text, ok := node["Fn::Sub"].(string); ok {
			for name, value := range values {
				text = strings.ReplaceAll(text, "${"+name+"}", value)
			}
			if strings.Contains(strings.ReplaceAll(text, "${!", ""), "${") {
				t.Errorf("%q has an unknown parameter", text)
			}
			return strings.ReplaceAll(text, "${!", "${")
		}
		for key, value := range node {
			node[key] = resolve(t, value, values)
		}
	case []any:
		for i, value := range node {
			node[i] = resolve(t, value, values)
		}
	}
	return node
}
