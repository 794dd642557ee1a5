package attack

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/config"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/controller/paths"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/mcs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/pathhealth"
)

// podNetwork is a network in which all addresses answer until it is cut; then only those in
// reachable do. It records the attempts.
type podNetwork struct {
	reachable netip.Prefix

	mu       sync.Mutex
	cut      bool
	attempts map[netip.Addr]int
}

func (d *podNetwork) dial(_ context.Context, address netip.AddrPort) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attempts[address.Addr()]++
	if d.cut && !d.reachable.Contains(address.Addr()) {
		return context.DeadlineExceeded
	}
	return nil
}

// to returns the number of attempts to addresses in a network.
func (d *podNetwork) to(network string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for address, attempts := range d.attempts {
		if netip.MustParsePrefix(network).Contains(address) {
			n += attempts
		}
	}
	return n
}

func TestAttack_ProbesOfOtherAddresses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte("default: allow\nclusters: {cls3: {podNetworks: [10.3.0.0/16]}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	network := &podNetwork{reachable: netip.MustParsePrefix("10.1.0.0/16"), attempts: map[netip.Addr]int{}}
	const round = 50 * time.Millisecond // a hundredth of the product's
	probes := paths.Probes{
		Dial:  network.dial,
		Rules: pathhealth.Rules{UnreachableAfter: 300 * time.Millisecond, MinFailures: 3, ReachableAfter: 100 * time.Millisecond, UnknownAfter: time.Minute, MaxPause: time.Minute},
		Times: paths.Times{Tick: 10 * time.Millisecond, Round: round, Connect: time.Second, Endpoints: round, EndpointsAlone: round, Unknown: round},
	}
	began := time.Now()
	k := inKubernetesWith(t, probes, func(o *config.Options) {
		o.Scope.ImportPolicy, o.Registry.PathHealth = path, string(mcs.PathHealthWithdraw)
	})
	rightful, hostile := k.hostile(victim), k.hostile(intruder)
	rightful.publish(k.key, nil, "10.1.0.1")
	k.imported(k.key, "10.1.0.1")
	// Its endpoints are in the network that it scans, at addresses of the other member, and at one
	// that belongs to no pod.
	hostile.publish(k.key, nil, "10.3.0.1", "10.1.0.1", "192.168.77.9")
	for i := range 100 {
		hostile.publish(mcs.Key{Namespace: k.key.Namespace, Name: fmt.Sprint("scan-", i)}, nil, fmt.Sprintf("10.3.1.%d", i+1), "10.1.0.9", "169.254.169.254")
	}
	k.imported(k.key, "10.1.0.1", "10.3.0.1")
	before := network.to("10.3.0.0/16")
	k.eventually("probes of its endpoints", func() error {
		if n := network.to("10.3.0.0/16"); n < before+10 {
			return fmt.Errorf("%d attempts", n)
		}
		return nil
	})

	network.mu.Lock()
	network.cut = true
	network.mu.Unlock()
	k.imported(k.key, "10.1.0.1") // its own endpoint leaves, that of the other member stays
	rounds := int(time.Since(began)/round) + 1
	if n := network.to("10.3.0.0/16"); n > 3*rounds {
		t.Errorf("%d connections to its endpoints in at most %d rounds, want at most three in each", n, rounds)
	}
	for _, refused := range []string{"10.1.0.9/32", "192.168.77.9/32", "169.254.169.254/32"} {
		if n := network.to(refused); n > 0 {
			t.Errorf("%d connections to %s, which the import policy refuses", n, refused)
		}
	}
}
