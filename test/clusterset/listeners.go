package clusterset

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// checkUnused returns an error if a process of this machine listens on the address (IP:PORT). The
// error names the process and the command that stops it.
func checkUnused(address string) error {
	want, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue // a kernel without IPv6
		}
		for line := range strings.Lines(string(text)) {
			if inode, ok := listenerInode(line, want); ok {
				return fmt.Errorf("another process already listens on %s, and clusters would take it for their registry: %s", address, describeOwner(inode))
			}
		}
	}
	return nil
}

// listenerInode returns the inode of the socket in a line of /proc/net/tcp if it listens on the
// address or on all addresses. The second field is the local address (bytes of the IP in host order
// of 32-bit words, then the port), the fourth is the state.
func listenerInode(line string, want netip.AddrPort) (inode string, ok bool) {
	const listening = "0A"
	fields := strings.Fields(line)
	if len(fields) < 10 || fields[3] != listening {
		return "", false
	}
	ip, port, _ := strings.Cut(fields[1], ":")
	if n, err := strconv.ParseUint(port, 16, 16); err != nil || uint16(n) != want.Port() {
		return "", false
	}
	a := want.Addr().As4()
	return fields[9], strings.Trim(ip, "0") == "" || strings.HasSuffix(ip, fmt.Sprintf("%02X%02X%02X%02X", a[3], a[2], a[1], a[0]))
}

// describeOwner names the process that has the socket open, and how to stop it.
func describeOwner(inode string) string {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return err.Error()
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != "socket:["+inode+"]" {
			continue
		}
		pid := strings.Split(link, "/")[2]
		command, _ := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
		return fmt.Sprintf("process %s (%s). Stop it with: kill -9 %s", pid, strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " ")), pid)
	}
	return "its process is not visible to this user. Run this as root (sudo) to see its process ID"
}
