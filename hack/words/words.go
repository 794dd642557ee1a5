package main

import (
	"regexp"
	"strings"
)

// A word must not appear in code or docs.
type word struct {
	// pattern matches the word after normalize.
	pattern *regexp.Regexp
	// replacement is the advice that the check prints.
	replacement string
	// allowedIn matches lines and files that use the word in its other meaning.
	allowedIn *regexp.Regexp
}

// words have one meaning in this project and a better name in Kubernetes, the KEPs or AWS
// (docs/glossary.md).
var words = []word{
	{pattern: phrase("told"), replacement: "notified, reported, logged, returned"},
	{pattern: phrase("nobody"), replacement: "no cluster, no controller, no client: name the actor"},
	{pattern: phrase("somebody"), replacement: "another cluster, another controller, the user: name the actor"},
	{pattern: phrase("anybody"), replacement: "any cluster, any controller, any client: name the actor"},
	{pattern: phrase("whoever"), replacement: "the cluster that, the caller that: name the actor"},
	{pattern: phrase("earlier li(?:fe|ves)"), replacement: "previous process"},
	{pattern: phrase("signs? of life"), replacement: "heartbeat"},
	{pattern: phrase("says? whether"), replacement: "reports whether"},
	{pattern: phrase("looks? again"), replacement: "reconcile, poll, requeue, retry"},
	{pattern: phrase("unhurried"), replacement: "low priority"},
	{pattern: phrase("hurried"), replacement: "high priority"},
	{pattern: phrase("patiently"), replacement: "with retries"},
	{pattern: phrase("unspoken"), replacement: "unannounced"},
	{pattern: phrase("unvouched"), replacement: "unannounced, orphaned"},
	{pattern: phrase("whisper(?:s|er|ers|ed|ing)?"), replacement: "peer notification, notifier"},
	{pattern: phrase("strangers?"), replacement: "unknown peer, unknown cluster"},
	{
		pattern:     phrase("hints?"),
		replacement: "peer notification (hints are EndpointSlice topology hints), or advice",
		allowedIn:   regexp.MustCompile(`(?i)topolog|zone|slice|endpoint|distribution|fornodes|kube-proxy`),
	},
}

// phrase matches words in any case, with line breaks and comment marks between them.
func phrase(text string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b` + strings.ReplaceAll(text, " ", `[\s/#*]+`) + `\b`)
}

var camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// normalize separates the words of identifiers: lookAgain and look_again become "look Again" and
// "look again".
func normalize(text string) string {
	return camel.ReplaceAllString(strings.ReplaceAll(text, "_", " "), "$1 $2")
}

// A finding is a word that was found in a file.
type finding struct {
	file        string
	line        int
	text        string
	replacement string
}

// check returns the findings in a file, by line.
func check(file, text string) []finding {
	text = normalize(text)
	lines := strings.Split(text, "\n")
	var found []finding
	for _, w := range words {
		for _, at := range w.pattern.FindAllStringIndex(text, -1) {
			line := strings.Count(text[:at[0]], "\n")
			if w.allowedIn != nil && (w.allowedIn.MatchString(file) || w.allowedIn.MatchString(lines[line])) {
				continue
			}
			found = append(found, finding{file, line + 1, strings.Join(strings.Fields(text[at[0]:at[1]]), " "), w.replacement})
		}
	}
	return found
}
