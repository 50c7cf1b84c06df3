// SPDX-License-Identifier: Apache-2.0

//! Configurations as distributions write them.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::field::{Kind, Modes};
use crate::fields::FIELDS;
use crate::{ConfigError, parse, render};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// All leaf fields of KubeProxyConfiguration v1alpha1 and of the types that it embeds, of the module
/// k8s.io/kube-proxy of Kubernetes 1.36, by their names in JSON.
const UPSTREAM: &str = "
    featureGates
    clientConnection: kubeconfig acceptContentTypes contentType qps burst
    logging: format flushFrequency verbosity vmodule
    logging.options.text: splitStream infoBufferSize
    logging.options.json: splitStream infoBufferSize
    hostnameOverride bindAddress healthzBindAddress metricsBindAddress bindAddressHardFail
    enableProfiling showHiddenMetricsForVersion mode
    iptables: masqueradeBit masqueradeAll localhostNodePorts syncPeriod minSyncPeriod
    ipvs: syncPeriod minSyncPeriod scheduler excludeCIDRs strictARP tcpTimeout tcpFinTimeout udpTimeout
    nftables: masqueradeBit masqueradeAll syncPeriod minSyncPeriod
    winkernel: networkName sourceVip enableDSR rootHnsEndpointName forwardHealthCheckVip
    detectLocalMode
    detectLocal: bridgeInterface interfaceNamePrefix
    clusterCIDR nodePortAddresses oomScoreAdj
    conntrack: maxPerCore min tcpEstablishedTimeout tcpCloseWaitTimeout tcpBeLiberal udpTimeout
    conntrack: udpStreamTimeout
    configSyncPeriod portRange windowsRunAsService";

fn converted(text: &str) -> Converted {
    let (config, unknown) = parse(&format!("{HEAD}{text}"), false).unwrap();
    assert_eq!(unknown, []);
    convert(&config, None).unwrap()
}

fn lost(done: &Converted) -> Vec<&str> {
    let lost = done.findings.iter().filter(|finding| finding.is_lost);
    lost.map(|finding| finding.path).collect()
}

#[test]
fn every_field_is_in_the_table_and_no_other() {
    let mut upstream = BTreeSet::new();
    for line in UPSTREAM.lines() {
        let (prefix, names) = match line.split_once(':') {
            Some((prefix, names)) => (format!("{}.", prefix.trim()), names),
            None => (String::new(), line),
        };
        upstream.extend(
            names
                .split_whitespace()
                .map(|name| format!("{prefix}{name}")),
        );
    }
    let table: BTreeSet<_> = FIELDS.iter().map(|field| field.path.to_owned()).collect();
    assert_eq!(table, upstream);
    assert_eq!(table.len(), FIELDS.len(), "each once");
}

/// A value that differs from every default of the type.
fn sample(field: &Field) -> Value {
    match (field.path, field.kind) {
        ("mode", _) => "iptables".into(),
        ("bindAddress", _) => "192.0.2.1".into(),
        (_, Kind::Bool) => true.into(),
        (_, Kind::Integer | Kind::Number) => 7.into(),
        (_, Kind::Text) => "x".into(),
        (_, Kind::Duration) => "7m0s".into(),
        (_, Kind::List) => json!(["x"]),
        (_, Kind::Map) => json!({"A": true}),
    }
}

/// No field that is set disappears without a word, except where nothing needs to be done.
#[test]
fn every_field_becomes_a_value_or_a_finding() {
    for field in FIELDS {
        let mut config = Config::default();
        let mode = match field.modes {
            Modes::Nftables => "nftables",
            Modes::Ipvs | Modes::Iptables => "ipvs",
            Modes::All => "iptables",
        };
        config
            .set(Field::at("mode").unwrap(), &mode.into())
            .unwrap();
        config.set(field, &sample(field)).unwrap();
        let done = convert(&config, None).unwrap();
        let has_value = match field.becomes {
            Becomes::Value(path, _) => done.values.get(path).is_some(),
            _ => !done.values.is_empty(),
        };
        let found = done
            .findings
            .iter()
            .any(|finding| finding.path == field.path);
        let needs_none = matches!(field.becomes, Becomes::Always(_));
        assert!(has_value || found || needs_none, "{}", field.path);
    }
}

/// As `kubeadm init` of 1.36 writes it, with the mode set by hand.
const KUBEADM: &str = "
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: '', burst: 0, contentType: '', kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16,fd00:10:244::/56
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal: {bridgeInterface: '', interfaceNamePrefix: ''}
detectLocalMode: ''
enableProfiling: false
healthzBindAddress: ''
hostnameOverride: ''
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: '', strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging:
  flushFrequency: 0
  options: {json: {infoBufferSize: '0'}, text: {infoBufferSize: '0'}}
  verbosity: 0
metricsBindAddress: ''
mode: ipvs
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ''
showHiddenMetricsForVersion: ''
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: '', rootHnsEndpointName: '', sourceVip: ''}
";

#[test]
fn kubeadm_sets_the_cluster_cidr_only() {
    let done = converted(KUBEADM);
    let text = render(&done.values);
    let expected = "agent:\n  kernel:\n    \
        clusterCIDRs: [\"10.244.0.0/16\",\"fd00:10:244::/56\"]  # clusterCIDR\n";
    assert_eq!(text.split_once('\n').unwrap().1, expected);
    assert_eq!(done.findings.len(), 1, "{:?}", done.findings);
    assert!(!done.has_losses(), "the kubeconfig is a note");

    let kubeconfig = "
current-context: default
clusters: [{name: default, cluster: {server: 'https://[2001:db8::1]:8443/'}}]
contexts: [{name: default, context: {cluster: default, user: default}}]";
    let (config, _) = parse(&format!("{HEAD}{KUBEADM}"), false).unwrap();
    let done = convert(&config, Some(kubeconfig)).unwrap();
    assert_eq!(
        done.values.get("apiServer.host"),
        Some(&json!("2001:db8::1"))
    );
    assert_eq!(done.values.get("apiServer.port"), Some(&json!(8443)));
    assert_eq!(done.findings, []);
}

#[test]
fn kubespray_sets_ipvs_with_addresses_and_limits() {
    let done = converted(
        "
mode: ipvs
bindAddress: '::'
healthzBindAddress: 0.0.0.0:10256
metricsBindAddress: 127.0.0.1:10249
hostnameOverride: node1
oomScoreAdj: -999
nodePortAddresses: [10.0.0.0/8]
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 24h0m0s, tcpCloseWaitTimeout: 30m0s}
iptables: {masqueradeAll: true, masqueradeBit: 15, syncPeriod: 30s, minSyncPeriod: 0s}
ipvs: {excludeCIDRs: [10.9.0.0/24], scheduler: rr, strictARP: true, syncPeriod: 1m30s, tcpTimeout: 2h0m0s}
nftables: {masqueradeBit: 13}
",
    );
    let expected = json!({"agent": {
        "syncPeriod": "90s",
        "kernel": {
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpCloseWait": "30m"},
            "excludeCIDRs": ["10.9.0.0/24"],
            "masqueradeAll": true,
            "masqueradeBit": 15,
            "nodePortAddresses": ["10.0.0.0/8"],
            "strictARP": true,
            "timeouts": {"tcp": "2h"},
        },
    }});
    assert_eq!(done.values.to_json(), expected);
    assert_eq!(lost(&done), ["hostnameOverride"]);
    let notes: Vec<_> = done.findings.iter().map(|finding| finding.path).collect();
    // It has no network of pods.
    let expected = ["hostnameOverride", "nftables.masqueradeBit", "clusterCIDR"];
    assert_eq!(notes, expected);
}

#[test]
fn the_configmap_of_eks_is_read_with_its_mode() {
    let config = "
bindAddress: 0.0.0.0
clientConnection: {acceptContentTypes: '', burst: 10, contentType: application/vnd.kubernetes.protobuf, kubeconfig: /var/lib/kube-proxy/kubeconfig, qps: 5}
clusterCIDR: ''
configSyncPeriod: 15m0s
conntrack: {maxPerCore: 32768, min: 131072, tcpCloseWaitTimeout: 1h0m0s, tcpEstablishedTimeout: 24h0m0s}
enableProfiling: false
healthzBindAddress: 0.0.0.0:10256
iptables: {masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 0s, syncPeriod: 30s}
metricsBindAddress: 0.0.0.0:10249
mode: iptables
oomScoreAdj: -998
";
    let indented = format!("{HEAD}{config}").replace('\n', "\n    ");
    let text = format!("apiVersion: v1\nkind: ConfigMap\ndata:\n  config: |\n    {indented}\n");
    let (config, _) = parse(&text, false).unwrap();
    let done = convert(&config, None).unwrap();
    let expected = json!({"agent": {"adminListen": "0.0.0.0:10249"}});
    assert_eq!(done.values.to_json(), expected);
    assert_eq!(lost(&done), ["oomScoreAdj"]);
}

/// The chart's default takes over from every mode.
#[test]
fn other_modes_are_taken_over_with_a_note() {
    let nftables = json!({
        "dataplane": "nftables",
        // Without a list, those alone.
        "kernel": { "clusterCIDRs": ["10.244.0.0/16"], "nodePortAddresses": ["primary"] },
    });
    let other = json!({ "kernel": { "clusterCIDRs": ["10.244.0.0/16"] } });
    for (text, mode, expected) in [
        ("mode: iptables\n", "iptables", &other),
        ("mode: nftables\n", "nftables", &nftables),
        ("", "default", &other),
    ] {
        let done = converted(&format!("{text}clusterCIDR: 10.244.0.0/16\n"));
        assert_eq!(done.values.to_json(), json!({ "agent": expected }));
        assert!(!done.has_losses());
        let [note] = &done.findings[..] else {
            panic!("{:?}", done.findings)
        };
        assert_eq!(note.path, "mode");
        assert!(note.reason.contains(mode), "{}", note.reason);
    }
}

#[test]
fn node_ports_of_nftables_mode_are_at_primary_addresses_unless_others_are_named() {
    let addresses = |done: &Converted| done.values.get("agent.kernel.nodePortAddresses").cloned();
    let done = converted("mode: nftables\nnodePortAddresses: [192.0.2.0/24]\n");
    assert_eq!(addresses(&done), Some(json!(["192.0.2.0/24"])));
    let config = crate::parse_flags("--proxy-mode=nftables").unwrap();
    let done = convert(&config, None).unwrap();
    assert_eq!(addresses(&done), Some(json!(["primary"])));
    assert_eq!(addresses(&converted("mode: ipvs\n")), None);
}

#[test]
fn an_empty_network_of_pods_is_noted() {
    let noted = |text: &str| {
        let findings = converted(text).findings;
        findings.iter().any(|finding| finding.path == "clusterCIDR")
    };
    assert!(noted("mode: ipvs\n"));
    assert!(noted("mode: ipvs\nclusterCIDR: ''\n"));
    assert!(!noted("mode: ipvs\nclusterCIDR: 10.244.0.0/16\n"));
    assert!(!noted("mode: ipvs\ndetectLocalMode: NodeCIDR\n"));
}

#[test]
fn addresses_have_ports() {
    let done = converted("mode: ipvs\nhealthzBindAddress: '::'\nmetricsBindAddress: 192.0.2.1\n");
    let expected = json!({"agent": {"adminListen": "192.0.2.1:10249"}});
    assert_eq!(done.values.to_json(), expected);
}

/// The values exist in the chart, with the defaults of the table. `auto` stands for kube-proxy's in the
/// mode that replaces it.
#[test]
fn values_are_those_of_the_chart() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/portolan/values.yaml");
    let chart = portolan_source::file::read_yaml(&std::fs::read_to_string(file).unwrap()).unwrap();
    let default = |path: &str| {
        let value = chart.pointer(&format!("/{}", path.replace('.', "/")));
        plain(value.unwrap_or_else(|| panic!("the chart has no {path}")))
    };
    for field in FIELDS {
        if let Becomes::Value(path, expected) = field.becomes {
            let found = default(path);
            assert!(found == expected || found == "auto", "{path}: {found}");
        }
    }
    let by_rules = [
        "apiServer.host",
        "apiServer.port",
        "log.level",
        "agent.nodeIPs",
        "agent.dataplane",
    ];
    for path in by_rules {
        default(path);
    }
}

#[test]
fn mistakes_are_all_named_with_line_and_field() {
    let problems = |text: &str, lenient| {
        let ConfigError(problems) = parse(&format!("{HEAD}{text}"), lenient).unwrap_err();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let text = "mode: ipvs\nipvs:\n  shceduler: rr\n  strictARP: 1\nconntrack: 3\nmetrics: x\n\
        ipvs2: {}\noomScoreAdj: 1.5\n";
    let expected = [
        "line 5: ipvs.shceduler: unknown field",
        "line 6: ipvs.strictARP: 1 is not true or false",
        "line 7: conntrack: expected a map",
        "line 8: metrics: unknown field",
        "line 9: ipvs2: unknown field",
        "line 10: oomScoreAdj: 1.5 is not an integer",
    ];
    assert_eq!(problems(text, false), expected);
    let wrong = [expected[1], expected[2], expected[5]];
    assert_eq!(problems(text, true), wrong);
    let (config, unknown) = parse(&format!("{HEAD}mode: ipvs\nnew: 1\n"), true).unwrap();
    assert_eq!((config.text("mode"), unknown.len()), (Some("ipvs"), 1));

    for (text, expected) in [
        ("kind: [", "line 1: "),
        (
            "kind: Pod\napiVersion: v1\n",
            "line 2: apiVersion: \"v1\": expected kubeproxy",
        ),
        (
            "kind: ConfigMap\ndata: {a: b}\n",
            "line 2: data: neither config.conf nor config",
        ),
    ] {
        let error = parse(text, false).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_configuration_that_nothing_can_replace_is_refused() {
    let refused = |text: &str| {
        let (config, _) = parse(&format!("{HEAD}{text}"), false).unwrap();
        convert(&config, None).unwrap_err().0
    };
    assert_eq!(refused("mode: kernelspace\n"), "mode");
    assert_eq!(refused("mode: ebpf\n"), "mode");
    assert_eq!(refused("bindAddress: node1\n"), "bindAddress");
}
