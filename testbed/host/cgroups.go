// Package host manages the resources of the machine for a testbed: cgroups, the network between
// nodes, and the nodes' processes. All of them can be found and removed without stored state.
package host

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cgroupBase is the cgroup that all cgroups of the testbed are below of.
const cgroupBase = "cloud-map-mcs-testbed"

// HostCgroup is the name of the cgroup of processes on the host, beside those of the nodes.
const HostCgroup = "host"

// daemons is the leaf below a node's cgroup for everything that is not in a Pod. It has to be a
// leaf: with cgroup v2 a cgroup that hands controllers down (to the Pods) may not hold processes
// itself.
const daemons = "daemons"

// wantedControllers are the controllers by which the kubelet limits or measures Pods.
var wantedControllers = []string{"cpu", "cpuset", "io", "memory", "pids", "hugetlb"}

// cgroupRoot is the path of cgroups for the kubelet and runc: either the unified hierarchy itself
// (version 2), or directories where the hierarchies of version 1 are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// hierarchy is one mounted cgroup tree.
type hierarchy struct {
	Path string
	// Unified: this is version 2 and has the controllers. Machines with version 1 may mount version
	// 2 besides, without controllers ("hybrid"): that is not it.
	Unified bool
	// CPUSet is a version 1 hierarchy whose new cgroups accept no process until they are given CPUs
	// and memory nodes.
	CPUSet bool
}

// hierarchies reads the cgroup mounts from the text of /proc/self/mountinfo.
func hierarchies(mountinfo string) []hierarchy {
	var out []hierarchy
	for line := range strings.Lines(mountinfo) {
		mount, super, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(mount), strings.Fields(super)
		if !ok || len(left) < 5 || len(right) < 3 || !strings.HasPrefix(right[0], "cgroup") || !strings.HasPrefix(left[4], cgroupRoot) {
			continue
		}
		h := hierarchy{
			Path:    left[4],
			Unified: right[0] == "cgroup2" && left[4] == cgroupRoot,
			CPUSet:  right[0] == "cgroup" && slices.Contains(strings.Split(right[2], ","), "cpuset"),
		}
		if !slices.ContainsFunc(out, func(o hierarchy) bool { return o.Path == h.Path }) {
			out = append(out, h)
		}
	}
	return out
}

// cgroupStep is one thing to do to make a cgroup: create Dir; if CopyFrom is set, give Dir/File
// that file's text; and if Text is set, write it to Dir/File.
type cgroupStep struct{ Dir, File, CopyFrom, Text string }

// cgroupPlan is how to make a node's cgroup in every hierarchy, and where its first process is to
// be entered.
type cgroupPlan struct {
	Steps []cgroupStep
	Join  []string
}

// planCgroup plans the cgroup of a node. available are the controllers of the unified hierarchy, if
// there is one.
func planCgroup(mounted []hierarchy, available []string, node string) (cgroupPlan, error) {
	if len(mounted) == 0 {
		return cgroupPlan{}, errors.New("no cgroups are mounted at " + cgroupRoot + ": the kubelet cannot run without")
	}
	var plan cgroupPlan
	for _, h := range mounted {
		base := filepath.Join(h.Path, cgroupBase)
		own := filepath.Join(base, node)
		leaf := filepath.Join(own, daemons)
		if h.Unified {
			plan.handDown(h.Path, available)
		}
		for _, dir := range []string{base, own, leaf} {
			plan.Steps = append(plan.Steps, cgroupStep{Dir: dir})
			if h.CPUSet {
				plan.copyCPUSet(dir)
			}
			if h.Unified && dir != leaf {
				plan.handDown(dir, available)
			}
		}
		plan.Join = append(plan.Join, filepath.Join(leaf, "cgroup.procs"))
	}
	return plan, nil
}

// handDown makes the wanted controllers of a version 2 cgroup available to its children.
func (p *cgroupPlan) handDown(dir string, available []string) {
	var controllers []string
	for _, c := range wantedControllers {
		if slices.Contains(available, c) {
			controllers = append(controllers, "+"+c)
		}
	}
	if len(controllers) > 0 {
		p.Steps = append(p.Steps, cgroupStep{Dir: dir, File: "cgroup.subtree_control", Text: strings.Join(controllers, " ")})
	}
}

func (p *cgroupPlan) copyCPUSet(dir string) {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		p.Steps = append(p.Steps, cgroupStep{Dir: dir, File: file, CopyFrom: filepath.Join(filepath.Dir(dir), file)})
	}
}

func (s cgroupStep) do() error {
	text := s.Text
	if s.CopyFrom != "" {
		b, err := os.ReadFile(s.CopyFrom)
		if err != nil {
			return err
		}
		text = string(b)
	}
	if s.File == "" {
		return os.MkdirAll(s.Dir, 0o755)
	}
	return os.WriteFile(filepath.Join(s.Dir, s.File), []byte(text), 0o644)
}

// CgroupPath returns the path of a node's cgroup below each hierarchy's root.
func CgroupPath(node string) string { return "/" + cgroupBase + "/" + node }

// JoinCgroup creates the cgroup of a node (or HostCgroup) and moves the process into it, and
// thereby all its future children.
func JoinCgroup(node string, pid int) error {
	mounted, err := mountedHierarchies()
	if err != nil {
		return err
	}
	available, err := unifiedControllers(mounted)
	if err != nil {
		return err
	}
	plan, err := planCgroup(mounted, available, node)
	if err != nil {
		return err
	}
	for _, s := range plan.Steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("creating the cgroup of %s: %w", node, err)
		}
	}
	for _, file := range plan.Join {
		if err := os.WriteFile(file, []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("moving process %d into the cgroup of %s: %w", pid, node, err)
		}
	}
	return nil
}

func mountedHierarchies() ([]hierarchy, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("finding the cgroups: %w", err)
	}
	return hierarchies(string(text)), nil
}

// unifiedControllers returns the controllers of the unified hierarchy; none if there is no such
// hierarchy.
func unifiedControllers(mounted []hierarchy) ([]string, error) {
	i := slices.IndexFunc(mounted, func(h hierarchy) bool { return h.Unified })
	if i < 0 {
		return nil, nil
	}
	text, err := os.ReadFile(filepath.Join(mounted[i].Path, "cgroup.controllers"))
	if err != nil {
		return nil, fmt.Errorf("listing the cgroup controllers: %w", err)
	}
	return strings.Fields(string(text)), nil
}

// cgroups lists the testbed's cgroups, children before their parents.
func cgroups() ([]string, error) {
	mounted, err := mountedHierarchies()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, h := range mounted {
		err := filepath.WalkDir(filepath.Join(h.Path, cgroupBase), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // never created, or removed in the meantime
			}
			if err == nil && entry.IsDir() {
				out = append(out, path)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("listing cgroups: %w", err)
		}
	}
	slices.Reverse(out)
	return out, nil
}

// processes lists the processes in the testbed's cgroups: everything that runs in any node.
func processes() ([]int, error) {
	dirs, err := cgroups()
	if err != nil {
		return nil, err
	}
	var out []int
	for _, dir := range dirs {
		f, err := os.Open(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue // gone in the meantime
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if pid, err := strconv.Atoi(lines.Text()); err == nil && pid > 0 {
				out = append(out, pid)
			}
		}
		f.Close()
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
