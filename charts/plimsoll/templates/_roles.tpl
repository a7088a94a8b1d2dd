{{/*
The same rules as one ClusterRole, or as a Role in each watched namespace, bound to a component's ServiceAccount:
include "plimsoll.roles" (list "operator" <rules as YAML> .)
*/}}
{{- define "plimsoll.roles" -}}
{{- $component := index . 0 -}}
{{- $rules := index . 1 -}}
{{- $root := index . 2 -}}
{{- range default (list "") $root.Values.watchNamespaces }}
{{- $first := ternary "plimsoll.cluster.name" "plimsoll.fullname" (eq . "") }}
{{- include "plimsoll.role" (list (printf "%s-%s" (include $first $root) $component) . $component $rules $root) }}
{{- end }}
{{- end }}

{{/*
A Role, or a ClusterRole if the namespace is empty, bound to a component's ServiceAccount:
include "plimsoll.role" (list "name" "namespace" "operator" <rules as YAML> .)
*/}}
{{- define "plimsoll.role" -}}
{{- $root := index . 4 -}}
{{- $kind := ternary "Role" "ClusterRole" (ne (index . 1) "") -}}
{{- $metadata := include "plimsoll.metadata" (list (index . 0) (index . 2) $root (index . 1)) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata: {{- $metadata | nindent 2 }}
rules:
  {{- index . 3 | trim | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata: {{- $metadata | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ index . 0 }}
subjects:
  - kind: ServiceAccount
    name: {{ include "plimsoll.serviceAccount" (list (index . 2) $root) }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}
