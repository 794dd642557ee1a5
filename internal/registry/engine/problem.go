package engine

import (
	"sync"

	"github.com/go-logr/logr"
)

// Problem tracks why a part of a backend does not work, and logs when that begins, changes and
// ends. It is safe for concurrent use.
type Problem struct {
	log                logr.Logger
	failing, recovered string
	expected           func(error) bool

	mu  sync.Mutex
	err error
}

// NewProblem returns a Problem that logs failing with the error, and recovered when it is over.
// Errors for which expected returns true are part of normal operation and logged at info level;
// expected may be nil.
func NewProblem(log logr.Logger, failing, recovered string, expected func(error) bool) *Problem {
	return &Problem{log: log, failing: failing, recovered: recovered, expected: expected}
}

// Err returns the current error, nil if there is none.
func (p *Problem) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Set sets the current error, or nil, and reports whether its text has changed.
func (p *Problem) Set(err error) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.err
	p.err = err
	if errorText(before) == errorText(err) {
		return false
	}
	switch {
	case err == nil:
		p.log.Info(p.recovered)
	case p.expected != nil && p.expected(err):
		p.log.Info(p.failing, "error", err.Error())
	default:
		p.log.Error(err, p.failing)
	}
	return true
}

// errorText returns the error's text, or "".
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
