package clusterset

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
)

func TestCheckUnused(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	err = checkUnused(address)
	if err == nil {
		t.Fatalf("%s is reported as unused while a process listens on it", address)
	}
	for _, want := range []string{address, "kill -9 " + fmt.Sprint(os.Getpid())} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %q", err, want)
		}
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := checkUnused(address); err != nil {
		t.Errorf("after the listener was closed: %v", err)
	}
}

func TestListenerInode(t *testing.T) {
	const rest = " 00000000:0000 %s 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0"
	want := netip.MustParseAddrPort("172.30.0.1:8080")
	for _, c := range []struct {
		name, local, state string
		matches            bool
	}{
		{"the address", "01001EAC:1F90", "0A", true},
		{"all IPv4 addresses", "00000000:1F90", "0A", true},
		{"all IPv6 addresses", "00000000000000000000000000000000:1F90", "0A", true},
		{"the address mapped into IPv6", "0000000000000000FFFF000001001EAC:1F90", "0A", true},
		{"another port", "01001EAC:1F91", "0A", false},
		{"another address", "0100007F:1F90", "0A", false},
		{"a connection", "01001EAC:1F90", "01", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inode, ok := listenerInode("   0: "+c.local+fmt.Sprintf(rest, c.state), want)
			if ok != c.matches || (ok && inode != "4711") {
				t.Errorf("inode %q, %v; want a match: %v", inode, ok, c.matches)
			}
		})
	}
}
