// SPDX-License-Identifier: Apache-2.0

//! Ports of gateways, and those that the host's own connections begin from.

use super::*;
use crate::{IncrementalDesired, LocalPorts};

/// An export at the addresses of two gateways, of which this node has one in each of two networks.
fn export(port: u16) -> Record {
    let at = |ip| Frontend {
        port,
        bind: false,
        ..vip(FrontendKind::ExternalIp, ip, true)
    };
    let frontends = ["192.168.0.10", "192.168.1.10", "192.168.0.11"].map(at);
    record("web@gateway", Protocol::Tcp, frontends.into())
}

fn with_ports(range: &str, reserved: &str) -> NodeFacts {
    NodeFacts {
        local_ports: LocalPorts::new(range, reserved),
        ..facts()
    }
}

fn told(record: &Record, facts: &NodeFacts) -> Vec<String> {
    let none = KernelState::default();
    let desired = desire(
        &table(vec![record.clone()]),
        facts,
        &Config::default(),
        &none,
    );
    assert_eq!(desired.records.len(), 3, "it is served all the same");
    desired.refused.iter().map(ToString::to_string).collect()
}

#[test]
fn a_port_that_the_host_may_choose_is_named_once() {
    let found = told(&export(40_000), &with_ports("32768 60999", ""));
    let [found] = &found[..] else {
        panic!("{found:?}");
    };
    let expected = "ns/web@gateway/TCP: port 40000 of the gateway lies within net.ipv4.ip_local_port_range 32768-60999 \
                    of this node: ";
    assert!(found.starts_with(expected), "{found}");
    for (port, facts) in [
        (20_000, with_ports("32768 60999", "")),
        (40_000, with_ports("32768 60999", "39990-40010")),
        (40_000, facts()),
    ] {
        assert_eq!(told(&export(port), &facts), [""; 0]);
    }
}

#[test]
fn addresses_of_other_nodes_and_records_of_others_are_no_matter() {
    let facts = with_ports("32768 60999", "");
    let mut elsewhere = export(40_000);
    for (number, frontend) in (20..).zip(&mut elsewhere.frontends) {
        frontend.address = FrontendAddress::Vip([192, 168, 0, number].into());
    }
    assert_eq!(told(&elsewhere, &facts), [""; 0]);
    let mut service = export(40_000);
    service.key.service = "web".into();
    assert_eq!(told(&service, &facts), [""; 0]);
}

#[test]
fn it_goes_when_the_export_gets_another_port() {
    let (facts, config, none) = (
        with_ports("32768 60999", ""),
        Config::default(),
        KernelState::default(),
    );
    let [before, other, after] = [
        vec![export(40_000)],
        vec![
            export(40_000),
            record(
                "api",
                Protocol::Tcp,
                vec![vip(FrontendKind::ClusterIp, "10.96.0.1", true)],
            ),
        ],
        vec![export(20_000)],
    ]
    .map(table);
    let mut kept = IncrementalDesired::new(&before, &facts, &config, &none);
    assert!(
        kept.update(&before, &other, &facts, &config, &none)
            .is_some()
    );
    assert_eq!(kept.desired().refused.len(), 1);
    // What is said about a record needs all of them.
    assert_eq!(kept.update(&other, &after, &facts, &config, &none), None);
    assert_eq!(desire(&after, &facts, &config, &none).refused, []);
}
