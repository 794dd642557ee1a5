package format

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
)

const (
	// A namespace has a code of 12 bits in two characters of base64. A cluster that uses 100
	// namespaces takes 2.4 % of the others for one of its own.
	codeLength = 2
	// maxCodes is the most codes of a page. 64 times 14 characters, with commas between, are 959 of
	// the maximum of 1,024. Of a page with more namespaces nothing is said.
	maxCodes = 7
)

// Namespaces are the codes of the namespaces of the exports in a page, sorted. "" says nothing: the
// page may have exports of any namespace.
type Namespaces string

// PageNamespaces are the namespaces of a cluster's pages.
type PageNamespaces [PageCount]Namespaces

// NamespacesOf returns the codes of the namespaces of these exports, "" if they are too many.
func NamespacesOf(exports map[mcs.Key]mcs.Export) Namespaces {
	var codes []string
	for key := range exports {
		if code := NamespaceCode(key.Namespace); !slices.Contains(codes, code) {
			codes = append(codes, code)
		}
		if len(codes) > maxCodes {
			return ""
		}
	}
	slices.Sort(codes)
	return Namespaces(strings.Join(codes, ""))
}

// NamespaceCode returns the code of a namespace.
func NamespaceCode(namespace string) string {
	sum := sha256.Sum256([]byte(namespace))
	return base64.RawURLEncoding.EncodeToString(sum[:codeLength])[:codeLength]
}

// Codes yields the codes.
func (n Namespaces) Codes(yield func(string) bool) {
	for i := 0; i < len(n); i += codeLength {
		if !yield(string(n[i : i+codeLength])) {
			return
		}
	}
}

// Has reports whether code is one of the codes.
func (n Namespaces) Has(code string) bool {
	for c := range n.Codes {
		if c == code {
			return true
		}
	}
	return false
}

const codeAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// isCode reports whether a text is a code.
func isCode(text string) bool {
	return len(text) == codeLength && strings.Trim(text, codeAlphabet) == ""
}

// encodeNamespaces encodes the namespaces of the announced pages, in their order: "" if nothing is
// said of any page.
func encodeNamespaces(pages Digests, namespaces PageNamespaces) string {
	var entries []string
	for page, digest := range pages {
		if digest != "" {
			entries = append(entries, string(namespaces[page]))
		}
	}
	if text := strings.Join(entries, ","); strings.Trim(text, ",") != "" {
		return text
	}
	return ""
}

// errNamespaces is the error of a list that is not valid.
var errNamespaces = errors.New(AttrNamespaces + " is not a list of the namespaces of each page")

// parseNamespaces is the inverse of encodeNamespaces.
func parseNamespaces(pages Digests, list string) (namespaces PageNamespaces, err error) {
	if list == "" {
		return namespaces, nil
	}
	entries := strings.Split(list, ",")
	for page, digest := range pages {
		if digest == "" {
			continue
		}
		if len(entries) == 0 || !isNamespaces(entries[0]) {
			return PageNamespaces{}, errNamespaces
		}
		namespaces[page], entries = Namespaces(entries[0]), entries[1:]
	}
	if len(entries) > 0 {
		return PageNamespaces{}, errNamespaces
	}
	return namespaces, nil
}

// isNamespaces reports whether text is a list of codes.
func isNamespaces(text string) bool {
	if len(text)%codeLength != 0 || len(text) > maxCodes*codeLength {
		return false
	}
	for i := 0; i < len(text); i += codeLength {
		if !isCode(text[i:i+codeLength]) || i > 0 && text[i-codeLength:i] >= text[i:i+codeLength] {
			return false
		}
	}
	return true
}
