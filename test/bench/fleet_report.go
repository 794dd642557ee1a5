package main

import (
	"fmt"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/clusterset"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/test/fleet"
)

func (f Fleet) onCloudMap() bool { return f.Registry == clusterset.CloudMap }

func (f Fleet) mostMemory() float64 {
	return max(f.Cold.Top, f.Steady.Top, f.Rollout.Top, f.Restart.Top, f.RestartAll.Top, f.Outage.Top)
}

func (f Fleet) coldRatio() float64 { return f.ColdMS / f.ObjectsMS }

// readsOfAccount are the reads a second of all clusters, if each reads as the measured one.
func (f Fleet) readsOfAccount(l fleet.Load) float64 {
	return float64(l.Calls["DiscoverInstances"]) / l.Seconds * float64(f.Clusters)
}

// writesOfAccount are the heartbeats a second of all clusters.
func (f Fleet) writesOfAccount() float64 { return float64(f.Clusters) / f.HeartbeatSeconds }

// fleetRow is a row of the table; "" is no value on this registry.
type fleetRow struct {
	name  string
	value func(Fleet) string
}

var fleetRows = []fleetRow{
	{"exports; imported ones, of services", func(f Fleet) string {
		return fmt.Sprintf("%d; %d, %d", (f.Clusters-1)*fleet.ServicesPerCluster, f.Exports, f.Services)
	}},
	{"heartbeat interval, s", func(f Fleet) string { return fmt.Sprintf("%.0f", f.HeartbeatSeconds) }},
	{"**propagation**, p50, p99, ms", func(f Fleet) string { return fmt.Sprintf("%.0f, %.0f", f.Propagation.P50, f.Propagation.P99) }},
	{"**nothing changes**: CPU, % of a core", func(f Fleet) string { return fmt.Sprintf("%.1f", f.Steady.CPUPercent()) }},
	{"memory, MiB", func(f Fleet) string { return fmt.Sprintf("%.0f", f.Steady.RSS) }},
	{"requests a minute", func(f Fleet) string { return counted(f.Steady, "%.1f", f.Steady.CallsPerMinute()) }},
	{"read, MB a minute", func(f Fleet) string {
		return counted(f.Steady, "%.1f", f.Steady.PerMinute(float64(f.Steady.Bytes)/1e6))
	}},
	{"reads a second of all (quota 1,000)", func(f Fleet) string { return f.cloudMapOnly(f.readsOfAccount(f.Steady)) }},
	{"writes a second of all (50)", func(f Fleet) string { return f.cloudMapOnly(f.writesOfAccount()) }},
	{"**rollout** of a service of each member, s", func(f Fleet) string { return fmt.Sprintf("%.0f", f.Rollout.Seconds) }},
	{"reads a second of all (quota 1,000)", func(f Fleet) string { return f.cloudMapOnly(f.readsOfAccount(f.Rollout)) }},
	{"CPU, % of a core; most memory, MiB", func(f Fleet) string { return fmt.Sprintf("%.1f; %.0f", f.Rollout.CPUPercent(), f.Rollout.Top) }},
	{"**cold start** until all is imported, s", func(f Fleet) string { return fmt.Sprintf("%.1f", f.ColdMS/1000) }},
	{"objects alone, s; ratio", func(f Fleet) string { return fmt.Sprintf("%.1f; %.2f", f.ObjectsMS/1000, f.coldRatio()) }},
	{"CPU, s; most memory, MiB", func(f Fleet) string { return fmt.Sprintf("%.1f; %.0f", f.Cold.CPU, f.Cold.Top) }},
	{"**restart** until a change is imported, s", func(f Fleet) string { return fmt.Sprintf("%.1f", f.RestartMS/1000) }},
	{"**restart of all** until changes are imported, s", ofRestartAll(func(f Fleet) string { return fmt.Sprintf("%.1f", f.RestartAllMS/1000) })},
	{"**outage** of 10 minutes: a change is imported after it, s", func(f Fleet) string { return fmt.Sprintf("%.1f", f.OutageMS/1000) }},
}

// counted is "" if the requests were not counted.
func counted(l fleet.Load, format string, value float64) string {
	if l.Calls == nil {
		return ""
	}
	return fmt.Sprintf(format, value)
}

// ofRestartAll returns value, and "" for fleets that have not restarted.
func ofRestartAll(value func(Fleet) string) func(Fleet) string {
	return func(f Fleet) string {
		if f.RestartAllChanges == 0 {
			return ""
		}
		return value(f)
	}
}

func (f Fleet) cloudMapOnly(value float64) string {
	if !f.onCloudMap() {
		return ""
	}
	return fmt.Sprintf("%.0f", value)
}

func (r *Results) fleetTables(p *page) {
	p.linef("## One controller in a fleet\n")
	p.linef("The shipped program on an API server without nodes, in a clusterset of as many clusters, each with %d services of %d endpoints in namespaces whose sizes follow a power law.\n", fleet.ServicesPerCluster, fleet.EndpointsPerService)
	p.linef("- Ten clusters export each service. The measured cluster has a tenth of the namespaces, and does not probe paths.")
	p.linef("- Cloud Map is cloudmap-local with AWS's quotas and a consistency delay of 500 ms.")
	p.linef("- The heartbeat interval is longer where 12 s would make more than 25 writes a second of an account.")
	p.linef("- When all restart, up to twenty members have changed a service. On Cloud Map reads above 1,000 a second of all clusters are refused; on etcd all clusters share two cores.\n")
	p.linef("![memory, CPU, reads and propagation over the number of clusters](fleet.svg)\n")
	r.fleetTable(p)
	r.source(p, "fleet")
}

// fleetText returns the table of the section fleet.
func (r *Results) fleetText() string {
	p := &page{}
	r.fleetTable(p)
	return p.String()
}

func (r *Results) fleetTable(p *page) {
	head, line := "| clusters |", "| --- |"
	for _, f := range r.Fleet {
		head, line = head+fmt.Sprintf(" %s, %d |", f.Registry, f.Clusters), line+" ---: |"
	}
	p.linef("%s\n%s", head, line)
	for _, row := range fleetRows {
		text := "| " + row.name + " |"
		for _, f := range r.Fleet {
			text += " " + row.value(f) + " |"
		}
		p.linef("%s", text)
	}
	p.linef("")
}
