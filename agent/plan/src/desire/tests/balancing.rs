// SPDX-License-Identifier: Apache-2.0

//! Virtual servers of load balancers.

use portolan_model::check::{
    AgentProbe, Check, HealthPolicy, InitialState, OnFailure, Probe, TcpProbe,
};
use portolan_model::ipvs::{
    ForwardingMethod, RealServerConfig, RealServers, Thresholds, Tunnel, VirtualServer,
};
use portolan_model::{
    AdministrativeState, Balancing, Persistence, Profile, RecordHealth, SorryServer, Standing,
};

use super::*;
use crate::{Step, plan};

mod demand;
mod marked;
mod zero;

const VIP: &str = "192.0.2.10";

fn profile(forwarding: ForwardingMethod) -> Profile {
    Profile {
        forwarding,
        thresholds: Thresholds::default(),
        checks: vec![Arc::new(Check::new(Probe::Tcp(TcpProbe::default())))],
        administrative_state: AdministrativeState::Enabled,
    }
}

/// A load balancer with backends of weight 3, each with its profile.
fn balanced(backends: &[(&str, Profile)], vips: &[&str]) -> Record {
    let balancing = Balancing {
        profiles: backends
            .iter()
            .map(|(_, profile)| profile.clone())
            .collect(),
        profile_of: (0..).take(backends.len()).collect(),
        ..Balancing::default()
    };
    let destination = |(address, _): &(&str, Profile)| Destination {
        weight: 3,
        ..Destination::new(address.parse().unwrap())
    };
    let frontend = |vip: &&str| {
        let address = FrontendAddress::Vip(vip.parse().unwrap());
        Frontend::new(FrontendKind::Balanced, address, 80)
    };
    Record {
        frontends: vips.iter().map(frontend).collect(),
        destinations: backends.iter().map(destination).collect(),
        balancing: Some(Arc::new(balancing)),
        ..Record::new(key("web", Protocol::Tcp))
    }
}

fn change(record: &mut Record, change: impl FnOnce(&mut Balancing)) {
    change_of(record.balancing.as_mut().unwrap(), change);
}

fn change_of(balancing: &mut Arc<Balancing>, change: impl FnOnce(&mut Balancing)) {
    change(Arc::make_mut(balancing));
}

fn health(weights: &[(&str, Option<u32>)], is_sorry: bool) -> RecordHealth {
    let weights = weights.iter();
    RecordHealth {
        backends: weights
            .map(|(address, weight)| {
                let standing = weight.map_or(Standing::Failed, Standing::Weight);
                (address.parse().unwrap(), standing)
            })
            .collect(),
        is_sorry: Some(is_sorry),
        ..RecordHealth::default()
    }
}

fn table_with(record: &Record, health: Option<RecordHealth>) -> NodeTable {
    let health = health.map(|health| (record.key.clone(), Arc::new(health)));
    NodeTable {
        health: health.into_iter().collect(),
        ..table(vec![record.clone()])
    }
}

fn desired(record: &Record, health: Option<RecordHealth>, observed: &KernelState) -> Desired {
    desire(
        &table_with(record, health),
        &facts(),
        &Config::default(),
        observed,
    )
}

fn real_servers(desired: &Desired, vip: &str) -> RealServers {
    let key = VirtualServerKey::new(Protocol::Tcp, vip.parse().unwrap(), 80);
    (*desired.state.virtual_servers[&key].real_servers).clone()
}

fn weights(desired: &Desired, vip: &str) -> Vec<(String, u32)> {
    let all = real_servers(desired, vip);
    all.iter()
        .map(|(address, config)| (address.to_string(), config.weight))
        .collect()
}

fn masquerade(address: &str) -> (&str, Profile) {
    (address, profile(ForwardingMethod::Masquerade))
}

#[test]
fn settings_reach_the_virtual_server_and_need_no_rule() {
    let mut direct = profile(ForwardingMethod::Direct);
    direct.thresholds = Thresholds { upper: 9, lower: 3 };
    let mut record = balanced(&[("10.0.0.1:80", direct)], &[VIP, "2001:db8::10"]);
    change(&mut record, |balancing| {
        balancing.persistence = Some(Persistence {
            timeout_seconds: 600,
            ipv4_prefix_length: 24,
            ipv6_prefix_length: 128,
            engine: Some("sip".into()),
        });
    });
    let judged = health(&[("10.0.0.1:80", Some(3))], false);
    let desired = desired(&record, Some(judged), &KernelState::default());
    let expected = RealServerConfig {
        forwarding: ForwardingMethod::Direct,
        thresholds: Thresholds { upper: 9, lower: 3 },
        ..RealServerConfig::masquerade(3)
    };
    let servers = &desired.state.virtual_servers;
    let v4 = VirtualServerKey::new(Protocol::Tcp, VIP.parse().unwrap(), 80);
    let expected_server = VirtualServer {
        config: VirtualServerConfig {
            scheduler: "wlc".into(),
            persistence: Some(600),
            netmask: Some(0xffff_ff00),
            engine: Some("sip".into()),
            ..VirtualServerConfig::round_robin()
        }
        .into(),
        real_servers: Arc::new([("10.0.0.1:80".parse().unwrap(), expected)].into()),
    };
    assert_eq!(servers[&v4], expected_server);
    let v6 = VirtualServerKey::new(Protocol::Tcp, "2001:db8::10".parse().unwrap(), 80);
    assert_eq!(
        servers[&v6].config.netmask, None,
        "128 is the whole address"
    );
    assert_eq!(
        servers[&v6].real_servers.len(),
        0,
        "each family has its own"
    );
    assert_eq!(desired.state.routes.len(), 2);
    // Only the record of ownership.
    let entries = desired.state.sets.iter();
    let used: Vec<_> = entries
        .filter(|(_, set)| !set.entries.is_empty())
        .map(|(name, _)| name.as_str())
        .collect();
    let expected = ["KUBE-6-PORTOLAN-OWNED", "KUBE-PORTOLAN-OWNED"];
    assert_eq!(used, expected);
}

#[test]
fn a_tunnel_leads_to_the_other_family_if_that_has_no_frontend() {
    let tunnel = || profile(ForwardingMethod::Tunnel(Tunnel::Ipip));
    let backends = [("10.0.0.1:80", tunnel()), ("[fd00::1]:80", tunnel())];
    let of_none =
        |record: &Record, vip| weights(&desired(record, None, &KernelState::default()), vip).len();
    let mixed = balanced(&backends, &[VIP]);
    assert_eq!(of_none(&mixed, VIP), 2);
    let dual = balanced(&backends, &[VIP, "2001:db8::10"]);
    assert_eq!(of_none(&dual, VIP), 1);
    let masqueraded = [masquerade("10.0.0.1:80"), masquerade("[fd00::1]:80")];
    assert_eq!(of_none(&balanced(&masqueraded, &[VIP]), VIP), 1);
}

#[test]
fn weights_follow_the_checks() {
    let mut record = balanced(
        &[masquerade("10.0.0.1:80"), masquerade("10.0.0.2:80")],
        &[VIP],
    );
    let nothing = KernelState::default();
    let of = |record: &Record, health| weights(&desired(record, health, &nothing), VIP);
    let both = |first, second| {
        vec![
            ("10.0.0.1:80".to_owned(), first),
            ("10.0.0.2:80".to_owned(), second),
        ]
    };
    assert_eq!(of(&record, None), both(0, 0), "no check has passed");
    let judged = health(&[("10.0.0.1:80", Some(3)), ("10.0.0.2:80", Some(0))], false);
    assert_eq!(of(&record, Some(judged)), both(3, 0));
    let removed = health(&[("10.0.0.1:80", Some(3)), ("10.0.0.2:80", None)], false);
    assert_eq!(of(&record, Some(removed)), both(3, 0)[..1]);
    change(&mut record, |balancing| {
        balancing.health.initial_state = InitialState::Up;
    });
    assert_eq!(of(&record, None), both(3, 3));
    change(&mut record, |balancing| {
        balancing.profiles[1].administrative_state = AdministrativeState::Drain;
    });
    let all_well = health(&[("10.0.0.1:80", Some(3)), ("10.0.0.2:80", Some(3))], false);
    assert_eq!(of(&record, Some(all_well.clone())), both(3, 0));
    change(&mut record, |balancing| {
        balancing.profiles[1].administrative_state = AdministrativeState::Disabled;
    });
    assert_eq!(of(&record, Some(all_well)), both(3, 0)[..1]);
}

#[test]
fn a_command_hides_the_state_of_the_file() {
    let backends = [masquerade("10.0.0.1:80"), masquerade("10.0.0.2:80")];
    let mut record = balanced(&backends, &[VIP]);
    let commanded = |weight: Option<Option<u32>>| {
        let judged: Vec<_> = weight
            .map(|weight| ("10.0.0.2:80", weight))
            .into_iter()
            .collect();
        let mut health = health(&judged, false);
        health.commanded.insert("10.0.0.2:80".parse().unwrap());
        health
    };
    let serving = desired(
        &record,
        Some(health(
            &[("10.0.0.1:80", Some(3)), ("10.0.0.2:80", Some(3))],
            false,
        )),
        &KernelState::default(),
    );
    let of = |record: &Record, health| {
        let weights = weights(&desired(record, Some(health), &serving.state), VIP);
        weights.into_iter().nth(1).map(|(_, weight)| weight)
    };
    for state in [
        AdministrativeState::Enabled,
        AdministrativeState::Drain,
        AdministrativeState::Disabled,
    ] {
        change(&mut record, |balancing| {
            balancing.profiles[1].administrative_state = state;
        });
        assert_eq!(of(&record, commanded(Some(Some(0)))), Some(0), "{state:?}");
        assert_eq!(of(&record, commanded(Some(None))), None, "{state:?}");
        assert_eq!(of(&record, commanded(Some(Some(3)))), Some(3), "{state:?}");
        // Enabled, and without a verdict: it keeps its weight.
        assert_eq!(of(&record, commanded(None)), Some(3), "{state:?}");
    }
}

#[test]
fn a_restarted_agent_keeps_weights_until_its_checks_have_results() {
    let record = balanced(
        &[masquerade("10.0.0.1:80"), masquerade("10.0.0.2:80")],
        &[VIP],
    );
    let judged = health(&[("10.0.0.1:80", Some(3)), ("10.0.0.2:80", Some(0))], false);
    let before = desired(&record, Some(judged), &KernelState::default());
    let after = desired(&record, None, &before.state);
    assert_eq!(plan(&after, &before.state, &Config::default()), []);
    let news = health(&[("10.0.0.2:80", Some(3))], false);
    let after = desired(&record, Some(news), &before.state);
    let steps = plan(&after, &before.state, &Config::default());
    let [
        Step::SetRealServer {
            address, config, ..
        },
    ] = &steps[..]
    else {
        panic!("{steps:?}");
    };
    assert_eq!(
        (address.to_string().as_str(), config.weight),
        ("10.0.0.2:80", 3)
    );
}

#[test]
fn without_checks_a_backend_that_serves_has_the_weight_of_the_table() {
    let backends = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"];
    let mut record = balanced(&backends.map(masquerade), &[VIP]);
    let agent = Check::new(Probe::Agent(AgentProbe::default()));
    change(&mut record, |balancing| {
        balancing.profiles[2].checks = vec![Arc::new(agent)];
    });
    let judged = health(
        &[
            ("10.0.0.1:80", Some(1)),
            ("10.0.0.2:80", Some(0)),
            ("10.0.0.3:80", Some(1)),
        ],
        false,
    );
    let before = desired(&record, Some(judged), &KernelState::default()).state;
    let config = Config {
        awaits_checks: false,
        ..Config::default()
    };
    let after = desire(&table_with(&record, None), &facts(), &config, &before);
    // The second one was down. The weight of the third one was its check's.
    let weights = weights(&after, VIP).into_iter().map(|(_, weight)| weight);
    assert_eq!(weights.collect::<Vec<_>>(), [3, 0, 1]);
}

#[test]
fn a_failed_backend_is_deleted_at_once_if_so_chosen() {
    let mut record = balanced(
        &[masquerade("10.0.0.1:80"), masquerade("10.0.0.2:80")],
        &[VIP],
    );
    let all_well = || health(&[("10.0.0.1:80", Some(3)), ("10.0.0.2:80", Some(3))], false);
    let before = desired(&record, Some(all_well()), &KernelState::default()).state;
    change(&mut record, |balancing| {
        balancing.health = HealthPolicy {
            on_failure: OnFailure::Remove,
            ..HealthPolicy::default()
        };
    });
    let failed = health(&[("10.0.0.1:80", Some(3)), ("10.0.0.2:80", None)], false);
    let steps = plan(
        &desired(&record, Some(failed), &before),
        &before,
        &Config::default(),
    );
    assert!(matches!(&steps[..], [Step::DelRealServer { address, .. }] if address.port() == 80));
    // One that the files no longer have is drained all the same.
    let smaller = balanced(&[masquerade("10.0.0.1:80")], &[VIP]);
    let steps = plan(
        &desired(&smaller, None, &before),
        &before,
        &Config::default(),
    );
    assert!(matches!(&steps[..], [Step::SetRealServer { config, .. }] if config.weight == 0));
}

#[test]
fn the_sorry_server_serves_when_it_is_told_to() {
    let mut record = balanced(&[masquerade("10.0.0.1:80")], &[VIP]);
    let sorry = |keep_idle| SorryServer {
        address: "10.0.0.9:8000".parse().unwrap(),
        forwarding: ForwardingMethod::Masquerade,
        keep_idle,
    };
    change(&mut record, |balancing| {
        balancing.sorry_server = Some(sorry(false))
    });
    let of = |record: &Record, is_sorry| {
        let judged = health(&[("10.0.0.1:80", Some(0))], is_sorry);
        let desired = desired(record, Some(judged), &KernelState::default());
        let last = weights(&desired, VIP).into_iter().nth(1);
        last.map(|(_, weight)| weight)
    };
    assert_eq!((of(&record, true), of(&record, false)), (Some(1), None));
    change(&mut record, |balancing| {
        balancing.sorry_server = Some(sorry(true))
    });
    assert_eq!((of(&record, true), of(&record, false)), (Some(1), Some(0)));
}

#[test]
fn a_family_without_a_backend_that_serves_gets_the_sorry_server() {
    const V6: &str = "2001:db8::10";
    let backends = [masquerade("10.0.0.1:80"), masquerade("[fd00::1]:80")];
    let with_sorry = |vips: &[&str], sorry: &str| {
        let mut record = balanced(&backends, vips);
        change(&mut record, |balancing| {
            balancing.sorry_server = Some(SorryServer {
                address: sorry.parse().unwrap(),
                forwarding: ForwardingMethod::Masquerade,
                keep_idle: false,
            });
        });
        record
    };
    // The quorum of both families together is there.
    let judged = |v4, v6| {
        health(
            &[("10.0.0.1:80", Some(v4)), ("[fd00::1]:80", Some(v6))],
            false,
        )
    };
    let of = |record: &Record, health, vip| {
        let desired = desired(record, Some(health), &KernelState::default());
        let weights = weights(&desired, vip).into_iter();
        let texts = weights.map(|(address, weight)| format!("{address} {weight}"));
        texts.collect::<Vec<_>>()
    };
    let dual = with_sorry(&[VIP, V6], "10.0.0.9:80");
    let alone = of(&dual, judged(0, 1), VIP);
    assert_eq!(alone, ["10.0.0.1:80 0", "10.0.0.9:80 1"]);
    assert_eq!(of(&dual, judged(0, 1), V6), ["[fd00::1]:80 1"]);
    assert_eq!(of(&dual, judged(3, 0), VIP), ["10.0.0.1:80 3"]);
    // The sorry server is of the other family.
    assert_eq!(of(&dual, judged(3, 0), V6), ["[fd00::1]:80 0"]);
    // With one family the quorum alone counts.
    let single = with_sorry(&[VIP], "10.0.0.9:80");
    assert_eq!(of(&single, judged(0, 1), VIP), ["10.0.0.1:80 0"]);
    // Nothing is known yet.
    let unknown = RecordHealth::default();
    assert_eq!(of(&dual, unknown, VIP), ["10.0.0.1:80 0"]);
    // The other family has passed, and this one has no result yet.
    let open = || health(&[("[fd00::1]:80", Some(1))], false);
    assert_eq!(of(&dual, open(), VIP), ["10.0.0.1:80 0"]);
    // A sorry server that serves stays meanwhile.
    let before = desired(&dual, Some(judged(0, 1)), &KernelState::default());
    let after = weights(&desired(&dual, Some(open()), &before.state), VIP);
    assert_eq!(after.last(), Some(&("10.0.0.9:80".to_owned(), 1)));
}

#[test]
fn a_restarted_agent_keeps_the_sorry_server_until_quorum_is_known() {
    let mut record = balanced(&[masquerade("10.0.0.1:80")], &[VIP]);
    let lost = || health(&[("10.0.0.1:80", Some(0))], true);
    let gained = || health(&[("10.0.0.1:80", Some(3))], false);
    for keep_idle in [false, true] {
        change(&mut record, |balancing| {
            balancing.sorry_server = Some(SorryServer {
                address: "10.0.0.9:8000".parse().unwrap(),
                forwarding: ForwardingMethod::Masquerade,
                keep_idle,
            });
        });
        for before in [lost(), gained()] {
            let before = desired(&record, Some(before), &KernelState::default()).state;
            let unknown = RecordHealth::default();
            for health in [None, Some(unknown)] {
                let after = desired(&record, health, &before);
                assert_eq!(plan(&after, &before, &Config::default()), []);
            }
        }
    }
}

#[test]
fn one_verdict_is_one_message() {
    let record = balanced(
        &[masquerade("10.0.0.1:80"), masquerade("10.0.0.2:80")],
        &[VIP],
    );
    let of = |second| {
        health(
            &[("10.0.0.1:80", Some(3)), ("10.0.0.2:80", Some(second))],
            false,
        )
    };
    let (before, after) = (
        table_with(&record, Some(of(3))),
        table_with(&record, Some(of(0))),
    );
    let config = Config::default();
    let empty = KernelState::default();
    let mut incremental = IncrementalDesired::new(&before, &facts(), &config, &empty);
    let observed = incremental.desired().state.clone();
    let touched = incremental
        .update(&before, &after, &facts(), &config, &observed)
        .expect("no other record is concerned");
    assert_eq!(touched.servers.len(), 1);
    assert_eq!(
        *incremental.desired(),
        desire(&after, &facts(), &config, &observed)
    );
    let steps = plan(incremental.desired(), &observed, &config);
    assert_eq!(steps.len(), 1, "{steps:?}");
}
