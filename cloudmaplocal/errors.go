package cloudmaplocal

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
)

// apiError is an error as the client receives it: a code that SDKs switch on, a message for people,
// and further members of some errors (for instance the ID of the existing resource).
type apiError struct {
	code    string
	status  int
	message string
	members map[string]string
}

// Error implements error.
func (e *apiError) Error() string { return e.code + ": " + e.message }

// MarshalJSON writes the error in the shape of AWS JSON 1.1.
func (e *apiError) MarshalJSON() ([]byte, error) {
	body := map[string]string{"__type": e.code, "message": e.message}
	maps.Copy(body, e.members)
	return json.Marshal(body)
}

// failure returns an error with status 400, the status of nearly all errors of AWS JSON services.
func failure(code, format string, args ...any) *apiError {
	return &apiError{code: code, status: http.StatusBadRequest, message: fmt.Sprintf(format, args...)}
}

// with adds a member to the error. Empty values are left out, as AWS leaves them out.
func (e *apiError) with(name, value string) *apiError {
	if value == "" {
		return e
	}
	if e.members == nil {
		e.members = map[string]string{}
	}
	e.members[name] = value
	return e
}

func invalidInput(format string, args ...any) error {
	return failure("InvalidInput", format, args...)
}

func limitExceeded(format string, args ...any) error {
	return failure("ResourceLimitExceeded", format, args...)
}

func resourceInUse(format string, args ...any) error {
	return failure("ResourceInUse", format, args...)
}

func namespaceNotFound(ref string) error {
	return failure("NamespaceNotFound", "The namespace %s can't be found.", ref)
}

func serviceNotFound(ref string) error {
	return failure("ServiceNotFound", "The service %s can't be found.", ref)
}

func instanceNotFound(service, id string) error {
	return failure("InstanceNotFound", "The instance %s doesn't exist in the service %s.", id, service)
}

func operationNotFound(id string) error {
	return failure("OperationNotFound", "The operation %s can't be found.", id)
}

func resourceNotFound(arn string) error {
	return failure("ResourceNotFoundException", "The resource %s can't be found.", arn)
}

func duplicateRequest(inFlight string) error {
	return failure("DuplicateRequest", "Another operation on the same resource is in progress: %s.", inFlight).
		with("DuplicateOperationId", inFlight)
}

// asAPIError converts any error to one that can be sent. Only a bug results in InternalFailure.
func asAPIError(err error) *apiError {
	var known *apiError
	if errors.As(err, &known) {
		return known
	}
	return &apiError{code: "InternalFailure", status: http.StatusInternalServerError, message: err.Error()}
}
