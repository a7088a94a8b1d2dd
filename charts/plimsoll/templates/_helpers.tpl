{{/* Names, labels and images that the templates share. */}}

{{- define "plimsoll.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* 54 characters, so that "-operator" still fits in a name of 63. */}}
{{- define "plimsoll.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" }}
{{- else if contains (include "plimsoll.name" .) .Release.Name }}
{{- .Release.Name | trunc 54 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "plimsoll.name" .) | trunc 54 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "plimsoll.operator.name" -}}{{ include "plimsoll.fullname" . }}-operator{{- end }}
{{- define "plimsoll.gateway.name" -}}{{ include "plimsoll.fullname" . }}-gateway{{- end }}

{{/* ClusterRoles have no namespace: two releases of one name in two namespaces must not share them. */}}
{{- define "plimsoll.cluster.name" -}}{{ .Release.Namespace }}-{{ include "plimsoll.fullname" . }}{{- end }}

{{- define "plimsoll.labels" -}}
{{ include "plimsoll.labels.own" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "plimsoll.labels.own" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "plimsoll.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: plimsoll
{{- end }}

{{/*
Name, namespace and labels of an object: include "plimsoll.metadata" (list "name" "operator" . ["namespace"]). The namespace defaults to
the release's; "" is for cluster-scoped objects.
*/}}
{{- define "plimsoll.metadata" -}}
{{- $root := index . 2 -}}
name: {{ index . 0 }}
{{- with first (append (slice . 3) $root.Release.Namespace) }}
namespace: {{ . }}
{{- end }}
labels:
  {{- include "plimsoll.labels" $root | nindent 2 }}
  app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* include "plimsoll.selector" (list "operator" .) */}}
{{- define "plimsoll.selector" -}}
{{- $root := index . 1 -}}
app.kubernetes.io/name: {{ include "plimsoll.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 0 }}
{{- end }}

{{/* Labels of a component's pods, without the chart's version, whose change alone must not replace pods. */}}
{{- define "plimsoll.podLabels" -}}
{{- $root := index . 1 -}}
{{ include "plimsoll.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: plimsoll
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- with (index $root.Values (index . 0)).podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The Secret with the keys from which tokens for runtime pods are derived. */}}
{{- define "plimsoll.hostKeys" -}}
{{- default (printf "%s-host-keys" (include "plimsoll.fullname" .)) .Values.hostKeys.existingSecret -}}
{{- end }}

{{/* Variables for traces as YAML: include "plimsoll.tracing" (list OTHERS OF $). Those in OTHERS are left out. OF is
"gateway", "operator" or "runtime": the share of traced requests concerns only gateway and runtime. */}}
{{- define "plimsoll.tracing" -}}
{{- $others := index . 0 -}}
{{- with (index . 2).Values.tracing -}}
{{- $found := dict -}}
{{- if .endpoint -}}
{{- $_ := set $found "OTEL_EXPORTER_OTLP_ENDPOINT" .endpoint -}}
{{- $_ := set $found "OTEL_EXPORTER_OTLP_PROTOCOL" .protocol -}}
{{- if ne (index $ 1) "operator" -}}
{{- $_ := set $found "OTEL_TRACES_SAMPLER" "parentbased_traceidratio" -}}
{{- $_ := set $found "OTEL_TRACES_SAMPLER_ARG" (toString .ratio) -}}
{{- end -}}
{{- if eq (index $ 1) "runtime" -}}
{{- $_ := set $found "PLIMSOLL_TRACES_PER_SECOND" (toString .perSecond) -}}
{{- end -}}
{{- end -}}
{{- range $others -}}{{- $_ := unset $found .name -}}{{- end -}}
{{- range $name, $value := $found }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Defaults and profiles for the operator as JSON; empty without any. */}}
{{- define "plimsoll.profiles" -}}
{{- $defaults := dict -}}
{{- range $name, $value := .Values.runtime.defaults -}}
{{- if $value -}}{{- $_ := set $defaults $name $value -}}{{- end -}}
{{- end -}}
{{- with include "plimsoll.tracing" (list .Values.runtime.defaults.env "runtime" .) -}}
{{- $_ := set $defaults "env" (concat $.Values.runtime.defaults.env (fromYamlArray .)) -}}
{{- end -}}
{{- if or $defaults .Values.runtime.resourceProfiles -}}
{{- dict "defaults" $defaults "profiles" .Values.runtime.resourceProfiles | toJson -}}
{{- end -}}
{{- end }}

{{/* The Secret that authenticates gateways to each other. */}}
{{- define "plimsoll.peerSecret" -}}
{{- default (printf "%s-gateway-peers" (include "plimsoll.fullname" .)) .Values.gateway.peers.existingSecret -}}
{{- end }}

{{/* Labels of all pods that the operator creates. */}}
{{- define "plimsoll.runtime.selector" -}}
app.kubernetes.io/name: plimsoll-runtime
app.kubernetes.io/managed-by: plimsoll-operator
{{- end }}

{{/* Labels of the runtime pods that have a host API: those of RuntimePools. */}}
{{- define "plimsoll.host.selector" -}}
{{ include "plimsoll.runtime.selector" . }}
plimsoll.dev/role: host
{{- end }}

{{/* include "plimsoll.image" (dict "image" .Values.image "root" .) */}}
{{- define "plimsoll.image" -}}
{{- $registry := default .root.Values.image.registry .image.registry -}}
{{- with $registry }}{{ . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .root.Chart.AppVersion .image.tag }}{{ end -}}
{{- end }}

{{/* include "plimsoll.serviceAccount" (list "operator" .) */}}
{{- define "plimsoll.serviceAccount" -}}
{{- $root := index . 1 -}}
{{- $account := (index $root.Values (index . 0)).serviceAccount -}}
{{- if $account.create -}}
{{- default (printf "%s-%s" (include "plimsoll.fullname" $root) (index . 0)) $account.name -}}
{{- else -}}
{{- default "default" $account.name -}}
{{- end -}}
{{- end }}

{{/* The arguments for the watched namespaces. */}}
{{- define "plimsoll.namespaceArgs" -}}
{{- if .Values.watchNamespaces }}
{{- range .Values.watchNamespaces }}
- --namespace={{ . }}
{{- end }}
{{- else }}
- --all-namespaces
{{- end }}
{{- end }}

{{/* The ConfigMap in which the operator records names that have served traffic. */}}
{{- define "plimsoll.nameRecord" -}}{{ include "plimsoll.fullname" . }}-served-names{{- end }}

{{/* The arguments for the rules of served names. */}}
{{- define "plimsoll.nameArgs" -}}
{{- range .Values.servedNames.rules }}
- {{ printf "--name-rule=%s=%s" (join "," .names) (join "," .namespaces) | quote }}
{{- end }}
{{- if .Values.servedNames.graceSeconds }}
- --name-record={{ .Release.Namespace }}/{{ include "plimsoll.nameRecord" . }}
{{- end }}
{{- end }}

{{/* The common part of the operator's and the gateway's pod specs: include "plimsoll.podSpec" (list "operator" .) */}}
{{- define "plimsoll.podSpec" -}}
{{- $root := index . 1 -}}
{{- $component := index . 0 -}}
{{- $values := index $root.Values $component -}}
serviceAccountName: {{ include "plimsoll.serviceAccount" . }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- toYaml $values.podSecurityContext | nindent 2 }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if $values.topologySpreadConstraints }}
{{ toYaml $values.topologySpreadConstraints | indent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "plimsoll.selector" . | nindent 8 }}
    {{- /* Pods that an upgrade replaces do not count: otherwise all new ones might be placed on one node. */}}
    matchLabelKeys: [pod-template-hash]
{{- end }}
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: 64Mi
{{- if and (eq $component "gateway") $values.keys.secrets }}
{{- range $index, $secret := $values.keys.secrets }}
  - name: keys-{{ $index }}
    secret:
      secretName: {{ $secret }}
      optional: true
      defaultMode: 0440
{{- end }}
  - name: credential
    secret:
      secretName: {{ $values.credential.secretName }}
      defaultMode: 0440
  - name: peers
    secret:
      secretName: {{ include "plimsoll.peerSecret" $root }}
      defaultMode: 0440
{{- end }}
{{- if eq $component "operator" }}
  - name: host-keys
    secret:
      secretName: {{ include "plimsoll.hostKeys" $root }}
      defaultMode: 0440
{{- if include "plimsoll.profiles" $root }}
  - name: profiles
    configMap:
      name: {{ include "plimsoll.fullname" $root }}-profiles
{{- end }}
{{- end }}
{{- end }}

{{/* Probes of the operator's and the gateway's containers. */}}
{{- define "plimsoll.probes" -}}
livenessProbe:
  httpGet: {path: /live, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /health, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
