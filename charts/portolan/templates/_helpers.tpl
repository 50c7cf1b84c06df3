{{/* The prefix of all names: 40 characters at most, so that each name with its suffix is a label. */}}
{{- define "portolan.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := .Release.Name -}}
{{- if .Values.fullnameOverride -}}
{{- $full = .Values.fullnameOverride -}}
{{- else if not (contains $name .Release.Name) -}}
{{- $full = printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- if gt (len $full) 40 -}}
{{- $full = printf "%s-%s" (trunc 33 $full | trimSuffix "-") (sha256sum $full | trunc 6) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{/* The name of objects outside of namespaces: releases of the same name in two namespaces do not share it. */}}
{{- define "portolan.clusterScopedName" -}}
{{- printf "%s-%s" (include "portolan.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* The labels of selectors. Input: root, component. */}}
{{- define "portolan.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The metadata of an object. Input: root, component, name; cluster for objects outside of namespaces; labels and
annotations of its own. */}}
{{- define "portolan.metadata" -}}
{{- $chart := printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ .root.Release.Namespace }}
{{- end }}
labels:
  {{- include "portolan.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  app.kubernetes.io/part-of: portolan
  helm.sh/chart: {{ $chart }}
  {{- with merge (dict) (.labels | default dict) .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The metadata of a pod. Input: root, component, values. */}}
{{- define "portolan.podMetadata" -}}
labels:
  {{- include "portolan.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  {{- with merge (dict) .values.podLabels .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) .values.podAnnotations .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* An image. Input: root, image. */}}
{{- define "portolan.image" -}}
{{- $name := printf "%s/%s" (trimSuffix "/" .root.Values.image.registry) .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Arguments of a program. Input: a list of pairs of a flag and its value. Flags without a value are left out, and so
are empty lists; the items of lists are joined by commas. */}}
{{- define "portolan.args" -}}
{{- range . }}
{{- $value := index . 1 -}}
{{- if kindIs "slice" $value -}}
{{- $value = join "," $value -}}
{{- else if or (kindIs "float64" $value) (kindIs "int64" $value) (kindIs "int" $value) -}}
{{- $value = int64 $value | toString -}}
{{- end -}}
{{- if ne (toString $value) "" }}
- {{ printf "--%s=%v" (index . 0) $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Arguments without a value. Input: a list of pairs of a flag and whether it is given. */}}
{{- define "portolan.switches" -}}
{{- range . }}
{{- if index . 1 }}
- {{ printf "--%s" (index . 0) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Arguments of the log, of all programs. */}}
{{- define "portolan.logArgs" -}}
{{- include "portolan.args" (list (list "log-level" .Values.log.level) (list "log-format" .Values.log.format)) -}}
{{- end -}}

{{/* The port of a listen address. */}}
{{- define "portolan.portOf" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{/* The ports of addresses, each once, apart by spaces. */}}
{{- define "portolan.ports" -}}
{{- $ports := list -}}
{{- range . -}}
{{- $ports = append $ports (include "portolan.portOf" .) -}}
{{- end -}}
{{- $ports | uniq | join " " -}}
{{- end -}}

{{/* `true` if a listen address is on loopback. */}}
{{- define "portolan.isLoopback" -}}
{{- if regexMatch "^(127\\.|\\[::1\\])" . -}}true{{- end -}}
{{- end -}}

{{/* The host of a probe at a listen address: that of the address, empty if that stands for all addresses. */}}
{{- define "portolan.probeHost" -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" -}}
{{- if not (has $host (list "::" "0.0.0.0")) -}}
{{- $host -}}
{{- end -}}
{{- end -}}

{{/* A probe. Input: listen, path, period, failures. */}}
{{- define "portolan.probe" -}}
httpGet:
  path: {{ .path }}
  port: {{ include "portolan.portOf" .listen }}
  {{- with include "portolan.probeHost" .listen }}
  host: {{ . | quote }}
  {{- end }}
periodSeconds: {{ .period }}
timeoutSeconds: 2
failureThreshold: {{ .failures }}
{{- end -}}

{{/* The security context of containers without privileges, with the user's values over it. */}}
{{- define "portolan.unprivileged" -}}
{{- $base := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mergeOverwrite $base (deepCopy .)) -}}
{{- end -}}

{{/* The security context of pods without privileges, with the user's values over it. */}}
{{- define "portolan.unprivilegedPod" -}}
{{- $base := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $base (deepCopy .)) -}}
{{- end -}}
