{{/*
ValidatingAdmissionPolicies (CEL) for limits that RBAC cannot express: RBAC restricts kinds and verbs, a policy checks the object.
*/}}

{{/* The operator's user name at the API server. */}}
{{- define "plimsoll.admission.operator" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "plimsoll.serviceAccount" (list "operator" .) }}
{{- end }}

{{/*
Whether an object is a child of a ModelDeployment or a RuntimePool, before and after the request. Before it, only the owner counts, so that
the operator may restore a removed label.
*/}}
{{- define "plimsoll.admission.variables" -}}
- name: ours
  expression: >-
    object == null || object.metadata.?ownerReferences.orValue([]).exists(o,
    o.?controller.orValue(false) && o.apiVersion.startsWith('plimsoll.dev/') &&
    o.name == object.metadata.?labels[?(o.kind == 'RuntimePool' ? 'plimsoll.dev/runtime-pool' : 'plimsoll.dev/model-deployment')].orValue('') &&
    !((o.kind == 'RuntimePool' ? 'plimsoll.dev/model-deployment' : 'plimsoll.dev/runtime-pool') in object.metadata.?labels.orValue({})) &&
    o.kind in ['ModelDeployment', 'RuntimePool']) &&
    object.metadata.?labels[?'app.kubernetes.io/managed-by'].orValue('') == 'plimsoll-operator'
- name: wasOurs
  expression: >-
    oldObject == null || oldObject.metadata.?ownerReferences.orValue([]).exists(o,
    o.?controller.orValue(false) && o.kind in ['ModelDeployment', 'RuntimePool'] && o.apiVersion.startsWith('plimsoll.dev/'))
{{- end }}

{{/* The first part of a policy: include "plimsoll.admission.head" (dict "name" "operator-pods" "root" .) */}}
{{- define "plimsoll.admission.head" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "plimsoll.metadata" (list (printf "%s-%s" (include "plimsoll.cluster.name" .root) .name) "operator" .root "") | nindent 2 }}
{{- end }}

{{/*
The requests that a policy about the operator checks: include "plimsoll.admission.limits" (dict "kind" "pods" "group" "" "root" .); optional: "version"
*/}}
{{- define "plimsoll.admission.limits" -}}
failurePolicy: Fail
matchConstraints:
  resourceRules:
    - apiGroups: [{{ .group | quote }}]
      apiVersions: [{{ default "v1" .version }}]
      operations: [CREATE, UPDATE, DELETE]
      resources: [{{ .kind }}]
matchConditions:
  - name: by-the-operator
    expression: >-
      request.userInfo.username == {{ include "plimsoll.admission.operator" .root | squote }}
{{- end }}

{{/* Namespaces that the operator must not write to, as JSON. */}}
{{- define "plimsoll.admission.closed" -}}
{{- $closed := list "kube-system" -}}
{{- if not (or .Values.admissionPolicy.allowReleaseNamespace (has .Release.Namespace .Values.watchNamespaces)) -}}
{{- $closed = append $closed .Release.Namespace | uniq -}}
{{- end -}}
{{- toJson $closed -}}
{{- end }}

{{/*
The rule about namespaces. Deletions are allowed everywhere, so that objects of an earlier release can be removed: include "plimsoll.admission.place" .
*/}}
{{- define "plimsoll.admission.place" -}}
{{- $closed := include "plimsoll.admission.closed" . | fromJsonArray -}}
- expression: object == null || !(request.namespace in [{{ range $i, $name := $closed }}{{ if $i }}, {{ end }}{{ squote $name }}{{ end }}])
  reason: Forbidden
  message: >-
    the account of the Plimsoll operator may not write to the namespaces {{ join ", " $closed }}; put models and pools elsewhere.
    For models in the namespace of the release set the chart's admissionPolicy.allowReleaseNamespace=true
{{- range $key, $value := .Values.admissionPolicy.namespaceLabels }}
- expression: object == null || namespaceObject.metadata.?labels[?{{ squote $key }}] == optional.of({{ squote $value }})
  reason: Forbidden
  message: >-
    the account of the Plimsoll operator may write to namespaces with the label {{ $key }}={{ $value }} only (the chart's
    admissionPolicy.namespaceLabels); have the namespace labelled, or put models and pools elsewhere
{{- end }}
{{- end }}

{{/* The first rule of a policy that limits the operator to children of ModelDeployments and RuntimePools: include "plimsoll.admission.ours" "Services" */}}
{{- define "plimsoll.admission.ours" -}}
- expression: variables.ours && variables.wasOurs
  reason: Forbidden
  message: >-
    the account of the Plimsoll operator may write {{ . }} of ModelDeployments and RuntimePools only: with one as controlling
    owner, its name in the label plimsoll.dev/model-deployment or plimsoll.dev/runtime-pool, and
    app.kubernetes.io/managed-by=plimsoll-operator. For anything else use an account of your own
{{- end }}

{{/* The binding of a policy: include "plimsoll.admission.binding" (dict "name" ... "root" . ["namespaces" (list)] ["needsParam" true]) */}}
{{- define "plimsoll.admission.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "plimsoll.metadata" (list (printf "%s-%s" (include "plimsoll.cluster.name" .root) .name) "operator" .root "") | nindent 2 }}
spec:
  policyName: {{ include "plimsoll.cluster.name" .root }}-{{ .name }}
  validationActions: [Deny]
  {{- if .needsParam }}
  paramRef:
    selector: {}
    parameterNotFoundAction: Deny
  {{- end }}
  {{- with .namespaces }}
  matchResources:
    namespaceSelector:
      matchExpressions:
        - key: kubernetes.io/metadata.name
          operator: In
          values: {{- toYaml . | nindent 12 }}
  {{- end }}
{{- end }}
