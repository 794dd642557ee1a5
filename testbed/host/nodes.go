package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/testbed/cluster"
)

// Process identifies a running process uniquely: PIDs are reused, a PID with its start time is not.
type Process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"`
}

// Alive reports whether the process still runs.
func (p Process) Alive() bool {
	start, err := startTime(p.PID)
	return err == nil && start == p.Start
}

// startTime returns the 22nd field of /proc/PID/stat; the second one is in parentheses and may
// contain anything. Zombies do not count as processes.
func startTime(pid int) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", errors.New("ended")
	}
	return fields[19], nil
}

// StartNode starts program as the first process of a node, in namespaces of its own, connects its
// network, and sends it the specification. The node outlives the caller. If anything fails nothing
// is left running.
func StartNode(program, switchFile, port string, spec cluster.NodeSpec) (Process, error) {
	log, err := os.Create(filepath.Join(spec.LogDir, "node.log"))
	if err != nil {
		return Process{}, fmt.Errorf("opening the node's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(program)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return Process{}, fmt.Errorf("preparing node %s: %w", spec.Hostname, err)
	}
	if err := cmd.Start(); err != nil {
		return Process{}, fmt.Errorf("starting node %s: %w", spec.Hostname, err)
	}
	process, err := setUpNode(cmd.Process.Pid, switchFile, port, spec)
	if err == nil {
		err = json.NewEncoder(in).Encode(spec)
	}
	if err != nil {
		return Process{}, errors.Join(fmt.Errorf("setting up node %s: %w", spec.Hostname, err), cmd.Process.Kill(), cmd.Wait())
	}
	// should the node end before the caller does, it leaves no zombie
	go func() { _ = cmd.Wait() }()
	return process, in.Close()
}

func setUpNode(pid int, switchFile, port string, spec cluster.NodeSpec) (Process, error) {
	start, err := startTime(pid)
	if err != nil {
		return Process{}, fmt.Errorf("finding its process: %w", err)
	}
	if err := JoinCgroup(spec.Hostname, pid); err != nil {
		return Process{}, err
	}
	return Process{PID: pid, Start: start}, ConnectNode(switchFile, port, pid)
}

// Clean removes every trace of a testbed from the machine: processes, network, cgroups. It needs no
// knowledge of how the testbed was made or how it ended, and doing it twice is not an error.
func Clean(switchFile string) error {
	if err := killAll(); err != nil {
		return err
	}
	if err := removeNetwork(switchFile); err != nil {
		return err
	}
	if err := waitGone("cgroups", 10*time.Second, removeCgroups); err != nil {
		return err
	}
	// The namespaces' interfaces are destroyed in the background.
	return waitGone("interface "+HostLink, 10*time.Second, func() (bool, error) {
		_, err := os.Stat(filepath.Join("/sys/class/net", HostLink))
		return errors.Is(err, fs.ErrNotExist), nil
	})
}

// killAll kills until nothing is left: a killed first process takes its whole node with it.
func killAll() error {
	return waitGone("processes", 20*time.Second, func() (bool, error) {
		pids, err := processes()
		if err != nil {
			return false, err
		}
		left := 0
		for _, pid := range pids {
			if _, err := startTime(pid); err != nil {
				continue // ended, and not reaped yet
			}
			left++
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return false, fmt.Errorf("killing process %d: %w", pid, err)
			}
		}
		return left == 0, nil
	})
}

func removeCgroups() (bool, error) {
	dirs, err := cgroups()
	if err != nil {
		return false, err
	}
	for _, dir := range dirs {
		err := unix.Rmdir(dir)
		if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
	}
	return len(dirs) == 0, nil
}

// Leftovers lists the resources of a testbed on the machine; after Clean there are none.
func Leftovers(stateDir string) ([]string, error) {
	var out []string
	pids, err := processes()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		out = append(out, fmt.Sprintf("process %d", pid))
	}
	dirs, err := cgroups()
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		out = append(out, "cgroup "+dir)
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", HostLink)); err == nil {
		out = append(out, "interface "+HostLink)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], stateDir+"/") {
			out = append(out, "mount "+fields[4])
		}
	}
	return out, nil
}
