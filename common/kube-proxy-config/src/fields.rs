// SPDX-License-Identifier: Apache-2.0

//! The table of all fields.

use crate::field::Becomes::{Always, Nothing, Rule, Value};
use crate::field::Kind::{Bool, Duration, Integer, List, Map, Number, Text};
use crate::field::{Field, Modes, field};

const OWN: &str = "it is kube-proxy's own";
const NO_CLIENT: &str = "agents have no API client";
const AT_ONCE: &str = "changes are programmed as they arrive";
const LOGS: &str = "the log has no such option";
const WINDOWS: &str = "Windows nodes keep kube-proxy";

/// All fields of v1alpha1, in the order of the type.
pub const FIELDS: &[Field] = &[
    field("featureGates", Map, "", "feature-gates", Nothing(OWN)),
    field("clientConnection.kubeconfig", Text, "", "kubeconfig", Rule),
    field(
        "clientConnection.acceptContentTypes",
        Text,
        "",
        "",
        Nothing(NO_CLIENT),
    ),
    field(
        "clientConnection.contentType",
        Text,
        "application/vnd.kubernetes.protobuf",
        "kube-api-content-type",
        Nothing(NO_CLIENT),
    ),
    field(
        "clientConnection.qps",
        Number,
        "5",
        "kube-api-qps",
        Nothing(NO_CLIENT),
    ),
    field(
        "clientConnection.burst",
        Integer,
        "10",
        "kube-api-burst",
        Nothing(NO_CLIENT),
    ),
    field(
        "logging.format",
        Text,
        "",
        "logging-format",
        Value("log.format", "json"),
    ),
    field(
        "logging.flushFrequency",
        Duration,
        "5s",
        "log-flush-frequency",
        Nothing(LOGS),
    ),
    field("logging.verbosity", Integer, "", "v", Rule),
    field("logging.vmodule", List, "", "vmodule", Nothing(LOGS)),
    field(
        "logging.options.text.splitStream",
        Bool,
        "",
        "log-text-split-stream",
        Nothing(LOGS),
    ),
    field(
        "logging.options.text.infoBufferSize",
        Text,
        "0",
        "log-text-info-buffer-size",
        Nothing(LOGS),
    ),
    field(
        "logging.options.json.splitStream",
        Bool,
        "",
        "log-json-split-stream",
        Nothing(LOGS),
    ),
    field(
        "logging.options.json.infoBufferSize",
        Text,
        "0",
        "log-json-info-buffer-size",
        Nothing(LOGS),
    ),
    field(
        "hostnameOverride",
        Text,
        "",
        "hostname-override",
        Nothing("the agent of a DaemonSet has the name of its Node"),
    ),
    field("bindAddress", Text, "0.0.0.0", "bind-address", Rule),
    field(
        "healthzBindAddress",
        Text,
        "0.0.0.0:10256",
        "healthz-bind-address",
        Value("agent.healthzListen", "[::]:10256"),
    ),
    field(
        "metricsBindAddress",
        Text,
        "127.0.0.1:10249",
        "metrics-bind-address",
        Value("agent.adminListen", "127.0.0.1:10249"),
    ),
    field(
        "bindAddressHardFail",
        Bool,
        "",
        "bind-address-hard-fail",
        Always("the agent ends whenever one of its ports cannot be bound"),
    ),
    field(
        "enableProfiling",
        Bool,
        "",
        "profiling",
        Nothing("the agent serves no profiles"),
    ),
    field(
        "showHiddenMetricsForVersion",
        Text,
        "",
        "show-hidden-metrics-for-version",
        Nothing(OWN),
    ),
    field("mode", Text, "", "proxy-mode", Rule),
    field(
        "iptables.masqueradeBit",
        Integer,
        "14",
        "iptables-masquerade-bit",
        Value("agent.kernel.masqueradeBit", "14"),
    )
    .zero()
    .read_in(Modes::Iptables),
    field(
        "iptables.masqueradeAll",
        Bool,
        "",
        "masquerade-all",
        Value("agent.kernel.masqueradeAll", "false"),
    )
    .read_in(Modes::Iptables),
    field(
        "iptables.localhostNodePorts",
        Bool,
        "",
        "iptables-localhost-nodeports",
        Rule,
    ),
    field(
        "iptables.syncPeriod",
        Duration,
        "30s",
        "iptables-sync-period",
        Nothing(AT_ONCE),
    ),
    field(
        "iptables.minSyncPeriod",
        Duration,
        "1s",
        "iptables-min-sync-period",
        Nothing(AT_ONCE),
    ),
    field(
        "ipvs.syncPeriod",
        Duration,
        "30s",
        "ipvs-sync-period",
        Value("agent.syncPeriod", "30s"),
    )
    .read_in(Modes::Ipvs),
    field(
        "ipvs.minSyncPeriod",
        Duration,
        "",
        "ipvs-min-sync-period",
        Nothing(AT_ONCE),
    ),
    field(
        "ipvs.scheduler",
        Text,
        "rr",
        "ipvs-scheduler",
        Value("agent.kernel.scheduler", ""),
    )
    .read_in(Modes::Ipvs),
    field(
        "ipvs.excludeCIDRs",
        List,
        "",
        "ipvs-exclude-cidrs",
        Value("agent.kernel.excludeCIDRs", ""),
    )
    .read_in(Modes::Ipvs),
    field(
        "ipvs.strictARP",
        Bool,
        "",
        "ipvs-strict-arp",
        Value("agent.kernel.strictARP", "false"),
    )
    .read_in(Modes::Ipvs),
    field(
        "ipvs.tcpTimeout",
        Duration,
        "",
        "ipvs-tcp-timeout",
        Value("agent.kernel.timeouts.tcp", "0s"),
    )
    .read_in(Modes::Ipvs),
    field(
        "ipvs.tcpFinTimeout",
        Duration,
        "",
        "ipvs-tcpfin-timeout",
        Value("agent.kernel.timeouts.tcpFin", "0s"),
    )
    .read_in(Modes::Ipvs),
    field(
        "ipvs.udpTimeout",
        Duration,
        "",
        "ipvs-udp-timeout",
        Value("agent.kernel.timeouts.udp", "0s"),
    )
    .read_in(Modes::Ipvs),
    field(
        "nftables.masqueradeBit",
        Integer,
        "14",
        "",
        Value("agent.kernel.masqueradeBit", "14"),
    )
    .zero()
    .read_in(Modes::Nftables),
    field(
        "nftables.masqueradeAll",
        Bool,
        "",
        "",
        Value("agent.kernel.masqueradeAll", "false"),
    )
    .read_in(Modes::Nftables),
    field("nftables.syncPeriod", Duration, "30s", "", Nothing(AT_ONCE)),
    field(
        "nftables.minSyncPeriod",
        Duration,
        "1s",
        "",
        Nothing(AT_ONCE),
    ),
    field("winkernel.networkName", Text, "", "", Nothing(WINDOWS)),
    field("winkernel.sourceVip", Text, "", "", Nothing(WINDOWS)),
    field("winkernel.enableDSR", Bool, "", "", Nothing(WINDOWS)),
    field(
        "winkernel.rootHnsEndpointName",
        Text,
        "",
        "",
        Nothing(WINDOWS),
    ),
    field(
        "winkernel.forwardHealthCheckVip",
        Bool,
        "",
        "",
        Nothing(WINDOWS),
    ),
    field(
        "detectLocalMode",
        Text,
        "",
        "detect-local-mode",
        Value("agent.kernel.detectLocalMode", "ClusterCIDR"),
    ),
    field(
        "detectLocal.bridgeInterface",
        Text,
        "",
        "pod-bridge-interface",
        Value("agent.kernel.podBridgeInterface", ""),
    ),
    field(
        "detectLocal.interfaceNamePrefix",
        Text,
        "",
        "pod-interface-name-prefix",
        Value("agent.kernel.podInterfaceNamePrefix", ""),
    ),
    field(
        "clusterCIDR",
        Text,
        "",
        "cluster-cidr",
        Value("agent.kernel.clusterCIDRs", ""),
    ),
    field(
        "nodePortAddresses",
        List,
        "",
        "nodeport-addresses",
        Value("agent.kernel.nodePortAddresses", ""),
    ),
    field(
        "oomScoreAdj",
        Integer,
        "-999",
        "oom-score-adj",
        Nothing("the priority class of the pod gives -997"),
    )
    .zero(),
    field(
        "conntrack.maxPerCore",
        Integer,
        "32768",
        "conntrack-max-per-core",
        Value("agent.kernel.conntrack.maxPerCore", "32768"),
    )
    .zero(),
    field(
        "conntrack.min",
        Integer,
        "131072",
        "conntrack-min",
        Value("agent.kernel.conntrack.min", "131072"),
    )
    .zero(),
    field(
        "conntrack.tcpEstablishedTimeout",
        Duration,
        "24h",
        "conntrack-tcp-timeout-established",
        Value("agent.kernel.conntrack.tcpEstablished", "24h"),
    )
    .zero(),
    field(
        "conntrack.tcpCloseWaitTimeout",
        Duration,
        "1h",
        "conntrack-tcp-timeout-close-wait",
        Value("agent.kernel.conntrack.tcpCloseWait", "1h"),
    )
    .zero(),
    field(
        "conntrack.tcpBeLiberal",
        Bool,
        "",
        "conntrack-tcp-be-liberal",
        Value("agent.kernel.conntrack.tcpBeLiberal", "false"),
    ),
    field(
        "conntrack.udpTimeout",
        Duration,
        "",
        "conntrack-udp-timeout",
        Value("agent.kernel.conntrack.udp", "0s"),
    ),
    field(
        "conntrack.udpStreamTimeout",
        Duration,
        "",
        "conntrack-udp-timeout-stream",
        Value("agent.kernel.conntrack.udpStream", "0s"),
    ),
    field(
        "configSyncPeriod",
        Duration,
        "15m",
        "config-sync-period",
        Nothing(NO_CLIENT),
    ),
    field("portRange", Text, "", "proxy-port-range", Nothing(OWN)),
    field(
        "windowsRunAsService",
        Bool,
        "",
        "windows-service",
        Nothing(WINDOWS),
    ),
];
