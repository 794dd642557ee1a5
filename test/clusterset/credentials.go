package clusterset

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ClusterSetID is the ID in the samples, and Renamed the ID that a scenario gives to a cluster.
const (
	ClusterSetID = "demo-set"
	Renamed      = "renamed"
)

const (
	// Account is the account of the clusters' credentials.
	Account = "123456789012"
	// OtherAccount is another account.
	OtherAccount = "222222222222"
	// OtherAccountKey is an access key that may do everything there.
	OtherAccountKey = "AKIDOTHER"
	// OtherAccountSecret is the secret of OtherAccountKey.
	OtherAccountSecret = "other"
	// The access key that may do everything, and the Region of the commands.
	adminKey, adminSecret, region = "AKIDLOCAL", "local", "ap-southeast-2"
	// MappedNamespace is the Cloud Map namespace in the policy mapped-services, as in samples/ecs.
	MappedNamespace = "apps.internal"
)

// The policies of docs/iam.md that each cluster has: where an administrator creates the resources,
// and where the controllers do.
var (
	sealedPolicies   = []string{"cluster", "instance-view"}
	unsealedPolicies = append([]string{"create"}, sealedPolicies...)
)

// credentialsDir has the clusters' credentials, and the configuration of cloudmap-local with them.
func (s *Set) credentialsDir() string { return filepath.Join(s.Root, "bin/aws") }

// writeCredentials creates an access key for each cluster, with the policies of deploy/iam and no
// more rights, and one for the user, who is allowed everything. It returns the path of
// cloudmap-local's configuration.
func (s *Set) writeCredentials(clusters int) (config string, err error) {
	dir := s.credentialsDir()
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	text := fmt.Sprintf("accessKeys:\n- {id: %s, secret: %s, user: admin}\n", adminKey, adminSecret)
	text += fmt.Sprintf("- {id: %s, secret: %s, account: %q, user: other}\n", OtherAccountKey, OtherAccountSecret, OtherAccount)
	for _, name := range clusterNames(clusters) {
		files, err := s.writePolicies(dir, name)
		if err != nil {
			return "", fmt.Errorf("writing the policies of %s: %w", name, err)
		}
		key, secret := "AKID"+strings.ToUpper(name), "secret-of-"+name
		text += fmt.Sprintf("- {id: %s, secret: %s, user: %s, policyFiles: [%s]}\n", key, secret, name, strings.Join(files, ", "))
		env := fmt.Sprintf("AWS_ACCESS_KEY_ID=%s\nAWS_SECRET_ACCESS_KEY=%s\n", key, secret)
		if err := os.WriteFile(filepath.Join(dir, name+".env"), []byte(env), 0o600); err != nil {
			return "", err
		}
	}
	config = filepath.Join(dir, "cloudmap-local.yaml")
	return config, os.WriteFile(config, []byte(text), 0o600)
}

// writePolicies fills in the placeholders of the policies as docs/iam.md describes, for the
// cluster's ID and, if the clusterset is not sealed, for the ID that it is renamed to. The
// scenarios use two Regions.
func (s *Set) writePolicies(dir, cluster string) (files []string, err error) {
	policies, ids := unsealedPolicies, []string{cluster, Renamed}
	if s.sealed {
		policies, ids = sealedPolicies, []string{cluster}
	}
	for _, id := range ids {
		for _, policy := range slices.Concat(policies, s.policies) {
			raw, err := os.ReadFile(filepath.Join(s.Root, "deploy/iam", policy+".json"))
			if err != nil {
				return nil, err
			}
			text := strings.NewReplacer("<clusterset>", ClusterSetID, "<cluster>", id, "<region>", "*", "<account>", "*", "<mapped-namespace>", MappedNamespace).Replace(string(raw))
			if id == Renamed {
				if text, err = withoutDenials(text); err != nil {
					return nil, fmt.Errorf("reading %s.json: %w", policy, err)
				}
			}
			file := fmt.Sprintf("%s-%s-%s.json", cluster, id, policy)
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				return nil, err
			}
			files = append(files, file)
		}
	}
	return files, nil
}

// withoutDenials returns a policy without the statements that deny: those for one ID would keep the
// cluster off the sealed catalog of its other ID.
func withoutDenials(policy string) (string, error) {
	var document struct {
		Version   string
		Statement []map[string]any
	}
	if err := json.Unmarshal([]byte(policy), &document); err != nil {
		return "", err
	}
	document.Statement = slices.DeleteFunc(document.Statement, func(s map[string]any) bool { return s["Effect"] == "Deny" })
	out, err := json.Marshal(document)
	return string(out), err
}

// AsCluster returns the beginning of a command line that runs with the credentials of a cluster.
func (s *Set) AsCluster(cluster string) string {
	return "env $(cat " + filepath.Join(s.credentialsDir(), cluster+".env") + ") "
}
