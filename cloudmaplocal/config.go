package cloudmaplocal

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/iampolicy"
)

// Config is the content of a configuration file: access keys, roles and shares.
type Config struct {
	AccessKeys []AccessKey
	Roles      []Role
	Shares     []Share
}

// configShape is the format of the file. Policies can be in separate files; their paths are
// relative to the configuration file.
type configShape struct {
	AccessKeys []struct {
		AccessKey
		PolicyFiles []string `json:"policyFiles"`
	} `json:"accessKeys"`
	Roles []struct {
		Role
		PolicyFiles []string `json:"policyFiles"`
	} `json:"roles"`
	Shares []Share `json:"shares"`
}

// ReadConfig reads a configuration file, YAML or JSON, and the policy files that it names. An
// unknown field is an error. New validates the values.
func ReadConfig(path string) (Config, error) {
	var shape configShape
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("reading the configuration: %w", err)
	}
	if err := yaml.UnmarshalStrict(raw, &shape); err != nil {
		return Config{}, fmt.Errorf("reading the configuration %s: %w", path, err)
	}
	config := Config{Shares: shape.Shares}
	for _, key := range shape.AccessKeys {
		if err := readPolicies(&key.Policies, path, key.PolicyFiles); err != nil {
			return Config{}, fmt.Errorf("reading the policies of access key %s: %w", key.ID, err)
		}
		config.AccessKeys = append(config.AccessKeys, key.AccessKey)
	}
	for _, role := range shape.Roles {
		if err := readPolicies(&role.Policies, path, role.PolicyFiles); err != nil {
			return Config{}, fmt.Errorf("reading the policies of role %s: %w", role.ARN, err)
		}
		config.Roles = append(config.Roles, role.Role)
	}
	return config, nil
}

func readPolicies(into *[]iampolicy.Policy, config string, files []string) error {
	for _, file := range files {
		if !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(config), file)
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var policy iampolicy.Policy
		if err := json.Unmarshal(raw, &policy); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		*into = append(*into, policy)
	}
	return nil
}
