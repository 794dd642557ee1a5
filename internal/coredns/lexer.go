package coredns

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A token is one word of a Corefile with its position.
type token struct {
	text       string // the word, without quotes and escapes
	start, end int    // byte offsets of the word in the source, quotes included
	line       int    // line of the first character, counted from 1
}

// lastLine returns the line on which the token ends: a quoted token may hold line breaks.
func (t token) lastLine() int { return t.line + strings.Count(t.text, "\n") }

// lex splits a Corefile into tokens as CoreDNS does. The lexer of CoreDNS
// (github.com/coredns/caddy/caddyfile) records the line of a token. This one records byte offsets
// as well, so that an edit leaves every other byte unchanged. A fuzz test compares the two, special
// cases included: a comment that starts within a word ends at the next white space.
func lex(src string) []token {
	var tokens []token
	l := lexer{src: src, line: 1}
	l.pos = len(src) - len(strings.TrimPrefix(src, "\ufeff")) // a byte order mark is not a token
	for {
		t, ok := l.next()
		if !ok {
			return tokens
		}
		tokens = append(tokens, t)
	}
}

type lexer struct {
	src  string
	pos  int
	line int
}

// read consumes one character, counts lines, and reports false at the end of the source.
func (l *lexer) read() (rune, bool) {
	if l.pos >= len(l.src) {
		return 0, false
	}
	ch, size := utf8.DecodeRuneInString(l.src[l.pos:])
	l.pos += size
	if ch == '\n' {
		l.line++
	}
	return ch, true
}

// next returns the next token: a word that ends at white space or at a comment, or a quoted string.
func (l *lexer) next() (token, bool) {
	var word strings.Builder
	var t token
	comment := false
	for {
		at, line := l.pos, l.line
		ch, ok := l.read()
		switch {
		case !ok:
			t.text = word.String()
			return t, word.Len() > 0
		case ch == '\r': // skipped, even within a word
		case unicode.IsSpace(ch):
			if word.Len() > 0 {
				t.text = word.String()
				return t, true
			}
			comment = comment && ch != '\n'
		case comment || ch == '#':
			comment = true
		case word.Len() == 0 && ch == '"':
			return l.quoted(token{start: at, line: line})
		default:
			if word.Len() == 0 {
				t = token{start: at, line: line}
			}
			word.WriteRune(ch)
			t.end = l.pos
		}
	}
}

// quoted reads the rest of a string whose opening quote is consumed. Only a quote can be escaped; a
// string that is not closed ends with the source.
func (l *lexer) quoted(t token) (token, bool) {
	var word strings.Builder
	escaped := false
	for {
		ch, ok := l.read()
		switch {
		case !ok:
			t.text, t.end = word.String(), l.pos
			return t, word.Len() > 0
		case !escaped && ch == '\\':
			escaped = true
			continue
		case !escaped && ch == '"':
			t.text, t.end = word.String(), l.pos
			return t, true
		case escaped && ch != '"':
			word.WriteByte('\\')
		}
		word.WriteRune(ch)
		escaped = false
	}
}
