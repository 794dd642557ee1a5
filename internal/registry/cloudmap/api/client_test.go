package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

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
		"canceled":                 {fmt.Errorf("sending: %w", context.Canceled), ResultCanceled, "canceled"},
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
