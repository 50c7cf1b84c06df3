{{/* Arguments of kernel programming, which runs, `prepare` and `cleanup` have in common. */}}
{{- define "portolan.agent.kernelArgs" -}}
{{- $kernel := .Values.agent.kernel -}}
{{- include "portolan.args" (list
  (list "dataplane" .Values.agent.dataplane)
  (list "name-prefix" (include "portolan.namePrefix" .))
  (list "iptables" $kernel.iptables)
  (list "vip-binding" $kernel.vipBinding)
  (list "scheduler" $kernel.scheduler)
  (list "masquerade-all" $kernel.masqueradeAll)
  (list "masquerade-bit" (include "portolan.masqueradeBit" .))
  (list "short-circuit-mask" $kernel.shortCircuitMask)
  (list "detect-local-mode" $kernel.detectLocalMode)
  (list "cluster-cidr" $kernel.clusterCIDRs)
  (list "pod-bridge-interface" $kernel.podBridgeInterface)
  (list "pod-interface-name-prefix" $kernel.podInterfaceNamePrefix)
  (list "ipvs-exclude-cidrs" $kernel.excludeCIDRs)
  (list "node-ip" (ternary .Values.agent.nodeIPs (list "$(NODE_IPS)") (not (empty .Values.agent.nodeIPs))))
) }}
{{- end -}}

{{/* Arguments of a run and of `prepare`, after those of kernel programming. */}}
{{- define "portolan.agent.runArgs" -}}
{{- $v := .Values -}}
{{- $a := $v.agent -}}
{{- include "portolan.args" (list
  (list "node-name" "$(NODE_NAME)")
  (list "cluster" $v.clusterName)
  (list "state-dir" "/var/lib/portolan")
  (list "admin-listen" (include "portolan.agentAdmin" .))
) }}
- {{ printf "--healthz-listen=%s" (include "portolan.agentHealthz" .) | quote }}
{{- include "portolan.args" (list
  (list "debug-listen" "unix:///run/portolan/agent.sock")
  (list "families" $a.families)
  (list "node-port-addresses" $a.kernel.nodePortAddresses)
  (list "takeover" (include "portolan.takeover" . | trimPrefix "none"))
  (list "sync-period" $a.syncPeriod)
  (list "check-period" $a.checkPeriod)
  (list "drain-timeout" $a.drainTimeout)
  (list "deletion-guard-percent" $a.deletionGuard.percent)
  (list "deletion-guard-objects" $a.deletionGuard.objects)
  (list "deletion-guard-time" $a.deletionGuard.time)
) }}
{{- include "portolan.agent.settings" . }}
{{- include "portolan.agent.identity" . }}
{{- if $v.dns.agent.enabled }}
{{- include "portolan.args" (list
  (list "dns-bind-address" "unix:///run/portolan/dns.sock")
  (list "dns-socket-mode" $v.dns.agent.socketMode)
  (list "dns-upstream" $v.dns.upstreams)
) }}
{{- end }}
{{- with $a.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Settings of the kernel. */}}
{{- define "portolan.agent.settings" -}}
{{- $kernel := .Values.agent.kernel -}}
{{- include "portolan.args" (list
  (list "ipvs-strict-arp" $kernel.strictARP)
  (list "ipvs-tcp-timeout" $kernel.timeouts.tcp)
  (list "ipvs-tcpfin-timeout" $kernel.timeouts.tcpFin)
  (list "ipvs-udp-timeout" $kernel.timeouts.udp)
  (list "conntrack-max-per-core" $kernel.conntrack.maxPerCore)
  (list "conntrack-min" $kernel.conntrack.min)
  (list "conntrack-tcp-timeout-established" $kernel.conntrack.tcpEstablished)
  (list "conntrack-tcp-timeout-close-wait" $kernel.conntrack.tcpCloseWait)
  (list "conntrack-tcp-be-liberal" $kernel.conntrack.tcpBeLiberal)
  (list "conntrack-udp-timeout" $kernel.conntrack.udp)
  (list "conntrack-udp-timeout-stream" $kernel.conntrack.udpStream)
) }}
{{- end -}}

{{/* The controllers, and the credentials of both sides. */}}
{{- define "portolan.agent.identity" -}}
{{- $v := .Values -}}
{{- $discovery := include "portolan.discovery" . -}}
{{- if eq $discovery "configMap" }}
{{- include "portolan.args" (list (list "controller-file" "/etc/portolan/identity/controllers")) }}
{{- else if eq $discovery "list" }}
{{- include "portolan.args" (list (list "controller" $v.agent.controllers)) }}
{{- else }}
{{- include "portolan.args" (list (list "controller" (printf "%s:%v" (include "portolan.serverName" .) $v.controller.ports.agents))) }}
{{- end }}
{{- if eq $v.tls.mode "plaintext" }}
{{- include "portolan.switches" (list (list "plaintext" true)) }}
{{- else }}
{{- include "portolan.args" (list
  (list "tls-ca" "/etc/portolan/identity/ca.crt")
  (list "tls-server-name" (default (include "portolan.serverName" .) $v.agent.tlsServerName))
) }}
{{- if eq $v.tls.agentAuth "token" }}
{{- include "portolan.args" (list (list "token-file" "/etc/portolan/identity/token")) }}
{{- else }}
{{- include "portolan.args" (list
  (list "tls-cert" "/etc/portolan/node/tls.crt")
  (list "tls-key" "/etc/portolan/node/tls.key")
) }}
{{- end }}
{{- end }}
{{- end -}}
