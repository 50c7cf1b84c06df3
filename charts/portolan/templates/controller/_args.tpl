{{/* Arguments of the controller. */}}
{{- define "portolan.controller.args" -}}
{{- $v := .Values -}}
{{- $c := $v.controller -}}
{{- include "portolan.logArgs" . }}
{{- include "portolan.args" (list
  (list "cluster" $v.clusterName)
  (list "listen" (printf "[::]:%v" $c.ports.agents))
  (list "admin-listen" (include "portolan.controllerAdmin" .))
  (list "debug-listen" "unix:///run/portolan/controller.sock")
  (list "service-proxy-name" (include "portolan.serviceProxyName" .))
  (list "source-ranges" $c.sourceRanges)
  (list "audit-period" $c.auditPeriod)
  (list "events" $c.events)
  (list "deletion-guard-percent" $c.deletionGuard.percent)
  (list "deletion-guard-objects" $c.deletionGuard.objects)
  (list "deletion-guard-time" $c.deletionGuard.time)
  (list "snapshots" $c.streams.snapshots)
  (list "stall-timeout" $c.streams.stallTimeout)
  (list "buckets-timeout" $c.streams.bucketsTimeout)
  (list "catch-up-timeout" $c.streams.catchUpTimeout)
  (list "max-connections" $c.streams.maxConnections)
) }}
{{- include "portolan.switches" (list (list "pod-weights" $c.podWeights)) }}
{{- if $v.apiServer.kubeconfigSecret }}
{{- include "portolan.args" (list
  (list "kubeconfig" "/etc/portolan/kubeconfig/kubeconfig")
  (list "context" $v.apiServer.context)
) }}
{{- end }}
{{- if $v.federation.upstreams }}
{{- $byToken := eq $v.federation.auth "token" }}
{{- include "portolan.args" (list
  (list "federation-upstream" $v.federation.upstreams)
  (list "edge-name" (ternary "$(POD_NAME)" $v.federation.edgeName $byToken))
  (list "federation-tls-dir" (ternary "" "/etc/portolan/federation" $byToken))
  (list "federation-tls-ca" (ternary "/etc/portolan/federation/ca.crt" "" $byToken))
  (list "federation-token-file" (ternary "/etc/portolan/federation-token/token" "" $byToken))
  (list "federation-tls-server-name" $v.federation.serverName)
  (list "state-dir" (ternary "/var/lib/portolan/state" "" (not (empty $v.federation.stateHostPath))))
) }}
{{- include "portolan.switches" (list (list "federation-read-only" $v.federation.readOnly)) }}
{{- end }}
{{- include "portolan.controller.tlsArgs" . }}
{{- if $v.dns.zones }}
{{- include "portolan.controller.dnsArgs" . }}
{{- end }}
{{- with $c.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Arguments for the identity of both sides. */}}
{{- define "portolan.controller.tlsArgs" -}}
{{- $v := .Values -}}
{{- $full := include "portolan.fullname" . -}}
{{- $ns := .Release.Namespace -}}
{{- if eq $v.tls.mode "selfManaged" }}
{{- include "portolan.args" (list
  (list "tls-self-managed" (printf "%s/%s-tls" $ns $full))
  (list "tls-server-names" $v.tls.extraServerNames)
  (list "tls-ca-days" $v.tls.selfManaged.caDays)
  (list "tls-cert-days" $v.tls.selfManaged.certDays)
) }}
{{- else if ne $v.tls.mode "plaintext" }}
{{- include "portolan.args" (list
  (list "tls-cert" "/etc/portolan/tls/tls.crt")
  (list "tls-key" "/etc/portolan/tls/tls.key")
) }}
{{- end }}
{{- if and $v.tls.existing.clientCASecret (ne $v.tls.mode "plaintext") }}
{{- include "portolan.args" (list (list "tls-client-ca" "/etc/portolan/client-ca/ca.crt")) }}
{{- end }}
{{- include "portolan.switches" (list (list "plaintext" (eq $v.tls.mode "plaintext"))) }}
{{- if eq (include "portolan.hasState" .) "true" }}
{{- include "portolan.args" (list
  (list "publish" (printf "%s/%s-agents" $ns $full))
  (list "publish-service" (printf "%s/%s-controller" $ns $full))
  (list "publish-ca" (ternary "/etc/portolan/tls/ca.crt" "" (eq $v.tls.mode "certManager")))
) }}
{{- end }}
{{- if and (eq $v.tls.agentAuth "token") (ne $v.tls.mode "plaintext") }}
{{- include "portolan.tokenArgs" . }}
{{- if $v.tokens.review.enabled }}
{{- include "portolan.switches" (list (list "token-review" true)) }}
{{- include "portolan.args" (list
  (list "token-review-period" $v.tokens.review.period)
  (list "token-review-qps" $v.tokens.review.qps)
) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Arguments of tokens, of controllers and relays. */}}
{{- define "portolan.tokenArgs" -}}
{{- $tokens := .Values.tokens -}}
{{- include "portolan.args" (list
  (list "token-issuer" $tokens.issuer)
  (list "token-audience" $tokens.audience)
  (list "token-service-account" ($tokens.serviceAccounts | default (list (printf "%s/%s-agent" .Release.Namespace (include "portolan.fullname" .)))))
  (list "token-jwks-file" (ternary "/etc/portolan/jwks/jwks.json" "" (not (empty $tokens.jwksSecret))))
) }}
{{- end -}}

{{/* Arguments of DNS. */}}
{{- define "portolan.controller.dnsArgs" -}}
{{- $dns := .Values.dns -}}
{{- include "portolan.args" (list
  (list "dns-zone" $dns.zones)
  (list "dns-network" $dns.networks)
  (list "dns-namespace" $dns.namespaces)
  (list "dns-ttl" $dns.ttl)
  (list "dns-pods" $dns.pods)
  (list "dns-name-server" $dns.nameServer)
  (list "dns-bind-address" (printf "[::]:%v" .Values.controller.ports.dns))
  (list "dns-upstream" $dns.upstreams)
) }}
{{- include "portolan.switches" (list
  (list "dns-endpoint-pod-names" $dns.endpointPodNames)
  (list "dns-zonal" $dns.zonal)
  (list "dns-ignore-empty-service" $dns.ignoreEmptyService)
  (list "dns-no-endpoints" $dns.noEndpoints)
) }}
{{- if $dns.zoneFiles.enabled }}
{{- include "portolan.args" (list
  (list "dns-zone-dir" "/var/lib/portolan/zones")
  (list "dns-zone-interval" $dns.zoneFiles.interval)
) }}
{{- end }}
{{- if $dns.etcd.endpoints }}
{{- include "portolan.args" (list
  (list "dns-etcd-endpoint" $dns.etcd.endpoints)
  (list "dns-etcd-prefix" $dns.etcd.prefix)
  (list "dns-etcd-lease" (printf "%s/%s-dns" .Release.Namespace (include "portolan.fullname" .)))
) }}
{{- if $dns.etcd.tlsSecret }}
{{- include "portolan.args" (list
  (list "dns-etcd-ca" "/etc/portolan/etcd/ca.crt")
  (list "dns-etcd-cert" "/etc/portolan/etcd/tls.crt")
  (list "dns-etcd-key" "/etc/portolan/etcd/tls.key")
) }}
{{- end }}
{{- if $dns.etcd.userSecret }}
{{- include "portolan.args" (list
  (list "dns-etcd-user" "$(DNS_ETCD_USER)")
  (list "dns-etcd-password-file" "/etc/portolan/etcd-user/password")
) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The volumes of the controller besides the user's: maps with path, source and whether they are writable, by name. */}}
{{- define "portolan.controller.volumes" -}}
{{- $v := .Values -}}
{{- $full := include "portolan.fullname" . }}
run: {path: /run/portolan, writable: true, source: {emptyDir: {}}}
tmp: {path: /tmp, writable: true, source: {emptyDir: {}}}
{{- if eq $v.tls.mode "certManager" }}
tls: {path: /etc/portolan/tls, source: {secret: {secretName: {{ $full }}-controller-tls}}}
{{- else if eq $v.tls.mode "existing" }}
tls: {path: /etc/portolan/tls, source: {secret: {secretName: {{ $v.tls.existing.controllerSecret | quote }}}}}
{{- end }}
{{- if and $v.tls.existing.clientCASecret (ne $v.tls.mode "plaintext") }}
client-ca:
  path: /etc/portolan/client-ca
  source: {secret: {secretName: {{ $v.tls.existing.clientCASecret | quote }}, items: [{key: ca.crt, path: ca.crt}]}}
{{- end }}
{{- if and $v.tokens.jwksSecret (eq $v.tls.agentAuth "token") }}
jwks: {path: /etc/portolan/jwks, source: {secret: {secretName: {{ $v.tokens.jwksSecret | quote }}}}}
{{- end }}
{{- if $v.apiServer.kubeconfigSecret }}
kubeconfig: {path: /etc/portolan/kubeconfig, source: {secret: {secretName: {{ $v.apiServer.kubeconfigSecret | quote }}}}}
{{- end }}
{{- if $v.federation.upstreams }}
federation:
  path: /etc/portolan/federation
  source: {secret: {secretName: {{ $v.federation.tlsSecret | quote }}}}
{{- if eq $v.federation.auth "token" }}
federation-token:
  path: /etc/portolan/federation-token
  source:
    projected:
      sources:
        - serviceAccountToken:
            audience: {{ $v.federation.audience | quote }}
            expirationSeconds: {{ int64 $v.tokens.expirationSeconds }}
            path: token
{{- end }}
{{- if $v.federation.stateHostPath }}
state:
  path: /var/lib/portolan/state
  writable: true
  source: {hostPath: {path: {{ $v.federation.stateHostPath | quote }}, type: DirectoryOrCreate}}
{{- end }}
{{- end }}
{{- if $v.dns.zoneFiles.enabled }}
zones:
  path: /var/lib/portolan/zones
  writable: true
  source: {hostPath: {path: {{ $v.dns.zoneFiles.hostPath | quote }}, type: DirectoryOrCreate}}
{{- end }}
{{- if $v.dns.etcd.tlsSecret }}
etcd: {path: /etc/portolan/etcd, source: {secret: {secretName: {{ $v.dns.etcd.tlsSecret | quote }}}}}
{{- end }}
{{- if $v.dns.etcd.userSecret }}
etcd-user: {path: /etc/portolan/etcd-user, source: {secret: {secretName: {{ $v.dns.etcd.userSecret | quote }}}}}
{{- end }}
{{- end -}}
