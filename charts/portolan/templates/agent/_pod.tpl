{{/* The fields of agents' and cleanup's pods that do not depend on their containers. */}}
{{- define "portolan.agent.pod" -}}
{{- $a := .Values.agent -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
serviceAccountName: {{ include "portolan.fullname" . }}-agent
automountServiceAccountToken: false
enableServiceLinks: false
hostNetwork: true
{{- if $a.hostPID }}
hostPID: true
{{- end }}
dnsPolicy: {{ ternary "ClusterFirstWithHostNet" "Default" (eq (include "portolan.discovery" .) "dns") }}
{{- with $a.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
terminationGracePeriodSeconds: {{ $a.terminationGracePeriodSeconds }}
{{- with $a.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  seccompProfile: {type: RuntimeDefault}
  {{- with $a.seLinuxOptions }}
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $a.appArmorProfile }}
  appArmorProfile:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* The affinity of agents: where the cleanup runs they leave, unless the user has an affinity of their own. */}}
{{- define "portolan.agent.affinity" -}}
{{- $affinity := .Values.agent.affinity -}}
{{- if and .Values.agent.cleanup.nodeSelector (not $affinity) -}}
{{- $terms := list -}}
{{- range $key, $value := .Values.agent.cleanup.nodeSelector -}}
{{- $terms = append $terms (dict "matchExpressions" (list (dict "key" $key "operator" "NotIn" "values" (list $value)))) -}}
{{- end -}}
{{- $affinity = dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) -}}
{{- end -}}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The affinity of the cleanup: never beside an agent, which would program everything again. The pod waits until the
agent of its node has ended, and no agent comes while it is there. */}}
{{- define "portolan.cleanup.affinity" -}}
{{- $agents := include "portolan.selector" (dict "root" . "component" "agent") | fromYaml -}}
{{- $apart := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $agents) -}}
{{- $anti := dict "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $apart)) -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.agent.affinity) $anti) -}}
{{- end -}}

{{/* The volumes of agents, as maps of path, source and writable by name. */}}
{{- define "portolan.agent.volumes" -}}
{{- $v := .Values }}
state: {path: /var/lib/portolan, writable: true, source: {hostPath: {path: {{ $v.agent.stateDir | quote }}, type: DirectoryOrCreate}}}
run: {path: /run/portolan, writable: true, source: {hostPath: {path: {{ $v.agent.runDir | quote }}, type: DirectoryOrCreate}}}
xtables-lock: {path: /run/xtables.lock, writable: true, source: {hostPath: {path: /run/xtables.lock, type: FileOrCreate}}}
{{- with include "portolan.agent.projected" . | fromYamlArray }}
identity:
  path: /etc/portolan/identity
  source:
    projected:
      defaultMode: 0400
      sources: {{ toJson . }}
{{- end }}
{{- if and (eq $v.tls.agentAuth "certificate") (ne $v.tls.mode "plaintext") }}
certificate: {path: /etc/portolan/node, source: {hostPath: {path: {{ $v.tls.existing.nodeCertHostPath | quote }}, type: Directory}}}
{{- end }}
{{- end -}}

{{/* The sources of the projected volume: the token, the controllers' authority and their addresses. The ConfigMap is
optional: an agent starts before the first controller has written it. */}}
{{- define "portolan.agent.projected" -}}
{{- $v := .Values -}}
{{- $sources := list -}}
{{- $published := printf "%s-agents" (include "portolan.fullname" .) -}}
{{- $items := list -}}
{{- if eq (include "portolan.discovery" .) "configMap" -}}
{{- $items = append $items (dict "key" "controllers" "path" "controllers") -}}
{{- end -}}
{{- if ne $v.tls.mode "plaintext" -}}
{{- if eq $v.tls.agentAuth "token" -}}
{{- $sources = append $sources (dict "serviceAccountToken" (dict "audience" $v.tokens.audience "expirationSeconds" (int64 $v.tokens.expirationSeconds) "path" "token")) -}}
{{- end -}}
{{- $ca := dict "key" "ca.crt" "path" "ca.crt" -}}
{{- if eq $v.tls.mode "existing" -}}
{{- $sources = append $sources (dict "configMap" (dict "name" $v.tls.existing.caConfigMap "items" (list $ca))) -}}
{{- else -}}
{{- $items = append $items $ca -}}
{{- end -}}
{{- end -}}
{{- if $items -}}
{{- $sources = append $sources (dict "configMap" (dict "name" $published "optional" true "items" $items)) -}}
{{- end -}}
{{- toYaml $sources -}}
{{- end -}}

{{/* The environment of agents. */}}
{{- define "portolan.agent.env" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
{{- if not .Values.agent.nodeIPs }}
- name: NODE_IPS
  valueFrom: {fieldRef: {fieldPath: status.hostIPs}}
{{- end }}
{{- with .Values.agent.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The security context of the agent, with the user's values over it. */}}
{{- define "portolan.agent.securityContext" -}}
{{- $base := dict "runAsUser" 0 "runAsGroup" 0 "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL") "add" (list "NET_ADMIN" "NET_RAW")) -}}
{{- toYaml (mergeOverwrite $base (deepCopy .Values.agent.securityContext)) -}}
{{- end -}}

{{/* The init container that prepares the node: the one container with privileges. It loads modules and writes settings,
which containers without privileges cannot. */}}
{{- define "portolan.agent.prepare" -}}
{{- $a := .Values.agent -}}
- name: prepare
  image: {{ include "portolan.image" (dict "root" . "image" $a.image) | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - prepare
    {{- if $a.prepare.checkOnly }}
    - --check
    {{- end }}
    {{- include "portolan.logArgs" . | trim | nindent 4 }}
    {{- include "portolan.agent.kernelArgs" . | trim | nindent 4 }}
    {{- include "portolan.agent.runArgs" . | trim | nindent 4 }}
  env:
    {{- include "portolan.agent.env" . | nindent 4 }}
  resources:
    {{- toYaml (default $a.resources $a.prepare.resources) | nindent 4 }}
  securityContext:
    privileged: true
    runAsUser: 0
    readOnlyRootFilesystem: true
  volumeMounts:
    - {name: xtables-lock, mountPath: /run/xtables.lock}
    {{- if $a.prepare.modules }}
    - {name: modules, mountPath: /lib/modules, readOnly: true}
    {{- end }}
    {{- with $a.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* A container that waits, for pods whose init container does the work. */}}
{{- define "portolan.agent.wait" -}}
- name: wait
  image: {{ .Values.image.pause | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  resources: {requests: {cpu: 1m, memory: 8Mi}}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65535
    runAsGroup: 65535
    {{- include "portolan.unprivileged" (dict) | nindent 4 }}
{{- end -}}

{{/* The volume of the node's modules. */}}
{{- define "portolan.agent.modules" -}}
- name: modules
  hostPath: {path: /lib/modules, type: DirectoryOrCreate}
{{- end -}}
