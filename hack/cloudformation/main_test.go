package main

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
)

const policyFolder = "../../deploy/iam"

// TestRoleHasThePolicies: with its parameters filled in, the template has the policies that the
// tests of the registry run under.
func TestRoleHasThePolicies(t *testing.T) {
	values := map[string]string{
		"LegacyHostedZone": "Z1", "ClustersetID": "set1", "ClusterID": "cls1", "EKSCluster": "blue",
		"AWS::Partition": "aws", "AWS::Region": cloudmaplocal.DefaultRegion, "AWS::AccountId": cloudmaplocal.DefaultAccount,
	}
	template := readTemplate(t, cloudmaptest.ClusterTemplate)
	resources := template["Resources"].(map[string]any)
	for _, p := range policies {
		resource := resources[p.resource].(map[string]any)
		if condition, _ := resource["Condition"].(string); condition != p.condition || resource["Type"] != managedPolicy {
			t.Errorf("%s has type %v and condition %q, want %q and %q", p.resource, resource["Type"], condition, managedPolicy, p.condition)
		}
		if _, exists := template["Conditions"].(map[string]any)[p.condition]; !exists && p.condition != "" {
			t.Errorf("condition %s does not exist", p.condition)
		}
		got := resolve(t, resource["Properties"].(map[string]any)["PolicyDocument"], values)
		raw, err := cloudmaptest.PolicyDocument(os.DirFS(policyFolder), p.file+".json", mcs.Identity{ClusterSetID: "set1", ClusterID: "cls1"})
		if err != nil {
			t.Fatal(err)
		}
		var want any
		raw = bytes.ReplaceAll(raw, []byte("<hosted-zone>"), []byte("Z1"))
		raw = bytes.ReplaceAll(raw, []byte(`"<mapped-namespace>"`), []byte(`"ecs","lambda"`))
		if raw, err = cloudmaptest.NarrowZones(raw, "Z1", "Z2"); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is\n%v, want that of %s.json:\n%v", p.resource, got, p.file, want)
		}
	}
}

// TestPoliciesFitRole: each policy is within AWS's quota, which does not count white space, with
// the longest IDs, which are DNS labels of 63 characters at most, with 20 hosted zones and 20
// mapped namespaces. A role can have all of them.
func TestPoliciesFitRole(t *testing.T) {
	if len(policies) > maxRolePolicies {
		t.Errorf("%d policies, want at most %d", len(policies), maxRolePolicies)
	}
	const lists = 20
	label := strings.Repeat("a", 63)
	zones := `"` + strings.Join(slices.Repeat([]string{"arn:aws-us-gov:route53:::hostedzone/Z0123456789ABCDEFGHIJ"}, lists), `","`) + `"`
	namespaces := `"` + strings.Join(slices.Repeat([]string{label}, lists), `","`) + `"`
	files := []string{"shared", "reader"}
	for _, p := range policies {
		files = append(files, p.file)
	}
	for _, file := range files {
		raw, err := cloudmaptest.PolicyDocument(os.DirFS(policyFolder), file+".json", mcs.Identity{ClusterSetID: label, ClusterID: label})
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer(`"arn:aws:route53:::hostedzone/*"`, zones, `"<mapped-namespace>"`, namespaces).Replace(string(raw))
		if n := len(strings.Join(strings.Fields(text), "")); n > maxCharacters {
			t.Errorf("%s has %d characters, want at most %d", file, n, maxCharacters)
		}
	}
}

// TestPolicyVariables: a variable of IAM is not one of CloudFormation.
func TestPolicyVariables(t *testing.T) {
	got := parameterize("${aws:username}/<cluster>")
	if want := substitute("${!aws:username}/${ClusterID}"); !reflect.DeepEqual(got, want) {
		t.Errorf("parameterize() = %v, want %v", got, want)
	}
}

// TestStackNames: the stack of a cluster imports the namespace under the name that the stack of the
// clusterset exports. Logical IDs are unique among parameters and resources.
func TestStackNames(t *testing.T) {
	clusterset, cluster := readTemplate(t, cloudmaptest.ClustersetTemplate), readTemplate(t, cloudmaptest.ClusterTemplate)
	exported := clusterset["Outputs"].(object)["NamespaceId"].(object)["Export"].(object)["Name"]
	service := cluster["Resources"].(object)["CatalogService"].(object)
	imported := service["Properties"].(object)["NamespaceId"].(object)["Fn::ImportValue"]
	if !reflect.DeepEqual(exported, imported) {
		t.Errorf("imports %v, want %v", imported, exported)
	}
	for _, template := range []object{clusterset, cluster} {
		for id := range template["Resources"].(object) {
			if template["Parameters"].(object)[id] != nil {
				t.Errorf("%s is a resource and a parameter", id)
			}
		}
	}
	if byDefault := cluster["Parameters"].(object)[catalogParameter].(object)["Default"]; byDefault != sealed {
		t.Errorf("the catalog is %v by default, want %s", byDefault, sealed)
	}
}

func readTemplate(t *testing.T, name string) object {
	t.Helper()
	generated, err := generate(os.DirFS(policyFolder))
	if err != nil {
		t.Fatal(err)
	}
	var template object
	if err := yaml.Unmarshal(generated[name], &template); err != nil {
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
		switch node["Ref"] {
		case mappedNamespaces:
			return []any{"ecs", "lambda"}
		case hostedZones:
			return []any{"arn:aws:route53:::hostedzone/Z1", "arn:aws:route53:::hostedzone/Z2"}
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
