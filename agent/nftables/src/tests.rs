// SPDX-License-Identifier: Apache-2.0

mod families;
mod properties;
mod shares;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::{
    Affinity, Destination, Families, Family, Frontend, FrontendAddress, FrontendKind, Lists,
    NodeInfo, NodeOverlay, NodeTable, Protocol, Record, RecordKey,
};
use portolan_netlink::nftables::{Request, TableContent, Value, Verdict};
use portolan_plan::{Config, DetectLocal, NodeFacts};

use crate::layout::{self, way_key};
use crate::{List, Surplus, WayKey, Ways, advance, desire, plan};

pub(crate) use families::{address_in, destinations_in, many_ranges, network_in};

pub(crate) fn key(service: &str) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: service.into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    }
}

pub(crate) fn vip(text: &str, kind: FrontendKind, lists: Lists) -> Frontend {
    let address = FrontendAddress::Vip(text.parse().unwrap());
    Frontend {
        lists,
        ..Frontend::new(kind, address, 80)
    }
}

fn destinations(count: u16) -> Vec<Destination> {
    destinations_in(Family::V4, count)
}

pub(crate) fn record(service: &str, frontends: Vec<Frontend>, endpoints: u16) -> Record {
    let available = match endpoints {
        0 => Families::NONE,
        _ => [Family::V4].into_iter().collect(),
    };
    Record {
        frontends,
        destinations: destinations(endpoints),
        available,
        ..Record::new(key(service))
    }
}

pub(crate) fn table(records: impl IntoIterator<Item = Record>) -> NodeTable {
    let records = records.into_iter();
    NodeTable {
        records: records.map(|r| (r.key.clone(), Arc::new(r))).collect(),
        ..NodeTable::default()
    }
}

fn config() -> Config {
    Config {
        detect_local: DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]),
        ..Config::default()
    }
}

pub(crate) fn way(address: &str) -> WayKey {
    WayKey {
        address: address.parse().unwrap(),
        protocol: Protocol::Tcp,
        port: 80,
    }
}

pub(crate) fn desired(table: &NodeTable, observed: Option<&TableContent>) -> TableContent {
    desired_in(Family::V4, table, observed)
}

fn desired_in(family: Family, table: &NodeTable, observed: Option<&TableContent>) -> TableContent {
    let ways = Ways::new(table, &NodeFacts::default());
    desire(family, &ways, &config(), &table.node, observed).content
}

fn verdict(content: &TableContent, map: &str, address: &str) -> Option<Verdict> {
    match content.sets[map].1.get(&way_key(&way(address)))? {
        Value::Verdict(verdict) => Some(verdict.clone()),
        other => panic!("{other:?}"),
    }
}

fn goto(chain: &str) -> Option<Verdict> {
    Some(Verdict::Goto(chain.into()))
}

#[test]
fn a_way_leads_to_its_list() {
    use FrontendKind::{ClusterIp, LoadBalancer};
    let local = |text, kind| vip(text, kind, Lists::Local);
    let mut held = record(
        "held",
        vec![
            local("10.96.0.3", ClusterIp),
            local("1.2.3.4", LoadBalancer),
        ],
        3,
    );
    held.frontends[1].bind = true;
    let mut sticky = record(
        "sticky",
        vec![vip("10.96.0.4", ClusterIp, Lists::Cluster)],
        1,
    );
    sticky.affinity = Some(Affinity {
        timeout_seconds: 60,
    });
    let table = table([
        record("five", vec![vip("10.96.0.1", ClusterIp, Lists::Cluster)], 5),
        record("none", vec![vip("10.96.0.2", ClusterIp, Lists::Cluster)], 0),
        held,
        sticky,
    ]);
    let content = desired(&table, None);
    let inside = |address| verdict(&content, layout::SERVICES, address);
    assert_eq!(inside("10.96.0.1"), goto("pick-3"));
    assert_eq!(inside("10.96.0.2"), goto("refusal"));
    assert_eq!(
        inside("10.96.0.3"),
        Some(Verdict::Drop),
        "policy Local, nobody here"
    );
    assert_eq!(
        inside("1.2.3.4"),
        goto("pick-2"),
        "the node and its pods have all"
    );
    assert_eq!(inside("10.96.0.4"), goto("stick-0"));
    assert_eq!(verdict(&content, layout::OUTSIDE, "1.2.3.4"), goto("away"));
    assert_eq!(verdict(&content, layout::OUTSIDE, "10.96.0.3"), None);
    assert_eq!(
        verdict(&content, layout::STICKY, "10.96.0.4"),
        goto("remember-60")
    );
    assert_eq!(content.sets[layout::ENDPOINTS].1.len(), 5 + 3 + 1);
    // Neither a way without endpoints nor one that is dropped.
    let with_endpoints = ["1.2.3.4", "10.96.0.1", "10.96.0.4"].map(way);
    assert_eq!(
        crate::ways_with_endpoints(Family::V4, &content),
        with_endpoints.into()
    );
    assert_eq!(content.sets[layout::CLUSTER_IPS].1.len(), 4);
    assert_eq!(content.sets[layout::MASQUERADED_OWN].1.len(), 1);
}

#[test]
fn a_held_way_has_the_nodes_own_list() {
    let frontend = vip("1.2.3.4", FrontendKind::LoadBalancer, Lists::Local);
    let mut table = table([record("held", vec![frontend], 3)]);
    let own = NodeOverlay {
        local: destinations(2),
        own: destinations(2).iter().map(|d| d.address).collect(),
        ..NodeOverlay::default()
    };
    table.lists.insert(key("held"), Arc::new(own));
    let content = desired(&table, None);
    assert_eq!(
        verdict(&content, layout::OUTSIDE, "1.2.3.4"),
        goto("local-pick-1")
    );
    assert_eq!(content.sets[layout::LOCAL_ENDPOINTS].1.len(), 2);
    assert_eq!(content.sets[layout::HAIRPIN].1.len(), 2);
}

#[test]
fn the_first_record_has_an_address_that_two_want() {
    let frontend = || vec![vip("10.96.0.1", FrontendKind::ExternalIp, Lists::Cluster)];
    let table = table([record("b", frontend(), 1), record("a", frontend(), 2)]);
    let ways = Ways::new(&table, &NodeFacts::default());
    let held = &ways.ways[&way("10.96.0.1")];
    assert_eq!(held.record.key, key("a"));
    assert_eq!(held.inside, List::To(destinations(2)));
    let refused = &ways.refused[..];
    assert_eq!(refused.len(), 1);
    assert_eq!(
        refused[0].to_string(),
        format!(
            "{}: TCP 10.96.0.1:80 already belongs to {}",
            key("b"),
            key("a")
        )
    );
}

#[test]
fn an_address_of_another_node_is_no_way() {
    let mut frontend = vip("192.0.2.7", FrontendKind::ExternalIp, Lists::Cluster);
    frontend.bind = false;
    let table = table([record("a", vec![frontend], 1)]);
    assert!(Ways::new(&table, &NodeFacts::default()).ways.is_empty());
    let address: IpAddr = "192.0.2.7".parse().unwrap();
    let facts = NodeFacts {
        addresses: [address].into(),
        ..NodeFacts::default()
    };
    assert_eq!(Ways::new(&table, &facts).ways.len(), 1);
}

#[test]
fn ranges_are_merged_and_one_of_all_addresses_opens_all() {
    let with = |ranges: &[&str]| {
        let mut frontend = vip("1.2.3.4", FrontendKind::LoadBalancer, Lists::Cluster);
        frontend.source_ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
        desired(&table([record("a", vec![frontend], 1)]), None)
    };
    let content = with(&[
        "10.0.0.0/8",
        "10.1.0.0/16",
        "192.0.2.0/25",
        "192.0.2.128/25",
    ]);
    assert_eq!(content.sets[layout::ALLOWED].1.len(), 2);
    assert_eq!(content.sets[layout::RANGED].1.len(), 1);
    let content = with(&["10.0.0.0/8", "0.0.0.0/0"]);
    assert!(content.sets[layout::ALLOWED].1.is_empty());
    assert!(content.sets[layout::RANGED].1.is_empty());
}

#[test]
fn many_ranges_of_a_way_have_the_source_first() {
    let with = |ranges: &[IpNet]| {
        let mut frontend = vip("1.2.3.4", FrontendKind::LoadBalancer, Lists::Cluster);
        frontend.source_ranges = ranges.to_vec();
        desired(&table([record("a", vec![frontend], 1)]), None)
    };
    let len = |content: &TableContent, set: &str| content.sets[set].1.len();
    let many = many_ranges(Family::V4);
    let few = with(&many[..layout::MANY]);
    assert_eq!(len(&few, layout::ALLOWED), 256);
    assert_eq!(len(&few, layout::ALLOWED_MANY), 0);
    let content = with(&many);
    assert_eq!(len(&content, layout::ALLOWED), 0);
    assert_eq!(len(&content, layout::ALLOWED_MANY), 257);
    let (first, last) = content.sets[layout::ALLOWED_MANY].1.iter().next().unwrap();
    let with_source = |source: [u8; 4]| [&source[..], &*way_key(&way("1.2.3.4"))].concat();
    assert_eq!(**first, *with_source([20, 0, 0, 0]));
    let end = with_source([20, 0, 0, 127]);
    assert_eq!(*last, Value::UpTo(end.into()));
}

/// All names that rules and elements of a table refer to are in it.
fn check_references(content: &TableContent) {
    let lead = |value: &Value| match value {
        Value::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => Some(Arc::clone(chain)),
        _ => None,
    };
    let elements = content
        .sets
        .values()
        .flat_map(|(_, elements)| elements.values());
    for chain in elements.filter_map(lead) {
        assert!(content.chains.contains_key(&chain), "{chain}");
    }
}

#[test]
fn one_endpoint_more_or_less_is_a_few_elements() {
    let of = |endpoints| {
        let frontend = vip("10.96.0.1", FrontendKind::ClusterIp, Lists::Cluster);
        table([record("a", vec![frontend], endpoints)])
    };
    let before = desired(&of(5), None);
    let more = desired(&of(6), Some(&before));
    let requests = plan(&more, Some(&before), Surplus::Delete);
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(requests[0].objects(), 1);
    let mut fewer = of(6);
    let record = fewer.records.get_mut(&key("a")).unwrap();
    Arc::make_mut(record).destinations.remove(0);
    let after = desired(&fewer, Some(&more));
    let requests = plan(&after, Some(&more), Surplus::Delete);
    let objects: Vec<_> = requests.iter().map(Request::objects).collect();
    assert_eq!(
        objects,
        [2, 1],
        "the hole and the last slot go, the hole is filled"
    );
}

#[test]
fn a_table_that_may_be_old_changes_no_way_that_is_there() {
    let at = |address| vec![vip(address, FrontendKind::ClusterIp, Lists::Cluster)];
    let now = desired(
        &table([
            record("a", at("10.96.0.1"), 5),
            record("b", at("10.96.0.2"), 1),
        ]),
        None,
    );
    let old = table([
        record("a", at("10.96.0.1"), 2),
        record("c", at("10.96.0.3"), 3),
    ]);
    let wanted = desired(&old, Some(&now));
    let requests = plan(&wanted, Some(&now), Surplus::Keep);
    let mut content = Some(now.clone());
    advance(&mut content, &requests);
    let content = content.unwrap();
    for address in ["10.96.0.1", "10.96.0.2"] {
        let of = |content| verdict(content, layout::SERVICES, address);
        assert_eq!(of(&content), of(&now));
    }
    assert_eq!(content.sets[layout::ENDPOINTS].1.len(), 5 + 1 + 3);
    assert_eq!(content.sets[layout::CLUSTER_IPS].1.len(), 3);
}

#[test]
fn what_somebody_else_changed_in_our_table_is_mended() {
    let frontend = vip("10.96.0.1", FrontendKind::ClusterIp, Lists::Cluster);
    let table = table([record("a", vec![frontend], 3)]);
    let wanted = desired(&table, None);
    let mut broken = wanted.clone();
    broken.sets.remove(layout::RANGED);
    broken.chains.remove("pick-1");
    broken
        .sets
        .get_mut(layout::ENDPOINTS)
        .unwrap()
        .1
        .pop_first();
    let (chain, rules) = broken.chains.get_mut("nat-in").unwrap();
    chain.base.as_mut().unwrap().priority = 0;
    rules.pop();
    let stray = broken.chains["refusal"].clone();
    broken.chains.insert("stray".into(), stray);
    let again = desired(&table, Some(&broken));
    let requests = plan(&again, Some(&broken), Surplus::Delete);
    let mut content = Some(broken);
    advance(&mut content, &requests);
    assert_eq!(content.as_ref(), Some(&again));
    assert_eq!(again, wanted);

    let mut retyped = wanted.clone();
    retyped.sets.get_mut(layout::RANGED).unwrap().0.is_interval = true;
    let requests = plan(&wanted, Some(&retyped), Surplus::Delete);
    assert_eq!(requests[0], Request::DelTable);
    let mut content = Some(retyped);
    advance(&mut content, &requests);
    assert_eq!(content, Some(wanted));
}

#[test]
fn a_base_chain_with_another_policy_and_a_table_that_sleeps_are_made_anew() {
    let frontend = vip("10.96.0.1", FrontendKind::ClusterIp, Lists::Cluster);
    let wanted = desired(&table([record("a", vec![frontend], 3)]), None);
    // A chain with another policy is read so.
    let mut dropping = wanted.clone();
    dropping.chains.get_mut("nat-in").unwrap().0.base = None;
    let mut dormant = wanted.clone();
    dormant.is_dormant = true;
    for (broken, expected) in [
        (dropping, Request::DelChain("nat-in".into())),
        (dormant, Request::DelTable),
    ] {
        let requests = plan(&wanted, Some(&broken), Surplus::Delete);
        assert!(requests.contains(&expected), "{requests:?}");
        let mut content = Some(broken);
        advance(&mut content, &requests);
        assert_eq!(content.as_ref(), Some(&wanted));
    }
}

#[test]
fn load_balancers_are_left_out_by_name() {
    let mut balanced = record(
        "web",
        vec![vip("192.0.2.1", FrontendKind::Balanced, Lists::Cluster)],
        1,
    );
    balanced.balancing = Some(Arc::default());
    let ways = Ways::new(&table([balanced]), &NodeFacts::default());
    assert!(ways.ways.is_empty());
    let expected = format!("{}: a load balancer needs --dataplane ipvs", key("web"));
    assert_eq!(ways.refused[0].to_string(), expected);
}

#[test]
fn segments_of_imports_are_clamped_unless_that_is_switched_off() {
    let frontend = || vip("10.112.0.1", FrontendKind::ClusterIp, Lists::Cluster);
    let import = table([record("web@clusterset", vec![frontend()], 2)]);
    let none = table([record("web", vec![frontend()], 2)]);
    let content = |table: &NodeTable, config: &Config, observed| {
        let ways = Ways::new(table, &NodeFacts::default());
        crate::desire(Family::V4, &ways, config, &table.node, observed).content
    };
    let remote = |content: &TableContent| content.sets.get(layout::REMOTE).map(|set| set.1.len());
    let has_chain = |content: &TableContent| content.chains.contains_key("segments");
    let (on, off) = (
        config(),
        Config {
            clamp_remote_mss: false,
            ..config()
        },
    );
    let without = content(&none, &on, None);
    assert_eq!((remote(&without), has_chain(&without)), (None, false));

    let clamped = content(&import, &on, None);
    assert_eq!((remote(&clamped), has_chain(&clamped)), (Some(2), true));
    let text = clamped.text(Family::V4, crate::TABLE).unwrap();
    let rule = "meta l4proto tcp tcp flags & (syn | rst) == syn ip daddr . meta l4proto . th dport @remote \
                tcp option maxseg size set rt mtu";
    assert!(text.contains(rule), "{text}");

    // The last import that goes leaves an empty set.
    let empty = content(&none, &on, Some(&clamped));
    assert_eq!((remote(&empty), has_chain(&empty)), (Some(0), true));
    let open = content(&import, &off, Some(&clamped));
    assert_eq!((remote(&open), has_chain(&open)), (None, false));
    let mut kernel = Some(clamped);
    let requests = plan(&open, kernel.as_ref(), Surplus::Delete);
    advance(&mut kernel, &requests);
    assert_eq!(kernel, Some(open));
}

#[test]
fn a_client_is_remembered_by_the_first_packet_of_a_connection_alone() {
    for family in Family::ALL {
        let content = crate::everything(family, &config(), &NodeInfo::default());
        let text = content.text(family, crate::TABLE).unwrap();
        // A packet that is sent again finds its connection confirmed.
        let rule = "ct state new ct status ! confirmed ct status dnat jump remember";
        assert_eq!(text.matches(rule).count(), 2, "{text}");
        assert_eq!(text.matches("jump remember").count(), 2, "{text}");
    }
}

#[test]
fn every_rule_has_a_text() {
    let interface = |name: &str| DetectLocal::InterfacePrefix(name.to_owned());
    for detect_local in [
        config().detect_local,
        DetectLocal::default(),
        DetectLocal::Bridge("cni0".to_owned()),
        interface("veth"),
    ] {
        for masquerade_all in [false, true] {
            let config = Config {
                detect_local: detect_local.clone(),
                masquerade_all,
                ..Config::default()
            };
            for family in Family::ALL {
                let content = crate::everything(family, &config, &NodeInfo::default());
                let text = content.text(family, crate::TABLE).unwrap();
                let rules = content.chains.values().map(|(_, rules)| rules.len());
                assert!(text.lines().count() > rules.sum(), "{text}");
            }
        }
    }
}
