{{/* Refuses values that contradict each other: each message names the field and the remedy. The types of single values
are in values.schema.json. */}}
{{- define "portolan.validate" -}}
{{- include "portolan.validate.mode" . -}}
{{- include "portolan.validate.controller" . -}}
{{- include "portolan.validate.federation" . -}}
{{- include "portolan.validate.agent" . -}}
{{- include "portolan.validate.tls" . -}}
{{- include "portolan.validate.dns" . -}}
{{- include "portolan.validate.relay" . -}}
{{- end -}}

{{- define "portolan.validate.mode" -}}
{{- $v := .Values -}}
{{- $controller := eq (include "portolan.hasController" .) "true" -}}
{{- $agent := eq (include "portolan.hasAgent" .) "true" -}}
{{- if not $v.image.registry -}}
{{- fail "image.registry is empty: set it to the registry that has the images; none has released ones yet" -}}
{{- end -}}
{{- if not (or $controller $agent $v.relay.enabled) -}}
{{- fail "controller.enabled, agent.enabled and relay.enabled are all false: nothing would be installed" -}}
{{- end -}}
{{- if and $controller (eq $v.mode "replacement") (not (include "portolan.apiServer" .)) -}}
{{- fail "apiServer.host is not known: set it to an address of the API server that works without Services, and apiServer.port; the ConfigMap kube-public/cluster-info has none, or no cluster was asked (helm template)" -}}
{{- end -}}
{{- if eq $v.mode "dns" -}}
{{- if not $v.dns.zones -}}
{{- fail "dns.zones is empty: mode dns needs a zone, such as cluster.local" -}}
{{- end -}}
{{- if not $v.controller.service.clusterIP -}}
{{- fail "controller.service.clusterIP is empty: mode dns needs a fixed address, as CoreDNS's plugin grpc takes no names" -}}
{{- end -}}
{{- end -}}
{{- if eq $v.mode "controller" -}}
{{- include "portolan.validate.central" . -}}
{{- end -}}
{{- if and (has $v.mode (list "dns" "controller")) $agent -}}
{{- fail (printf "agent.enabled is true: mode %s has no agents" $v.mode) -}}
{{- end -}}
{{- if and (eq $v.mode "agent") $controller -}}
{{- fail "controller.enabled is true: mode agent has no controllers; use mode replacement" -}}
{{- end -}}
{{- end -}}

{{/* Controllers for another cluster. */}}
{{- define "portolan.validate.central" -}}
{{- $v := .Values -}}
{{- if not $v.apiServer.kubeconfigSecret -}}
{{- fail "apiServer.kubeconfigSecret is empty: mode controller needs a kubeconfig of the served cluster" -}}
{{- end -}}
{{- if not $v.clusterName -}}
{{- fail "clusterName is empty: mode controller needs the name of the served cluster" -}}
{{- end -}}
{{- if has $v.tls.mode (list "selfManaged") -}}
{{- fail "tls.mode is selfManaged: mode controller has no rights to Secrets of the served cluster; use certManager or existing" -}}
{{- end -}}
{{- if eq $v.controller.service.type "ClusterIP" -}}
{{- fail "controller.service.type is ClusterIP: agents of another cluster need LoadBalancer or NodePort" -}}
{{- end -}}
{{- if and (eq $v.tls.agentAuth "token") (not $v.tokens.jwksSecret) -}}
{{- fail "tokens.jwksSecret is empty: mode controller needs the keys of the served cluster's token issuer" -}}
{{- end -}}
{{- if and (eq $v.tls.agentAuth "token") (eq $v.tokens.issuer "auto") -}}
{{- fail "tokens.issuer is auto: mode controller needs the issuer of the served cluster's tokens" -}}
{{- end -}}
{{- if and (eq $v.tls.mode "certManager") (not $v.tls.extraServerNames) -}}
{{- fail "tls.extraServerNames is empty: agents of another cluster need a public name of the controllers" -}}
{{- end -}}
{{- end -}}

{{/* An edge of several clusters. */}}
{{- define "portolan.validate.federation" -}}
{{- $v := .Values -}}
{{- if $v.federation.upstreams -}}
{{- if not $v.clusterName -}}
{{- fail "clusterName is empty: federation.upstreams needs the name of the Cluster object at the centre" -}}
{{- end -}}
{{- if not $v.federation.tlsSecret -}}
{{- fail "federation.tlsSecret is empty: federation.upstreams needs a certificate for the centre, or its authority" -}}
{{- end -}}
{{- if and (eq $v.federation.auth "token") (eq $v.mode "controller") -}}
{{- fail "federation.auth is token: in mode controller the token of the pod is of another cluster than the served one" -}}
{{- end -}}
{{- if not (eq (include "portolan.hasController" .) "true") -}}
{{- fail "federation.upstreams is set without controllers: they send the objects of the cluster" -}}
{{- end -}}
{{- else if $v.federation.stateHostPath -}}
{{- fail "federation.stateHostPath is set without federation.upstreams: it keeps what the centre sends" -}}
{{- end -}}
{{- end -}}

{{- define "portolan.validate.controller" -}}
{{- $v := .Values -}}
{{- if and $v.apiServer.kubeconfigSecret (ne $v.mode "controller") -}}
{{- fail "apiServer.kubeconfigSecret is set: it is for mode controller only" -}}
{{- end -}}
{{- if and $v.apiServer.context (not $v.apiServer.kubeconfigSecret) -}}
{{- fail "apiServer.context is set without apiServer.kubeconfigSecret" -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled (eq (include "portolan.hostNetwork" .) "true") -}}
{{- fail "networkPolicy.enabled is true: policies do not apply to controllers on the host's network (controller.hostNetwork)" -}}
{{- end -}}
{{- $ports := $v.controller.ports -}}
{{- if not (eq 3 (list (int $ports.agents) (int $ports.admin) (int $ports.dns) | uniq | len)) -}}
{{- fail "controller.ports.agents, controller.ports.admin and controller.ports.dns must differ" -}}
{{- end -}}
{{- if eq (include "portolan.hasController" .) "true" -}}
{{- $admin := include "portolan.controllerAdmin" . -}}
{{- if and (eq (include "portolan.isLoopback" $admin) "true") (ne (include "portolan.hostNetwork" .) "true") -}}
{{- fail "controller.adminListen is on loopback: a kubelet cannot probe it without controller.hostNetwork" -}}
{{- end -}}
{{- if has (include "portolan.portOf" $admin) (list (int $ports.agents | toString) (int $ports.dns | toString)) -}}
{{- fail "controller.adminListen has the port of controller.ports.agents or controller.ports.dns: all must differ" -}}
{{- end -}}
{{- end -}}
{{- if and $v.controller.service.nodePort (eq $v.controller.service.type "ClusterIP") -}}
{{- fail "controller.service.nodePort is set: controller.service.type must be NodePort or LoadBalancer" -}}
{{- end -}}
{{- if and (or $v.controller.service.loadBalancerClass $v.controller.service.loadBalancerSourceRanges) (ne $v.controller.service.type "LoadBalancer") -}}
{{- fail "controller.service.loadBalancerClass and .loadBalancerSourceRanges are for controller.service.type LoadBalancer only" -}}
{{- end -}}
{{- if and $v.tokens.review.enabled (eq $v.mode "controller") (ne $v.tls.agentAuth "token") -}}
{{- fail "tokens.review.enabled is true, but tls.agentAuth is not token" -}}
{{- end -}}
{{- end -}}

{{- define "portolan.validate.agent" -}}
{{- $v := .Values -}}
{{- if eq (include "portolan.hasAgent" .) "true" -}}
{{- $discovery := include "portolan.discovery" . -}}
{{- if and (eq $discovery "list") (not $v.agent.controllers) -}}
{{- fail "agent.controllers is empty: agent.discovery list needs host:port of controllers" -}}
{{- end -}}
{{- if and (ne $discovery "list") $v.agent.controllers -}}
{{- fail (printf "agent.controllers is set, but agent.discovery is %s; use list" $discovery) -}}
{{- end -}}
{{- if and (eq $v.mode "agent") (ne $discovery "list") -}}
{{- fail (printf "agent.discovery is %s: mode agent has no controllers of its own; use list" $discovery) -}}
{{- end -}}
{{- if and (eq $discovery "dns") (ne $v.mode "sideBySide") -}}
{{- fail "agent.discovery is dns: only in mode sideBySide do names resolve before agents run" -}}
{{- end -}}
{{- if and (eq $discovery "configMap") (ne (include "portolan.hasController" .) "true") -}}
{{- fail "agent.discovery is configMap: no controller of this release publishes addresses; use list" -}}
{{- end -}}
{{- include "portolan.validate.kernel" . -}}
{{- if eq (include "portolan.portOf" (include "portolan.agentAdmin" .)) (include "portolan.portOf" (include "portolan.agentHealthz" .)) -}}
{{- fail "agent.adminListen and agent.healthzListen have the same port" -}}
{{- end -}}
{{- if and $v.agent.prepare.checkOnly (not $v.agent.prepare.enabled) -}}
{{- fail "agent.prepare.checkOnly is true, but agent.prepare.enabled is false" -}}
{{- end -}}
{{- if and (eq $v.agent.dataplane "auto") (eq (include "portolan.takeover" .) "kube-proxy") -}}
{{- fail "agent.dataplane auto takes over from no kube-proxy: name ipvs or nftables, or set agent.takeover to none" -}}
{{- end -}}
{{- if and (ne (include "portolan.namePrefix" .) "KUBE") (eq (include "portolan.takeover" .) "kube-proxy") -}}
{{- fail "agent.kernel.namePrefix is not KUBE: a takeover from kube-proxy needs its names; set agent.takeover to none" -}}
{{- end -}}
{{- if and $v.agent.prepare.checkOnly (ne $v.agent.cleanup.mode "none") -}}
{{- fail "agent.prepare.checkOnly changes nothing, but agent.cleanup.mode does; set one of them" -}}
{{- end -}}
{{- if and $v.agent.cleanup.nodeSelector (eq $v.agent.cleanup.mode "none") -}}
{{- fail "agent.cleanup.nodeSelector is set, but agent.cleanup.mode is none" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "portolan.validate.kernel" -}}
{{- $v := .Values -}}
{{- $kernel := $v.agent.kernel -}}
{{- $mode := $kernel.detectLocalMode -}}
{{- if and (eq $mode "ClusterCIDR") (not $kernel.clusterCIDRs) -}}
{{- fail "agent.kernel.clusterCIDRs is empty: agent.kernel.detectLocalMode ClusterCIDR needs the networks of pods" -}}
{{- end -}}
{{- if and (eq $mode "BridgeInterface") (not $kernel.podBridgeInterface) -}}
{{- fail "agent.kernel.podBridgeInterface is empty: agent.kernel.detectLocalMode BridgeInterface needs it" -}}
{{- end -}}
{{- if and (eq $mode "InterfaceNamePrefix") (not $kernel.podInterfaceNamePrefix) -}}
{{- fail "agent.kernel.podInterfaceNamePrefix is empty: agent.kernel.detectLocalMode InterfaceNamePrefix needs it" -}}
{{- end -}}
{{- if eq $v.mode "sideBySide" -}}
{{- if eq (include "portolan.namePrefix" .) "KUBE" -}}
{{- fail "agent.kernel.namePrefix is KUBE: in mode sideBySide that is kube-proxy's" -}}
{{- end -}}
{{- if eq (include "portolan.masqueradeBit" .) "14" -}}
{{- fail "agent.kernel.masqueradeBit is 14: in mode sideBySide that is kube-proxy's" -}}
{{- end -}}
{{- if ne (include "portolan.takeover" .) "none" -}}
{{- fail "agent.takeover is kube-proxy: in mode sideBySide kube-proxy stays" -}}
{{- end -}}
{{- if not (include "portolan.serviceProxyName" .) -}}
{{- fail "controller.serviceProxyName is empty: in mode sideBySide the Services without the label are kube-proxy's" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "portolan.validate.tls" -}}
{{- $v := .Values -}}
{{- if and (eq $v.tls.mode "plaintext") (not $v.tls.allowPlaintext) -}}
{{- fail "tls.mode is plaintext, which lets everyone read tables and act as any node: set tls.allowPlaintext to true if that is meant" -}}
{{- end -}}
{{- if and (eq $v.tls.mode "certManager") (not (.Capabilities.APIVersions.Has "cert-manager.io/v1")) -}}
{{- fail "tls.mode is certManager: the cluster has no cert-manager.io/v1; install cert-manager first (helm template: --api-versions cert-manager.io/v1)" -}}
{{- end -}}
{{- if and (eq $v.tls.mode "existing") (eq (include "portolan.hasController" .) "true") (not $v.tls.existing.controllerSecret) -}}
{{- fail "tls.existing.controllerSecret is empty: tls.mode existing needs the Secret with the controllers' certificate" -}}
{{- end -}}
{{- if and (eq $v.mode "agent") (not (has $v.tls.mode (list "existing" "plaintext"))) -}}
{{- fail (printf "tls.mode is %s: mode agent has no controllers of its own; use existing with tls.existing.caConfigMap" $v.tls.mode) -}}
{{- end -}}
{{- if and (eq $v.tls.mode "existing") (eq (include "portolan.hasAgent" .) "true") (not $v.tls.existing.caConfigMap) -}}
{{- fail "tls.existing.caConfigMap is empty: tls.mode existing needs the ConfigMap with the authority of the controllers' certificates" -}}
{{- end -}}
{{- if eq $v.tls.agentAuth "certificate" -}}
{{- if and (eq (include "portolan.hasController" .) "true") (not $v.tls.existing.clientCASecret) -}}
{{- fail "tls.existing.clientCASecret is empty: tls.agentAuth certificate needs the authority of agents' certificates" -}}
{{- end -}}
{{- if and (eq (include "portolan.hasAgent" .) "true") (not $v.tls.existing.nodeCertHostPath) -}}
{{- fail "tls.existing.nodeCertHostPath is empty: tls.agentAuth certificate needs the directory of the nodes' certificates" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "portolan.validate.dns" -}}
{{- $dns := .Values.dns -}}
{{- if not $dns.zones -}}
{{- if $dns.agent.enabled -}}
{{- fail "dns.agent.enabled is true, but dns.zones is empty" -}}
{{- end -}}
{{- if $dns.zoneFiles.enabled -}}
{{- fail "dns.zoneFiles.enabled is true, but dns.zones is empty" -}}
{{- end -}}
{{- if $dns.etcd.endpoints -}}
{{- fail "dns.etcd.endpoints is set, but dns.zones is empty" -}}
{{- end -}}
{{- end -}}
{{- if and $dns.zoneFiles.enabled (not $dns.zoneFiles.hostPath) -}}
{{- fail "dns.zoneFiles.hostPath is empty: dns.zoneFiles.enabled needs a directory of the nodes" -}}
{{- end -}}
{{- if and (or $dns.etcd.tlsSecret $dns.etcd.userSecret) (not $dns.etcd.endpoints) -}}
{{- fail "dns.etcd.tlsSecret or dns.etcd.userSecret is set, but dns.etcd.endpoints is empty" -}}
{{- end -}}
{{- end -}}

{{- define "portolan.validate.relay" -}}
{{- $v := .Values -}}
{{- if $v.relay.enabled -}}
{{- if and (ne $v.tls.mode "plaintext") (not $v.relay.tlsSecret) -}}
{{- fail "relay.tlsSecret is empty: relays need certificates, as no token names a relay" -}}
{{- end -}}
{{- if and (ne $v.tls.mode "plaintext") (eq $v.tls.agentAuth "token") (or (not $v.tokens.jwksSecret) (eq $v.tokens.issuer "auto")) -}}
{{- fail "tokens.jwksSecret is empty or tokens.issuer is auto: relays have no API server that tells them; set both, or tls.agentAuth certificate" -}}
{{- end -}}
{{- if and (not $v.relay.upstreams) (ne (include "portolan.hasController" .) "true") -}}
{{- fail "relay.upstreams is empty, and this release has no controllers" -}}
{{- end -}}
{{- if and (eq (include "portolan.relayHostNetwork" .) "true") (eq (include "portolan.hostNetwork" .) "true") (not $v.relay.upstreams) -}}
{{- fail "relay.upstreams is empty: relays on the host's network need addresses of controllers that work without Services" -}}
{{- end -}}
{{- if and (eq (include "portolan.hasController" .) "true") (ne $v.tls.mode "plaintext") (not $v.tls.existing.clientCASecret) -}}
{{- fail "tls.existing.clientCASecret is empty: controllers need the authority of relays' certificates" -}}
{{- end -}}
{{- end -}}
{{- end -}}
