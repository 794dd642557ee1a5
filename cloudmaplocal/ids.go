package cloudmaplocal

import "math/rand/v2"

const (
	lower = "abcdefghijklmnopqrstuvwxyz0123456789"
	upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

	// Lengths seen in AWS's examples: ns-ylexjili4cdxy3xm, Z09983722P0QME1B3KC8I,
	// gv4g5meo7ndmeh4fqskygvk23d2fijwa-k9302yzd.
	idLen              = 16
	zoneIDLen          = 20
	operationIDLen     = 32
	operationIDTailLen = 8
)

// random returns n random characters of an alphabet.
func random(alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[rand.IntN(len(alphabet))]
	}
	return string(b)
}
