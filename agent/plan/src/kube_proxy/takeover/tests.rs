// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use portolan_model::ipvs::{RealServerConfig, VirtualServerConfig};
use portolan_model::{Frontend, FrontendAddress, FrontendKind, Record, RecordKey};

use super::*;
use crate::kube_proxy::{leftover_sets, releasable};

mod dump;

/// Objects of a kube-proxy of Kubernetes 1.36 on a node: the Services `web` (10.96.0.10), `sticky`, `local`
/// and `gone`, with node ports 30080 to 30082, and `kubernetes`.
const LEFT: &str = include_str!("tests/kube-proxy-ipvs.txt");

fn left() -> (KernelState, BTreeSet<IpAddr>) {
    dump::read(LEFT)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn key(text: &str) -> VirtualServerKey {
    let at: std::net::SocketAddr = text.parse().unwrap();
    VirtualServerKey::new(Protocol::Tcp, at.ip(), at.port())
}

/// The node of the dump.
fn facts() -> NodeFacts {
    let own = [
        "192.168.77.11",
        "fd00:77::11",
        "10.244.1.1",
        "fd00:244:1::1",
    ];
    let own: BTreeSet<IpAddr> = own.map(ip).into();
    NodeFacts {
        addresses: own.iter().copied().chain([ip("127.0.0.1")]).collect(),
        node_port_addresses: own,
        ..NodeFacts::default()
    }
}

/// A table that has the Service `web` alone.
fn table() -> NodeTable {
    let mut table = NodeTable::default();
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let vip = |text| Frontend::new(FrontendKind::ClusterIp, FrontendAddress::Vip(ip(text)), 80);
        let port = |family| {
            let address = FrontendAddress::NodeAddresses(family);
            Frontend::new(FrontendKind::NodePort, address, 30080)
        };
        let key = RecordKey {
            cluster: "".into(),
            namespace: "default".into(),
            service: "web".into(),
            port: "".into(),
            protocol,
        };
        let frontends = [vip("10.96.0.10"), vip("fd00:10:96::10")];
        let record = Record {
            frontends: frontends.into_iter().chain(Family::ALL.map(port)).collect(),
            ..Record::new(key.clone())
        };
        table.records.insert(key, Arc::new(record));
    }
    table
}

fn claim(observed: &KernelState, bound: &BTreeSet<IpAddr>, config: &Config) -> Claim {
    Claim::new(
        &table(),
        &facts(),
        config,
        observed,
        bound,
        &PacketRules::default(),
    )
}

fn server(forwarding: ForwardingMethod) -> VirtualServer {
    let config = RealServerConfig {
        forwarding,
        ..RealServerConfig::masquerade(1)
    };
    VirtualServer {
        config: VirtualServerConfig::round_robin().into(),
        real_servers: Arc::new([("10.0.0.1:80".parse().unwrap(), config)].into()),
    }
}

#[test]
fn exactly_the_objects_of_a_real_kube_proxy_are_claimed() {
    let (mut observed, bound) = left();
    let all: BTreeSet<_> = observed.virtual_servers.keys().copied().collect();
    let masquerade = server(ForwardingMethod::Masquerade);
    // An address and a port of no Service; a port of a Service at another address.
    let foreign = ["10.96.0.10:9999", "198.51.100.1:80", "198.51.100.1:30080"].map(key);
    for key in foreign {
        observed.virtual_servers.insert(key, masquerade.clone());
    }
    let claim = claim(&observed, &bound, &Config::default());
    assert_eq!(claim.foreign, foreign.into());
    let claimed: BTreeSet<_> = claim.wanted.union(&claim.unwanted).copied().collect();
    assert_eq!(claimed, all);
    let is_web = |key: &&VirtualServerKey| {
        let at = key.socket().unwrap();
        at.port() == 30080 || [ip("10.96.0.10"), ip("fd00:10:96::10")].contains(&at.ip())
    };
    let web: BTreeSet<_> = all.iter().filter(is_web).copied().collect();
    assert_eq!(claim.wanted, web);
    assert!(web.len() >= 8, "{web:?}");
    assert!(claim.unwanted.len() >= 8, "{:?}", claim.unwanted);
}

#[test]
fn unlisted_virtual_server_is_claimed_if_the_table_has_it() {
    let (mut observed, bound) = left();
    observed.sets.clear();
    let claim = claim(&observed, &bound, &Config::default());
    assert!(claim.unwanted.is_empty());
    assert!(claim.wanted.contains(&key("10.96.0.10:80")));
    let elsewhere = Claim::new(
        &table(),
        &NodeFacts::default(),
        &Config::default(),
        &observed,
        &BTreeSet::new(),
        &PacketRules::default(),
    );
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}

#[test]
fn excluded_and_unmasqueraded_virtual_servers_are_foreign() {
    let (mut observed, bound) = left();
    let (gone, web) = (key("10.96.0.13:80"), key("10.96.0.10:80"));
    let config = Config {
        exclude_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        ..Config::default()
    };
    let claim_of = |observed: &KernelState| claim(observed, &bound, &config);
    assert!(claim_of(&observed).foreign.contains(&gone));
    assert!(claim_of(&observed).wanted.contains(&web));
    let direct = server(ForwardingMethod::Direct);
    observed.virtual_servers.insert(web, direct);
    assert!(claim_of(&observed).foreign.contains(&web));
}

#[test]
fn claim_is_recorded_after_its_marker_in_sets_with_room() {
    let (mut observed, bound) = left();
    let config = Config::default();
    let claim = claim(&observed, &bound, &config);
    let shown = |observed: &KernelState| -> Vec<String> {
        let steps = claim.steps(observed, &config);
        steps.iter().map(ToString::to_string).collect()
    };
    let steps = shown(&observed);
    assert_eq!(
        steps[..2],
        [
            "create set KUBE-PORTOLAN-TAKEOVER (hash:ip)",
            "create set KUBE-PORTOLAN-OWNED (hash:ip,port)",
        ]
    );
    let claimed = claim.steps(&observed, &config);
    claimed.iter().for_each(|step| observed.advance(step));
    let left = observed.foreign_virtual_servers(&config.names);
    assert!(left.is_empty(), "{left:?}");
    assert!(has_kube_proxy(
        &observed,
        false,
        false,
        false,
        &config.names
    ));
    // Small sets are replaced with their entries.
    for set in observed.sets.values_mut() {
        set.header.max_entries = 1;
    }
    assert!(shown(&observed)[1].starts_with("replace set KUBE-PORTOLAN-OWNED"));
}

#[test]
fn kube_proxy_is_detected_only_without_our_record() {
    let names = Names::default();
    let (observed, _) = left();
    let has = |observed: &KernelState, device, asked| {
        has_kube_proxy(observed, device, false, asked, &names)
    };
    assert!(has(&observed, true, true) && has(&observed, false, true));
    assert!(!has(&observed, true, false));
    assert!(!has(&KernelState::default(), false, true));
    // Our own sets, of the same names.
    let mut ours = observed.clone();
    let owned = ours.sets["KUBE-CLUSTER-IP"].clone();
    ours.sets.insert("KUBE-PORTOLAN-OWNED".to_owned(), owned);
    assert!(!has(&ours, false, true));
    assert!(has(&ours, true, true));
}

#[test]
fn address_is_released_when_routed_or_unused() {
    let (observed, bound) = left();
    let web = ip("10.96.0.10");
    let (none, no_own) = (KernelState::default(), BTreeSet::new());
    let free = releasable(&bound, &observed, &none, &no_own);
    assert_eq!(free, [] as [IpAddr; 0]);
    let mut routed = observed.clone();
    routed.routes.insert(web, None);
    assert_eq!(releasable(&bound, &routed, &routed, &no_own), [web]);
    // Another interface has it too.
    assert_eq!(releasable(&bound, &observed, &none, &[web].into()), [web]);
    // Desired, without a virtual server and without a route: it waits.
    let wanted = KernelState {
        routes: [(web, None)].into(),
        ..KernelState::default()
    };
    let rest = releasable(&bound, &none, &wanted, &no_own);
    assert_eq!(rest.len(), bound.len() - 1);
    assert!(!rest.contains(&web));
}

#[test]
fn names_of_leftovers_fit_the_kernel() {
    let sets = leftover_sets(&Names::default());
    assert_eq!(
        sets,
        [
            "KUBE-LOAD-BALANCER-SOURCE-IP",
            "KUBE-6-LOAD-BALANCER-SOURCE-IP",
            "KUBE-PORTOLAN-TAKEOVER",
        ]
    );
    let (observed, _) = left();
    let ours = |name: &&String| {
        let names = Names::default();
        let mut all = SetName::ALL.into_iter();
        all.any(|set| Family::ALL.iter().any(|f| names.set(set, *f) == **name))
    };
    let unknown: Vec<_> = observed
        .sets
        .keys()
        .filter(|name| !ours(name) && !sets.contains(name))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
