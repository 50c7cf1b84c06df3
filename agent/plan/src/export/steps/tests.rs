// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::{VirtualServer, VirtualServerConfig, VirtualServerKey};
use portolan_model::{NodeTable, Protocol, Record, RecordKey};

use super::*;
use crate::plan;

fn key() -> VirtualServerKey {
    VirtualServerKey::new(Protocol::Tcp, "192.0.2.10".parse().unwrap(), 80)
}

fn real_server(weight: u32) -> RealServerConfig {
    RealServerConfig::masquerade(weight)
}

/// A state with one virtual server of ours, and its real servers with their weights.
fn state(real_servers: &[(&str, u32)]) -> Desired {
    let server = VirtualServer {
        config: VirtualServerConfig::round_robin().into(),
        real_servers: Arc::new(
            real_servers
                .iter()
                .map(|(address, weight)| (address.parse().unwrap(), real_server(*weight)))
                .collect(),
        ),
    };
    let mut desired = Desired::default();
    let record = Record::new(RecordKey {
        cluster: "".into(),
        namespace: "default".into(),
        service: "web".into(),
        protocol: Protocol::Tcp,
        port: "".into(),
    });
    desired.records.insert(key(), Arc::new(record));
    desired.state.virtual_servers.insert(key(), server);
    desired
}

fn lines(observed: &KernelState, desired: &Desired, steps: &[Step]) -> Vec<String> {
    let lines = steps.iter().flat_map(|s| step_lines(s, observed, desired));
    lines.map(|line| line.to_string()).collect()
}

#[test]
fn real_servers_are_added_changed_and_drained_in_the_words_of_ipvsadm() {
    let before = state(&[("10.0.0.11:80", 1), ("10.0.0.12:80", 1)]).state;
    let desired = state(&[("10.0.0.11:80", 3), ("10.0.0.13:80", 1)]);
    let set = |address: &str, weight| Step::SetRealServer {
        key: key(),
        address: address.parse().unwrap(),
        config: real_server(weight),
    };
    let steps = [
        set("10.0.0.11:80", 3),
        Step::AddRealServer {
            key: key(),
            address: "10.0.0.13:80".parse().unwrap(),
            config: real_server(1),
        },
        set("10.0.0.12:80", 0),
    ];
    assert_eq!(
        lines(&before, &desired, &steps),
        [
            "~ -e -t 192.0.2.10:80 -r 10.0.0.11:80 -m -w 3  # was 1",
            "+ -a -t 192.0.2.10:80 -r 10.0.0.13:80 -m -w 1",
            "~ -e -t 192.0.2.10:80 -r 10.0.0.12:80 -m -w 0  # drained; was 1",
        ]
    );
    let all: Vec<_> = steps
        .iter()
        .flat_map(|step| step_lines(step, &before, &desired))
        .collect();
    assert!(all.iter().all(|line| line.record.is_some()));
    assert_eq!(
        Totals::of(&all).to_string(),
        "Plan: add 1 real server; change 1 real server; drain 1 real server."
    );
}

#[test]
fn a_change_of_thresholds_names_those_before() {
    let before = state(&[("10.0.0.11:80", 1)]).state;
    let step = Step::SetRealServer {
        key: key(),
        address: "10.0.0.11:80".parse().unwrap(),
        config: RealServerConfig {
            thresholds: portolan_model::ipvs::Thresholds { upper: 5, lower: 3 },
            ..real_server(1)
        },
    };
    assert_eq!(
        lines(&before, &state(&[("10.0.0.11:80", 1)]), &[step]),
        ["~ -e -t 192.0.2.10:80 -r 10.0.0.11:80 -m -w 1 -x 5 -y 3  \
             # was -a -t 192.0.2.10:80 -r 10.0.0.11:80 -m -w 1"]
    );
}

#[test]
fn every_object_of_a_plan_for_an_empty_kernel_has_a_line() {
    let mut desired = state(&[("10.0.0.11:80", 1), ("10.0.0.12:80", 1)]);
    desired
        .state
        .routes
        .insert("192.0.2.10".parse().unwrap(), None);
    let config = crate::Config::default();
    let table = NodeTable::default();
    let facts = crate::NodeFacts::default();
    let rules = crate::desire(&table, &facts, &config, &KernelState::default());
    desired.state.sets.clone_from(&rules.state.sets);
    desired.state.rules.clone_from(&rules.state.rules);
    let observed = KernelState::default();
    let steps = plan(&desired, &observed, &config);
    let all: Vec<_> = steps
        .iter()
        .flat_map(|step| step_lines(step, &observed, &desired))
        .collect();
    let objects: usize = steps.iter().map(Step::objects).sum();
    assert_eq!(all.len(), objects);
    assert!(all.iter().all(|line| line.action == Action::Add));
    let text = all.iter().map(ToString::to_string).collect::<Vec<_>>();
    for line in [
        "+ ip route add local 192.0.2.10 dev lo proto 99",
        "+ -A -t 192.0.2.10:80 -s rr",
        "+ -a -t 192.0.2.10:80 -r 10.0.0.12:80 -m -w 1",
    ] {
        assert!(text.iter().any(|have| have == line), "{line}\n{text:#?}");
    }
    let totals = Totals::of(&all).to_string();
    assert!(
        totals.contains("1 virtual server, 2 real servers"),
        "{totals}"
    );
}

#[test]
fn entries_and_deletions_have_lines() {
    let desired = Desired::default();
    let observed = state(&[]).state;
    let entry = SetEntry::Ip("192.0.2.10".parse().unwrap());
    let steps = [
        Step::DelEntries {
            name: "S".into(),
            entries: Arc::new(vec![entry.clone(), entry]),
        },
        Step::DelVirtualServer { key: key() },
        Step::DelRealServer {
            key: key(),
            address: "10.0.0.1:80".parse().unwrap(),
        },
    ];
    assert_eq!(
        lines(&observed, &desired, &steps),
        [
            "- ipset del S 192.0.2.10",
            "- ipset del S 192.0.2.10",
            "- -D -t 192.0.2.10:80",
            "- -d -t 192.0.2.10:80 -r 10.0.0.1:80",
        ]
    );
    assert_eq!(Totals::of(&[]).to_string(), "Plan: nothing to do.");
}
