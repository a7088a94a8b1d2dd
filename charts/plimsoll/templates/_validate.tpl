{{/* Values that the schema lets pass one by one, and that make no chart together. The operator's Deployment asks. */}}

{{- define "plimsoll.validate" -}}
{{- $name := include "plimsoll.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "objects would be named %q, which Services cannot be: it must be of a-z, 0-9 and -, a letter first; set fullnameOverride" $name) -}}
{{- end -}}
{{- with .Values.gateway.autoscaling -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "gateway.autoscaling.minReplicas (%d) is above maxReplicas (%d); lower the one or raise the other" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gateway.keys.secrets (not .Values.gateway.credential.secretName) -}}
{{- fail "gateway.keys.secrets needs gateway.credential.secretName: without the credential runtimes take all keys for one tenant; make one as docs/keys.md shows" -}}
{{- end -}}
{{- with .Values.watchNamespaces -}}
{{- range $.Values.operator.tokenNamespaces -}}
{{- if not (has . $.Values.watchNamespaces) -}}
{{- fail (printf "operator.tokenNamespaces has %s, whose models are not watched: add it to watchNamespaces, or leave it out" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with .Values.httpRoute -}}
{{- if and .enabled (not .parentRefs) -}}
{{- fail "httpRoute.enabled needs httpRoute.parentRefs: name the Gateway that it attaches to, such as {name: public, namespace: gateways}" -}}
{{- end -}}
{{- end -}}
{{- $hosts := list .Values.ingress.host -}}
{{- range .Values.ingress.hosts -}}
{{- if has .host $hosts -}}
{{- fail (printf "ingress names the host %s twice, in host or hosts; leave one of them out" .host) -}}
{{- end -}}
{{- $hosts = append $hosts .host -}}
{{- if and .secretName (not $.Values.ingress.tls.enabled) -}}
{{- fail (printf "ingress.hosts has the certificate %s for %s, and ingress.tls.enabled is false; set that, or leave secretName out" .secretName .host) -}}
{{- end -}}
{{- end -}}
{{- if gt (len (toJson .Values.servedNames.rules)) 100000 -}}
{{- fail (printf "servedNames.rules is %d characters of JSON, and 100000 fit in the arguments of a pod: use prefixes (team-a-*) instead of long lists" (len (toJson .Values.servedNames.rules))) -}}
{{- end -}}
{{- if and .Values.admissionPolicy.enabled (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "admissionPolicy needs Kubernetes 1.30, this is %s; upgrade it, or set admissionPolicy.enabled=false and do without" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- include "plimsoll.validate.labels" (list "commonLabels" .Values.commonLabels .) -}}
{{- include "plimsoll.validate.labels" (list "operator.podLabels" .Values.operator.podLabels .) -}}
{{- include "plimsoll.validate.labels" (list "gateway.podLabels" .Values.gateway.podLabels .) -}}
{{- include "plimsoll.validate.labels" (list "metrics.serviceMonitor.labels" .Values.metrics.serviceMonitor.labels .) -}}
{{- include "plimsoll.validate.labels" (list "metrics.podMonitor.labels" .Values.metrics.podMonitor.labels .) -}}
{{- include "plimsoll.validate.labels" (list "httpRoute.labels" .Values.httpRoute.labels .) -}}
{{- range $where, $labels := dict "operator.podLabels" .Values.operator.podLabels "gateway.podLabels" .Values.gateway.podLabels "metrics.serviceMonitor.labels" .Values.metrics.serviceMonitor.labels "metrics.podMonitor.labels" .Values.metrics.podMonitor.labels "httpRoute.labels" .Values.httpRoute.labels -}}
{{- range $key, $_ := $labels -}}
{{- if hasKey $.Values.commonLabels $key -}}
{{- fail (printf "%s and commonLabels both set %s; leave it out of one of them" $where $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* include "plimsoll.validate.labels" (list "commonLabels" .Values.commonLabels .) */}}
{{- define "plimsoll.validate.labels" -}}
{{- $own := append (keys (include "plimsoll.labels.own" (index . 2) | fromYaml)) "app.kubernetes.io/component" -}}
{{- range $key, $_ := index . 1 -}}
{{- if or (has $key $own) (contains "plimsoll.dev/" $key) -}}
{{- fail (printf "%s must not set %s, which is the chart's own; leave it out" (index $ 0) $key) -}}
{{- end -}}
{{- end -}}
{{- end }}
