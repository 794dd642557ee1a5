{{/* Names are fixed: one controller serves the cluster, and kubectl mcs, leases and IAM associations refer to these names. */}}
{{- define "manager" -}}cloud-map-mcs-controller-manager{{- end }}

{{- define "selectorLabels" -}}
app.kubernetes.io/name: cloud-map-mcs-controller
app.kubernetes.io/component: manager
{{- end }}

{{- define "labels" -}}
app.kubernetes.io/name: cloud-map-mcs-controller
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532 # makes the IRSA token readable
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Without int, Helm renders large numbers as 1e+06. */}}
{{- define "integer" -}}{{ if not (kindIs "invalid" .) }}{{ int . }}{{ end }}{{- end }}

{{/* 90 % of the memory limit, for the garbage collector; empty without a limit, with one in an unusual unit, or if extraEnv has it. */}}
{{- define "goMemLimit" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 }}
{{- $limit := dig "limits" "memory" "" (default dict .Values.resources) }}
{{- if not (kindIs "string" $limit) }}{{ $limit = toString (int64 $limit) }}{{ end }}
{{- $unit := get $units (regexFind "[A-Za-z]*$" $limit) }}
{{- range .Values.extraEnv }}{{ if eq .name "GOMEMLIMIT" }}{{ $unit = "" }}{{ end }}{{ end }}
{{- if and $limit $unit }}
{{- printf "%dMiB" (divf (mulf (regexFind "^[0-9.]+" $limit) $unit 0.9) 1048576 | int64) }}
{{- end }}
{{- end }}

{{/* The flags of all values that are set. */}}
{{- define "args" -}}
{{- $v := .Values }}
{{- $etcd := "/etc/cloud-map-mcs/etcd" }}
{{- $tls := dict }}
{{- range $key := list "ca" "cert" "key" }}
{{- $file := get $v.etcd.tls $key }}
{{- $_ := set $tls $key (ternary (printf "%s/tls/%s" $etcd $file) "" (and (ne $v.etcd.tls.secret "") (ne $file ""))) }}
{{- end }}
{{- $flags := dict
  "instance-view" (ternary "" "false" $v.instanceView)
  "poll-interval" $v.pollInterval
  "poll-interval-with-notifications" $v.pollIntervalWithNotifications
  "heartbeat-interval" $v.heartbeatInterval
  "stale-after" $v.staleAfter
  "stale-cluster-policy" $v.staleClusterPolicy
  "path-health" $v.pathHealth
  "peer-notifications" (ternary "" "false" $v.peerNotifications.enabled)
  "peer-notification-bind-address" (ternary "" (printf ":%d" (int $v.peerNotifications.port)) (eq (int $v.peerNotifications.port) 8479))
  "peer-notification-advertise-address" $v.peerNotifications.advertiseAddress
  "peer-notification-networks" (join "," $v.peerNotifications.networks)
  "aws-region" $v.aws.region
  "aws-endpoint" $v.aws.endpoint
  "aws-data-endpoint" $v.aws.dataEndpoint
  "aws-insecure" (ternary "true" "" $v.aws.insecure)
  "aws-role-arn" $v.aws.roleArn
  "aws-role-external-id" $v.aws.roleExternalId
  "aws-role-session-name" $v.aws.roleSessionName
  "aws-namespace-owner" $v.aws.namespaceOwner
  "aws-instances-per-namespace" (include "integer" $v.aws.instancesPerNamespace)
  "etcd-endpoints" (join "," $v.etcd.endpoints)
  "etcd-ca" $tls.ca
  "etcd-cert" $tls.cert
  "etcd-key" $tls.key
  "etcd-username" $v.etcd.username
  "etcd-password-file" (ternary (printf "%s/password/password" $etcd) "" (ne $v.etcd.passwordSecret ""))
  "etcd-prefix" $v.etcd.prefix
  "etcd-insecure" (ternary "true" "" $v.etcd.insecure)
  "import-from-aws-controller" (ternary "true" "" $v.migration.importFromAwsController)
  "legacy-poll-interval" $v.migration.pollInterval
  "cluster-id" (ternary "" $v.clusterId $v.clusterProperties.create)
  "clusterset-id" (ternary "" $v.clusterSetId $v.clusterProperties.create)
  "leave-after" $v.leaveAfter
  "trusted-keys" (ternary "/etc/cloud-map-mcs/trusted-keys/keys" "" (ne (len $v.trustedKeys.keys) 0))
  "trusted-keys-only" (ternary "true" "" $v.trustedKeys.only)
  "export-namespaces" $v.exportNamespaces
  "import-namespaces" $v.importNamespaces
  "import-policy" (ternary "/etc/cloud-map-mcs/import-policy/policy.yaml" "" (ne (len $v.importPolicy) 0))
  "cloud-map-services" (ternary "/etc/cloud-map-mcs/cloud-map-services/services.yaml" "" (ne (len $v.cloudMapServices) 0))
  "cloud-map-services-cluster" $v.cloudMapServicesCluster
  "import-metadata" $v.importMetadata
  "cluster-preference" $v.clusterPreference
  "instance-dns" $v.instanceDns.records
  "instance-dns-vpc" $v.instanceDns.vpc
  "instance-dns-ttl" $v.instanceDns.ttl
  "instance-dns-routing" $v.instanceDns.routing
  "unready-instances" $v.unreadyInstances
  "stale-instances" $v.staleInstances
  "export-slices" $v.exportSlices
  "auto-export-selector" $v.autoExportSelector
  "clusterset-ip-hold" $v.clusterSetIpHold
  "budget-scale" $v.budgetScale
  "metrics-secure" (ternary "" "false" $v.metrics.secure)
  "metrics-cert-dir" (ternary "/etc/cloud-map-mcs/metrics" "" (ne $v.metrics.tls.secret ""))
  "tracing-endpoint" $v.tracing.endpoint
  "tracing-insecure" (ternary "true" "" $v.tracing.insecure)
  "tracing-sampling-ratio" $v.tracing.samplingRatio
  "kube-api-qps" $v.kubeApi.qps
  "kube-api-burst" (include "integer" $v.kubeApi.burst)
  "concurrency" (include "integer" $v.concurrency)
  "log-level" $v.log.level
  "log-format" $v.log.format
-}}
- --registry={{ $v.registry }}
{{- range $flag, $value := $flags }}
{{- if and (not (kindIs "invalid" $value)) (ne (toString $value) "") }}
- {{ printf "--%s=%s" $flag (toString $value) | quote }}
{{- end }}
{{- end }}
{{- range $operation, $rate := $v.aws.rates }}
- {{ printf "--aws-rate=%s=%s" $operation $rate | quote }}
{{- end }}
{{- range $v.importFrom }}
- {{ printf "--import-from=%s" . | quote }}
{{- end }}
{{- range $v.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* Settings that the controller or Kubernetes would refuse later, or that say nothing. */}}
{{- define "check" -}}
{{- $v := .Values }}
{{- if ne (empty $v.clusterId) (empty $v.clusterSetId) }}
{{- fail "clusterId and clusterSetId belong together: set both or none" }}
{{- end }}
{{- if and (eq $v.registry "etcd") (not $v.etcd.endpoints) }}
{{- fail "registry: etcd needs etcd.endpoints, such as https://etcd-0.example.com:2379" }}
{{- end }}
{{- if ne (empty $v.etcd.username) (empty $v.etcd.passwordSecret) }}
{{- fail "etcd.username and etcd.passwordSecret belong together: set both or none" }}
{{- end }}
{{- if and (not $v.serviceAccount.create) (or $v.serviceAccount.irsaRoleArn $v.serviceAccount.annotations) }}
{{- fail "serviceAccount.irsaRoleArn and annotations are set on a ServiceAccount that the chart creates: with serviceAccount.create=false, annotate yours" }}
{{- end }}
{{- if and $v.trustedKeys.only (not $v.trustedKeys.keys) }}
{{- fail "trustedKeys.only needs trustedKeys.keys: without them no other cluster is believed" }}
{{- end }}
{{- if and $v.metrics.tls.secret (not $v.metrics.secure) }}
{{- fail "metrics.tls.secret needs metrics.secure" }}
{{- end }}
{{- if and $v.importPolicy (not (has $v.importPolicy.default (list "allow" "deny"))) }}
{{- fail "importPolicy needs importPolicy.default: allow or deny, for the clusters that it does not list" }}
{{- end }}
{{- if $v.clusterProperties.create }}
{{- if empty $v.clusterId }}
{{- fail "clusterProperties.create needs clusterId and clusterSetId" }}
{{- end }}
{{- if not (.Capabilities.APIVersions.Has "about.k8s.io/v1beta1/ClusterProperty") }}
{{- fail "clusterProperties.create: the API server does not know ClusterProperty yet. Install without it (the IDs are then passed as flags) and upgrade with it afterwards, or install the CRDs before" }}
{{- end }}
{{- end }}
{{- end }}

{{/* The line about costs that kubectl mcs install prints: package cost computes the amounts, and a test compares the lines. */}}
{{- define "cost" -}}
{{- $v := .Values }}
{{- $parts := list }}
{{- if eq $v.registry "cloudmap" }}
{{- $parts = append $parts (ternary "at most about $6.60 for records, and requests by the poll intervals" "at most about $9.25 for requests and records" (or (ne $v.pollInterval "") (ne $v.pollIntervalWithNotifications ""))) }}
{{- end }}
{{- if $v.cloudMapServices }}
{{- $parts = append $parts "at most $1.75 for mapped services ($0.53 more for each of more than 3 where ListServices has no numbers of instances)" }}
{{- end }}
{{- if $v.migration.importFromAwsController }}
{{- $parts = append $parts "$0.61 for each service that legacy clusters export" }}
{{- end }}
{{- range $v.importFrom }}
{{- if and (hasPrefix "cloudmap" .) (not (has "$2.63 for each further registry" $parts)) }}
{{- $parts = append $parts "$2.63 for each further registry" }}
{{- end }}
{{- end }}
{{- if and $v.instanceView (eq $v.registry "cloudmap") }}
{{- $parts = append $parts "$50 for each 50 exported services with 10 endpoints, which instanceView: false saves" }}
{{- end }}
{{- if $parts }}
{{- $last := last $parts }}
{{- $first := initial $parts }}
{{- printf "AWS bills each cluster per month %s (prices of 2025-08-01: %s/cost.md)" (ternary (printf "%s, and %s" (join ", " $first) $last) $last (ne (len $first) 0)) (include "docs" .) }}
{{- end }}
{{- end }}

{{/* "docs" gives the URL of the documentation of this version: a release replaces main by its tag in the files of the chart. */}}
{{- define "docs" -}}
https://github.com/cloud-map-mcs/cloud-map-mcs-controller/blob/main/docs
{{- end }}
