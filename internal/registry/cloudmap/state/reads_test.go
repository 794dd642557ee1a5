package state

import (
	"errors"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go"
)

// TestAbsence checks after which polls the clusterset is shown again: lists that were made before
// may have been empty.
func TestAbsence(t *testing.T) {
	notFound, denied := &types.NamespaceNotFound{}, &smithy.GenericAPIError{Code: "AccessDeniedException"}
	throttled, failed := &types.RequestLimitExceeded{}, errors.New("connection refused")
	for name, tt := range map[string]struct {
		polls []error
		want  bool // of the last poll
	}{
		"no failure":                            {[]error{nil, nil}, false},
		"not found":                             {[]error{nil, notFound, nil}, true},
		"denied":                                {[]error{denied, nil}, true},
		"not found, and then throttled":         {[]error{notFound, throttled, failed, nil}, true},
		"throttled":                             {[]error{throttled, failed, nil}, false},
		"not found before the previous success": {[]error{notFound, nil, throttled, nil}, false},
		"not found, and it has not been read since": {[]error{notFound}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var a absence
			got := false
			for _, err := range tt.polls {
				got = a.observe(err)
			}
			if got != tt.want {
				t.Errorf("shown again: %t, want %t", got, tt.want)
			}
		})
	}
}
