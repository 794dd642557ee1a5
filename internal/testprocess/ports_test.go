package testprocess

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

// An outgoing connection takes its local port from a range of the kernel. A server that is to
// listen on such a port later may find it in use.
func TestFreePort(t *testing.T) {
	outgoing := 32768 // the first one by default
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if outgoing, err = strconv.Atoi(strings.Fields(string(text))[0]); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for range 100 {
		text, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(text)
		if err != nil || port < 1024 || port >= outgoing {
			t.Fatalf("the port is %q, %v, want one between 1024 and %d", text, err, outgoing)
		}
		if seen[text] {
			t.Fatalf("port %s came twice", text)
		}
		seen[text] = true
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", text))
		if err != nil {
			t.Fatalf("listening on a free port: %v", err)
		}
		_ = listener.Close()
	}
}
