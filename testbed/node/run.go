// Package node is the inside of a node: the first process of its PID, mount, network, UTS and IPC
// namespaces. When that process is killed the kernel kills every other process of the node with it,
// and everything the node mounted or configured is gone.
package node

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
)

// Run reads the node's specification from in, up to its end, and is the node from then on. The host
// closes in when it has connected the node's network; if it dies before, the specification is
// incomplete and Run returns an error.
//
// Run must be called in the first process of new namespaces: it changes mounts and addresses
// without looking back.
func Run(in io.Reader) error {
	if pid := os.Getpid(); pid != 1 {
		return fmt.Errorf("running as process %d: the testbed starts this program as the first process of a node", pid)
	}
	var spec cluster.NodeSpec
	if err := json.NewDecoder(in).Decode(&spec); err != nil {
		return fmt.Errorf("reading the node's specification: %w", err)
	}
	steps := []struct {
		what string
		do   func(cluster.NodeSpec) error
	}{
		{"setting the host name", func(s cluster.NodeSpec) error { return unix.Sethostname([]byte(s.Hostname)) }},
		{"mounting the node's file systems", mountAll},
		{"setting kernel parameters", setSysctls},
		{"configuring the network", configureNetwork},
		{"writing the node's files", writeFiles},
		{"setting PATH", func(s cluster.NodeSpec) error { return os.Setenv("PATH", s.Path) }},
	}
	for _, step := range steps {
		if err := step.do(spec); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return newSupervisor(spec).run()
}

func writeFiles(spec cluster.NodeSpec) error {
	for path, text := range spec.Files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func setSysctls(spec cluster.NodeSpec) error {
	for name, value := range spec.Sysctls {
		if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}
