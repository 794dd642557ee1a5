package cloudmaplocal

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

// Config is what a configuration file can say: who may call and what accounts share.
type Config struct {
	AccessKeys []AccessKey `json:"accessKeys,omitempty"`
	Roles      []Role      `json:"roles,omitempty"`
	Shares     []Share     `json:"shares,omitempty"`
}

// ReadConfig reads a configuration file, YAML or JSON. A field that nobody knows is an error. Whether the values can be is
// for New to say.
func ReadConfig(path string) (Config, error) {
	var config Config
	raw, err := os.ReadFile(path)
	if err != nil {
		return config, fmt.Errorf("reading the configuration: %w", err)
	}
	if err := yaml.UnmarshalStrict(raw, &config); err != nil {
		return config, fmt.Errorf("reading the configuration %s: %w", path, err)
	}
	return config, nil
}
