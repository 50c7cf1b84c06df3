{{/* The default affinity: one controller per host (a must with the host's network, whose ports it takes), preferably on
the control plane. Input: selector, hostNetwork. */}}
{{- define "portolan.controller.affinity" -}}
nodeAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference:
        matchExpressions:
          - {key: node-role.kubernetes.io/control-plane, operator: Exists}
podAntiAffinity:
  {{- if .hostNetwork }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          {{- .selector | nindent 10 }}
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- .selector | nindent 12 }}
  {{- end }}
{{- end -}}

{{/*
The environment of the controller: the API server's address, where Services may not work yet. In mode dns a silent API server
is no reason for the last answers to go away; extraArgs may set the flag.
*/}}
{{- define "portolan.controller.env" -}}
{{- $address := include "portolan.apiServer" . | splitList " " }}
{{- $env := list }}
{{- if and (eq (len $address) 2) (ne .Values.mode "controller") }}
{{- $env = append $env (dict "name" "KUBERNETES_SERVICE_HOST" "value" (index $address 0)) }}
{{- $env = append $env (dict "name" "KUBERNETES_SERVICE_PORT" "value" (index $address 1)) }}
{{- end }}
{{- if eq .Values.mode "dns" }}
{{- $env = append $env (dict "name" "PORTOLAN_SOURCE_TIMEOUT" "value" "0s") }}
{{- end }}
{{- with .Values.dns.etcd.userSecret }}
{{- $env = append $env (dict "name" "DNS_ETCD_USER" "valueFrom" (dict "secretKeyRef" (dict "name" . "key" "username"))) }}
{{- end }}
{{- if and .Values.federation.upstreams (eq .Values.federation.auth "token") }}
{{- $env = append $env (dict "name" "POD_NAME" "valueFrom" (dict "fieldRef" (dict "fieldPath" "metadata.name"))) }}
{{- end }}
{{- with concat $env .Values.controller.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The admin port in a Service. */}}
{{- define "portolan.controller.metricsPort" -}}
- name: metrics
  port: {{ .Values.controller.ports.admin }}
  targetPort: metrics
  protocol: TCP
{{- end -}}

{{/* Mounts of volumes. Input: maps of path, source and writable by name. */}}
{{- define "portolan.mounts" -}}
{{- $mounts := list }}
{{- range $name, $volume := . }}
{{- $mount := dict "name" $name "mountPath" $volume.path }}
{{- if not $volume.writable }}
{{- $_ := set $mount "readOnly" true }}
{{- end }}
{{- $mounts = append $mounts $mount }}
{{- end }}
{{- toYaml $mounts }}
{{- end -}}

{{/* Volumes. Input: as for mounts. */}}
{{- define "portolan.volumes" -}}
{{- $volumes := list }}
{{- range $name, $volume := . }}
{{- $volumes = append $volumes (merge (dict "name" $name) $volume.source) }}
{{- end }}
{{- toYaml $volumes }}
{{- end -}}
