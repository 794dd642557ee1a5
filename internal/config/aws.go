package config

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// AWS selects the AWS API and the identity for it. Empty fields are taken from the environment
// variables and files of the AWS SDK.
type AWS struct {
	Region, Endpoint string
	// DataEndpoint is the endpoint of DiscoverInstances if it is another one, as with VPC
	// endpoints.
	DataEndpoint string
	// Insecure allows an endpoint with http://, also in additional registries.
	Insecure bool
	// RoleARN is the IAM role to assume, "" for none. ExternalID and SessionName are parameters of
	// AssumeRole.
	RoleARN, ExternalID, SessionName string
	// NamespaceOwner is the account that shares the control namespace with ours through AWS RAM, ""
	// if it is in our account.
	NamespaceOwner string
	// InstancesPerNamespace is the quota of the account of the control namespace. Only the registry
	// that is exported to uses it.
	InstancesPerNamespace int
}

func (a *AWS) bind(common, advanced *pflag.FlagSet) {
	common.StringVar(&a.Region, "aws-region", a.Region,
		"AWS Region of the registry (default: AWS_REGION, else the shared AWS configuration, else that of the EC2 instance).")
	advanced.StringVar(&a.Endpoint, "aws-endpoint", a.Endpoint,
		"URL of the Cloud Map API, for cloudmap-local and VPC endpoints (default: from the AWS SDK's settings).")
	advanced.StringVar(&a.DataEndpoint, "aws-data-endpoint", a.DataEndpoint,
		"URL of DiscoverInstances, if --aws-endpoint is the name of a VPC endpoint: "+docs.URL("accounts-and-regions.md#vpc-endpoints"))
	advanced.BoolVar(&a.Insecure, "aws-insecure", a.Insecure,
		"Allow http:// in URLs of Cloud Map. Everyone on the network path can then read and change the registry.")
	common.StringVar(&a.RoleARN, "aws-role-arn", a.RoleARN,
		"IAM role to assume for the registry, in this or another account (default: none, the pod's identity is used).")
	advanced.StringVar(&a.ExternalID, "aws-role-external-id", a.ExternalID,
		"External ID that the trust policy of --aws-role-arn requires.")
	advanced.StringVar(&a.SessionName, "aws-role-session-name", a.SessionName,
		"Session name for --aws-role-arn, as shown in CloudTrail (default: "+names.Product+").")
	common.StringVar(&a.NamespaceOwner, "aws-namespace-owner", a.NamespaceOwner,
		"ID of the account that shares namespace mcs.<clusterset> through AWS RAM (default: none, it is in this account).")
	advanced.IntVar(&a.InstancesPerNamespace, "aws-instances-per-namespace", a.InstancesPerNamespace,
		"Service quota 'Instances per namespace' of the account of mcs.<clusterset>, for a metric and its alert.")
}

var (
	accountPattern = regexp.MustCompile(`^[0-9]{12}$`)
	rolePattern    = regexp.MustCompile(`^arn:aws[a-z-]*:iam::([0-9]{12}):role/[\w+=,.@/-]+$`)
	// externalIDPattern and sessionPattern are from the STS API reference (AssumeRole).
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

// check reports invalid settings. at returns the spelling of a setting in error messages.
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
	for setting, endpoint := range map[string]string{"endpoint": a.Endpoint, "data-endpoint": a.DataEndpoint} {
		if strings.Contains(endpoint, "@") { // the part before it may contain a password
			refuse(setting, "…", "must not contain a user: credentials come from the AWS SDK's settings")
		} else if u, err := url.Parse(endpoint); endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			refuse(setting, endpoint, "must be a URL such as https://vpce-0123.servicediscovery.eu-central-1.vpce.amazonaws.com")
		}
	}
	if a.RoleARN == "" {
		a.checkWithoutRole(refuse)
	}
	return errors.Join(problems...)
}

// checkWithoutRole refuses the settings that have no effect without a role.
func (a *AWS) checkWithoutRole(refuse func(setting, value, why string)) {
	for setting, value := range map[string]string{"role-external-id": a.ExternalID, "role-session-name": a.SessionName} {
		if value != "" {
			refuse(setting, value, "has no effect without a role-arn")
		}
	}
}

// account returns the account that the settings name, as namespace owner or in the role, or "".
func (a *AWS) account() string {
	if a.NamespaceOwner != "" {
		return a.NamespaceOwner
	}
	if match := rolePattern.FindStringSubmatch(a.RoleARN); match != nil {
		return match[1]
	}
	return ""
}
