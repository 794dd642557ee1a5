package api

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
)

// TestAdvice: each refusal of AWS names the action.
func TestAdvice(t *testing.T) {
	refused := func(code, message string) error { return &smithy.GenericAPIError{Code: code, Message: message} }
	const denied = "User: arn:aws:sts::111122223333:assumed-role/cls1/pod is not authorized to perform: servicediscovery:RegisterInstance "
	for name, tc := range map[string]struct {
		err       error
		operation string // RegisterInstance if it is ""
		sts       bool
		want      string
	}{
		"no permission":       {err: refused("AccessDeniedException", denied+"because no identity-based policy allows the action"), want: "allows servicediscovery:RegisterInstance: " + docs.URL("iam.md")},
		"no permission, tags": {err: refused("AccessDeniedException", denied+"because no identity-based policy allows the action"), want: "tag a namespace or service"},
		"no permission, DNS": {err: refused("AccessDeniedException", "User: arn:aws:sts::111122223333:assumed-role/cls1/pod is not authorized to perform: "+
			"route53:ChangeResourceRecordSets on resource: arn:aws:route53:::hostedzone/Z1 because no identity-based policy allows the action"),
			want: "allows route53:ChangeResourceRecordSets: " + docs.URL("iam.md") + "; the service has DNS records, which need instance-dns.json, or compatibility-dns.json"},
		"no permission, DNS namespace": {operation: "CreatePrivateDnsNamespace", err: refused("AccessDeniedException", "User: cls1 is not authorized to perform: "+
			"route53:CreateHostedZone on resource: * because no identity-based policy allows the action"),
			want: "allows route53:CreateHostedZone: " + docs.URL("iam.md") + "; private DNS namespaces of --instance-dns-vpc need instance-dns.json"},
		"no permission, health": {operation: "UpdateInstanceCustomHealthStatus", err: refused("AccessDeniedException", "denied"),
			want: "allows servicediscovery:UpdateInstanceCustomHealthStatus: " + docs.URL("iam.md") + "; --unready-instances=unhealthy and --stale-instances=unhealthy need instance-health.json"},
		"no permission, no message": {err: refused("AccessDeniedException", "denied"), want: "allows servicediscovery:RegisterInstance: " + docs.URL("iam.md")},
		"explicit deny":             {err: refused("AccessDeniedException", denied+"with an explicit deny in an identity-based policy"), want: "remove the statement that denies servicediscovery:RegisterInstance"},
		"service control policy":    {err: refused("AccessDeniedException", denied+"with an explicit deny in a service control policy"), want: "administrators of the AWS organization"},
		"resource control policy":   {err: refused("AccessDeniedException", denied+"with an explicit deny in a resource control policy"), want: "its resource control policy"},
		"VPC endpoint":              {err: refused("AccessDeniedException", denied+"because no VPC endpoint policy allows the action"), want: "policy of the VPC endpoint"},
		"boundary":                  {err: refused("AccessDeniedException", denied+"because no permissions boundary allows the action"), want: "permissions boundary"},
		"session policy":            {err: refused("AccessDeniedException", denied+"because no session policy allows the action"), want: "session policy"},
		"expired token":             {err: refused("ExpiredTokenException", "The security token included in the request is expired"), want: "renew the controller's AWS credentials"},
		"unknown key":               {err: refused("UnrecognizedClientException", "The security token included in the request is invalid."), want: "access key exists and is active"},
		"wrong secret":              {err: refused("InvalidSignatureException", "The request signature we calculated does not match"), want: "secret access key belongs to"},
		"clock":                     {err: refused("RequestExpired", "Request has expired."), want: "clock"},
		"no token":                  {err: refused("MissingAuthenticationToken", "Missing Authentication Token"), want: docs.URL("eks.md")},
		"not subscribed":            {err: refused("OptInRequired", "The AWS Access Key Id needs a subscription for the service"), want: "activate the AWS account"},
		"quota":                     {err: refused("ResourceLimitExceeded", "too many namespaces"), want: "Service Quotas"},
		"throttled":                 {err: refused("ThrottlingException", "Rate exceeded"), want: "lower rate"},
		"wrong host":                {operation: "DiscoverInstances", err: refused("UnknownOperationException", ""), want: "set --aws-endpoint to that of servicediscovery"},
		"proxy":                     {err: refused("UnknownError", "Bad Gateway"), want: "proxies on the network path"},
		"not found":                 {err: refused("ServiceNotFound", "no such service")},
		"role":                      {sts: true, err: refused("AccessDenied", "not authorized to perform: sts:AssumeRole"), want: "trusts the controller's own identity"},
		"role, expired token":       {sts: true, err: refused("ExpiredTokenException", "expired"), want: "renew"},
		"role, OIDC provider":       {sts: true, err: refused("InvalidIdentityToken", "No OpenIDConnect provider found in your account"), want: "OIDC identity provider"},
		"role, Region":              {sts: true, err: refused("RegionDisabledException", "STS is not activated in this region"), want: "activate AWS STS"},
		"unknown host":              {err: &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "data-servicediscovery.eu-nowhere-1.amazonaws.com", IsNotFound: true}}, want: "--aws-region"},
		"no route":                  {err: &net.OpError{Op: "dial", Err: errors.New("connect: connection refused")}, want: "NAT gateway or a VPC endpoint"},
		"reset":                     {err: &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.err
			if tc.sts {
				err = &smithy.OperationError{ServiceID: "STS", OperationName: "AssumeRole", Err: err}
			}
			err = newRequestError(cmp.Or(tc.operation, "RegisterInstance"), &smithy.OperationError{ServiceID: "ServiceDiscovery", OperationName: "RegisterInstance", Err: err})
			_, advice, has := strings.Cut(err.Error(), " (")
			if has != (tc.want != "") || !strings.Contains(advice, tc.want) {
				t.Errorf("the error is %q, want the advice %q", err, tc.want)
			}
			var apiError smithy.APIError
			if errors.As(tc.err, &apiError) && ResultOf(tc.err) == ResultUnknown {
				t.Errorf("code %s has no result", apiError.ErrorCode())
			}
		})
	}
}

// TestOperationError: each code of a failed operation has a result, and names the action.
func TestOperationError(t *testing.T) {
	const denied = "User: cls1 is not authorized to perform: "
	for name, tc := range map[string]struct {
		operation     types.OperationType
		code, message string
		result, want  string
	}{
		"records":                  {types.OperationTypeRegisterInstance, "ACCESS_DENIED", denied + "route53:GetHostedZone on resource: Z1", ResultDenied, "allows route53:GetHostedZone: " + docs.URL("iam.md") + "; the service has DNS records, which need instance-dns.json"},
		"records, no message":      {types.OperationTypeDeregisterInstance, "ACCESS_DENIED", "", ResultDenied, "allows route53:ChangeResourceRecordSets: " + docs.URL("iam.md") + "; the service has DNS records"},
		"records, boundary":        {types.OperationTypeRegisterInstance, "ACCESS_DENIED", denied + "route53:GetHostedZone because no permissions boundary allows it", ResultDenied, "allow route53:GetHostedZone in the permissions boundary"},
		"a zone":                   {types.OperationTypeCreateNamespace, "ACCESS_DENIED", denied + "ec2:DescribeVpcs on resource: *", ResultDenied, "allows ec2:DescribeVpcs: " + docs.URL("iam.md") + "; private DNS namespaces of --instance-dns-vpc need instance-dns.json"},
		"a zone, no message":       {types.OperationTypeCreateNamespace, "ACCESS_DENIED", "", ResultDenied, "allows route53:CreateHostedZone: " + docs.URL("iam.md") + "; private DNS namespaces"},
		"a zone's end":             {types.OperationTypeDeleteNamespace, "ACCESS_DENIED", "", ResultDenied, "allows route53:DeleteHostedZone: " + docs.URL("iam.md") + "; private DNS namespaces"},
		"expired token":            {types.OperationTypeRegisterInstance, "EXPIRED_TOKEN", "", ResultDenied, "renew the controller's AWS credentials"},
		"no zone":                  {types.OperationTypeCreateNamespace, "CANNOT_CREATE_HOSTED_ZONE", "conflict", ResultInvalid, "--instance-dns-vpc"},
		"a zone that is gone":      {types.OperationTypeRegisterInstance, "HOSTED_ZONE_NOT_FOUND", "", ResultInvalid, "delete the Cloud Map namespace"},
		"refused records":          {types.OperationTypeRegisterInstance, "INVALID_CHANGE_BATCH", "", ResultInvalid, "quota of records in a hosted zone"},
		"throttled":                {types.OperationTypeRegisterInstance, "THROTTLED_REQUEST", "", ResultThrottled, "lower rate"},
		"a failure of AWS":         {types.OperationTypeRegisterInstance, "INTERNAL_FAILURE", "oops", ResultError, ""},
		"a code that is not known": {types.OperationTypeRegisterInstance, "NEW_CODE", "oops", ResultUnknown, docs.URL("aws-behavior.md") + " says how to report it"},
	} {
		t.Run(name, func(t *testing.T) {
			err := fmt.Errorf("writing: %w", &OperationError{Operation: tc.operation, Code: tc.code, Message: tc.message})
			text := "the operation failed: " + tc.code
			if tc.message != "" {
				text += ": " + tc.message
			}
			_, advice, has := strings.Cut(err.Error(), " (")
			if got := ResultOf(err); got != tc.result || !strings.Contains(err.Error(), text) || has != (tc.want != "") || !strings.Contains(advice, tc.want) {
				t.Errorf("result %s, text %q; want %s, %q and the advice %q", got, err, tc.result, text, tc.want)
			}
		})
	}
}

// TestAdviceWithoutCredentials asks the SDK itself, whose error has no type: its text must be the
// one that is recognized.
func TestAdviceWithoutCredentials(t *testing.T) {
	dir := t.TempDir()
	for name, value := range map[string]string{
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": dir + "/config", "AWS_SHARED_CREDENTIALS_FILE": dir + "/credentials", "AWS_ACCESS_KEY_ID": "",
		"AWS_SECRET_ACCESS_KEY": "", "AWS_PROFILE": "", "AWS_WEB_IDENTITY_TOKEN_FILE": "", "AWS_CONTAINER_CREDENTIALS_FULL_URI": "",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "",
	} {
		t.Setenv(name, value)
	}
	cfg, err := loadAWS(t.Context(), Config{Region: "eu-west-1"})
	if err != nil {
		t.Fatal(err)
	}
	cfg.BaseEndpoint = aws.String("http://127.0.0.1:1")
	_, err = servicediscovery.NewFromConfig(cfg).ListNamespaces(t.Context(), nil)
	if text := newRequestError("ListNamespaces", err).Error(); !strings.Contains(text, "EKS Pod Identity") {
		t.Errorf("the error is %q, want the advice about credentials", text)
	}
}
