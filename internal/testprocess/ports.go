package testprocess

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// The ports of FreePort: below 30000, where NodePorts start, and so below 32768, where Linux takes
// the local ports of outgoing connections from (net.ipv4.ip_local_port_range); above the ports of
// well-known servers.
const (
	firstPort = 20000
	lastPort  = 29999
)

// reserved are the listeners that reserve ports until this process ends. The garbage collector
// would close them without a reference.
var reserved struct {
	sync.Mutex
	listeners []net.Listener
}

// FreePort returns a TCP port that no process uses, for a server that starts later, and reserves
// it: FreePort returns it to no other caller in any process before this process ends. In contrast
// to a port that Linux chooses for ":0", no outgoing connection of another process can take it
// meanwhile: the server would fail with "address already in use" until that connection ends.
func FreePort() (string, error) {
	var err error
	for range 100 {
		port := strconv.Itoa(firstPort + rand.IntN(lastPort-firstPort+1))
		if err = reserve(port); err == nil {
			return port, nil
		}
	}
	return "", fmt.Errorf("finding a free port between %d and %d: %w", firstPort, lastPort, err)
}

// FreeAddress returns 127.0.0.1 with a port of FreePort.
func FreeAddress(t *testing.T) string {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// reserve reserves a port with a listener on an abstract Unix socket of its name, if no process
// listens on the port.
func reserve(port string) error {
	lock, err := net.Listen("unix", "@cloud-map-mcs-test-port-"+port)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		_ = lock.Close()
		return err
	}
	reserved.Lock()
	defer reserved.Unlock()
	reserved.listeners = append(reserved.listeners, lock)
	return listener.Close()
}
