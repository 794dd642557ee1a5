package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMigrationPage runs the commands of docs/migration.md that an administrator needs in AWS, and
// checks that they tag what each ServiceExport has in AWS Cloud Map, with the tags that the
// policies require (TestLegacyMigrationUnderIAM).
func TestMigrationPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/migration.md"))
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, c := range commandLines(string(text)) {
		if c.section == "Permissions in AWS" {
			script.WriteString(c.text + "\n")
		}
	}
	var tagged []string
	zones := 0
	for _, call := range runWithRecorders(t, script.String(), "aws", "kubectl") {
		line := strings.Join(call, " ")
		switch {
		case strings.HasPrefix(line, "aws servicediscovery tag-resource "):
			tagged = append(tagged, strings.TrimPrefix(line, "aws servicediscovery tag-resource --resource-arn arn:aws:servicediscovery:eu-central-1:123456789012:"))
		case strings.Contains(line, "HostedZoneId"):
			zones++
		}
	}
	const tags = " --tags Key=clusterset,Value=set1 Key=part,Value=view"
	want := []string{"namespace/ns-shop" + tags, "service/srv-ns-shop" + tags, "namespace/ns-billing" + tags, "service/srv-ns-billing" + tags}
	if diff := cmp.Diff(want, tagged); diff != "" {
		t.Errorf("tagged (-want +got):\n%s", diff)
	}
	if zones != 1 {
		t.Errorf("the hosted zone of a namespace is looked up %d times, want once", zones)
	}
}
