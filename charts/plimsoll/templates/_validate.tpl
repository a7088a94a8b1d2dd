{{/* Checks of values that the schema accepts but that contradict each other. The operator's Deployment includes it. */}}

{{- define "plimsoll.validate" -}}
{{- $name := include "plimsoll.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "objects would be named %q, which is invalid for Services: it must consist of a-z, 0-9 and -, and start with a letter; set fullnameOverride" $name) -}}
{{- end -}}
{{- with .Values.gateway.autoscaling -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "gateway.autoscaling.minReplicas (%d) exceeds maxReplicas (%d); lower the former or raise the latter" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gateway.keys.secrets (not .Values.gateway.credential.secretName) -}}
{{- fail "gateway.keys.secrets requires gateway.credential.secretName: without the credential runtimes treat all keys as one tenant; create one as docs/tasks/keys.md shows" -}}
{{- end -}}
{{- with .Values.watchNamespaces -}}
{{- range $.Values.operator.tokenNamespaces -}}
{{- if not (has . $.Values.watchNamespaces) -}}
{{- fail (printf "operator.tokenNamespaces has %s, which is not watched; add it to watchNamespaces, or remove it" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.httpRoute -}}
{{- if and .enabled (not .parentRefs) -}}
{{- fail "httpRoute.enabled requires httpRoute.parentRefs; name the route's Gateway, such as {name: public, namespace: gateways}" -}}
{{- end -}}
{{- end -}}
{{- $hosts := list .Values.ingress.host -}}
{{- range .Values.ingress.hosts -}}
{{- if has .host $hosts -}}
{{- fail (printf "ingress.host and ingress.hosts have the host %s twice; remove one of them" .host) -}}
{{- end -}}
{{- $hosts = append $hosts .host -}}
{{- if and .secretName (not $.Values.ingress.tls.enabled) -}}
{{- fail (printf "ingress.hosts has the certificate %s for %s, but ingress.tls.enabled is false; set it to true, or remove secretName" .secretName .host) -}}
{{- end -}}
{{- end -}}
{{- if gt (len (toJson .Values.servedNames.rules)) 100000 -}}
{{- fail (printf "servedNames.rules is %d characters of JSON; the limit is 100000, which fit in a pod's arguments; use prefixes (team-a-*) instead of long lists" (len (toJson .Values.servedNames.rules))) -}}
{{- end -}}
{{- if and .Values.admissionPolicy.enabled (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "admissionPolicy requires Kubernetes 1.30, this is %s; upgrade, or set admissionPolicy.enabled=false" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- include "plimsoll.validate.labels" (list "commonLabels" .Values.commonLabels .) -}}
{{- include "plimsoll.validate.labels" (list "operator.podLabels" .Values.operator.podLabels .) -}}
{{- include "plimsoll.validate.labels" (list "gateway.podLabels" .Values.gateway.podLabels .) -}}
{{- include "plimsoll.validate.labels" (list "metrics.serviceMonitor.labels" .Values.metrics.serviceMonitor.labels .) -}}
{{- include "plimsoll.validate.labels" (list "metrics.podMonitor.labels" .Values.metrics.podMonitor.labels .) -}}
{{- include "plimsoll.validate.labels" (list "metrics.rules.labels" .Values.metrics.rules.labels .) -}}
{{- include "plimsoll.validate.labels" (list "metrics.dashboards.labels" .Values.metrics.dashboards.labels .) -}}
{{- include "plimsoll.validate.labels" (list "httpRoute.labels" .Values.httpRoute.labels .) -}}
{{- range $where, $labels := dict "operator.podLabels" .Values.operator.podLabels "gateway.podLabels" .Values.gateway.podLabels "metrics.serviceMonitor.labels" .Values.metrics.serviceMonitor.labels "metrics.podMonitor.labels" .Values.metrics.podMonitor.labels "metrics.rules.labels" .Values.metrics.rules.labels "metrics.dashboards.labels" .Values.metrics.dashboards.labels "httpRoute.labels" .Values.httpRoute.labels -}}
{{- range $key, $_ := $labels -}}
{{- if hasKey $.Values.commonLabels $key -}}
{{- fail (printf "%s and commonLabels both set %s; remove one of them" $where $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* include "plimsoll.validate.labels" (list "commonLabels" .Values.commonLabels .) */}}
{{- define "plimsoll.validate.labels" -}}
{{- $own := append (keys (include "plimsoll.labels.own" (index . 2) | fromYaml)) "app.kubernetes.io/component" -}}
{{- range $key, $_ := index . 1 -}}
{{- if or (has $key $own) (contains "plimsoll.dev/" $key) -}}
{{- fail (printf "%s must not set %s, which the chart sets; remove it" (index $ 0) $key) -}}
{{- end -}}
{{- end -}}
{{- end }}
