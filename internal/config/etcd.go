package config

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/pflag"
)

// RegistryEtcd is an etcd cluster, for clustersets outside of AWS.
const RegistryEtcd = "etcd"

// Etcd says how to reach the etcd cluster that is the registry.
type Etcd struct {
	// Endpoints are the URLs of its members, separated by commas or semicolons.
	Endpoints string
	// CAFile, CertFile and KeyFile are paths of PEM files.
	CAFile, CertFile, KeyFile string
	// Username and PasswordFile are for etcd's own users.
	Username, PasswordFile string
	// Prefix is where the keys are.
	Prefix string
	// Insecure allows http://.
	Insecure bool
}

func (e *Etcd) bind(flags *pflag.FlagSet) {
	flags.StringVar(&e.Endpoints, "etcd-endpoints", e.Endpoints,
		"with --registry=etcd: URLs of the etcd members, separated by commas, such as https://etcd-0.example.com:2379")
	flags.StringVar(&e.CAFile, "etcd-ca", e.CAFile,
		"file of the certificate authority that etcd's certificates are verified with (default: the system's)")
	flags.StringVar(&e.CertFile, "etcd-cert", e.CertFile,
		"file of this cluster's client certificate for etcd; read again for each connection")
	flags.StringVar(&e.KeyFile, "etcd-key", e.KeyFile,
		"file of the key of --etcd-cert")
	flags.StringVar(&e.Username, "etcd-username", e.Username,
		"this cluster's etcd user")
	flags.StringVar(&e.PasswordFile, "etcd-password-file", e.PasswordFile,
		"file of the password of --etcd-username; read again when etcd refuses the password")
	flags.StringVar(&e.Prefix, "etcd-prefix", e.Prefix,
		"prefix of all keys in etcd; the same in every cluster of the clusterset")
	flags.BoolVar(&e.Insecure, "etcd-insecure", e.Insecure,
		"allow http:// in --etcd-endpoints: anybody on the way can read and change everything")
}

// List are the endpoints.
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

// check reports what cannot be. at says how the user wrote a setting.
func (e *Etcd) check(at func(setting, value string) string) error {
	var problems []error
	refuse := func(setting, value, why string) {
		problems = append(problems, fmt.Errorf("%s: %s", at(setting, value), why))
	}
	switch why := e.badEndpoint(); {
	case strings.Contains(e.Endpoints, "@"): // what is before it may be a password, and errors are logged
		refuse("endpoints", "", "must not name a user: the user and the file of the password have settings of their own")
	case why != "":
		refuse("endpoints", e.Endpoints, why)
	}
	if (e.CertFile == "") != (e.KeyFile == "") {
		refuse("cert", e.CertFile, "needs the file of its key, and the other way round")
	}
	if (e.Username == "") != (e.PasswordFile == "") {
		refuse("username", e.Username, "needs the file of its password, and the other way round")
	}
	if e.Prefix != "" && (!strings.HasPrefix(e.Prefix, "/") || strings.HasSuffix(e.Prefix, "/")) {
		refuse("prefix", e.Prefix, "must begin with a slash and not end with one, as /mcs does")
	}
	return errors.Join(problems...)
}

// badEndpoint says what is wrong with the endpoints, "" when nothing is.
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

// host is the first endpoint's, "" when there is none.
func (e *Etcd) host() string {
	for _, endpoint := range e.List() {
		if u, err := url.Parse(endpoint); err == nil {
			return u.Host
		}
	}
	return ""
}
