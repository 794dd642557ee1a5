// Package chartvalues reads the values of the Helm chart with their comments, for the reference
// page and the tests that compare them with the schema and the flags.
package chartvalues

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Value is a value of the chart that the user can set.
type Value struct {
	// Path is the path of the value, such as aws.region.
	Path string
	// Section is the heading above it in values.yaml.
	Section string
	// Comment is the comment above it, in one line.
	Comment string
	// Default is its default, as JSON.
	Default string
	// Flags are the flags of the controller that its comment names in brackets.
	Flags []string
}

var flagPattern = regexp.MustCompile(`\(--([a-z-]+)\)`)

// Read returns the values of the chart in a folder, in the order of the file. Every value has a
// comment; a map of values has none.
func Read(chartDir string) ([]Value, error) {
	path := filepath.Join(chartDir, "values.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	r := reader{}
	// the parser attaches the first heading to the file
	r.section, _ = splitComment(root.HeadComment)
	if err := r.read("", root.Content[0]); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return r.values, nil
}

type reader struct {
	section string
	values  []Value
}

func (r *reader) read(prefix string, node *yaml.Node) error {
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, content := node.Content[i], node.Content[i+1]
		heading, comment := splitComment(key.HeadComment)
		if heading != "" {
			r.section = heading
		}
		path := prefix + key.Value
		if comment == "" {
			if err := r.read(path+".", content); err != nil {
				return err
			}
			continue
		}
		value, err := newValue(path, r.section, comment, content)
		if err != nil {
			return err
		}
		r.values = append(r.values, value)
	}
	return nil
}

func newValue(path, section, comment string, content *yaml.Node) (Value, error) {
	var preset any
	if err := content.Decode(&preset); err != nil {
		return Value{}, fmt.Errorf("%s: %w", path, err)
	}
	encoded, err := json.Marshal(preset)
	if err != nil {
		return Value{}, fmt.Errorf("%s: %w", path, err)
	}
	v := Value{Path: path, Section: section, Comment: comment, Default: string(encoded)}
	for _, match := range flagPattern.FindAllStringSubmatch(comment, -1) {
		v.Flags = append(v.Flags, match[1])
	}
	return v, nil
}

// splitComment separates a heading (## …) from the comment directly above a key.
func splitComment(text string) (heading, comment string) {
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch title, isHeading := strings.CutPrefix(line, "## "); {
		case isHeading:
			heading, lines = title, nil
		case line == "":
			lines = nil
		default:
			lines = append(lines, strings.TrimSpace(strings.TrimPrefix(line, "#")))
		}
	}
	return heading, strings.Join(lines, " ")
}
