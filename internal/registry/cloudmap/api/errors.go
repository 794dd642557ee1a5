package api

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/aws/aws-sdk-go-v2/service/servicediscovery/types"
	"github.com/aws/smithy-go"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/redact"
)

// Results of a request, as in metrics.
const (
	ResultOK        = "ok"
	ResultThrottled = "throttled"
	ResultDenied    = "denied"
	ResultNotFound  = "not_found"
	ResultConflict  = "conflict"
	ResultInvalid   = "invalid"
	ResultCanceled  = "canceled"
	ResultError     = "error"
	// ResultUnknown is an error code that is not in results: it is not documented for Cloud Map.
	ResultUnknown = "unknown"
)

// results maps AWS's error codes. The first three groups are not in Cloud Map's model: all AWS
// services share them (Cloud Map API reference, "Common Error Types").
var results = map[string]string{
	"Throttling":               ResultThrottled,
	"ThrottlingException":      ResultThrottled,
	"ThrottledException":       ResultThrottled,
	"TooManyRequestsException": ResultThrottled,
	"RequestLimitExceeded":     ResultThrottled,
	"RequestThrottled":         ResultThrottled,
	"SlowDown":                 ResultThrottled,

	"AccessDenied":                ResultDenied,
	"AccessDeniedException":       ResultDenied,
	"UnauthorizedOperation":       ResultDenied,
	"NotAuthorized":               ResultDenied,
	"UnrecognizedClientException": ResultDenied,
	"InvalidClientTokenId":        ResultDenied,
	"InvalidSignatureException":   ResultDenied,
	"SignatureDoesNotMatch":       ResultDenied,
	"MissingAuthenticationToken":  ResultDenied,
	"ExpiredToken":                ResultDenied,
	"ExpiredTokenException":       ResultDenied,
	"RequestExpired":              ResultDenied,
	"OptInRequired":               ResultDenied,
	"RegionDisabledException":     ResultDenied,
	"InvalidIdentityToken":        ResultDenied,
	"IDPRejectedClaim":            ResultDenied,

	// Failures that are not about the content of the request. The SDK has UnknownError for an
	// answer without a code.
	"IncompleteSignature":            ResultError,
	"InternalFailure":                ResultError,
	"InternalServerError":            ResultError,
	"InternalServiceError":           ResultError,
	"MalformedHttpRequestException":  ResultError,
	"RequestAbortedException":        ResultError,
	"RequestEntityTooLargeException": ResultError,
	"RequestTimeout":                 ResultError,
	"RequestTimeoutException":        ResultError,
	"ServiceUnavailable":             ResultError,
	"ServiceUnavailableException":    ResultError,
	"UnknownError":                   ResultError,
	"UnknownOperationException":      ResultError,

	"NamespaceNotFound":         ResultNotFound,
	"ServiceNotFound":           ResultNotFound,
	"InstanceNotFound":          ResultNotFound,
	"OperationNotFound":         ResultNotFound,
	"CustomHealthNotFound":      ResultNotFound,
	"ResourceNotFoundException": ResultNotFound,

	"NamespaceAlreadyExists": ResultConflict,
	"ServiceAlreadyExists":   ResultConflict,
	"DuplicateRequest":       ResultConflict,
	"ResourceInUse":          ResultConflict,

	"InvalidInput":          ResultInvalid,
	"ValidationException":   ResultInvalid,
	"ResourceLimitExceeded": ResultInvalid,
	"TooManyTagsException":  ResultInvalid,

	// Codes of operations, as the type Operation of the API lists them. That a hosted zone is
	// missing does not mean that the namespace is.
	"ACCESS_DENIED":             ResultDenied,
	"EXPIRED_TOKEN":             ResultDenied,
	"THROTTLED_REQUEST":         ResultThrottled,
	"CANNOT_CREATE_HOSTED_ZONE": ResultInvalid,
	"HOSTED_ZONE_NOT_FOUND":     ResultInvalid,
	"INVALID_CHANGE_BATCH":      ResultInvalid,
	"INTERNAL_FAILURE":          ResultError,
}

// requestError is a failed request. Its text names what the user can do.
type requestError struct {
	operation string
	result    string
	err       error
	// id is the ID of the first request with the same answer, if its error code is not in results.
	id string
}

func newRequestError(operation string, err error) *requestError {
	return &requestError{operation: operation, result: ResultOf(err), err: err}
}

func (e *requestError) Error() string {
	text := fmt.Sprintf("AWS Cloud Map %s: %s", e.operation, e.cause())
	advice := adviceFor(e.operation, e.err)
	if e.result == ResultUnknown {
		advice = withID("request", e.id)
	}
	if advice != "" {
		text += " (" + advice + ")"
	}
	return text
}

// cause returns the error without the SDK's wrapping. It contains nothing that differs between
// attempts, such as request IDs and local ports, so that callers can log an error once.
func (e *requestError) cause() string {
	var api smithy.APIError
	if errors.As(e.err, &api) {
		return fmt.Sprintf("%s: %s", api.ErrorCode(), firstLine(api.ErrorMessage()))
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

// OperationError is an asynchronous operation that AWS accepted and that failed later: Route 53
// refused what Cloud Map asked it for with the rights of the caller, or a failure of AWS. Its code
// has a result, like that of a request. Its text names what the user can do.
type OperationError struct {
	Operation     types.OperationType
	Code, Message string
	// ID is the ID of the first operation that failed like this, if Code is not known.
	ID string
}

var _ smithy.APIError = (*OperationError)(nil)

func (e *OperationError) Error() string {
	text := "AWS Cloud Map accepted the request, but the operation failed: " + e.Code
	if e.Message != "" {
		text += ": " + e.Message
	}
	advice := adviceFor(requestOf[e.Operation], e)
	if ResultOf(e) == ResultUnknown {
		advice = withID("operation", e.ID)
	}
	if advice != "" {
		text += " (" + advice + ")"
	}
	return text
}

// ErrorCode implements smithy.APIError.
func (e *OperationError) ErrorCode() string { return e.Code }

// ErrorMessage implements smithy.APIError.
func (e *OperationError) ErrorMessage() string { return e.Message }

// ErrorFault implements smithy.APIError.
func (e *OperationError) ErrorFault() smithy.ErrorFault { return smithy.FaultUnknown }

// requestOf has the requests of the operations that change Route 53. Of namespaces only those with
// DNS do.
var requestOf = map[types.OperationType]string{
	types.OperationTypeCreateNamespace: "CreatePrivateDnsNamespace", types.OperationTypeDeleteNamespace: "DeleteNamespace",
	types.OperationTypeRegisterInstance: "RegisterInstance", types.OperationTypeDeregisterInstance: "DeregisterInstance",
}

// IsFailedOperation reports whether AWS accepted a request and did not carry it out.
func IsFailedOperation(err error) bool {
	var failed *OperationError
	return errors.As(err, &failed)
}

// ResultOf returns the result of a request that returned err, or of a failed operation, as metrics
// name it.
func ResultOf(err error) string {
	var api smithy.APIError
	switch {
	case err == nil:
		return ResultOK
	case errors.As(err, &api):
		if result, known := results[api.ErrorCode()]; known {
			return result
		}
		return ResultUnknown
	case errors.Is(err, context.Canceled):
		return ResultCanceled
	}
	return ResultError
}

// IsThrottled reports whether AWS throttled a request.
func IsThrottled(err error) bool { return ResultOf(err) == ResultThrottled }

// MustSlowDown reports whether requests must become fewer after err: AWS throttles them, or says
// something that this version does not know, which may mean the same.
func MustSlowDown(err error) bool { return mustSlowDown(ResultOf(err)) }

func mustSlowDown(result string) bool { return result == ResultThrottled || result == ResultUnknown }

// IsDenied reports whether AWS refused a request for lack of rights or valid credentials.
func IsDenied(err error) bool { return ResultOf(err) == ResultDenied }

// IsInvalid reports whether AWS refused a request for its content or because of a quota.
func IsInvalid(err error) bool { return ResultOf(err) == ResultInvalid }

// IsQuota reports whether AWS refused a request because of a quota of resources, such as instances
// of a service.
func IsQuota(err error) bool {
	var limit *types.ResourceLimitExceeded
	return errors.As(err, &limit)
}

// IsRetryable reports whether the same request may succeed later.
func IsRetryable(err error) bool {
	switch ResultOf(err) {
	case ResultThrottled, ResultError, ResultUnknown, ResultCanceled:
		return true
	}
	return false
}

// IsNotFound reports whether the namespace, service, instance or operation does not exist.
func IsNotFound(err error) bool { return ResultOf(err) == ResultNotFound }

// IsServiceNotFound reports whether the namespace exists and the service does not.
func IsServiceNotFound(err error) bool {
	var service *types.ServiceNotFound
	return errors.As(err, &service)
}

// IsInUse reports whether a resource cannot be deleted because it is in use.
func IsInUse(err error) bool {
	var inUse *types.ResourceInUse
	return errors.As(err, &inUse)
}

// IsExpected reports whether an error is part of normal operation: throttling, and late reads of a
// resource that was just created.
func IsExpected(err error) bool { return IsThrottled(err) || IsNotFound(err) }
