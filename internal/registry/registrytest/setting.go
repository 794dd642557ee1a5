package registrytest

import (
	"os"
	"strconv"
	"testing"
)

// Setting returns the value of an environment variable for a random test, such as the seed of a run
// to replay, or standard.
func Setting(t *testing.T, name string, standard uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return standard
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s must be a whole number, 0 or more: %v", name, err)
	}
	return value
}
