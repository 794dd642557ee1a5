{{/*
Cluster-wide objects that other implementations of the API, another release or kubectl may have installed before us: the CRDs and the
guard. "shared.owned" gives those that belong into this release, as kind/name separated by commas:

- what is not there yet, and what carries this release's name;
- what the last revision of this release had, whatever became of it since. Helm would delete what goes out of a release unless it still
  carries the annotation to keep it, and with a CRD it would delete every object of its kind. The last revision's answer is an
  annotation of its ClusterRole.

Everything else is left alone. Without a cluster to ask (helm template) all of it is rendered.
*/}}
{{- define "shared.owned" -}}
{{- $root := . }}
{{- $role := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" (include "manager" .) }}
{{- $before := get (($role.metadata).annotations | default dict) "cloud-map-mcs-controller/shared" | splitList "," }}
{{- $owned := list }}
{{- range include "shared.all" . | fromYamlArray }}
{{- $live := lookup .apiVersion .kind "" .name }}
{{- $notes := ($live.metadata).annotations | default dict }}
{{- $key := printf "%s/%s" .kind .name }}
{{- $ours := and (eq (get $notes "meta.helm.sh/release-name") $root.Release.Name) (eq (get $notes "meta.helm.sh/release-namespace") $root.Release.Namespace) }}
{{- $held := has $key $before }}
{{- $unsafe := and $held .keep (ne (get $notes "helm.sh/resource-policy") "keep") }}
{{- if or (and .wanted (or (not $live) $ours $held)) (and $live $unsafe) }}
{{- $owned = append $owned $key }}
{{- end }}
{{- end }}
{{- join "," $owned }}
{{- end }}

{{- define "shared.all" -}}
{{- range $path, $_ := .Files.Glob "files/crds/*.yaml" }}
{{- with $.Files.Get $path | fromYaml }}
- {apiVersion: {{ .apiVersion }}, kind: {{ .kind }}, name: {{ .metadata.name }}, wanted: {{ $.Values.crds.install }}, keep: true}
{{- end }}
{{- end }}
{{- range include "guard.objects" . | fromYamlArray }}
- {apiVersion: {{ .apiVersion }}, kind: {{ .kind }}, name: {{ .metadata.name }}, wanted: {{ $.Values.crds.guard }}, keep: false}
{{- end }}
{{- end }}

{{- define "guard.objects" -}}
{{- $objects := list }}
{{- range splitList "\n---\n" (.Files.Get "files/guard.yaml") }}
{{- $objects = append $objects (fromYaml .) }}
{{- end }}
{{- toYaml $objects }}
{{- end }}

{{/* "crd.newer" says "true" when the first CRD is of a later release or revision of mcs-api than the second, by the labels that the guard judges too. */}}
{{- define "crd.newer" -}}
{{- $versions := list }}
{{- $revisions := list }}
{{- range . }}
{{- $labels := (.metadata).labels | default dict }}
{{- $versions = append $versions (regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" (get $labels "multicluster.x-k8s.io/release-version")) }}
{{- $revisions = append $revisions (int (get $labels "multicluster.x-k8s.io/crd-schema-revision")) }}
{{- end }}
{{- if and (first $versions) (last $versions) }}
{{- if eq (first $versions) (last $versions) }}
{{- gt (first $revisions) (last $revisions) }}
{{- else }}
{{- semverCompare (printf ">%s" (last $versions)) (first $versions) }}
{{- end }}
{{- end }}
{{- end }}
