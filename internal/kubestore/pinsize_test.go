package kubestore

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/registry/trust"
)

// TestPinsFitConfigMap: the pins of members that choose all that they can choose as long as they
// can, IDs of 63 characters, a UID of 128 bytes and times, fit a ConfigMap, however many members
// there are.
func TestPinsFitConfigMap(t *testing.T) {
	long := strings.Repeat("x", 63)
	for name, uid := range map[string]string{"usual": "6b0f3c1e-2f6a-4a57-9c7e-0d4f6f1a2b3c", "longest": strings.Repeat("<", 128), "escaped": strings.Repeat(`"`, 128)} {
		t.Run(name, func(t *testing.T) {
			keyring, err := trust.Load(t.Context(), trust.Config{ClusterSetID: long, StaleAfter: time.Hour, Logger: logr.Discard()})
			if err != nil {
				t.Fatal(err)
			}
			size, pins := 0, 0
			for ; pins < 10_000; pins++ {
				id := longID(pins)
				if verdict, _ := keyring.Check(trust.Presented{Registry: "cloudmap", ClusterID: id, Key: trust.Key{1}}); verdict == trust.Refused {
					break
				}
				for _, registry := range []string{"cloudmap", "cloudmap-2"} {
					keyring.Observe(trust.Record{Registry: registry, ClusterID: id, UID: uid, Key: trust.Key{1}, At: trust.Time{Generation: math.MaxInt64, Heartbeat: math.MaxInt64}})
				}
				pin, _ := keyring.Pin(id)
				text, err := encodePin(pin)
				if err != nil {
					t.Fatal(err)
				}
				// as the API server counts (ValidateConfigMap)
				size += len(long) + len(".") + len(id) + len(text)
			}
			t.Logf("%d pins of %d bytes", pins, size/pins)
			if size > corev1.MaxSecretSize || pins < 1000 {
				t.Errorf("%d pins have %d bytes, and a ConfigMap %d", pins, size, corev1.MaxSecretSize)
			}
		})
	}
}

// longID returns a cluster ID of 63 characters.
func longID(n int) string { return fmt.Sprintf("%063d", n) }
