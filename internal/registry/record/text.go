package record

import "fmt"

// maxTextBytes bounds the texts of a member that have no format of their own: a UID of Kubernetes
// has 36 bytes.
const maxTextBytes = 128

// CheckText returns an error unless text, the field of a member record, has at most 128 printable
// ASCII characters. Others could write into the terminal of a user, or take six times their size
// in the ConfigMap of the keys, where JSON escapes them.
func CheckText(field, text string) error {
	if len(text) > maxTextBytes {
		return fmt.Errorf("%s has more than %d bytes", field, maxTextBytes)
	}
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return fmt.Errorf("%s has byte %#x: only printable ASCII characters are allowed", field, text[i])
		}
	}
	return nil
}
