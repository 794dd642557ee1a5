package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go"
)

func TestResults(t *testing.T) {
	tests := map[string]struct {
		err      error
		want     string
		wantText string
	}{
		"throttled, control plane": {&smithy.GenericAPIError{Code: "ThrottlingException", Message: "Rate exceeded"}, ResultThrottled, "lower rate"},
		"throttled, data plane":    {&types.RequestLimitExceeded{}, ResultThrottled, "lower rate"},
		"denied":                   {&smithy.GenericAPIError{Code: "AccessDeniedException", Message: "no"}, ResultDenied, "servicediscovery:RegisterInstance"},
		"expired":                  {&smithy.GenericAPIError{Code: "ExpiredTokenException"}, ResultDenied, "credentials"},
		"not found":                {&types.ServiceNotFound{}, ResultNotFound, "ServiceNotFound"},
		"in use":                   {&types.ResourceInUse{}, ResultConflict, "ResourceInUse"},
		"quota":                    {&types.ResourceLimitExceeded{}, ResultInvalid, "Service Quotas"},
		"canceled":                 {fmt.Errorf("sending: %w", context.Canceled), ResultCanceled, "AWS Cloud Map RegisterInstance: sending: context canceled"},
		"network":                  {&net.OpError{Op: "dial", Addr: &net.TCPAddr{Port: 1}, Err: errors.New("refused")}, ResultError, "dial :1: refused"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := newRequestError("RegisterInstance", &smithy.OperationError{ServiceID: "ServiceDiscovery", OperationName: "RegisterInstance", Err: tc.err})
			if err.result != tc.want || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("result %s, text %q; want %s and a text with %q", err.result, err, tc.want, tc.wantText)
			}
		})
	}
}

func TestNewClientRefuses(t *testing.T) {
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	if _, err := NewClient(t.Context(), Config{}); err == nil || !strings.Contains(err.Error(), "--aws-region") {
		t.Errorf("without a Region: error %v, want one that names the flag", err)
	}
	if _, err := NewClient(t.Context(), Config{Region: "us-east-1", Rates: map[string]Rate{"RegisterInstance": {}}}); err == nil {
		t.Error("a rate of 0 was accepted")
	}
	_, err := NewClient(t.Context(), Config{Region: "us-east-1", Rates: map[string]Rate{"RegisterInstances": {1, 1}}})
	if err == nil || !strings.Contains(err.Error(), "DiscoverInstances,") {
		t.Errorf("the rate of an unknown operation: error = %v, want one that lists the operations", err)
	}
}

// TestNewClientRefusesPlainHTTP: also endpoints that only AWS's own settings have.
func TestNewClientRefusesPlainHTTP(t *testing.T) {
	tests := map[string]struct {
		endpoint, variable string
		role, insecure     bool
		refused            bool
	}{
		"http":                             {endpoint: "http://10.0.0.1:8080", refused: true},
		"HTTP":                             {endpoint: "HTTP://cloudmap.example.com", refused: true},
		"allowed":                          {endpoint: "http://10.0.0.1:8080", insecure: true},
		"https":                            {endpoint: "https://10.0.0.1:8080"},
		"own host":                         {endpoint: "http://127.0.0.1:8080"},
		"own host, IPv6":                   {endpoint: "http://[::1]:8080"},
		"own host by name":                 {endpoint: "http://localhost:8080"},
		"a name that begins with the own":  {endpoint: "http://localhost.example.com", refused: true},
		"http in the environment":          {variable: "AWS_ENDPOINT_URL_SERVICEDISCOVERY", refused: true},
		"http for all services":            {variable: "AWS_ENDPOINT_URL", refused: true},
		"http in the environment, allowed": {variable: "AWS_ENDPOINT_URL_SERVICEDISCOVERY", insecure: true},
		"http for STS":                     {variable: "AWS_ENDPOINT_URL_STS", role: true, refused: true},
		"http for STS, no role":            {variable: "AWS_ENDPOINT_URL_STS"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_CONFIG_FILE", "/dev/null")
			if tt.variable != "" {
				t.Setenv(tt.variable, "http://10.0.0.2")
			}
			cfg := Config{Region: "us-east-1", Endpoint: tt.endpoint, Insecure: tt.insecure}
			if tt.role {
				cfg.Role.ARN = "arn:aws:iam::111122223333:role/mcs"
			}
			_, err := NewClient(t.Context(), cfg)
			if (err != nil) != tt.refused || err != nil && !strings.Contains(err.Error(), "--aws-insecure") {
				t.Errorf("error %v, want one that names the flag: %t", err, tt.refused)
			}
		})
	}
}

// requestedHosts records the hosts of requests, and answers none.
type requestedHosts struct{ hosts []string }

func (r *requestedHosts) Do(request *http.Request) (*http.Response, error) {
	r.hosts = append(r.hosts, request.URL.Host)
	return nil, errors.New("not sent")
}

// TestHostsOfPlanes: with every endpoint, DiscoverInstances goes to a host that answers it.
func TestHostsOfPlanes(t *testing.T) {
	const vpce, dataVPCE = "vpce-1.servicediscovery.eu-central-1.vpce.amazonaws.com", "vpce-2.data-servicediscovery.eu-central-1.vpce.amazonaws.com"
	for name, tt := range map[string]struct {
		endpoint, data string
		variable       string
		want           []string // the hosts of the control plane and of the data plane
		wantErr        string
	}{
		"AWS's own":               {want: []string{"servicediscovery.eu-central-1.amazonaws.com", "data-servicediscovery.eu-central-1.amazonaws.com"}},
		"AWS's own by name":       {endpoint: "https://servicediscovery.eu-central-1.amazonaws.com", want: []string{"servicediscovery.eu-central-1.amazonaws.com", "data-servicediscovery.eu-central-1.amazonaws.com"}},
		"China":                   {endpoint: "https://servicediscovery.cn-north-1.amazonaws.com.cn", want: []string{"servicediscovery.cn-north-1.amazonaws.com.cn", "data-servicediscovery.cn-north-1.amazonaws.com.cn"}},
		"dual stack":              {endpoint: "https://servicediscovery.eu-central-1.api.aws", want: []string{"servicediscovery.eu-central-1.api.aws", "data-servicediscovery.eu-central-1.api.aws"}},
		"by the environment":      {variable: "https://servicediscovery.eu-central-1.amazonaws.com", want: []string{"servicediscovery.eu-central-1.amazonaws.com", "data-servicediscovery.eu-central-1.amazonaws.com"}},
		"VPC endpoints":           {endpoint: "https://" + vpce, data: "https://" + dataVPCE, want: []string{vpce, dataVPCE}},
		"one with private DNS":    {endpoint: "https://" + vpce, data: "https://data-servicediscovery.eu-central-1.amazonaws.com", want: []string{vpce, "data-servicediscovery.eu-central-1.amazonaws.com"}},
		"data endpoint alone":     {data: "https://" + dataVPCE, want: []string{"servicediscovery.eu-central-1.amazonaws.com", dataVPCE}},
		"environment and data":    {variable: "https://" + vpce, data: "https://" + dataVPCE, want: []string{vpce, dataVPCE}},
		"local":                   {endpoint: "http://127.0.0.1:8080", want: []string{"127.0.0.1:8080", "127.0.0.1:8080"}},
		"custom":                  {endpoint: "https://cloudmap.example.com", want: []string{"cloudmap.example.com", "cloudmap.example.com"}},
		"custom, two hosts":       {endpoint: "https://a.example.com", data: "https://b.example.com", want: []string{"a.example.com", "b.example.com"}},
		"VPC endpoint alone":      {endpoint: "https://" + vpce, wantErr: "set --aws-data-endpoint"},
		"VPC endpoint, by env":    {variable: "https://" + vpce, wantErr: "set --aws-data-endpoint"},
		"VPC endpoint, China":     {endpoint: "https://vpce-1.servicediscovery.cn-north-1.vpce.amazonaws.com.cn", wantErr: "set --aws-data-endpoint"},
		"data host for all":       {endpoint: "https://data-servicediscovery.eu-central-1.amazonaws.com", wantErr: "DiscoverInstances only"},
		"data VPC endpoint first": {endpoint: "https://" + dataVPCE, data: "https://" + vpce, wantErr: "DiscoverInstances only"},
		"control host for data":   {data: "https://servicediscovery.eu-central-1.amazonaws.com", wantErr: "does not answer DiscoverInstances"},
		"data without TLS":        {data: "http://b.example.com", wantErr: "--aws-insecure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("AWS_CONFIG_FILE", "/dev/null")
			t.Setenv("AWS_ENDPOINT_URL_SERVICEDISCOVERY", tt.variable)
			requests := &requestedHosts{}
			client, err := NewClient(t.Context(), Config{Region: "eu-central-1", Endpoint: tt.endpoint, DataEndpoint: tt.data, HTTPClient: requests, Credentials: access})
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			_, _ = client.ListNamespaces(t.Context())
			_, _, _ = client.DiscoverInstances(t.Context(), "mcs.set1", "members", nil)
			_, _, _ = client.DiscoverHealth(t.Context(), "prod", "payments")
			_, _ = client.InstancesRevision(t.Context(), "prod", "payments")
			if want := []string{tt.want[0], tt.want[1], tt.want[1], tt.want[1]}; !slices.Equal(requests.hosts, want) {
				t.Errorf("requests to %v, want %v", requests.hosts, want)
			}
		})
	}
}

var access = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: "secret"}, nil
})

// TestFIPSEndpoints tests the setting of docs/iam.md.
func TestFIPSEndpoints(t *testing.T) {
	t.Setenv("AWS_CONFIG_FILE", "/dev/null")
	t.Setenv("AWS_USE_FIPS_ENDPOINT", "true")
	requests := &requestedHosts{}
	client, err := NewClient(t.Context(), Config{Region: "us-east-1", HTTPClient: requests, Credentials: access})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = client.ListNamespaces(t.Context())
	_, _, _ = client.DiscoverInstances(t.Context(), "mcs.set1", "members", nil)
	want := []string{"servicediscovery-fips.us-east-1.amazonaws.com", "data-servicediscovery-fips.us-east-1.amazonaws.com"}
	if !slices.Equal(requests.hosts, want) {
		t.Errorf("requests to %v, want %v", requests.hosts, want)
	}
}

// A request that AWS refuses for its content, or for lack of rights, fails again if it is repeated.
func TestIsRetryable(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"throttled":      {&types.RequestLimitExceeded{}, true},
		"network":        {&net.OpError{Op: "dial", Err: errors.New("refused")}, true},
		"canceled":       {context.Canceled, true},
		"denied":         {&smithy.GenericAPIError{Code: "AccessDeniedException"}, false},
		"not found":      {&types.NamespaceNotFound{}, false},
		"exists already": {&types.DuplicateRequest{}, false},
		"invalid":        {&types.InvalidInput{}, false},
		"quota":          {&types.ResourceLimitExceeded{}, false},
	} {
		if got := IsRetryable(fmt.Errorf("writing: %w", tc.err)); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// In a shared namespace requests use its ARN, and descriptions of its services have its ID.
func TestNamespace_HasID(t *testing.T) {
	n := Namespace{ID: "arn:aws:servicediscovery:eu-central-1:111122223333:namespace/ns-1", ARN: "arn:aws:servicediscovery:eu-central-1:111122223333:namespace/ns-1"}
	for id, want := range map[string]bool{"ns-1": true, n.ARN: true, "ns-2": false, "1": false, "": false, "namespace/ns-1": false} {
		if got := n.HasID(id); got != want {
			t.Errorf("%q: %v, want %v", id, got, want)
		}
	}
}

func TestClient_IsOwner(t *testing.T) {
	for _, tc := range []struct {
		configured, owner string
		want              bool
	}{{"", "111122223333", true}, {"", "", true}, {"111122223333", "111122223333", true}, {"111122223333", "444455556666", false}, {"111122223333", "", false}} {
		if got := (&Client{owner: tc.configured}).IsOwner(tc.owner); got != tc.want {
			t.Errorf("namespace owner %q, resource of %q: %v, want %v", tc.configured, tc.owner, got, tc.want)
		}
	}
}
