package api

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// codeAdvice has the actions for the error codes that all AWS services share, as the pages "Common
// Error Types" of the API references describe them, and for those of operations.
var codeAdvice = map[string]string{
	"ResourceLimitExceeded":       "raise the quota of AWS Cloud Map in Service Quotas",
	"ExpiredToken":                expiredAdvice,
	"ExpiredTokenException":       expiredAdvice,
	"InvalidClientTokenId":        unknownKeyAdvice,
	"UnrecognizedClientException": unknownKeyAdvice,
	"InvalidSignatureException":   signatureAdvice,
	"SignatureDoesNotMatch":       signatureAdvice,
	"RequestExpired":              "synchronize the clock of the controller's node: AWS refuses requests whose time is more than 5 minutes off",
	"MissingAuthenticationToken":  "give the controller AWS credentials: " + docs.URL("eks.md"),
	"OptInRequired":               "activate the AWS account: it is not subscribed to AWS Cloud Map",

	"UnknownOperationException": "the request went to the wrong host: set --aws-endpoint to that of servicediscovery and --aws-data-endpoint to that of data-servicediscovery, " +
		"or neither (" + docs.URL("accounts-and-regions.md#vpc-endpoints") + ")",
	"UnknownError": "the answer has no error code of AWS: check --aws-endpoint, and the proxies on the network path",

	"EXPIRED_TOKEN": expiredAdvice,
	"CANNOT_CREATE_HOSTED_ZONE": "check that the VPC of --instance-dns-vpc exists in the account and Region of the controller and has no other hosted zone of this name, " +
		"and the quota of hosted zones in Route 53",
	"HOSTED_ZONE_NOT_FOUND": "the hosted zone of the Cloud Map namespace is gone: delete the Cloud Map namespace with its services, so that the controller creates it again",
	"INVALID_CHANGE_BATCH":  "check that no other client made records of this name in the hosted zone of the Cloud Map namespace, and raise the quota of records in a hosted zone in Route 53",
}

const (
	expiredAdvice = "renew the controller's AWS credentials: those of EKS Pod Identity and of IAM roles for service accounts are renewed without action, " +
		"a session token in a Secret is not; check the clock of the node too"
	unknownKeyAdvice = "check that the access key exists and is active, and that the Region of --aws-region is enabled for the account"
	signatureAdvice  = "check that the secret access key belongs to the access key, and synchronize the clock of the controller's node"
)

// stsAdvice has the actions for the error codes of AWS Security Token Service when it is asked for
// a role.
var stsAdvice = map[string]string{
	"RegionDisabledException": "activate AWS STS for this Region in the account settings of IAM",
	"InvalidIdentityToken":    identityTokenAdvice,
	"IDPRejectedClaim":        identityTokenAdvice,
}

var identityTokenAdvice = "check that IAM has an OIDC identity provider with the issuer of this cluster, and that the role's trust policy names it: " + docs.URL("eks.md")

// deniedBy are the kinds of policies that AWS names in the message of a denied request, and the
// actions for them (IAM User Guide, "Troubleshoot access denied error messages").
var deniedBy = []struct{ policy, advice string }{
	{"service control policy", "ask the administrators of the AWS organization to allow %s in its service control policy"},
	{"resource control policy", "ask the administrators of the AWS organization to allow %s in its resource control policy"},
	{"VPC endpoint policy", "allow %s in the policy of the VPC endpoint"},
	{"permissions boundary", "allow %s in the permissions boundary of the controller's role"},
	{"session policy", "allow %s in the session policy of the controller's role"},
	{"explicit deny", "remove the statement that denies %s from the policies of the controller's role"},
}

// adviceFor returns the action for the user after a failed request, "" if there is none.
func adviceFor(operation string, err error) string {
	var apiError smithy.APIError
	if !errors.As(err, &apiError) {
		return connectionAdvice(err)
	}
	code, isSTS := apiError.ErrorCode(), isFromSTS(err)
	if advice, ok := stsAdvice[code]; ok && isSTS {
		return advice
	}
	if advice, ok := codeAdvice[code]; ok {
		return advice
	}
	switch ResultOf(err) {
	case ResultDenied:
		if isSTS {
			return "check that the role in --aws-role-arn or role-arn trusts the controller's own identity and does not require another external ID"
		}
		action := deniedAction(operation, apiError)
		for _, d := range deniedBy {
			if strings.Contains(apiError.ErrorMessage(), d.policy) {
				return fmt.Sprintf(d.advice, action)
			}
		}
		return deniedByRole(operation, action)
	case ResultThrottled:
		return "AWS throttles this account's requests; retrying at a lower rate"
	}
	return ""
}

// deniedAction returns the action that AWS names in the message of a denied request. It is one of
// Route 53 or EC2 if Cloud Map changes a hosted zone for the request, and so it always is if the
// request was accepted and its operation denied.
func deniedAction(operation string, err smithy.APIError) string {
	if _, rest, ok := strings.Cut(err.ErrorMessage(), "is not authorized to perform: "); ok {
		if action, _, _ := strings.Cut(rest, " "); strings.Contains(action, ":") {
			return action
		}
	}
	switch {
	case !IsFailedOperation(err):
		return "servicediscovery:" + operation
	case operation == "CreatePrivateDnsNamespace":
		return "route53:CreateHostedZone"
	case operation == "DeleteNamespace":
		return "route53:DeleteHostedZone"
	}
	return "route53:ChangeResourceRecordSets"
}

// onTagged are the operations that the policies in deploy/iam allow on namespaces and services with
// tags.
var onTagged = []string{"CreateService", "DeregisterInstance", "ListInstances", "RegisterInstance"}

// deniedByRole returns the action for a request that no policy of the controller's role allows.
func deniedByRole(operation, action string) string {
	advice := fmt.Sprintf("check that the IAM role of the controller allows %s: "+docs.URL("iam.md"), action)
	switch {
	case operation == "CreatePrivateDnsNamespace" || operation == "DeleteNamespace" && strings.HasPrefix(action, "route53:"):
		return advice + "; private DNS namespaces of --instance-dns-vpc need instance-dns.json"
	case strings.HasPrefix(action, "route53:"):
		return advice + "; the service has DNS records, which need instance-dns.json, or compatibility-dns.json if the legacy controller created it"
	case operation == "DiscoverInstances" || operation == "DiscoverInstancesRevision":
		return advice + "; the policies name the namespace by its HttpName, which may have a suffix of AWS: " +
			"aws servicediscovery list-namespaces shows it"
	case operation == "UpdateInstanceCustomHealthStatus":
		return advice + "; --unready-instances=unhealthy and --stale-instances=unhealthy need instance-health.json"
	case slices.Contains(onTagged, operation):
		return advice + "; tag a namespace or service that this controller did not create, such as one of the legacy controller: " + docs.URL("migration.md")
	}
	return advice
}

// connectionAdvice returns the action for a request that got no answer from AWS.
func connectionAdvice(err error) string {
	var host *net.DNSError
	var connection *net.OpError
	switch {
	case strings.Contains(err.Error(), "failed to refresh cached credentials"):
		// The SDK has no type for it. It is the error of the last source in its order, the role of
		// the EC2 instance.
		return "give the controller AWS credentials: an association of EKS Pod Identity, or a role in the annotation of its ServiceAccount: " + docs.URL("eks.md")
	case errors.As(err, &host) && host.IsNotFound:
		return "check --aws-region and --aws-endpoint, and that the DNS of the controller's node resolves the name"
	case errors.As(err, &connection) && (connection.Op == "dial" || connection.Timeout()):
		return "check the network from the controller's pod to AWS: a NAT gateway or a VPC endpoint, security groups and NetworkPolicies"
	}
	return ""
}

// isFromSTS reports whether err is a failure to assume the role.
func isFromSTS(err error) bool {
	var operation *smithy.OperationError
	for errors.As(err, &operation) {
		if operation.Service() == sts.ServiceID {
			return true
		}
		err = operation.Err
	}
	return false
}
