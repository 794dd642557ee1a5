package config

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// AWS says which AWS API to talk to, and as whom. What is empty comes from AWS's own environment variables and files.
type AWS struct {
	Region, Endpoint string
	// RoleARN is the IAM role that is assumed, "" for none. ExternalID and SessionName go with it.
	RoleARN, ExternalID, SessionName string
	// NamespaceOwner is the account that shares the clusterset's namespace with ours, "" when it is ours.
	NamespaceOwner string
	// InstancesPerNamespace is the quota of the account that has the namespace. Only the registry that is exported to goes by it.
	InstancesPerNamespace int
}

func (a *AWS) bind(flags *pflag.FlagSet) {
	flags.StringVar(&a.Region, "aws-region", a.Region,
		"AWS Region of the registry (default: AWS's own settings, such as AWS_REGION)")
	flags.StringVar(&a.Endpoint, "aws-endpoint", a.Endpoint,
		"URL of the Cloud Map API, for VPC endpoints and cloudmap-local (default: AWS's own settings, such as AWS_ENDPOINT_URL_SERVICEDISCOVERY)")
	flags.StringVar(&a.RoleARN, "aws-role-arn", a.RoleARN,
		"IAM role to assume for the registry, of this or another account (default: none, the pod's own identity is used)")
	flags.StringVar(&a.ExternalID, "aws-role-external-id", a.ExternalID,
		"external ID that the trust policy of --aws-role-arn asks for")
	flags.StringVar(&a.SessionName, "aws-role-session-name", a.SessionName,
		"name of the session under --aws-role-arn, as CloudTrail shows it (default: cloud-map-mcs-controller)")
	flags.StringVar(&a.NamespaceOwner, "aws-namespace-owner", a.NamespaceOwner,
		"ID of the AWS account that shares the clusterset's namespace mcs.<clusterset> with this one through AWS RAM (default: none, it is in this account)")
	flags.IntVar(&a.InstancesPerNamespace, "aws-instances-per-namespace", a.InstancesPerNamespace,
		"quota of instances per namespace in the account of mcs.<clusterset>: say what you had it raised to, so that a metric and its alert are right; nothing else goes by it")
}

var (
	accountPattern = regexp.MustCompile(`^[0-9]{12}$`)
	rolePattern    = regexp.MustCompile(`^arn:aws[a-z-]*:iam::([0-9]{12}):role/[\w+=,.@/-]+$`)
	// externalIDPattern and sessionPattern are those of the STS API (AssumeRole).
	externalIDPattern = regexp.MustCompile(`^[\w+=,.@:/-]{2,}$`)
	sessionPattern    = regexp.MustCompile(`^[\w+=,.@-]{2,64}$`)
	regionPattern     = regexp.MustCompile(`^[a-z]{2}[a-z0-9-]*-[0-9]+$`)
)

func (a *AWS) validate() error {
	var quota error
	if a.InstancesPerNamespace < 1 {
		quota = fmt.Errorf("--aws-instances-per-namespace=%d: must be at least 1; AWS's default is %d", a.InstancesPerNamespace, Default().AWS.InstancesPerNamespace)
	}
	return errors.Join(a.check(func(flag, value string) string { return "--aws-" + flag + "=" + value }), quota)
}

// check reports what cannot be. at says how the user wrote a setting.
func (a *AWS) check(at func(setting, value string) string) error {
	var problems []error
	refuse := func(setting, value, why string) {
		problems = append(problems, fmt.Errorf("%s: %s", at(setting, value), why))
	}
	match := func(setting, value string, pattern *regexp.Regexp, why string) {
		if value != "" && !pattern.MatchString(value) {
			refuse(setting, value, why)
		}
	}
	match("region", a.Region, regionPattern, "must be an AWS Region such as eu-central-1")
	match("role-arn", a.RoleARN, rolePattern, "must be the ARN of a role, such as arn:aws:iam::111122223333:role/mcs-reader")
	match("role-external-id", a.ExternalID, externalIDPattern, "must be two or more letters, digits and characters of +=,.@:/-")
	match("role-session-name", a.SessionName, sessionPattern, "must be 2 to 64 letters, digits and characters of +=,.@-")
	match("namespace-owner", a.NamespaceOwner, accountPattern, "must be the 12 digits of an AWS account")
	if strings.Contains(a.Endpoint, "@") { // what is before it may be a password
		refuse("endpoint", "…", "must not name a user: AWS's credentials come from AWS's own settings")
	} else if u, err := url.Parse(a.Endpoint); a.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		refuse("endpoint", a.Endpoint, "must be a URL such as https://vpce-0123.servicediscovery.eu-central-1.vpce.amazonaws.com")
	}
	if a.RoleARN == "" {
		for setting, value := range map[string]string{"role-external-id": a.ExternalID, "role-session-name": a.SessionName} {
			if value != "" {
				refuse(setting, value, "says nothing without a role-arn")
			}
		}
	}
	return errors.Join(problems...)
}

// account is the one that is named, by the shared namespace's owner or else by the role; "" when none is.
func (a *AWS) account() string {
	if a.NamespaceOwner != "" {
		return a.NamespaceOwner
	}
	if match := rolePattern.FindStringSubmatch(a.RoleARN); match != nil {
		return match[1]
	}
	return ""
}
