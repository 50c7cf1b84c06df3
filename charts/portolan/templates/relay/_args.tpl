{{/* Arguments of a relay: its name is that of its pod, and so are its certificate's directory and URI. */}}
{{- define "portolan.relay.args" -}}
{{- $v := .Values -}}
{{- $plaintext := eq $v.tls.mode "plaintext" -}}
{{- $upstreams := $v.relay.upstreams | default (list (printf "%s:%v" (include "portolan.serverName" .) $v.controller.ports.agents)) -}}
{{- include "portolan.logArgs" . }}
{{- include "portolan.args" (list
  (list "source" "controller")
  (list "cluster" $v.clusterName)
  (list "upstream" $upstreams)
  (list "relay-name" "$(POD_NAME)")
  (list "listen" (printf "[::]:%v" $v.controller.ports.agents))
  (list "admin-listen" (include "portolan.relayAdmin" .))
  (list "debug-listen" "unix:///run/portolan/controller.sock")
) }}
{{- if $plaintext }}
{{- include "portolan.switches" (list (list "plaintext" true) (list "upstream-plaintext" true)) }}
{{- else }}
{{- include "portolan.args" (list
  (list "tls-dir" "/etc/portolan/tls/$(POD_NAME)")
  (list "upstream-tls-dir" "/etc/portolan/tls/$(POD_NAME)")
  (list "upstream-tls-server-name" (default (include "portolan.serverName" .) $v.relay.upstreamServerName))
) }}
{{- end }}
{{- if and (eq $v.tls.agentAuth "token") (not $plaintext) }}
{{- include "portolan.tokenArgs" . }}
{{- end }}
{{- with $v.relay.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}
