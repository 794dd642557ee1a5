package cloudmaplocal

import (
	"encoding/base64"
	"strings"
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
