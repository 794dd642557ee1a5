package main

import (
	"bytes"
	"encoding/json"

	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/docs"
	"github.com/cloud-map-mcs/cloud-map-mcs-controller/internal/names"
)

// panel is a panel of the dashboard. A query is PromQL and the pattern of its legend.
type panel struct {
	title, description, unit string
	stat                     bool // a number instead of a graph
	queries                  [][2]string
}

// replicas selects the replicas of the controller by the variable job. Panels take the maximum:
// standby replicas have no series.
const replicas = `{job=~"$job"}`

// rows are the rows of the dashboard. The description of each panel states the normal values.
var rows = []struct {
	title  string
	panels []panel
}{
	{"Clusterset", []panel{
		{title: "Working replica", stat: true, description: "1 when a replica works and its cluster is a member of a clusterset. Alert: CloudMapMCSNotMember.",
			queries: [][2]string{{`max(cloud_map_mcs_member` + replicas + `)`, "member"}}},
		{title: "Clusters by state", description: "All clusters of the clusterset as this one sees them. For other states than ok, run kubectl mcs status.",
			queries: [][2]string{{`max by (state) (cloud_map_mcs_registry_members` + replicas + `)`, "{{state}}"}, {`max by (member) (cloud_map_mcs_member_stale` + replicas + `) == 1`, "stale: {{member}}"}, {`max by (member) (cloud_map_mcs_member_drained_ratio` + replicas + `) > 0`, "drained: {{member}}"}, {`max by (member) (cloud_map_mcs_member_unreachable` + replicas + `) == 1`, "unreachable: {{member}}"}}},
		{title: "Exports by state", description: "ServiceExports of this cluster. Pending normally lasts less than a second; failed needs an action; conflict counts exports that differ from an older one.",
			queries: [][2]string{{`max by (state) (cloud_map_mcs_exports` + replicas + `)`, "{{state}}"}, {`max(cloud_map_mcs_exports_in_conflict` + replicas + `)`, "conflict"}}},
		{title: "Imports and endpoints", description: "ServiceImports here, and endpoints in imported EndpointSlices by source cluster.",
			queries: [][2]string{{`max(cloud_map_mcs_imports` + replicas + `)`, "imports"}, {`max by (source_cluster) (cloud_map_mcs_imported_endpoints` + replicas + `)`, "endpoints of {{source_cluster}}"}}},
		{title: "Path probes", unit: "ops", description: "Connections per second that test the path to the pods of other clusters. While endpoints are never reached, a NetworkPolicy may block them. The fault is here when most clusters are unreachable. Alert: CloudMapMCSMemberUnreachable.",
			queries: [][2]string{{`sum by (target, result) (rate(cloud_map_mcs_path_probes_total` + replicas + `[$__rate_interval]))`, "{{target}} {{result}}"}, {`max(cloud_map_mcs_paths_fault_here` + replicas + `)`, "fault here"}}},
		{title: "DNS", description: "1 while the cluster's DNS serves clusterset.local to the controller's pod, else 0. Alert: CloudMapMCSDNSNotServed.",
			queries: [][2]string{{`max(cloud_map_mcs_dns_served` + replicas + `)`, "served"}}},
		{title: "Versions", stat: true, description: "Replicas by version of the controller: two versions only during an upgrade.",
			queries: [][2]string{{`count by (version) (cloud_map_mcs_build_info` + replicas + `)`, "{{version}}"}}},
	}},
	{"Propagation", []panel{
		{title: "Propagation, p50", unit: "s", description: "Time from a change in the source cluster to the EndpointSlice here, measured with the clocks of both clusters.",
			queries: [][2]string{{`histogram_quantile(0.5, sum by (source_cluster, le) (rate(cloud_map_mcs_propagation_seconds_bucket` + replicas + `[$__rate_interval])))`, "{{source_cluster}}"}}},
		{title: "Propagation, p99", unit: "s", description: "The same for the slowest of 100 changes. Alert: CloudMapMCSPropagationSlow.",
			queries: [][2]string{{`histogram_quantile(0.99, sum by (source_cluster, le) (rate(cloud_map_mcs_propagation_seconds_bucket` + replicas + `[$__rate_interval])))`, "{{source_cluster}}"}}},
		{title: "Imported changes", unit: "ops", description: "Imported changes per second by source cluster, and notifications that a service may have changed.",
			queries: [][2]string{{`sum by (source_cluster) (rate(cloud_map_mcs_propagation_seconds_count` + replicas + `[$__rate_interval]))`, "{{source_cluster}}"}, {`sum by (registry) (rate(cloud_map_mcs_registry_notifications_total` + replicas + `[$__rate_interval]))`, "notifications of {{registry}}"}}},
		{title: "Changes of cluster selection", unit: "ops", description: "Imports per second that other clusters serve than before because of cluster selectors, by what decides since then.",
			queries: [][2]string{{`sum by (reason) (rate(cloud_map_mcs_cluster_selection_changes_total` + replicas + `[$__rate_interval]))`, "{{reason}}"}}},
	}},
	{"Registry", []panel{
		{title: "Registry up", description: "1 while reading and writing work, else 0. While 0, imports stay as they are. Alerts: CloudMapMCSRegistryUnreadable and CloudMapMCSRegistryUnwritable.",
			queries: [][2]string{{`min by (direction) (cloud_map_mcs_registry_up` + replicas + `)`, "{{direction}}"}}},
		{title: "Requests by result", unit: "reqps", description: "Requests to the registry's backend. In steady state, only polls and heartbeats.",
			queries: [][2]string{{`sum by (registry, result) (rate(cloud_map_mcs_registry_requests_total` + replicas + `[$__rate_interval]))`, "{{registry}} {{result}}"}}},
		{title: "Requests by operation", unit: "reqps", description: "The same by operation; " + docs.URL("cost.md") + " has their cost.",
			queries: [][2]string{{`sum by (registry, operation) (rate(cloud_map_mcs_registry_requests_total` + replicas + `[$__rate_interval]))`, "{{registry}} {{operation}}"}}},
		{title: "Allowed and used rate", description: "Used part of the rate limit of each operation. The limit falls when AWS throttles, and rises again by itself.",
			unit: "percentunit", queries: [][2]string{{`sum by (registry, operation) (rate(cloud_map_mcs_registry_requests_total` + replicas + `[$__rate_interval])) / on (registry, operation) max by (registry, operation) (cloud_map_mcs_registry_request_limit` + replicas + `)`, "{{registry}} {{operation}}"}}},
		{title: "Request duration, p99", unit: "s", description: "Duration of requests, without waiting for the rate limiter.",
			queries: [][2]string{{`histogram_quantile(0.99, sum by (operation, le) (rate(cloud_map_mcs_registry_request_duration_seconds_bucket` + replicas + `[$__rate_interval])))`, "{{operation}}"}}},
		{title: "Publications and withdrawals", unit: "ops", description: "Calls of the export reconciler, by result.",
			queries: [][2]string{{`sum by (operation, result) (rate(cloud_map_mcs_registry_changes_total` + replicas + `[$__rate_interval]))`, "{{operation}} {{result}}"}}},
		{title: "Refused records", description: "Records in the last hour that their clusters have not signed, and clusters whose records are refused now. Normally 0. Alert: CloudMapMCSRecordsRefused.",
			queries: [][2]string{
				{`sum by (registry) (increase(cloud_map_mcs_registry_records_refused_total` + replicas + `[1h]))`, "{{registry}}"},
				{`max(cloud_map_mcs_members_refused` + replicas + `)`, "clusters now"},
			}},
		{title: "Changes of keys", description: "Changes of the keys of other clusters in the last day, by reason. No administrator has confirmed those by the registry, after a farewell or after forget. Alert: CloudMapMCSKeyChanged.",
			queries: [][2]string{{`sum by (reason) (increase(cloud_map_mcs_registry_key_changes_total` + replicas + `[1d]))`, "{{reason}}"}}},
		{title: "Mapped services", description: "Services of AWS Cloud Map that --cloud-map-services maps, by state. For other states than ok, run kubectl mcs status.",
			queries: [][2]string{{`max by (state) (cloud_map_mcs_mapped_services` + replicas + `)`, "{{state}}"}}},
		{title: "Poll interval", unit: "s", description: "Long while peer notifications of all clusters arrive, short otherwise.",
			queries: [][2]string{{`max by (registry) (cloud_map_mcs_registry_poll_interval_seconds` + replicas + `)`, "{{registry}}"}}},
		{title: "Peer notifications", unit: "ops", description: "Peer notifications sent and received per second, by result. Results other than ok are dropped.",
			queries: [][2]string{{`sum by (direction, result) (rate(cloud_map_mcs_registry_peer_notifications_total` + replicas + `[$__rate_interval]))`, "{{direction}} {{result}}"}}},
	}},
	{"Capacity", []panel{
		{title: "Used limits", unit: "percentunit", description: "Used part of the registry's limits. Above 100 % new exports fail. Alert above 80 %: CloudMapMCSNearLimit.",
			queries: [][2]string{{`max by (registry, limit) (cloud_map_mcs_registry_limit_used_ratio` + replicas + `)`, "{{registry}} {{limit}}"}}},
		{title: "Used budgets", unit: "percentunit", description: "Used part of the budgets for the exports of the other clusters: of the cluster that uses most (member), and of all together (total). Above 100 % exports are not imported. Alert above 80 %: CloudMapMCSNearBudget.",
			queries: [][2]string{{`max by (scope, kind) (cloud_map_mcs_budget_used` + replicas + `) / max by (scope, kind) (cloud_map_mcs_budget_limit` + replicas + `)`, "{{scope}} {{kind}}"}}},
		{title: "Exports over budget", description: "Exports of other clusters that exceed a budget, so that they are not imported, or an earlier version of them is, and imports that wait. Normally 0.",
			queries: [][2]string{{`max(cloud_map_mcs_budget_excess_exports` + replicas + `)`, "exports"}, {`max(cloud_map_mcs_budget_excess_imports` + replicas + `)`, "imports"}}},
		{title: "Stored objects", description: "Objects of this cluster in the registry.",
			queries: [][2]string{{`max by (registry, kind) (cloud_map_mcs_registry_objects` + replicas + `)`, "{{registry}} {{kind}}"}}},
		{title: "Waiting to be written", description: "Queued writes to the registry. Normally empty within a second, after a start within a minute. Alert: CloudMapMCSQueueStuck.",
			queries: [][2]string{{`max by (registry, kind) (cloud_map_mcs_registry_pending` + replicas + `)`, "{{registry}} {{kind}}"}}},
		{title: "Endpoints without an instance", description: "Endpoints that the instance view cannot show, by reason. Imports are not affected.",
			queries: [][2]string{{`max by (registry, reason) (cloud_map_mcs_registry_omitted_instances` + replicas + `)`, "{{reason}}"}}},
	}},
	{"Controller", []panel{
		{title: "Workqueue depth", description: "Objects in the work queues.",
			queries: [][2]string{{`sum by (name) (workqueue_depth` + replicas + `)`, "{{name}}"}}},
		{title: "Reconcile errors", unit: "ops", description: "Failed reconciles per second; each is retried. Alert: CloudMapMCSReconcileErrors.",
			queries: [][2]string{{`sum by (controller) (rate(controller_runtime_reconcile_errors_total` + replicas + `[$__rate_interval]))`, "{{controller}}"}}},
		{title: "Reconcile duration, p99", unit: "s", description: "Duration of a reconcile.",
			queries: [][2]string{{`histogram_quantile(0.99, sum by (controller, le) (rate(controller_runtime_reconcile_time_seconds_bucket` + replicas + `[$__rate_interval])))`, "{{controller}}"}}},
		{title: "Memory", unit: "bytes", description: "Resident memory of each replica.",
			queries: [][2]string{{`process_resident_memory_bytes` + replicas, "{{pod}}"}}},
		{title: "CPU", unit: "short", description: "CPU cores used by each replica.",
			queries: [][2]string{{`rate(process_cpu_seconds_total` + replicas + `[$__rate_interval])`, "{{pod}}"}}},
	}},
}

const (
	gridWidth    = 24 // columns of Grafana's grid
	panelsPerRow = 4
)

// dashboard returns the Grafana dashboard.
func dashboard() ([]byte, error) {
	var panels []any
	y := 0
	grid := func(x, h, w int) map[string]int { return map[string]int{"x": x, "y": y, "h": h, "w": w} }
	datasource := map[string]string{"type": "prometheus", "uid": "$datasource"}
	for _, row := range rows {
		panels = append(panels, map[string]any{"type": "row", "title": row.title, "id": len(panels) + 1, "gridPos": grid(0, 1, gridWidth), "panels": []any{}})
		y++
		for i, p := range row.panels {
			kind := "timeseries"
			if p.stat {
				kind = "stat"
			}
			var targets []any
			for j, q := range p.queries {
				targets = append(targets, map[string]any{"refId": string(rune('A' + j)), "expr": q[0], "legendFormat": q[1], "datasource": datasource})
			}
			panels = append(panels, map[string]any{
				"type": kind, "title": p.title, "description": p.description, "id": len(panels) + 1, "datasource": datasource,
				"gridPos": grid(i%panelsPerRow*gridWidth/panelsPerRow, 8, gridWidth/panelsPerRow), "targets": targets,
				"fieldConfig": map[string]any{"defaults": map[string]any{"unit": p.unit, "min": 0}, "overrides": []any{}},
				"options":     map[string]any{},
			})
			if i%panelsPerRow == panelsPerRow-1 || i == len(row.panels)-1 {
				y += 8
			}
		}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(map[string]any{
		"title": "Cloud Map MCS Controller", "uid": names.Product, "tags": []string{"kubernetes", "multi-cluster"},
		"description":   "Alerts and their runbooks: " + docs.URL("runbooks/README.md"),
		"schemaVersion": 39, "editable": true, "refresh": "30s", "time": map[string]string{"from": "now-3h", "to": "now"},
		"templating": map[string]any{"list": []any{
			map[string]any{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
			map[string]any{
				"name": "job", "label": "Job", "type": "query", "datasource": datasource, "refresh": 2, "includeAll": true, "allValue": ".*",
				"query": "label_values(cloud_map_mcs_member, job)", "current": map[string]string{"text": "All", "value": "$__all"},
			},
		}},
		"panels": panels,
	})
	return text.Bytes(), err
}
