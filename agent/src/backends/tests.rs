// SPDX-License-Identifier: Apache-2.0

mod health;
mod wanted;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_director::Director;
use portolan_health::{
    Administrative, Assigned, BackendStatus, Presence, State, Verdict, Verdicts, Way,
};
use portolan_model::check::{
    ExecProbe, Inherited, TcpProbe, Timers, TlsProbe, Verify, Via, WeightFrom,
};
use portolan_model::ipvs::{ForwardingMethod, Thresholds};
use portolan_model::{
    AdministrativeState, Balancing, Destination, Family, Frontend, FrontendAddress, FrontendKind,
    Profile, Protocol, Record, Standing,
};

use super::*;
use crate::director::HostFlags;
use crate::subscribe::Report;

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
    ([10, 0, 0, last], 80).into()
}

fn balanced(name: &str) -> Record {
    let profile = Profile {
        forwarding: ForwardingMethod::Masquerade,
        thresholds: Thresholds::default(),
        checks: vec![Arc::new(Check::new(Probe::Tcp(TcpProbe::default())))],
        administrative_state: AdministrativeState::Drain,
    };
    let address = FrontendAddress::Vip([192, 0, 2, 1].into());
    Record {
        frontends: vec![Frontend::new(FrontendKind::Balanced, address, 80)],
        destinations: vec![Destination::new(backend(1)), Destination::new(backend(2))],
        balancing: Some(Arc::new(Balancing {
            profiles: vec![profile],
            profile_of: vec![0, 0],
            ..Balancing::default()
        })),
        ..Record::new(key(name))
    }
}

fn subscribed(revision: u64, records: Vec<Record>) -> Arc<Subscribed> {
    let records = records.into_iter().map(|r| (r.key.clone(), Arc::new(r)));
    let table = NodeTable {
        records: records.collect(),
        ..NodeTable::default()
    };
    let mut table = Subscribed::new((0, revision), Arc::new(table));
    table.trigger_times_ms = vec![7];
    Arc::new(table)
}

/// A stage whose engine is the test.
struct Rig {
    tables: watch::Sender<Option<Arc<Subscribed>>>,
    ways: watch::Sender<Arc<Ways>>,
    health: watch::Sender<Health>,
    wanted: watch::Receiver<Wanted<RecordKey>>,
    checked: Tables,
    _running: tokio_util::sync::DropGuard,
}

fn rig() -> Rig {
    rig_of(&CheckControls::default(), None)
}

fn rig_of(controls: &CheckControls, director: Option<(HostDirector, Arc<str>)>) -> Rig {
    let (tables, tables_receiver) = watch::channel(None);
    let (ways, ways_receiver) = watch::channel(Arc::default());
    let (health, health_receiver) = watch::channel(Health::new());
    let (wanted, wanted_receiver) = watch::channel(Wanted::new());
    let (checked, checked_receiver) = watch::channel(None);
    let (commanded, commanded_receiver) = watch::channel(Overrides::new());
    let nowhere = Path::new("/proc/portolan-none");
    let checkups = Checkups {
        judged: HealthOfRecords::default(),
        tables: tables_receiver,
        ways: ways_receiver,
        health: health_receiver.clone(),
        wanted,
        checked,
        records: ByRecord::new(),
        through: BTreeSet::new(),
        groups: OwnGroups::default(),
        overrides: OverrideStore::open(nowhere, commanded, health_receiver),
        commanded: commanded_receiver,
        defaults: controls.defaults.subscribe(),
        number: 0,
        director,
    };
    let token = CancellationToken::new();
    tokio::spawn(checkups.run(token.clone()));
    Rig {
        tables,
        ways,
        health,
        wanted: wanted_receiver,
        checked: checked_receiver,
        _running: token.drop_guard(),
    }
}

impl Rig {
    async fn next(&mut self) -> Arc<Subscribed> {
        self.checked.changed().await.unwrap();
        self.checked.borrow_and_update().clone().unwrap()
    }
}

#[tokio::test]
async fn checks_of_a_controller_get_the_defaults_of_this_hosts_director() {
    let directory = tempfile::tempdir().unwrap();
    let controls = CheckControls::default();
    let director = HostDirector::new(
        HostFlags::default(),
        directory.path(),
        Programs::default(),
        controls.clone(),
    );
    let mut rig = rig_of(&controls, Some((director, "node1".into())));
    let declared = Check {
        timers: Timers {
            fall: 7,
            ..Timers::default()
        },
        inherited: Inherited {
            interval: true,
            source: true,
            ..Inherited::default()
        },
        ..Check::new(Probe::Tcp(TcpProbe::default()))
    };
    let with = |name, check: &Check| {
        let mut record = balanced(name);
        let balancing = Arc::make_mut(record.balancing.as_mut().unwrap());
        balancing.profiles[0].checks = vec![Arc::new(check.clone())];
        record
    };
    let fixed = Check::new(Probe::Tcp(TcpProbe::default()));
    let table = |revision, interval: Option<u64>| {
        let mut table = Subscribed::clone(&subscribed(
            revision,
            vec![with("web", &declared), with("fixed", &fixed)],
        ));
        Arc::make_mut(&mut table.table).node.director = interval.map(|interval| {
            let mut director = Director::new("node1");
            director.checks.defaults.timers.interval = Duration::from_secs(interval);
            director.checks.defaults.timers.fall = 9;
            director.checks.defaults.source.mark = Some(5);
            director.to_sent().into()
        });
        Some(Arc::new(table))
    };
    let checks = |rig: &mut Rig| {
        let wanted = rig.wanted.borrow_and_update().clone();
        assert_eq!(wanted.len(), 2);
        let of = |name| wanted[&key(name)].backends[&backend(1)].checks[0].clone();
        assert_eq!(of("fixed"), Assigned::direct(fixed.clone()));
        let check = Check::clone(&of("web").check);
        assert_eq!(
            (check.timers.fall, check.inherited),
            (7, Inherited::default())
        );
        (check.timers.interval.as_secs(), check.source.mark)
    };
    rig.tables.send_replace(table(1, Some(30)));
    rig.next().await;
    assert_eq!(checks(&mut rig), (30, Some(5)));
    // Other defaults for the same records.
    rig.tables.send_replace(table(2, Some(40)));
    rig.next().await;
    assert_eq!(checks(&mut rig), (40, Some(5)));
    rig.tables.send_replace(table(3, None));
    rig.next().await;
    assert_eq!(checks(&mut rig), (5, None));
}

/// Verdicts about two backends: the first is up, the second as given.
fn verdicts(second: State, weight: u16) -> Arc<Verdicts> {
    let status = |state| BackendStatus {
        state,
        since: std::time::Duration::ZERO,
        administrative: Administrative::Enabled,
        commanded: None,
        said: Administrative::Enabled,
        reason: None,
        is_kept: false,
        changes: 0,
        flap_factor: 1,
    };
    let verdict = |weight| Verdict {
        weight,
        presence: Presence::Present,
    };
    Arc::new(Verdicts {
        backends: [(backend(1), verdict(1)), (backend(2), verdict(weight))].into(),
        states: [
            (backend(1), status(State::Up)),
            (backend(2), status(second)),
        ]
        .into(),
        ..Verdicts::default()
    })
}

/// Two backends with these weights.
fn weighing([first, second]: [u32; 2]) -> BTreeMap<SocketAddr, Standing> {
    let of = |last, weight| (backend(last), Standing::Weight(weight));
    [of(1, first), of(2, second)].into()
}

#[tokio::test]
async fn a_table_without_load_balancers_passes_unchanged() {
    let mut rig = rig();
    let service = Record {
        balancing: None,
        ..balanced("web")
    };
    let table = subscribed(1, vec![service]);
    rig.tables.send_replace(Some(Arc::clone(&table)));
    assert!(Arc::ptr_eq(&rig.next().await, &table));
    assert!(!rig.wanted.has_changed().unwrap());
}

#[tokio::test]
async fn a_check_by_way_of_the_service_waits_for_its_virtual_server() {
    let mut rig = rig();
    let check = Check {
        via: Via::Service {
            frontend: Some("http".into()),
        },
        ..Check::new(Probe::Tcp(TcpProbe::default()))
    };
    let mut record = balanced("web");
    let balancing = Arc::make_mut(record.balancing.as_mut().unwrap());
    balancing.profiles[0].checks = vec![Arc::new(check.clone())];
    let table = subscribed(1, vec![record, balanced("other")]);
    let records = &table.table.records;
    let (to, address) = portolan_plan::way_of(records, &records[&key("web")], 1, &check).unwrap();
    assert_eq!(to.backend, backend(2));
    rig.tables.send_replace(Some(Arc::clone(&table)));
    rig.next().await;
    let ways = |rig: &mut Rig| {
        let wanted = rig.wanted.borrow_and_update().clone();
        assert_eq!(wanted.len(), 2);
        [1, 2].map(|last| wanted[&key("web")].backends[&backend(last)].checks[0].way)
    };
    assert_eq!(ways(&mut rig), [None, None]);

    // The virtual server of one backend is programmed.
    let source = IpAddr::from([10, 0, 0, 9]);
    rig.ways.send_replace(Arc::new(Ways {
        marks: [(to, 7)].into(),
        sources: [(Family::V4, source)].into(),
    }));
    rig.wanted.changed().await.unwrap();
    let way = Way {
        address,
        mark: 7,
        source: Some(source),
    };
    assert_eq!(ways(&mut rig), [None, Some(way)]);
    assert_eq!(way.address.to_string(), "192.0.2.1:80");
    // It is gone.
    rig.ways.send_replace(Arc::default());
    rig.wanted.changed().await.unwrap();
    assert_eq!(ways(&mut rig), [None, None]);
}

#[tokio::test]
async fn verdicts_become_health_of_the_same_revision() {
    let mut rig = rig();
    rig.tables
        .send_replace(Some(subscribed(3, vec![balanced("web")])));
    assert!(rig.next().await.table.health.is_empty());
    let wanted = rig.wanted.borrow_and_update()[&key("web")].clone();
    assert_eq!(wanted.backends.len(), 2);
    assert_eq!(
        (&*wanted.name, &*wanted.frontend),
        ("default/web", "TCP/192.0.2.1:80")
    );
    let drained = Administrative::Drain;
    assert_eq!(wanted.backends[&backend(1)].administrative, drained);

    // One that is still probed keeps its weight in the kernel.
    rig.health.send_modify(|health| {
        health.insert(key("web"), verdicts(State::Probing, 0));
    });
    let first = rig.next().await;
    assert_eq!((first.revision, &first.trigger_times_ms), (3, &vec![]));
    let weights = |table: &Subscribed| table.table.health[&key("web")].backends.clone();
    assert_eq!(weights(&first), [(backend(1), Standing::Weight(1))].into());
    rig.health.send_modify(|health| {
        health.insert(key("web"), verdicts(State::Down, 0));
    });
    let second = rig.next().await;
    assert_eq!(weights(&second), weighing([1, 0]));

    // A verdict that changes no weight is no news, and a record that is gone has no health.
    rig.health.send_modify(|health| {
        health.insert(key("other"), verdicts(State::Down, 0));
    });
    rig.tables.send_replace(Some(subscribed(4, vec![])));
    let last = rig.next().await;
    assert_eq!((last.revision, last.table.health.len()), (4, 0));
    assert!(rig.wanted.borrow_and_update().is_empty());
}

#[tokio::test]
async fn a_controller_starts_no_program() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("ran");
    let touch = ["/usr/bin/touch".to_owned(), mark.display().to_string()];
    let check = Arc::new(Check::new(Probe::Exec(ExecProbe {
        command: touch.into(),
        weight_from: WeightFrom::None,
    })));
    let prober = |source| HostProber {
        context: Context::default(),
        source,
    };
    let target = || Target::at(backend(1));
    let outcome = prober(Source::Controller)
        .probe(Arc::clone(&check), target(), tokio::time::Instant::now())
        .await;
    assert!(matches!(outcome, Outcome::Fail(_)), "{outcome:?}");
    assert!(!mark.exists());
    let outcome = prober(Source::File)
        .probe(check, target(), tokio::time::Instant::now())
        .await;
    assert_eq!(outcome, Outcome::pass());
    assert!(mark.exists());
}

#[tokio::test]
async fn a_controller_opens_no_file() {
    let target = || Target::at("127.0.0.1:1".parse().unwrap());
    let probe = |source, tls: &TlsProbe| {
        let prober = HostProber {
            context: Context::default(),
            source,
        };
        let check = Check::new(Probe::Tls(tls.clone()));
        prober.probe(Arc::new(check), target(), tokio::time::Instant::now())
    };
    // No verdict: a backend that was up before an upgrade of the agent stays up.
    let refused = Outcome::no_verdict(LOCAL);
    let path = || Some("/proc/portolan-none".to_owned());
    let with_ca = TlsProbe {
        verify: Verify::Ca("/proc/portolan-none".to_owned()),
        ..TlsProbe::default()
    };
    let with_key = TlsProbe {
        certificate: path(),
        key: path(),
        ..TlsProbe::default()
    };
    for tls in [with_ca, with_key] {
        assert_eq!(probe(Source::Controller, &tls).await, refused);
        assert_ne!(probe(Source::File, &tls).await, refused);
    }
    let without = probe(Source::Controller, &TlsProbe::default()).await;
    assert_ne!(without, refused);
}

#[tokio::test]
async fn a_table_that_comes_with_a_verdict_is_not_missed() {
    // Which of both is noticed first is random.
    for _ in 0..20 {
        let mut rig = rig();
        rig.health.send_modify(|health| {
            health.insert(key("web"), verdicts(State::Down, 0));
        });
        rig.tables
            .send_replace(Some(subscribed(1, vec![balanced("web")])));
        assert_eq!(rig.next().await.table.health.len(), 1);
        assert_eq!(rig.wanted.borrow_and_update().len(), 1);
    }
}

/// A whole stage with its engine; the sync loop is the test's, and programs all that comes.
#[tokio::test]
async fn a_backend_is_drained_and_enabled_over_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let (tables, tables_receiver) = watch::channel(None);
    let (_, ways) = watch::channel(Arc::default());
    let started = start(tables_receiver, ways, Source::File, directory.path());
    let token = CancellationToken::new();
    let _stop = token.clone().drop_guard();
    tokio::spawn(started.engine.run(token.clone()));
    tokio::spawn(started.checkups.run(token.clone()));
    let (reports, reports_receiver) = watch::channel(None);
    let mut checked = started.tables.clone();
    tokio::spawn(async move {
        while checked.changed().await.is_ok() {
            let number = checked.borrow_and_update().as_ref().unwrap().checked;
            reports.send_replace(Some(Report {
                epoch: 0,
                revision: 1,
                duration: std::time::Duration::ZERO,
                errors: vec![
                    (Some(key("other")), "not ours".to_owned()),
                    (Some(key("web")), format!("refused {number}")),
                ],
                checked: number,
            }));
        }
    });
    let socket = directory.path().join("agent.sock");
    let commands = overrides::Commands {
        store: started.overrides,
        health: started.handle.health.clone(),
        tables: started.tables.clone(),
        reports: reports_receiver,
    };
    let router = axum::Router::new().nest("/debug", commands.actions());
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    // Without checks they are up at once.
    let mut web = balanced("web");
    let balancing = Arc::make_mut(web.balancing.as_mut().unwrap());
    balancing.profiles[0].checks.clear();
    balancing.profiles[0].administrative_state = AdministrativeState::Enabled;
    tables.send_replace(Some(subscribed(1, vec![web])));

    let ask = async |what, backend: &str| {
        let args = crate::args::BackendArgs {
            command: what,
            backend: backend.parse().unwrap(),
            duration: None,
            agent: crate::args::SocketArgs {
                address: format!("unix://{}", socket.display()),
            },
        };
        format!("{:#}", command(&args).await.unwrap_err())
    };
    let weights = || {
        let table = started.tables.borrow().clone().unwrap();
        let health = Arc::clone(&table.table.health[&key("web")]);
        (health.backends.clone(), health.commanded.clone())
    };
    // What could not be programmed of this load balancer is an error.
    let drain = crate::args::BackendCommand::Drain;
    assert_eq!(ask(drain, "web/10.0.0.2").await, "1 errors");
    assert_eq!(weights(), (weighing([1, 0]), [backend(2)].into()));
    let verdicts = started.handle.health.borrow()[&key("web")].clone();
    assert_eq!(verdicts.healthy_weight, 1);
    let enable = crate::args::BackendCommand::Enable;
    assert_eq!(ask(enable, "web/10.0.0.2:80").await, "1 errors");
    // The command about all ports holds, but for this one.
    assert_eq!(weights(), (weighing([1, 1]), [backend(2)].into()));
    assert_eq!(ask(enable, "web/10.0.0.2").await, "1 errors");
    assert_eq!(weights(), (weighing([1, 1]), [].into()));
    let error = ask(drain, "web/10.0.0.3").await;
    assert_eq!(
        error,
        "no backend default/web/10.0.0.3: there are 10.0.0.1:80, 10.0.0.2:80"
    );
}
