{{/* Defaults of the modes, and the values that depend on them. `auto` takes the mode's default. */}}
{{- define "portolan.modes" -}}
replacement:
  {controller: true, agent: true, hostNetwork: true, takeover: kube-proxy, serviceProxyName: "", namePrefix: KUBE,
   masqueradeBit: 14, adminPort: 10249, healthzPort: 10256, discovery: configMap}
sideBySide:
  {controller: true, agent: true, hostNetwork: false, takeover: none, serviceProxyName: portolan, namePrefix: PTLN,
   masqueradeBit: 13, adminPort: 10349, healthzPort: 10356, discovery: configMap}
dns:
  {controller: true, agent: false, hostNetwork: false, takeover: none, serviceProxyName: "", namePrefix: KUBE,
   masqueradeBit: 14, adminPort: 10249, healthzPort: 10256, discovery: configMap}
controller:
  {controller: true, agent: false, hostNetwork: false, takeover: none, serviceProxyName: "", namePrefix: KUBE,
   masqueradeBit: 14, adminPort: 10249, healthzPort: 10256, discovery: configMap}
agent:
  {controller: false, agent: true, hostNetwork: true, takeover: none, serviceProxyName: "", namePrefix: KUBE,
   masqueradeBit: 14, adminPort: 10249, healthzPort: 10256, discovery: list}
{{- end -}}

{{/* A value, or the mode's default for `auto`. Input: root, value, key. */}}
{{- define "portolan.auto" -}}
{{- if eq (toString .value) "auto" -}}
{{- get (get (include "portolan.modes" .root | fromYaml) .root.Values.mode) .key -}}
{{- else -}}
{{- .value -}}
{{- end -}}
{{- end -}}

{{/* Whether controllers are installed: `true` or `false`. */}}
{{- define "portolan.hasController" -}}
{{- include "portolan.auto" (dict "root" . "value" .Values.controller.enabled "key" "controller") -}}
{{- end -}}

{{/* Whether agents are installed. */}}
{{- define "portolan.hasAgent" -}}
{{- include "portolan.auto" (dict "root" . "value" .Values.agent.enabled "key" "agent") -}}
{{- end -}}

{{/* Whether controllers use the host's network. */}}
{{- define "portolan.hostNetwork" -}}
{{- include "portolan.auto" (dict "root" . "value" .Values.controller.hostNetwork "key" "hostNetwork") -}}
{{- end -}}

{{/* Whether relays use the host's network. */}}
{{- define "portolan.relayHostNetwork" -}}
{{- include "portolan.auto" (dict "root" . "value" .Values.relay.hostNetwork "key" "hostNetwork") -}}
{{- end -}}

{{/* The predecessor that agents take over, or `none`. */}}
{{- define "portolan.takeover" -}}
{{- include "portolan.auto" (dict "root" . "value" .Values.agent.takeover "key" "takeover") -}}
{{- end -}}

{{/* How agents find controllers. */}}
{{- define "portolan.discovery" -}}
{{- include "portolan.auto" (dict "root" . "value" .Values.agent.discovery "key" "discovery") -}}
{{- end -}}

{{/* The label's value of the Services that are served, empty for those without the label. */}}
{{- define "portolan.serviceProxyName" -}}
{{- include "portolan.auto" (dict "root" . "value" .Values.controller.serviceProxyName "key" "serviceProxyName") -}}
{{- end -}}

{{/* The prefix of the names of sets and chains. */}}
{{- define "portolan.namePrefix" -}}
{{- include "portolan.auto" (dict "root" . "value" .Values.agent.kernel.namePrefix "key" "namePrefix") -}}
{{- end -}}

{{/* The bit of the packet mark that requests masquerading. */}}
{{- define "portolan.masqueradeBit" -}}
{{- include "portolan.auto" (dict "root" . "value" .Values.agent.kernel.masqueradeBit "key" "masqueradeBit") -}}
{{- end -}}

{{/* The admin address of the controllers. */}}
{{- define "portolan.controllerAdmin" -}}
{{- if ne .Values.controller.adminListen "auto" -}}
{{- .Values.controller.adminListen -}}
{{- else if and (eq (include "portolan.hostNetwork" .) "true") (not .Values.monitoring.enabled) -}}
{{- printf "127.0.0.1:%v" .Values.controller.ports.admin -}}
{{- else -}}
{{- printf "[::]:%v" .Values.controller.ports.admin -}}
{{- end -}}
{{- end -}}

{{/* The admin address of the relays. */}}
{{- define "portolan.relayAdmin" -}}
{{- $loopback := and (eq (include "portolan.relayHostNetwork" .) "true") (not .Values.monitoring.enabled) -}}
{{- printf "%s:%v" (ternary "127.0.0.1" "[::]" $loopback) .Values.controller.ports.admin -}}
{{- end -}}

{{/* The admin address of the agents. */}}
{{- define "portolan.agentAdmin" -}}
{{- if ne .Values.agent.adminListen "auto" -}}
{{- .Values.agent.adminListen -}}
{{- else -}}
{{- $port := include "portolan.auto" (dict "root" . "value" "auto" "key" "adminPort") -}}
{{- printf "%s:%s" (ternary "[::]" "127.0.0.1" .Values.monitoring.enabled) $port -}}
{{- end -}}
{{- end -}}

{{/* The health address of the agents, empty for none. */}}
{{- define "portolan.agentHealthz" -}}
{{- if ne .Values.agent.healthzListen "auto" -}}
{{- .Values.agent.healthzListen -}}
{{- else -}}
{{- printf "[::]:%s" (include "portolan.auto" (dict "root" . "value" "auto" "key" "healthzPort")) -}}
{{- end -}}
{{- end -}}

{{/* The address of the API server for controllers as host:port, empty for the Service `kubernetes`. */}}
{{- define "portolan.apiServer" -}}
{{- if ne .Values.apiServer.host "auto" -}}
{{- with .Values.apiServer.host -}}
{{- printf "%s %v" . $.Values.apiServer.port -}}
{{- end -}}
{{- else if and (eq .Values.mode "replacement") (eq (include "portolan.hasController" .) "true") -}}
{{- $info := (lookup "v1" "ConfigMap" "kube-public" "cluster-info").data | default dict -}}
{{- with get $info "kubeconfig" -}}
{{- $server := (index (fromYaml .).clusters 0).cluster.server | urlParse -}}
{{- printf "%s %s" ($server.hostname | trimPrefix "[" | trimSuffix "]") (regexFind "[0-9]+$" (regexFind ":[0-9]+$" $server.host) | default "443") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The name of the controllers in their certificates. */}}
{{- define "portolan.serverName" -}}
{{- printf "%s-controller.%s.svc" (include "portolan.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* Whether the controllers keep certificates and publish addresses in objects of the release: `true` or `false`. */}}
{{- define "portolan.hasState" -}}
{{- and (eq (include "portolan.hasController" .) "true") (ne .Values.mode "controller") -}}
{{- end -}}

{{/* Whether custom resources of a group are created. Input: root, group. */}}
{{- define "portolan.hasKind" -}}
{{- or .root.Values.monitoring.force (.root.Capabilities.APIVersions.Has .group) -}}
{{- end -}}
