// Package redact keeps passwords out of errors, which are logged and shown.
package redact

import "regexp"

// userinfo is what comes before the last @ of a quoted text, or else of the line that a URL is in: the user and password of the URL,
// or of what was meant to be one.
var userinfo = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*@|://.*@`)

// Text is text without users and passwords of URLs, and of quoted values that have an @. It rather leaves out too much: where a URL
// cannot be parsed, as with a password that is not escaped, nobody knows where in it the password ends.
func Text(text string) string {
	return userinfo.ReplaceAllStringFunc(text, func(found string) string {
		if found[0] == '"' {
			return `"…@`
		}
		return "://…@"
	})
}

// Error is err with its text as Text has it; nil for nil.
func Error(err error) error {
	if err == nil || !userinfo.MatchString(err.Error()) {
		return err
	}
	return redacted{err}
}

type redacted struct{ err error }

func (r redacted) Error() string { return Text(r.err.Error()) }

func (r redacted) Unwrap() error { return r.err }
