package host

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	// A laptop with systemd of today.
	mountinfoV2 = `22 27 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw
30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
99 23 0:26 / /var/lib/lxcfs/cgroup rw,relatime - cgroup2 cgroup2 rw
`
	// A small virtual machine without systemd.
	mountinfoV1 = `33 1 0:29 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 33 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 33 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
36 33 0:32 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
37 33 0:33 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
)

func TestHierarchies(t *testing.T) {
	tests := []struct {
		name, mountinfo string
		want            []hierarchy
	}{
		{"none", "22 27 0:21 / /proc rw - proc proc rw\n", nil},
		{"unified", mountinfoV2, []hierarchy{{Path: "/sys/fs/cgroup", Unified: true}}},
		{"version 1, hybrid", mountinfoV1, []hierarchy{
			{Path: "/sys/fs/cgroup/cpu"},
			{Path: "/sys/fs/cgroup/cpuset", CPUSet: true},
			{Path: "/sys/fs/cgroup/systemd"},
			{Path: "/sys/fs/cgroup/unified"},
		}},
		{"mounted twice", mountinfoV1 + "88 1 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", []hierarchy{
			{Path: "/sys/fs/cgroup/cpu"},
			{Path: "/sys/fs/cgroup/cpuset", CPUSet: true},
			{Path: "/sys/fs/cgroup/systemd"},
			{Path: "/sys/fs/cgroup/unified"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, hierarchies(tt.mountinfo)); diff != "" {
				t.Errorf("hierarchies (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanCgroup(t *testing.T) {
	tests := []struct {
		name      string
		mounted   []hierarchy
		available []string
		want      cgroupPlan
	}{
		{
			name:      "unified: controllers are handed down to the Pods, and processes live in a leaf",
			mounted:   []hierarchy{{Path: "/sys/fs/cgroup", Unified: true}},
			available: []string{"cpuset", "cpu", "io", "memory", "pids", "rdma"},
			want: cgroupPlan{
				Steps: []cgroupStep{
					{Dir: "/sys/fs/cgroup", File: "cgroup.subtree_control", Text: "+cpu +cpuset +io +memory +pids"},
					{Dir: "/sys/fs/cgroup/cloud-map-mcs-testbed"},
					{Dir: "/sys/fs/cgroup/cloud-map-mcs-testbed", File: "cgroup.subtree_control", Text: "+cpu +cpuset +io +memory +pids"},
					{Dir: "/sys/fs/cgroup/cloud-map-mcs-testbed/n1"},
					{Dir: "/sys/fs/cgroup/cloud-map-mcs-testbed/n1", File: "cgroup.subtree_control", Text: "+cpu +cpuset +io +memory +pids"},
					{Dir: "/sys/fs/cgroup/cloud-map-mcs-testbed/n1/daemons"},
				},
				Join: []string{"/sys/fs/cgroup/cloud-map-mcs-testbed/n1/daemons/cgroup.procs"},
			},
		},
		{
			name:    "version 1: one cgroup in each hierarchy, with CPUs where processes need them",
			mounted: []hierarchy{{Path: "/cg/memory"}, {Path: "/cg/cpuset", CPUSet: true}},
			want: cgroupPlan{
				Steps: []cgroupStep{
					{Dir: "/cg/memory/cloud-map-mcs-testbed"},
					{Dir: "/cg/memory/cloud-map-mcs-testbed/n1"},
					{Dir: "/cg/memory/cloud-map-mcs-testbed/n1/daemons"},
					{Dir: "/cg/cpuset/cloud-map-mcs-testbed"},
					{Dir: "/cg/cpuset/cloud-map-mcs-testbed", File: "cpuset.cpus", CopyFrom: "/cg/cpuset/cpuset.cpus"},
					{Dir: "/cg/cpuset/cloud-map-mcs-testbed", File: "cpuset.mems", CopyFrom: "/cg/cpuset/cpuset.mems"},
					{Dir: "/cg/cpuset/cloud-map-mcs-testbed/n1"},
					{Dir: "/cg/cpuset/cloud-map-mcs-testbed/n1", File: "cpuset.cpus", CopyFrom: "/cg/cpuset/cloud-map-mcs-testbed/cpuset.cpus"},
					{Dir: "/cg/cpuset/cloud-map-mcs-testbed/n1", File: "cpuset.mems", CopyFrom: "/cg/cpuset/cloud-map-mcs-testbed/cpuset.mems"},
					{Dir: "/cg/cpuset/cloud-map-mcs-testbed/n1/daemons"},
					{Dir: "/cg/cpuset/cloud-map-mcs-testbed/n1/daemons", File: "cpuset.cpus", CopyFrom: "/cg/cpuset/cloud-map-mcs-testbed/n1/cpuset.cpus"},
					{Dir: "/cg/cpuset/cloud-map-mcs-testbed/n1/daemons", File: "cpuset.mems", CopyFrom: "/cg/cpuset/cloud-map-mcs-testbed/n1/cpuset.mems"},
				},
				Join: []string{
					"/cg/memory/cloud-map-mcs-testbed/n1/daemons/cgroup.procs",
					"/cg/cpuset/cloud-map-mcs-testbed/n1/daemons/cgroup.procs",
				},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := planCgroup(tt.mounted, tt.available, "n1")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlanCgroupWithoutCgroups(t *testing.T) {
	if _, err := planCgroup(nil, nil, "n1"); err == nil {
		t.Error("a machine without cgroups was accepted")
	}
}

func TestNamespaceMounts(t *testing.T) {
	const mountinfo = `90 26 0:4 net:[4026532252] /run/tb/testbed-switch rw shared:44 - nsfs nsfs rw
91 26 0:4 net:[4026532253] /run/netns/other rw shared:45 - nsfs nsfs rw
92 26 0:5 / /mnt/testbed-switch rw - ext4 /dev/sda rw
`
	if diff := cmp.Diff([]string{"/run/tb/testbed-switch"}, namespaceMounts(mountinfo, SwitchName)); diff != "" {
		t.Errorf("namespaces (-want +got):\n%s", diff)
	}
}
