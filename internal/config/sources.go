package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// Source is an additional registry that is only imported from.
type Source struct {
	// Backend is RegistryCloudMap or RegistryEtcd.
	Backend string
	// Name identifies it in metrics and logs.
	Name string
	// AWS or Etcd holds its settings, according to Backend.
	AWS  AWS
	Etcd Etcd

	// text is the value of the flag.
	text string
}

// sourceSettings maps the settings of a source to their fields, by backend.
var sourceSettings = map[string]map[string]func(*Source) *string{
	RegistryCloudMap: {
		"name":              func(s *Source) *string { return &s.Name },
		"region":            func(s *Source) *string { return &s.AWS.Region },
		"endpoint":          func(s *Source) *string { return &s.AWS.Endpoint },
		"data-endpoint":     func(s *Source) *string { return &s.AWS.DataEndpoint },
		"role-arn":          func(s *Source) *string { return &s.AWS.RoleARN },
		"role-external-id":  func(s *Source) *string { return &s.AWS.ExternalID },
		"role-session-name": func(s *Source) *string { return &s.AWS.SessionName },
		"namespace-owner":   func(s *Source) *string { return &s.AWS.NamespaceOwner },
	},
	RegistryEtcd: {
		"name":          func(s *Source) *string { return &s.Name },
		"endpoints":     func(s *Source) *string { return &s.Etcd.Endpoints },
		"ca":            func(s *Source) *string { return &s.Etcd.CAFile },
		"cert":          func(s *Source) *string { return &s.Etcd.CertFile },
		"key":           func(s *Source) *string { return &s.Etcd.KeyFile },
		"username":      func(s *Source) *string { return &s.Etcd.Username },
		"password-file": func(s *Source) *string { return &s.Etcd.PasswordFile },
		"prefix":        func(s *Source) *string { return &s.Etcd.Prefix },
	},
}

// String returns the value of the flag.
func (s Source) String() string { return s.text }

// Sources is a repeatable flag of registries.
type Sources []Source

var _ pflag.Value = (*Sources)(nil)

// String implements pflag.Value.
func (s *Sources) String() string {
	var texts []string
	for _, source := range *s {
		texts = append(texts, source.text)
	}
	return strings.Join(texts, " ")
}

// Type implements pflag.Value.
func (s *Sources) Type() string { return "registry" }

// Set implements pflag.Value.
func (s *Sources) Set(text string) error {
	source, err := ParseSource(text)
	if err != nil {
		return err
	}
	*s = append(*s, source)
	return nil
}

func (s *Sources) bind(common, _ *pflag.FlagSet) {
	common.Var(s, "import-from",
		"Additional registry to import from, such as cloudmap,region=eu-central-1. Repeatable: "+docs.URL("accounts-and-regions.md#several-regions"))
}

// ParseSource reads a backend and its settings:
// "cloudmap,region=eu-central-1,role-arn=arn:aws:iam::111122223333:role/mcs".
func ParseSource(text string) (Source, error) {
	backend, rest, _ := strings.Cut(text, ",")
	settings, known := sourceSettings[backend]
	if !known {
		return Source{}, fmt.Errorf("must begin with the kind of registry, %s, followed by settings, such as %s,region=eu-central-1",
			strings.Join(slices.Sorted(maps.Keys(sourceSettings)), " or "), RegistryCloudMap)
	}
	s := Source{Backend: backend, text: text}
	if rest == "" {
		return s, nil
	}
	for setting := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(setting, "=")
		field, ok := settings[name]
		switch {
		case !ok:
			return Source{}, fmt.Errorf("%q: unknown setting of %s; must be one of %s", setting, backend, strings.Join(slices.Sorted(maps.Keys(settings)), ", "))
		case value == "":
			return Source{}, fmt.Errorf("%q: must have a value, as in %s=…", setting, name)
		case *field(&s) != "":
			return Source{}, fmt.Errorf("%q: %s is set twice", setting, name)
		}
		*field(&s) = value
	}
	return s, nil
}

// sourceNamePattern keeps names short and valid as metric labels.
var sourceNamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9./:-]{0,61}[a-z0-9])?$`)

func (s Sources) validate() error {
	var problems []error
	names := map[string]bool{RegistryCloudMap: true, RegistryEtcd: true}
	for _, source := range s {
		refuse := func(format string, args ...any) {
			problems = append(problems, fmt.Errorf("--import-from=%s: "+format, append([]any{source.text}, args...)...))
		}
		if err := source.check(func(setting, value string) string {
			return "--import-from=" + source.Backend + ",…," + setting + "=" + value
		}); err != nil {
			problems = append(problems, err)
			continue
		}
		if source.Backend == RegistryCloudMap && source.AWS == (AWS{}) {
			refuse("must differ from the registry that is exported to: set region, role-arn, namespace-owner or endpoint")
			continue
		}
		name := source.Label()
		if !sourceNamePattern.MatchString(name) {
			refuse("name %q must be at most 63 lowercase letters, digits and characters of ./:-", name)
		}
		if names[name] {
			refuse("another registry has the same name %s: set name=… for one of them", name)
		}
		names[name] = true
	}
	return errors.Join(problems...)
}

// check reports invalid settings. at returns the spelling of a setting in error messages.
func (s Source) check(at func(setting, value string) string) error {
	if s.Backend == RegistryEtcd {
		return s.Etcd.check(at)
	}
	return s.AWS.check(at)
}

// Label returns the name of the source, by default from its kind, Region, account or host.
func (s Source) Label() string {
	if s.Name != "" {
		return s.Name
	}
	if s.Backend == RegistryEtcd {
		return s.Backend + "/" + s.Etcd.host()
	}
	parts := []string{s.Backend}
	if s.AWS.Region != "" {
		parts = append(parts, s.AWS.Region)
	}
	if account := s.AWS.account(); account != "" {
		parts = append(parts, account)
	}
	if u, err := url.Parse(s.AWS.Endpoint); len(parts) == 1 && err == nil {
		parts = append(parts, cmp.Or(u.Host, "further"))
	}
	return strings.Join(parts, "/")
}
