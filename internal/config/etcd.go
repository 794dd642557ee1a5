package config

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/pflag"
)

// RegistryEtcd selects etcd, for clustersets outside of AWS.
const RegistryEtcd = "etcd"

// Etcd configures the connection to the etcd cluster.
type Etcd struct {
	// Endpoints are the URLs of the etcd members, separated by commas or semicolons.
	Endpoints string
	// CAFile, CertFile and KeyFile are paths of PEM files.
	CAFile, CertFile, KeyFile string
	// Username and PasswordFile authenticate with etcd's own users.
	Username, PasswordFile string
	// Prefix is the prefix of all keys.
	Prefix string
	// Insecure allows http://.
	Insecure bool
}

func (e *Etcd) bind(common, advanced *pflag.FlagSet) {
	common.StringVar(&e.Endpoints, "etcd-endpoints", e.Endpoints,
		"URLs of the etcd members, separated by commas, such as https://etcd-0.example.com:2379.")
	common.StringVar(&e.CAFile, "etcd-ca", e.CAFile,
		"File with the CA certificates that verify etcd's certificates (default: those of the system).")
	common.StringVar(&e.CertFile, "etcd-cert", e.CertFile,
		"File with the client certificate of this cluster for etcd. Reloaded for each connection.")
	common.StringVar(&e.KeyFile, "etcd-key", e.KeyFile,
		"File with the private key of --etcd-cert.")
	common.StringVar(&e.Username, "etcd-username", e.Username,
		"etcd user of this cluster.")
	common.StringVar(&e.PasswordFile, "etcd-password-file", e.PasswordFile,
		"File with the password of --etcd-username. Reloaded when etcd rejects the password.")
	advanced.StringVar(&e.Prefix, "etcd-prefix", e.Prefix,
		"Prefix of all keys in etcd. Must be the same in every cluster of the clusterset.")
	advanced.BoolVar(&e.Insecure, "etcd-insecure", e.Insecure,
		"Allow http:// in --etcd-endpoints. Everyone on the network path can then read and change the registry.")
}

// List returns the endpoints.
func (e *Etcd) List() []string {
	return strings.FieldsFunc(e.Endpoints, func(r rune) bool { return r == ',' || r == ';' })
}

func (e *Etcd) validate() error {
	return e.check(func(setting, value string) string {
		if value == "" {
			return "--etcd-" + setting
		}
		return "--etcd-" + setting + "=" + value
	})
}

// check reports invalid settings. at returns the spelling of a setting in error messages.
func (e *Etcd) check(at func(setting, value string) string) error {
	var problems []error
	refuse := func(setting, value, why string) {
		problems = append(problems, fmt.Errorf("%s: %s", at(setting, value), why))
	}
	switch why := e.badEndpoint(); {
	// the part before it may contain a password, and errors are logged
	case strings.Contains(e.Endpoints, "@"):
		refuse("endpoints", "", "must not contain a user: set the user and the password file separately")
	case why != "":
		refuse("endpoints", e.Endpoints, why)
	}
	if (e.CertFile == "") != (e.KeyFile == "") {
		refuse("cert", e.CertFile, "cert and key must be set together")
	}
	if (e.Username == "") != (e.PasswordFile == "") {
		refuse("username", e.Username, "username and password-file must be set together")
	}
	if e.Prefix != "" && (!strings.HasPrefix(e.Prefix, "/") || strings.HasSuffix(e.Prefix, "/")) {
		refuse("prefix", e.Prefix, "must begin with a slash and not end with one, such as /mcs")
	}
	return errors.Join(problems...)
}

// badEndpoint returns the problem of the endpoints, or "".
func (e *Etcd) badEndpoint() string {
	list := e.List()
	if len(list) == 0 {
		return "must be the URL of at least one member, such as https://etcd.example.com:2379"
	}
	for _, endpoint := range list {
		u, err := url.Parse(endpoint)
		switch {
		case err != nil || u.Host == "" || u.Port() == "" || u.Path != "" || u.Scheme != "https" && u.Scheme != "http":
			return fmt.Sprintf("%q must be a URL with a port and no path, such as https://etcd.example.com:2379", endpoint)
		case u.Scheme == "http" && !e.Insecure:
			return fmt.Sprintf("%q is not encrypted: use https://, or allow it with --etcd-insecure", endpoint)
		case strings.HasPrefix(endpoint, "https://") != strings.HasPrefix(list[0], "https://"):
			return "must be all https:// or all http://"
		}
	}
	return ""
}

// host returns the host of the first endpoint, or "".
func (e *Etcd) host() string {
	for _, endpoint := range e.List() {
		if u, err := url.Parse(endpoint); err == nil {
			return u.Host
		}
	}
	return ""
}
