package cloudmaplocal

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/cloudmaplocal/wire"
)

// tokenPrefix distinguishes tokens of this server from arbitrary base64.
const tokenPrefix = "after:"

// encodeToken returns the opaque NextToken that continues after key.
func encodeToken(key string) string {
	return base64.URLEncoding.EncodeToString([]byte(tokenPrefix + key))
}

// decodeToken returns the key in a token of encodeToken; "" for no token.
func decodeToken(token string) (string, error) {
	if token == "" {
		return "", nil
	}
	raw, err := base64.URLEncoding.DecodeString(token)
	key, ours := strings.CutPrefix(string(raw), tokenPrefix)
	if err != nil || !ours {
		return "", invalidInput("NextToken: not a token that this server returned")
	}
	return key, nil
}

// page returns one page of items, the items after the one that the token names in the order of
// their keys, and the token of the next page. Keys are unique.
func page[T any](items []T, key func(T) string, p wire.Paging) ([]T, string, error) {
	if err := cmp.Or(checkCount("MaxResults", p.MaxResults, maxPage), textConstraint{"NextToken", 0, maxTokenLen, nil}.check(p.NextToken)); err != nil {
		return nil, "", err
	}
	after, err := decodeToken(p.NextToken)
	if err != nil {
		return nil, "", err
	}
	items = slices.DeleteFunc(items, func(item T) bool { return key(item) <= after })
	slices.SortFunc(items, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	size := maxPage
	if p.MaxResults != nil {
		size = *p.MaxResults
	}
	if len(items) <= size {
		return items, "", nil
	}
	return items[:size], encodeToken(key(items[size-1])), nil
}
