package api

import (
	"errors"
	"strings"
	"sync"

	"github.com/aws/smithy-go"
	"github.com/go-logr/logr"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/redact"
)

// unknownAdvice is the advice for an error code that is not in results.
var unknownAdvice = "this version does not know the error code; " + docs.URL("aws-behavior.md") + " says how to report it"

// maxUnknown bounds the answers that are kept. Cloud Map's model has 15 error codes.
const maxUnknown = 64

// unknownAnswers are the first answers with each error code that is not in results. An error shows
// the ID of the first request, so that its text is the same each time and callers log it once.
type unknownAnswers struct {
	log logr.Logger

	mu    sync.Mutex
	first map[unknownAnswer]string
}

// unknownAnswer is an error code of an operation.
type unknownAnswer struct{ operation, code string }

// note returns the ID of the first answer with this code, and logs that one.
func (u *unknownAnswers) note(operation string, err smithy.APIError, id string) string {
	answer := unknownAnswer{operation, err.ErrorCode()}
	u.mu.Lock()
	defer u.mu.Unlock()
	if known, seen := u.first[answer]; seen {
		return known
	}
	if len(u.first) == maxUnknown {
		return ""
	}
	u.first[answer] = id
	u.log.Info("AWS Cloud Map answered with an error code that this version does not know: "+docs.URL("aws-behavior.md")+" says how to report it",
		"operation", operation, "code", answer.code, "message", firstLine(err.ErrorMessage()), "id", id)
	return id
}

// noteRequest is note for a request that returned err. It returns "" for a known code.
func (u *unknownAnswers) noteRequest(operation string, err error) string {
	var apiError smithy.APIError
	if ResultOf(err) != ResultUnknown || !errors.As(err, &apiError) {
		return ""
	}
	var answer interface{ ServiceRequestID() string }
	id := ""
	if errors.As(err, &answer) {
		id = answer.ServiceRequestID()
	}
	return u.note(operation, apiError, id)
}

// firstLine returns the first line of a message of AWS. After it, the message about a wrong
// signature contains the signed request with its session token.
func firstLine(message string) string {
	line, _, _ := strings.Cut(message, "\n")
	return redact.Text(line)
}

// withID returns the advice for an unknown code with the ID of the first answer that had it.
func withID(kind, id string) string {
	if id == "" {
		return unknownAdvice
	}
	return unknownAdvice + "; " + kind + " " + id
}
