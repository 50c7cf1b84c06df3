// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_health::{Administrative, BackendStatus, Presence, State, Verdict, Verdicts};
use portolan_model::check::{Check, Probe, TcpProbe};
use portolan_model::ipvs::{Connections, ForwardingMethod, Thresholds, VirtualServerKey};
use portolan_model::{
    AdministrativeState, Balancing, Destination, Frontend, FrontendAddress, FrontendKind,
    NodeTable, Profile, Protocol, Record, RecordHealth, RecordKey, SorryServer, Standing,
};
use tokio::sync::watch;

use super::build::{Chosen, Now, Sources};
use super::meter::Meter;
use super::*;
use crate::backends::Health;
use crate::backends::overrides::{Override, OverrideMap, OverrideStore};
use crate::subscribe::{Report, Subscribed};

fn key(name: &str) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "default".into(),
        service: name.into(),
        port: "http".into(),
        protocol: Protocol::Tcp,
    }
}

fn backend(last: u8) -> SocketAddr {
    ([10, 0, 0, last], 8080).into()
}

/// Two backends for IPv4, of weights 300 and 100, and one for IPv6.
fn record(name: &str, last: u8) -> Record {
    let profile = Profile {
        forwarding: ForwardingMethod::Masquerade,
        thresholds: Thresholds::default(),
        checks: Vec::new(),
        administrative_state: AdministrativeState::Enabled,
    };
    let frontend = |address: &str| {
        let address = FrontendAddress::Vip(address.parse().unwrap());
        Frontend::new(FrontendKind::Balanced, address, 80)
    };
    let destination = |address: SocketAddr, weight| Destination {
        weight,
        ..Destination::new(address)
    };
    Record {
        frontends: vec![
            frontend(&format!("192.0.2.{last}")),
            frontend(&format!("2001:db8::{last}")),
        ],
        destinations: vec![
            destination(backend(11), 300),
            destination(backend(12), 100),
            destination("[fd00::11]:8080".parse().unwrap(), 1),
        ],
        balancing: Some(Arc::new(Balancing {
            profiles: vec![profile],
            profile_of: vec![0, 0, 0],
            sorry_server: Some(SorryServer {
                address: backend(99),
                forwarding: ForwardingMethod::Masquerade,
                keep_idle: false,
            }),
            ..Balancing::default()
        })),
        ..Record::new(key(name))
    }
}

fn table(records: Vec<Record>) -> NodeTable {
    let health = Arc::new(RecordHealth {
        backends: [
            (backend(11), Standing::Weight(300)),
            (backend(12), Standing::Weight(0)),
        ]
        .into(),
        ..RecordHealth::default()
    });
    let health = records.iter().map(|r| (r.key.clone(), Arc::clone(&health)));
    NodeTable {
        health: health.collect(),
        records: records
            .into_iter()
            .map(|r| (r.key.clone(), Arc::new(r)))
            .collect(),
        ..NodeTable::default()
    }
}

fn status(state: State, reason: Option<&str>) -> BackendStatus {
    BackendStatus {
        state,
        since: Duration::from_secs(900),
        administrative: Administrative::Enabled,
        commanded: None,
        said: Administrative::Enabled,
        reason: reason.map(Into::into),
        is_kept: false,
        changes: 1,
        flap_factor: 1,
    }
}

fn verdicts(quorum: bool) -> Arc<Verdicts> {
    let verdict = |weight| Verdict {
        weight,
        presence: Presence::Present,
    };
    Arc::new(Verdicts {
        backends: [(backend(11), verdict(300)), (backend(12), verdict(0))].into(),
        states: [
            (backend(11), status(State::Up, None)),
            (backend(12), status(State::Down, Some("http: status 503"))),
        ]
        .into(),
        quorum,
        ..Verdicts::default()
    })
}

fn report(errors: Vec<(Option<RecordKey>, String)>) -> Report {
    Report {
        epoch: 0,
        revision: 4,
        duration: Duration::ZERO,
        errors,
        checked: 0,
    }
}

/// One of a backend, until an hour from now, and one of a backend that there is not.
fn overrides() -> OverrideMap {
    let of = |name: &str, until| {
        let state = Administrative::Drain;
        (name.parse().unwrap(), Override { state, until })
    };
    let until = Some(Duration::from_secs(4_600));
    [of("web/10.0.0.12:8080", until), of("web/10.0.0.13", None)]
        .into_iter()
        .collect()
}

fn now() -> Now {
    Now {
        wall: "2026-01-02T03:04:05.9Z".parse().unwrap(),
        boot: Duration::from_secs(1_000),
    }
}

/// A kernel with the first virtual server alone, to which 620 connections come in each second. Two seconds are
/// between its readings, and two real servers share the connections.
fn meter() -> Meter {
    let readings = std::sync::atomic::AtomicU64::new(0);
    Meter::new(move |keys| {
        let reading = readings.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let usage = |active| portolan_dataplane::Usage {
            connections: Connections {
                active,
                inactive: 44,
                persistent: 0,
            },
            total_connections: reading * 620,
            bytes_in: reading * 2_100_000,
            bytes_out: reading * 48_000_000,
            ..portolan_dataplane::Usage::default()
        };
        let of_first = BTreeMap::from([(backend(11), usage(1_200)), (backend(12), usage(4))]);
        Ok([(keys[0], of_first)].into())
    })
}

#[tokio::test(start_paused = true)]
async fn a_table_and_its_verdicts_become_an_overview_and_lines() {
    let table = table(vec![record("web", 10)]);
    let chosen = Chosen::new(&table, None);
    let keys = chosen.virtual_servers();
    assert_eq!(
        keys[0],
        VirtualServerKey::new(Protocol::Tcp, [192, 0, 2, 10].into(), 80)
    );
    let readings = meter().readings(keys).await.unwrap();
    let mut judged = Verdicts::clone(&verdicts(true));
    let drained = judged.states.get_mut(&backend(12)).unwrap();
    drained.administrative = Administrative::Drain;
    drained.commanded = Some(Administrative::Drain);
    let overview = chosen.overview(Sources {
        overrides: &overrides(),
        health: &Health::from_iter([(key("web"), Arc::new(judged))]),
        report: Some(&report(vec![])),
        readings: Some(&readings),
        checks_suspended: false,
        now: now(),
    });
    assert_eq!(overview.at, "2026-01-02T03:04:05Z");
    let balancer = &overview.balancers[0];
    assert_eq!(
        (balancer.quorum, balancer.sorry_server_active),
        (Some(true), Some(false))
    );
    let down = &balancer.backends[1];
    assert_eq!((&*down.state, down.since_seconds), ("down", Some(100)));
    assert_eq!(down.since.as_deref(), Some("2026-01-02T03:02:25Z"));
    assert_eq!(down.reason.as_deref(), Some("http: status 503"));
    // One that was not judged yet, in a virtual server that the kernel does not have.
    let new = &balancer.backends[2];
    assert_eq!((&*new.state, new.usage), ("probing", None));
    assert_eq!(overview.faults(), Vec::<String>::new());

    let expected = "\
NAME         FRONTEND              METHOD  SCHED  UP   WEIGHT  ACTIVE  INACT  CONN/s  IN/s  OUT/s
default/web  TCP 192.0.2.10:80     NAT     wlc    1/2  300     1204    88     620     2.1M  48M
default/web  TCP [2001:db8::10]:80  NAT     wlc    0/1  -       -       -      -       -     -
# default/web/10.0.0.12:8080: drain by command until 2026-01-02T04:04:05Z
# default/web/10.0.0.13: drain by command; there is no such backend
";
    let lines: Vec<Vec<_>> = table::balancers(&overview)
        .lines()
        .map(|line| line.split_whitespace().map(ToOwned::to_owned).collect())
        .collect();
    let expected: Vec<Vec<_>> = expected
        .lines()
        .map(|line| line.split_whitespace().map(ToOwned::to_owned).collect())
        .collect();
    assert_eq!(lines, expected);
    let backends = table::backends(&overview);
    let line = backends
        .lines()
        .find(|line| line.starts_with("10.0.0.12:8080"));
    let words: Vec<_> = line.unwrap().split_whitespace().take(9).collect();
    assert_eq!(
        words,
        [
            "10.0.0.12:8080",
            "NAT",
            "down",
            "1m",
            "drain",
            "(command)",
            "0",
            "of",
            "100"
        ]
    );
    assert!(line.unwrap().ends_with("http: status 503"));

    // What is written is read back, as both formats.
    let json = serde_json::to_string(&overview).unwrap();
    assert_eq!(serde_json::from_str::<Overview>(&json).unwrap(), overview);
    let yaml = serde_saphyr::to_string(&overview).unwrap();
    assert_eq!(serde_saphyr::from_str::<Overview>(&yaml).unwrap(), overview);
}

#[test]
fn a_backend_in_maintenance_is_not_drained_by_command() {
    let table = table(vec![record("web", 10)]);
    let mut judged = Verdicts::clone(&verdicts(true));
    for status in judged.states.values_mut() {
        status.administrative = Administrative::Drain;
        status.commanded = Some(Administrative::Drain);
    }
    let overview = Chosen::new(&table, None).overview(Sources {
        overrides: &overrides(),
        health: &Health::from_iter([(key("web"), Arc::new(judged))]),
        report: None,
        readings: None,
        checks_suspended: false,
        now: now(),
    });
    let backends = overview.balancers[0].backends.iter();
    let shown: Vec<_> = backends
        .map(|backend| (&*backend.administrative, backend.by_command))
        .collect();
    // A command is about the second one alone, and the last one was not judged yet.
    let expected = [("drain", false), ("drain", true), ("enabled", false)];
    assert_eq!(shown, expected);
}

#[test]
fn a_backend_that_no_frontend_is_in_front_of_is_not_shown() {
    let mut web = record("web", 10);
    // The frontend for IPv6 goes, its backend stays.
    web.frontends.pop();
    let table = table(vec![web]);
    let of = |name: &str| {
        let state = Administrative::Drain;
        let until = None;
        (name.parse().unwrap(), Override { state, until })
    };
    let overrides: OverrideMap = [of("web/10.0.0.12"), of("web/[fd00::11]:8080")]
        .into_iter()
        .collect();
    let overview = Chosen::new(&table, None).overview(Sources {
        overrides: &overrides,
        health: &Health::new(),
        report: None,
        readings: None,
        checks_suspended: false,
        now: now(),
    });
    let backends = overview.balancers[0].backends.iter();
    let shown: Vec<_> = backends.map(|backend| &*backend.address).collect();
    assert_eq!(shown, ["10.0.0.11:8080", "10.0.0.12:8080"]);
    let commands = overview.commands.iter();
    let used: Vec<_> = commands.map(|command| command.is_used).collect();
    assert_eq!(used, [true, false]);
}

#[test]
fn a_host_is_healthy_when_all_is_programmed_and_has_quorum_or_a_sorry_server() {
    let table = table(vec![record("web", 10)]);
    let faults = |quorum: Option<(bool, bool)>, report: Option<Report>| {
        let health = quorum.map(|(quorum, sorry)| {
            let mut verdicts = Verdicts::clone(&verdicts(quorum));
            verdicts.sorry = sorry;
            (key("web"), Arc::new(verdicts))
        });
        let chosen = Chosen::new(&table, None);
        let overview = chosen.overview(Sources {
            overrides: &OverrideMap::default(),
            health: &Health::from_iter(health),
            report: report.as_ref(),
            readings: None,
            checks_suspended: false,
            now: now(),
        });
        overview.faults()
    };
    let good = || Some(report(vec![]));
    assert!(faults(Some((true, false)), good()).is_empty());
    assert!(faults(Some((false, true)), good()).is_empty());
    assert_eq!(
        faults(Some((false, false)), good()),
        ["default/web:http: no quorum"]
    );
    let awaited = ["default/web:http: not checked yet"];
    assert_eq!(faults(None, good()), awaited);
    assert_eq!(
        faults(Some((true, false)), None),
        ["no table has been programmed yet"]
    );
    let errors = vec![
        (None, "no room".to_owned()),
        (Some(key("web")), "refused".to_owned()),
        (Some(key("other")), "not shown".to_owned()),
    ];
    assert_eq!(
        faults(Some((true, false)), Some(report(errors))),
        ["no room", "default/web:http: refused"]
    );
}

#[test]
fn backends_without_a_result_are_a_fault_of_a_host_that_checks_and_knows_none() {
    let checked = |name: &str| {
        let mut record = record(name, 10);
        let mut balancing = Balancing::clone(record.balancing.as_ref().unwrap());
        balancing.profiles[0].checks = vec![Arc::new(Check::new(Probe::Tcp(TcpProbe::default())))];
        record.balancing = Some(Arc::new(balancing));
        record
    };
    let table = table(vec![checked("new"), checked("web")]);
    let open = Verdicts {
        is_quorum_open: true,
        ..Verdicts::clone(&verdicts(false))
    };
    let faults = |web: &Verdicts, checks_suspended| {
        let health = [("new", open.clone()), ("web", web.clone())];
        let health = health.map(|(name, verdicts)| (key(name), Arc::new(verdicts)));
        let overview = Chosen::new(&table, None).overview(Sources {
            overrides: &OverrideMap::default(),
            health: &Health::from_iter(health),
            report: Some(&report(vec![])),
            readings: None,
            checks_suspended,
            now: now(),
        });
        overview.faults().len()
    };
    assert_eq!(faults(&open, false), 2);
    assert_eq!(faults(&open, true), 0, "a standby that does not check");
    assert_eq!(faults(&verdicts(true), false), 0, "a new load balancer");
    assert_eq!(faults(&verdicts(false), false), 1);
}

#[test]
fn an_answer_is_bounded_and_each_load_balancer_can_be_asked_for() {
    let many = (0..3_000).map(|number| record(&format!("web-{number}"), 10));
    let table = table(many.collect());
    let chosen = Chosen::new(&table, None);
    // Six entries each.
    assert_eq!(chosen.virtual_servers().len(), 2 * (MAX_ENTRIES / 6));
    let overview = chosen.overview(Sources {
        overrides: &OverrideMap::default(),
        health: &Health::new(),
        report: None,
        readings: None,
        checks_suspended: false,
        now: now(),
    });
    assert_eq!(overview.balancers.len() + overview.omitted, 3_000);
    assert!(table::balancers(&overview).contains("# 1334 more"));
    let one = Chosen::new(&table, Some("default/web-2999"));
    assert_eq!(one.virtual_servers().len(), 2);
}

#[tokio::test]
async fn the_command_asks_the_agent_over_its_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("agent.sock");
    let table = table(vec![record("web", 10)]);
    let (_tables, tables) =
        watch::channel(Some(Arc::new(Subscribed::new((0, 4), Arc::new(table)))));
    let (_health, health) = watch::channel(Health::from_iter([(key("web"), verdicts(false))]));
    let (_reports, reports) = watch::channel(Some(report(vec![])));
    let (in_force, _) = watch::channel(portolan_probe::Overrides::new());
    let router = Overviews::new(Inputs {
        overrides: OverrideStore::open(directory.path(), in_force, health.clone()),
        tables,
        health,
        reports,
        suspended: watch::channel(false).1,
    });
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let router = axum::Router::new().nest("/debug", router.dumps());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let args = |name: Option<&str>| crate::args::StatusArgs {
        name: name.map(ToOwned::to_owned),
        output: crate::args::StatusOutput::Table,
        healthy: true,
        watch: false,
        interval: Duration::from_secs(1),
        agent: crate::args::SocketArgs {
            address: format!("unix://{}", socket.display()),
        },
    };
    let overview = command::request(&args(None)).await.unwrap();
    assert_eq!(overview.balancers.len(), 1);
    assert_eq!(overview.unread.as_deref(), Some("not asked for"));
    let named = command::request(&args(Some("web"))).await.unwrap();
    assert_eq!(named.balancers, overview.balancers);
    let error = command::request(&args(Some("other"))).await.unwrap_err();
    assert_eq!(error.to_string(), "no load balancer default/other");
    let code = command::run(&args(None)).await.unwrap();
    assert_eq!(
        format!("{code:?}"),
        format!("{:?}", std::process::ExitCode::from(3))
    );
}
