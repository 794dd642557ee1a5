// Package redact keeps passwords out of errors, which are logged and shown.
package redact

import "regexp"

// userinfo matches everything before the last @ of a quoted text, or of the line with a URL: the
// user and password of the URL, also of an invalid one.
var userinfo = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*@|://.*@`)

// Text returns text without users and passwords of URLs, and of quoted values that contain an @. It
// removes too much rather than too little: the end of a password is unknown in a URL that cannot be
// parsed, for example because the password is not escaped.
func Text(text string) string {
	return userinfo.ReplaceAllStringFunc(text, func(found string) string {
		if found[0] == '"' {
			return `"…@`
		}
		return "://…@"
	})
}

// Error returns err with the text of Text, nil for nil.
func Error(err error) error {
	if err == nil || !userinfo.MatchString(err.Error()) {
		return err
	}
	return redacted{err}
}

type redacted struct{ err error }

func (r redacted) Error() string { return Text(r.err.Error()) }

func (r redacted) Unwrap() error { return r.err }
