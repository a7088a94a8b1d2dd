{{/*
The same rules as one ClusterRole, or as a Role in each watched namespace, bound to a component's ServiceAccount:
include "plimsoll.roles" (list "operator" <rules as YAML> .)
*/}}
{{- define "plimsoll.roles" -}}
{{- $component := index . 0 -}}
{{- $rules := index . 1 | trim -}}
{{- $root := index . 2 -}}
{{- $name := printf "%s-%s" (include "plimsoll.fullname" $root) $component -}}
{{- $account := include "plimsoll.serviceAccount" (list $component $root) -}}
{{- range default (list "") $root.Values.watchNamespaces }}
{{- $cluster := eq . "" }}
{{- $roleName := ternary (printf "%s-%s" (include "plimsoll.cluster.name" $root) $component) $name $cluster }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "ClusterRole" "Role" $cluster }}
metadata:
  name: {{ $roleName }}
  {{- if not $cluster }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "plimsoll.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $component }}
rules:
  {{- $rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "ClusterRoleBinding" "RoleBinding" $cluster }}
metadata:
  name: {{ $roleName }}
  {{- if not $cluster }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "plimsoll.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $component }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ ternary "ClusterRole" "Role" $cluster }}
  name: {{ $roleName }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- end }}
