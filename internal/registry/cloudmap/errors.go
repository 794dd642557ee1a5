package cloudmap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/redact"
)

// Results of a request, as metrics and messages name them.
const (
	resultOK        = "ok"
	resultThrottled = "throttled"
	resultDenied    = "denied"
	resultNotFound  = "not_found"
	resultConflict  = "conflict"
	resultInvalid   = "invalid"
	resultCanceled  = "canceled"
	resultError     = "error"
)

// results are AWS's error codes by what they mean to us. The first two groups are not in Cloud Map's model: they come
// from the front door that all AWS services share.
var results = map[string]string{
	"Throttling":               resultThrottled,
	"ThrottlingException":      resultThrottled,
	"ThrottledException":       resultThrottled,
	"TooManyRequestsException": resultThrottled,
	"RequestLimitExceeded":     resultThrottled,
	"RequestThrottled":         resultThrottled,
	"SlowDown":                 resultThrottled,

	"AccessDenied":                resultDenied,
	"AccessDeniedException":       resultDenied,
	"UnauthorizedOperation":       resultDenied,
	"NotAuthorized":               resultDenied,
	"UnrecognizedClientException": resultDenied,
	"InvalidClientTokenId":        resultDenied,
	"InvalidSignatureException":   resultDenied,
	"SignatureDoesNotMatch":       resultDenied,
	"MissingAuthenticationToken":  resultDenied,
	"ExpiredToken":                resultDenied,
	"ExpiredTokenException":       resultDenied,

	"NamespaceNotFound":         resultNotFound,
	"ServiceNotFound":           resultNotFound,
	"InstanceNotFound":          resultNotFound,
	"OperationNotFound":         resultNotFound,
	"ResourceNotFoundException": resultNotFound,

	"NamespaceAlreadyExists": resultConflict,
	"ServiceAlreadyExists":   resultConflict,
	"DuplicateRequest":       resultConflict,
	"ResourceInUse":          resultConflict,

	"InvalidInput":          resultInvalid,
	"ValidationException":   resultInvalid,
	"ResourceLimitExceeded": resultInvalid,
}

// requestError is a failed request, with what the user can do about it.
type requestError struct {
	operation string
	result    string
	err       error
}

func newRequestError(operation string, err error) *requestError {
	return &requestError{operation: operation, result: resultOf(err), err: err}
}

func (e *requestError) Error() string {
	text := fmt.Sprintf("AWS Cloud Map %s: %s", e.operation, e.cause())
	var limit *types.ResourceLimitExceeded
	switch {
	case errors.As(e.err, &limit):
		return text + " (raise the quota of AWS Cloud Map in Service Quotas)"
	case e.result == resultDenied && fromSTS(e.err):
		return text + " (check that the role in --aws-role-arn or role-arn trusts the controller's own identity, and asks for no other external ID)"
	case e.result == resultDenied:
		return text + fmt.Sprintf(" (check the controller's AWS credentials, and that its IAM role allows servicediscovery:%s)", e.operation)
	case e.result == resultThrottled:
		return text + " (AWS throttles this account's requests; it is tried again, more slowly)"
	}
	return text
}

// fromSTS says whether it was the role that could not be assumed.
func fromSTS(err error) bool {
	var operation *smithy.OperationError
	for errors.As(err, &operation) {
		if operation.Service() == sts.ServiceID {
			return true
		}
		err = operation.Err
	}
	return false
}

// cause is the error without what the SDK wraps around it. It has nothing that differs from one attempt to the next, as
// request IDs and local ports do: who reports an error reports it once.
func (e *requestError) cause() string {
	var api smithy.APIError
	if errors.As(e.err, &api) {
		// The rest of an answer to a wrong signature is the request as AWS signs it, session token and all.
		message, _, _ := strings.Cut(api.ErrorMessage(), "\n")
		return fmt.Sprintf("%s: %s", api.ErrorCode(), message)
	}
	var network *net.OpError
	if errors.As(e.err, &network) && network.Addr != nil {
		return fmt.Sprintf("%s %s: %v", network.Op, network.Addr, network.Err)
	}
	var operation *smithy.OperationError
	if errors.As(e.err, &operation) {
		return redact.Text(operation.Err.Error())
	}
	return redact.Text(e.err.Error())
}

func (e *requestError) Unwrap() error { return e.err }

// resultOf says what err means.
func resultOf(err error) string {
	var api smithy.APIError
	switch {
	case err == nil:
		return resultOK
	case errors.As(err, &api):
		if result, known := results[api.ErrorCode()]; known {
			return result
		}
	case errors.Is(err, context.Canceled):
		return resultCanceled
	}
	return resultError
}

// isNotFound says whether a namespace, service or instance is not there.
func isNotFound(err error) bool { return resultOf(err) == resultNotFound }

// isNoService says whether there is no such service in a namespace that there is.
func isNoService(err error) bool {
	var service *types.ServiceNotFound
	return errors.As(err, &service)
}

// isInUse says whether something cannot be deleted because others use it.
func isInUse(err error) bool {
	var inUse *types.ResourceInUse
	return errors.As(err, &inUse)
}
