package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
)

// private are the directories where the node's programs keep state. They are empty in-memory file
// systems in the node: nodes do not see each other's state nor the host's, and it vanishes with
// them.
var private = []string{"/run", "/var/lib", "/var/log"}

func mountAll(spec cluster.NodeSpec) error {
	// Nothing the node mounts may appear on the host.
	if err := mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE); err != nil {
		return err
	}
	if err := mountKernel(); err != nil {
		return err
	}
	if err := mountPrivate(spec.Visible); err != nil {
		return err
	}
	// Pods with mount propagation expect a shared tree; it is shared within this node only.
	if err := mount("none", "/", "", unix.MS_REC|unix.MS_SHARED); err != nil {
		return err
	}
	return shadowSysctls(spec.Shadowed)
}

// mountKernel replaces /proc and /sys, which show the PID and network namespace they were mounted
// in. A new /sys has no cgroups below it, so the cgroup mounts are saved and restored.
func mountKernel() error {
	cgroups, err := unix.OpenTree(unix.AT_FDCWD, "/sys/fs/cgroup", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("setting the cgroups aside: %w", err)
	}
	defer unix.Close(cgroups)
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil {
		return err
	}
	if err := mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC); err != nil {
		return err
	}
	if err := unix.MoveMount(cgroups, "", unix.AT_FDCWD, "/sys/fs/cgroup", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("putting the cgroups back: %w", err)
	}
	return nil
}

// mountPrivate hides the private directories and then shows the visible ones again, wherever they
// were.
func mountPrivate(visible []string) error {
	visible = slices.Compact(slices.Sorted(slices.Values(visible)))
	held := map[string]int{}
	for _, dir := range visible {
		fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return fmt.Errorf("holding %s: %w", dir, err)
		}
		defer unix.Close(fd)
		held[dir] = fd
	}
	for _, dir := range private {
		if err := mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV); err != nil {
			return err
		}
	}
	for _, dir := range visible {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.MoveMount(held[dir], "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("showing %s: %w", dir, err)
		}
	}
	return nil
}

func shadowSysctls(values map[string]string) error {
	const dir = "/run/testbed/sysctl"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	i := 0
	for name, value := range values {
		file := filepath.Join(dir, strconv.Itoa(i))
		i++
		if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
			return err
		}
		err := mount(file, filepath.Join("/proc/sys", name), "", unix.MS_BIND)
		if err != nil && !errors.Is(err, unix.ENOENT) { // kernels without keyrings lack two of them
			return err
		}
	}
	return nil
}

func mount(source, target, fsType string, flags uintptr) error {
	if err := unix.Mount(source, target, fsType, flags, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", target, err)
	}
	return nil
}
