package redact

import (
	"regexp"
	"strings"
	"unicode"
)

// secretWords are parts of the names of secret values.
const secretWords = `(?:password|passwd|secret|token|credential|signature|api-?key)`

// The secrets that Secrets removes.
var (
	// privateKey is a private key in PEM, also one that is cut off.
	privateKey = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`)
	// secretName is the name of a secret value.
	secretName = regexp.MustCompile(`(?i)` + secretWords)
	// named is a value whose name says that it is secret, in YAML, JSON, flags, URLs and variables.
	// A value in quotes may have escaped quotes; JSON in a JSON string has an escape before each.
	named = regexp.MustCompile(`(?i)([\w.-]*` + secretWords + `[\w.-]*(?:\\?["'])?[ \t]*[:=][ \t]*)` +
		`("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\\"[^"\n]*"|[^\s,;&"'}\]]+)`)
	// header is the value of an HTTP header Authorization.
	header = regexp.MustCompile(`(?i)\b(bearer|basic)[ \t]+[\w.~+/=-]+`)
	// jsonWebToken is a token of a ServiceAccount or of an OIDC provider.
	jsonWebToken = regexp.MustCompile(`eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?`)
	// accessKeyID is the ID of an AWS access key, long-term or temporary.
	accessKeyID = regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b`)
	// word may be a secret access key of AWS, which has 40 characters.
	word = regexp.MustCompile(`[A-Za-z0-9/+]{40,}`)
)

// removed replaces a secret.
const removed = "…"

// Secrets returns text without what Text removes, and without keys of AWS, tokens, private keys and
// values whose names say that they are secret. It removes too much rather than too little.
func Secrets(text string) string {
	text = privateKey.ReplaceAllString(text, removed)
	text = header.ReplaceAllString(text, "$1 "+removed)
	text = named.ReplaceAllStringFunc(text, func(found string) string {
		parts := named.FindStringSubmatch(found)
		switch value := parts[2]; {
		case strings.HasPrefix(value, `\"`):
			return parts[1] + `\"` + removed + `\"`
		case strings.ContainsAny(value[:1], `"'`):
			return parts[1] + value[:1] + removed + value[:1]
		}
		return parts[1] + removed
	})
	text = jsonWebToken.ReplaceAllString(text, removed)
	text = accessKeyID.ReplaceAllString(text, removed)
	text = word.ReplaceAllStringFunc(text, func(found string) string {
		if isSecretKey(found) {
			return removed
		}
		return found
	})
	return Text(text)
}

// Value returns a value of JSON, changed in place, with Secrets applied to its texts. It removes a
// text whose name says that it is secret.
func Value(value any) any {
	switch v := value.(type) {
	case string:
		return Secrets(v)
	case []any:
		for i := range v {
			v[i] = Value(v[i])
		}
	case map[string]any:
		for name := range v {
			if _, isText := v[name].(string); isText && secretName.MatchString(name) {
				v[name] = removed
			}
			v[name] = Value(v[name])
		}
	}
	return value
}

// isSecretKey reports whether a word looks like a secret access key of AWS. Digests have only small
// letters.
func isSecretKey(found string) bool {
	return len(found) == 40 && strings.ContainsFunc(found, unicode.IsUpper) && strings.ContainsFunc(found, unicode.IsLower) &&
		strings.ContainsFunc(found, unicode.IsDigit)
}
