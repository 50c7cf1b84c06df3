// SPDX-License-Identifier: Apache-2.0

use portolan_dataplane::FakeKernel;
use portolan_model::ipvs::{ForwardingMethod, SyncDaemon, SyncRole, Thresholds};
use portolan_model::{
    AdministrativeState, Balancing, Destination, Frontend, FrontendAddress, FrontendKind, Profile,
    Protocol, Record, RecordHealth, RecordKey, Standing,
};
use portolan_plan::VipBinding;
use portolan_plan::host::Neighbour;

use super::*;

const V4: &str = "192.0.2.10";
const V6: &str = "2001:db8::10";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn key() -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "default".into(),
        service: "web".into(),
        port: "tcp-80".into(),
        protocol: Protocol::Tcp,
    }
}

/// A load balancer at an address of each family, with a backend of each, and this health.
fn table(health: Option<RecordHealth>) -> Arc<NodeTable> {
    let frontend = |vip| Frontend::new(FrontendKind::Balanced, FrontendAddress::Vip(ip(vip)), 80);
    let backend = |address: &str| Destination::new(address.parse().unwrap());
    let profile = Profile {
        forwarding: ForwardingMethod::Masquerade,
        thresholds: Thresholds::default(),
        checks: Vec::new(),
        administrative_state: AdministrativeState::default(),
    };
    let balancing = Balancing {
        profiles: vec![profile],
        profile_of: vec![0, 0],
        ..Balancing::default()
    };
    let record = Record {
        frontends: vec![frontend(V4), frontend(V6)],
        destinations: vec![backend("10.0.0.1:80"), backend("[fd00::1]:80")],
        balancing: Some(Arc::new(balancing)),
        ..Record::new(key())
    };
    let health = health.map(|health| (key(), Arc::new(health)));
    Arc::new(NodeTable {
        records: [(key(), Arc::new(record))].into_iter().collect(),
        health: health.into_iter().collect(),
        ..NodeTable::default()
    })
}

fn host() -> Host {
    Host {
        sync: Some(SyncDaemon::new("eth1")),
        interface: Some("eth0".to_owned()),
        announce_table: 199,
        ..Host::default()
    }
}

fn reconciler() -> Reconciler<FakeKernel> {
    let mut kernel = FakeKernel::default();
    kernel.host.interfaces = ["eth0", "eth1"].map(str::to_owned).into();
    let of_all = ("all.forwarding", "1");
    for (name, value) in [("eth0.proxy_ndp", "0"), ("eth0.forwarding", "1"), of_all] {
        let (name, value) = (format!("net.ipv6.conf.{name}"), Ok(value.to_owned()));
        kernel.host.state.sysctls.insert(name, value);
    }
    Reconciler::new(kernel, Config::default())
}

/// Programs a table as the agent does.
async fn program(
    reconciler: &mut Reconciler<FakeKernel>,
    host: Host,
    table: &Arc<NodeTable>,
) -> HostOutcome {
    let owned = reconciler.owned().clone();
    reconciler.set_host(Some(Arc::new(host)), owned);
    let begun = reconciler.begin_host().await;
    assert_eq!(begun.errors, [""; 0]);
    let outcome = reconciler.reconcile(table).await.unwrap();
    assert_eq!(outcome.errors, []);
    reconciler.finish_host(table).await
}

fn announced(reconciler: &Reconciler<FakeKernel>) -> Vec<String> {
    let announced = &reconciler.dataplane.host.state.announced;
    announced.iter().map(|(_, vip)| vip.to_string()).collect()
}

#[tokio::test]
async fn an_active_director_answers_and_one_on_standby_does_not() {
    let (mut reconciler, table) = (reconciler(), table(None));
    let outcome = program(&mut reconciler, host(), &table).await;
    assert_eq!(outcome.errors, [""; 0]);
    assert_eq!(outcome.new, [ip(V4), ip(V6)].into());
    let kernel = &reconciler.dataplane;
    assert_eq!(kernel.state.routes.len(), 2);
    let proxy = Neighbour {
        interface: "eth0".to_owned(),
        address: ip(V6),
    };
    assert_eq!(kernel.host.state.neighbours, [proxy].into());
    assert_eq!(announced(&reconciler), [V4, V6]);
    assert_eq!(outcome.state.as_ref(), Some(&kernel.host.state));
    let again = program(&mut reconciler, host(), &table).await;
    assert_eq!((again.changed, &again.errors[..]), (0, &[][..]));
    assert_eq!((again.new, again.state), ([].into(), outcome.state));
    let elsewhere = Host {
        interface: Some("eth1".to_owned()),
        ..host()
    };
    let outcome = program(&mut reconciler, elsewhere, &table).await;
    assert_eq!(outcome.new, [ip(V4), ip(V6)].into(), "by another interface");
    program(&mut reconciler, host(), &table).await;

    let standby = || Host {
        is_active: false,
        ..host()
    };
    let outcome = program(&mut reconciler, standby(), &table).await;
    assert!(outcome.new.is_empty());
    let kernel = &reconciler.dataplane;
    assert!(kernel.state.routes.is_empty() && kernel.host.state.neighbours.is_empty());
    assert!(announced(&reconciler).is_empty());
    // After a restart, before the files are read, it binds nothing either.
    assert!(reconciler.owned().stands_by);
    let config = Config {
        binds_balancers: !reconciler.owned().stands_by,
        ..Config::default()
    };
    let mut restarted = Reconciler::new(FakeKernel::default(), config);
    restarted.reconcile(&table).await.unwrap();
    assert_eq!(restarted.dataplane.state.virtual_servers.len(), 2);
    assert!(restarted.dataplane.state.routes.is_empty());
    // It is programmed and synchronised all the same.
    assert_eq!(kernel.state.virtual_servers.len(), 2);
    assert_eq!(kernel.host.state.daemons.len(), 2);

    let outcome = program(&mut reconciler, host(), &table).await;
    assert_eq!(outcome.new, [ip(V4), ip(V6)].into());
    assert_eq!(reconciler.dataplane.state.routes.len(), 2);
    assert!(!reconciler.owned().stands_by);
}

#[tokio::test]
async fn a_director_that_neighbours_cannot_hear_warns_until_it_is_mended_and_is_no_failure() {
    let (mut reconciler, table) = (reconciler(), table(None));
    let name = "net.ipv6.conf.eth0.forwarding";
    let set = |reconciler: &mut Reconciler<FakeKernel>, value: &str| {
        let sysctls = &mut reconciler.dataplane.host.state.sysctls;
        sysctls.insert(name.to_owned(), Ok(value.to_owned()));
    };
    set(&mut reconciler, "0");
    let outcome = program(&mut reconciler, host(), &table).await;
    // An error would fail each command and each look at the health, and keep what is no longer ours.
    assert_eq!(outcome.errors, [""; 0]);
    assert_eq!(outcome.warnings.len(), 1, "{outcome:?}");
    assert!(outcome.warnings[0].starts_with(name), "{outcome:?}");
    assert_eq!(announced(&reconciler), [V4, V6]);
    let preview = reconciler.preview(&table).await.unwrap().host;
    assert_eq!(preview.problems, [""; 0]);
    assert_eq!(preview.warnings, outcome.warnings);
    let without = Host {
        announce_table: 0,
        ..host()
    };
    let outcome = program(&mut reconciler, without, &table).await;
    assert_eq!(outcome.warnings, preview.warnings);
    assert!(reconciler.owned().tables.is_empty());
    set(&mut reconciler, "1");
    let outcome = reconciler.finish_host(&table).await;
    assert_eq!((outcome.errors.len(), outcome.warnings.len()), (0, 0));
}

#[tokio::test]
async fn a_load_balancer_whose_ipv6_answers_are_not_forwarded_is_warned_of_when_it_comes() {
    let mut reconciler = reconciler();
    let name = "net.ipv6.conf.all.forwarding";
    let sysctls = &mut reconciler.dataplane.host.state.sysctls;
    sysctls.insert(name.to_owned(), Ok("0".to_owned()));
    let nothing = Arc::new(NodeTable::default());
    let outcome = program(&mut reconciler, Host::default(), &nothing).await;
    assert_eq!((outcome.errors, outcome.warnings), (vec![], vec![]));
    // The answers of these backends do not come back to the host.
    let masqueraded = table(None);
    let mut direct = NodeTable::clone(&masqueraded);
    let record = Arc::make_mut(&mut direct.records[&key()]);
    let balancing = Arc::make_mut(record.balancing.as_mut().unwrap());
    balancing.profiles[0].forwarding = ForwardingMethod::Direct;
    for (table, count) in [(Arc::new(direct), 0), (masqueraded, 1)] {
        reconciler.reconcile(&table).await.unwrap();
        let outcome = reconciler.finish_host(&table).await;
        assert_eq!(outcome.errors, [""; 0]);
        assert_eq!(outcome.warnings.len(), count, "{outcome:?}");
        let is_about = |warning: &String| warning.starts_with(name);
        assert!(outcome.warnings.iter().all(is_about), "{outcome:?}");
        // The host asks for nothing, so it is left alone from now on.
        let again = reconciler.finish_host(&table).await;
        assert_eq!(again, HostOutcome::default());
    }
}

#[tokio::test]
async fn a_director_goes_to_standby_with_a_table_from_disk() {
    let (mut reconciler, older) = (reconciler(), table(None));
    // Of a Service that the table from disk does not have.
    let mut newer = NodeTable::clone(&older);
    let vip = FrontendAddress::Vip(ip("192.0.2.20"));
    let service = RecordKey {
        service: "newer".into(),
        ..key()
    };
    let record = Record {
        frontends: vec![Frontend::new(FrontendKind::ExternalIp, vip, 80)],
        ..Record::new(service.clone())
    };
    newer.records.insert(service, Arc::new(record));
    program(&mut reconciler, host(), &Arc::new(newer)).await;
    assert_eq!(reconciler.dataplane.state.routes.len(), 3);

    let standby = Host {
        is_active: false,
        ..host()
    };
    let owned = reconciler.owned().clone();
    reconciler.set_host(Some(Arc::new(standby)), owned);
    reconciler.begin_host().await;
    let outcome = reconciler.reconcile_additions(&older).await.unwrap();
    assert_eq!(outcome.errors, []);
    let outcome = reconciler.finish_host(&older).await;
    assert_eq!(outcome.errors, [""; 0]);
    let state = &reconciler.dataplane.state;
    let bound: Vec<_> = state.routes.keys().collect();
    assert_eq!(bound, [&ip("192.0.2.20")]);
    assert_eq!(state.virtual_servers.len(), 3);
}

#[tokio::test]
async fn a_host_that_asks_for_nothing_is_left_alone_once_it_is_so() {
    let (mut reconciler, table) = (reconciler(), table(None));
    program(&mut reconciler, host(), &table).await;
    assert_eq!(reconciler.dataplane.host.state.daemons.len(), 2);
    let outcome = program(&mut reconciler, Host::default(), &table).await;
    assert_eq!(outcome.errors, [""; 0]);
    assert!(reconciler.dataplane.host.state.daemons.is_empty());
    assert!(announced(&reconciler).is_empty());
    // Not even a kernel that cannot be read is noticed.
    reconciler.dataplane.unreadable = 1;
    assert_eq!(reconciler.finish_host(&table).await, HostOutcome::default());
    assert_eq!(reconciler.dataplane.unreadable, 1);
}

#[tokio::test]
async fn addresses_of_somebody_else_are_not_bound() {
    let (mut reconciler, table) = (reconciler(), table(None));
    let external = Host {
        binding: None,
        ..host()
    };
    let outcome = program(&mut reconciler, external, &table).await;
    assert!(outcome.new.is_empty() && reconciler.dataplane.state.routes.is_empty());
    assert_eq!(announced(&reconciler), [V4, V6]);
    let by_address = Host {
        binding: Some(VipBinding::Address),
        ..host()
    };
    program(&mut reconciler, by_address, &table).await;
    assert_eq!(reconciler.dataplane.state.routes.len(), 2);
    assert_eq!(reconciler.dataplane.host.binding, Some(VipBinding::Address));
}

#[tokio::test]
async fn an_address_is_announced_while_there_is_a_quorum_or_a_sorry_server() {
    let mut reconciler = reconciler();
    let health = |weight, is_sorry, lacks_quorum| {
        let of = |address: &str| (address.parse().unwrap(), Standing::Weight(weight));
        Some(RecordHealth {
            backends: [of("10.0.0.1:80"), of("[fd00::1]:80")].into(),
            is_sorry: Some(is_sorry),
            lacks_quorum,
            ..RecordHealth::default()
        })
    };
    for (health, expected) in [
        (health(1, false, false), &[V4, V6][..]),
        (health(1, false, true), &[]),
        (health(1, true, true), &[V4, V6]),
        (health(0, false, true), &[]),
        (None, &[V4, V6]),
    ] {
        let table = table(health);
        let outcome = program(&mut reconciler, host(), &table).await;
        assert_eq!(outcome.errors, [""; 0]);
        assert_eq!(announced(&reconciler), expected, "{:?}", table.health);
    }
}

#[tokio::test]
async fn a_daemon_waits_for_its_interface() {
    let (mut reconciler, table) = (reconciler(), table(None));
    reconciler.dataplane.host.interfaces.remove("eth1");
    let outcome = program(&mut reconciler, host(), &table).await;
    assert_eq!(outcome.errors.len(), 2, "{outcome:?}");
    assert!(
        outcome.errors[0].contains("sync daemon master on eth1"),
        "{outcome:?}"
    );
    reconciler
        .dataplane
        .host
        .interfaces
        .insert("eth1".to_owned());
    let outcome = reconciler.finish_host(&table).await;
    assert_eq!((outcome.changed, outcome.errors.len()), (2, 0));
    // Drift is mended.
    reconciler.dataplane.host.state.daemons.clear();
    assert_eq!(reconciler.finish_host(&table).await.changed, 2);
}

#[tokio::test]
async fn daemons_run_on_while_the_number_of_their_threads_cannot_be_written() {
    let (mut reconciler, table) = (reconciler(), table(None));
    program(&mut reconciler, host(), &table).await;
    let name = SYNC_PORTS.to_owned();
    let kernel = &mut reconciler.dataplane.host;
    let one = Ok("1".to_owned());
    kernel.state.sysctls.insert(name.clone(), one);
    kernel.read_only.insert(name.clone());
    kernel.applied.clear();
    let asked = Host {
        sysctls: [(name.clone(), "4".to_owned())].into(),
        ..host()
    };
    let owned = reconciler.owned().clone();
    reconciler.set_host(Some(Arc::new(asked)), owned);
    for _ in 0..2 {
        let outcome = reconciler.finish_host(&table).await;
        assert_eq!(outcome.errors.len(), 1, "{outcome:?}");
        assert!(outcome.errors[0].contains(&name), "{outcome:?}");
        assert_eq!(outcome.changed, 0);
    }
    let set = HostStep::SetSysctl {
        name,
        value: "4".to_owned(),
    };
    let applied = &reconciler.dataplane.host.applied;
    assert_eq!(*applied, [set.clone(), set]);
    // Once it can be written, they are started again.
    reconciler.dataplane.host.read_only.clear();
    let outcome = reconciler.finish_host(&table).await;
    assert_eq!((outcome.changed, outcome.errors.len()), (5, 0));
    assert_eq!(reconciler.finish_host(&table).await.changed, 0);
}

#[tokio::test]
async fn daemons_of_an_operator_are_left_and_ours_are_stopped() {
    let (mut reconciler, table) = (reconciler(), table(None));
    let theirs = SyncDaemon {
        id: 9,
        ..SyncDaemon::new("eth1")
    };
    let daemons = [(SyncRole::Backup, theirs)];
    reconciler.dataplane.host.state.daemons = daemons.clone().into();
    let without = || Host {
        sync: None,
        ..host()
    };
    program(&mut reconciler, without(), &table).await;
    assert_eq!(reconciler.dataplane.host.state.daemons, daemons.into());

    program(&mut reconciler, host(), &table).await;
    let running = &reconciler.dataplane.host.state.daemons;
    assert!(running.values().all(|daemon| daemon.id == 0));
    // Another run of the agent knows from disk that they are ours.
    let owned = reconciler.owned().clone();
    assert_eq!(owned.daemons.len(), 2);
    let mut restarted = Reconciler::new(reconciler.into_dataplane(), Config::default());
    restarted.set_host(None, owned.clone());
    assert_eq!(restarted.begin_host().await, HostOutcome::default());
    restarted.set_host(None, owned);
    program(&mut restarted, without(), &table).await;
    assert!(restarted.dataplane.host.state.daemons.is_empty());
    assert_eq!(restarted.owned().daemons.len(), 0);
}
