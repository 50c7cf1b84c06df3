// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;
use std::time::Duration;

use portolan_model::ipvs::{ForwardingMethod, Thresholds};
use portolan_model::{
    AdministrativeState, Balancing, Destination, Frontend, FrontendAddress, FrontendKind, Profile,
    Protocol,
};

use super::*;

mod disk;
mod maintenance;

fn key(name: &str, port: &str) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "default".into(),
        service: name.into(),
        port: port.into(),
        protocol: Protocol::Tcp,
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn name(text: &str) -> BackendName {
    text.parse().unwrap()
}

fn record(key: RecordKey, state: AdministrativeState, backends: &[&str]) -> Record {
    let profile = Profile {
        forwarding: ForwardingMethod::Masquerade,
        thresholds: Thresholds::default(),
        checks: Vec::new(),
        administrative_state: state,
    };
    let vip = FrontendAddress::Vip([192, 0, 2, 1].into());
    let destinations = backends.iter().map(|each| Destination::new(address(each)));
    Record {
        frontends: vec![Frontend::new(FrontendKind::Balanced, vip, 80)],
        destinations: destinations.collect(),
        balancing: Some(Arc::new(Balancing {
            profiles: vec![profile],
            profile_of: vec![0; backends.len()],
            ..Balancing::default()
        })),
        ..Record::new(key)
    }
}

fn records_of(records: Vec<Record>) -> ByRecord<Record> {
    let pairs = records
        .into_iter()
        .map(|each| (each.key.clone(), Arc::new(each)));
    pairs.collect()
}

/// A load balancer with two frontends, whose backends have a port for each; another one, whose backend the file
/// drains; and a Service, which has no backends of ours.
fn records() -> ByRecord<Record> {
    let enabled = AdministrativeState::Enabled;
    records_of(vec![
        record(key("web", "http"), enabled, &["10.0.0.1:80", "10.0.0.2:80"]),
        record(
            key("web", "tls"),
            enabled,
            &["10.0.0.1:443", "10.0.0.2:443"],
        ),
        record(
            key("mail", "smtp"),
            AdministrativeState::Drain,
            &["10.0.0.1:25"],
        ),
        Record {
            balancing: None,
            ..record(key("dns", "udp"), enabled, &["10.0.0.1:53"])
        },
    ])
}

fn nothing_said(_: &Place) -> Administrative {
    Administrative::Enabled
}

fn command(map: &mut OverrideMap, command: BackendCommand, text: &str) -> Result<usize, Refused> {
    let places = map.command(command, &name(text), None, &records(), nothing_said)?;
    Ok(places.len())
}

fn states(map: &OverrideMap) -> Vec<(String, Administrative)> {
    let states = map.of_records(&records());
    let states = states
        .iter()
        .map(|((key, address), state)| (format!("{key} {address}"), *state));
    states.collect()
}

fn state(text: &str, state: Administrative) -> (String, Administrative) {
    (text.to_owned(), state)
}

#[test]
fn an_address_is_all_its_ports_and_a_port_is_stronger() {
    let mut map = OverrideMap::default();
    assert_eq!(
        command(&mut map, BackendCommand::Drain, "web/10.0.0.1"),
        Ok(2)
    );
    let (drain, disabled) = (Administrative::Drain, Administrative::Disabled);
    let http = "default/web:http/TCP 10.0.0.1:80";
    let tls = "default/web:tls/TCP 10.0.0.1:443";
    assert_eq!(states(&map), [state(http, drain), state(tls, drain)]);
    assert_eq!(
        command(&mut map, BackendCommand::Disable, "web/10.0.0.1:80"),
        Ok(1)
    );
    assert_eq!(states(&map), [state(http, disabled), state(tls, drain)]);
    // One of several ports comes back against the command about all.
    assert_eq!(
        command(&mut map, BackendCommand::Enable, "web/10.0.0.1:80"),
        Ok(1)
    );
    assert_eq!(
        states(&map),
        [state(http, Administrative::Enabled), state(tls, drain)]
    );
    // A command about all replaces those about one.
    assert_eq!(
        command(&mut map, BackendCommand::Drain, "web/10.0.0.1"),
        Ok(2)
    );
    assert_eq!(map.iter().count(), 1);
    assert_eq!(
        command(&mut map, BackendCommand::Enable, "web/10.0.0.1"),
        Ok(2)
    );
    assert!(map.is_empty(), "{map:?}");
}

#[test]
fn enabling_overrides_only_who_still_asks_for_another_state() {
    let mut map = OverrideMap::default();
    assert_eq!(
        command(&mut map, BackendCommand::Enable, "web/10.0.0.1"),
        Ok(2)
    );
    assert!(map.is_empty(), "nothing to override");
    assert_eq!(
        command(&mut map, BackendCommand::Enable, "mail/10.0.0.1"),
        Ok(1)
    );
    let enabled = Administrative::Enabled;
    let mail = "default/mail:smtp/TCP 10.0.0.1:25";
    assert_eq!(states(&map), [state(mail, enabled)]);
    // The backend's own word.
    let mut map = OverrideMap::default();
    let said = |place: &Place| match place.1.port() {
        80 => Administrative::Disabled,
        _ => Administrative::Enabled,
    };
    let enable = BackendCommand::Enable;
    map.command(enable, &name("web/10.0.0.2:443"), None, &records(), said)
        .unwrap();
    assert!(map.is_empty());
    map.command(enable, &name("web/10.0.0.2:80"), None, &records(), said)
        .unwrap();
    assert_eq!(
        states(&map),
        [state("default/web:http/TCP 10.0.0.2:80", enabled)]
    );
}

#[test]
fn what_is_unknown_is_refused_with_what_there_is() {
    let mut map = OverrideMap::default();
    let mut error = |text: &str| {
        command(&mut map, BackendCommand::Drain, text)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error("wbe/10.0.0.1"),
        "no load balancer default/wbe: there are default/mail, default/web"
    );
    assert_eq!(
        error("web/10.0.0.1:81"),
        "no backend default/web/10.0.0.1:81: there are 10.0.0.1:80, 10.0.0.1:443, 10.0.0.2:80, 10.0.0.2:443"
    );
    assert_eq!(
        error("mail/10.0.0.9"),
        "no backend default/mail/10.0.0.9: there is 10.0.0.1:25"
    );
    assert!(map.is_empty());
}

#[test]
fn a_command_waits_for_a_backend_that_is_gone_until_it_is_taken_back() {
    let mut map = OverrideMap::default();
    command(&mut map, BackendCommand::Drain, "web/10.0.0.1").unwrap();
    let later = records_of(vec![record(
        key("web", "http"),
        AdministrativeState::Enabled,
        &["10.0.0.2:80"],
    )]);
    assert!(map.of_records(&later).is_empty());
    assert_eq!(map.of_records(&records()).len(), 2);
    let enable = BackendCommand::Enable;
    let places = map.command(enable, &name("web/10.0.0.1"), None, &later, nothing_said);
    assert_eq!(places, Ok(vec![]));
    assert!(map.is_empty());
    let again = map.command(enable, &name("web/10.0.0.1"), None, &later, nothing_said);
    assert!(matches!(again, Err(Refused::NoBackend { .. })), "{again:?}");
}

fn now(boot: &str, since_boot: u64, wall: &str) -> Now {
    Now {
        boot_id: boot.to_owned(),
        since_boot: Duration::from_secs(since_boot),
        wall: wall.parse().unwrap(),
    }
}

#[test]
fn overrides_outlive_a_restart_and_a_reboot_until_their_time_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let at = now("a", 100, "2026-01-02T03:00:00Z");
    let drain = |until: Option<u64>| Override {
        state: Administrative::Drain,
        until: until.map(Duration::from_secs),
    };
    let map: OverrideMap = [
        (name("web/10.0.0.1"), drain(None)),
        (name("web/10.0.0.2:80"), drain(Some(3_700))),
    ]
    .into_iter()
    .collect();
    saved::save(directory.path(), &map, &at).unwrap();
    // A clock that is set changes nothing in the same boot.
    assert_eq!(
        load(directory.path(), &now("a", 3_699, "2030-01-01T00:00:00Z")),
        map
    );
    assert_eq!(
        load(directory.path(), &now("a", 3_700, "2026-01-02T03:00:00Z"))
            .iter()
            .count(),
        1
    );
    // Half an hour later, after a reboot.
    let rebooted = load(directory.path(), &now("b", 10, "2026-01-02T03:30:00Z"));
    assert_eq!(rebooted.next_end(), Some(Duration::from_secs(10 + 1_800)));
    assert_eq!(
        load(directory.path(), &now("b", 10, "2026-01-02T04:00:00Z"))
            .iter()
            .count(),
        1
    );
    std::fs::write(directory.path().join("overrides.json"), "{").unwrap();
    assert!(load(directory.path(), &at).is_empty());
}

/// Saves a drain of an hour, given 100 s after the boot `a`.
fn save_drain_of_an_hour(directory: &Path) {
    let drain = Override {
        state: Administrative::Drain,
        until: Some(Duration::from_secs(3_700)),
    };
    let map = OverrideMap::from_iter([(name("web/10.0.0.1"), drain)]);
    let at = now("a", 100, "2026-01-02T03:00:00Z");
    saved::save(directory, &map, &at).unwrap();
}

#[test]
fn a_clock_that_is_behind_after_a_reboot_makes_no_command_longer() {
    let directory = tempfile::tempdir().unwrap();
    save_drain_of_an_hour(directory.path());
    let rebooted = load(directory.path(), &now("b", 10, "2016-01-02T03:00:00Z"));
    let most = Duration::from_secs(10 + 3_600);
    assert_eq!(rebooted.next_end(), Some(most));
    // A file of an earlier version does not tell how long it was.
    let path = directory.path().join("overrides.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let earlier = text.replace(",\"most_seconds\":3600", "");
    assert_ne!(earlier, text);
    std::fs::write(&path, earlier).unwrap();
    let rebooted = load(directory.path(), &now("b", 10, "2026-01-02T03:30:00Z"));
    assert_eq!(rebooted.next_end(), Some(Duration::from_secs(10 + 1_800)));
}

#[test]
fn a_clock_that_is_behind_after_each_reboot_makes_no_command_longer() {
    let directory = tempfile::tempdir().unwrap();
    save_drain_of_an_hour(directory.path());
    let store = store(directory.path());
    for (boot, left) in [("b", 3_600), ("c", 2_400), ("d", 1_200)] {
        let begin = now(boot, 10, "2016-01-02T03:00:00Z");
        let rebooted = load(directory.path(), &begin);
        assert_eq!(rebooted.next_end(), Some(Duration::from_secs(10 + left)));
        store.lock().overrides = rebooted;
        let later = now(boot, 10 + 1_200, "2016-01-02T03:20:00Z");
        store.pass_time(&later).unwrap();
    }
    assert!(store.all().is_empty());
    let at = now("a", 100, "2026-01-02T03:00:00Z");
    assert!(load(directory.path(), &at).is_empty());
}

fn store(directory: &Path) -> OverrideStore {
    let (in_force, _) = watch::channel(Overrides::new());
    let (_, health) = watch::channel(Health::new());
    let store = OverrideStore::open(directory, in_force, health);
    store.follow(&records());
    store
}

#[test]
fn a_command_that_cannot_be_saved_is_not_in_force() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("state");
    std::fs::write(&place, "a file in place of the directory").unwrap();
    let store = store(&place);
    let drain = BackendCommand::Drain;
    let refused = store.command(drain, &name("web/10.0.0.1"), None, &Now::read());
    assert!(matches!(refused, Err(CommandError::Disk(_))), "{refused:?}");
    assert!(store.all().is_empty() && store.in_force().borrow().is_empty());
    std::fs::remove_file(&place).unwrap();
    store
        .command(drain, &name("web/10.0.0.1"), None, &Now::read())
        .unwrap();
    assert_eq!(store.in_force().borrow().len(), 2);
    assert_eq!(load(&place, &Now::read()), store.all());
}

#[tokio::test]
async fn a_command_for_a_time_ends_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let token = CancellationToken::new();
    let keeping = tokio::spawn(store.clone().keep_time(token.clone()));
    let mut in_force = store.in_force();
    let name = name("web/10.0.0.1");
    let (begun, second) = (std::time::Instant::now(), Duration::from_secs(1));
    let commanded = store.command(BackendCommand::Drain, &name, Some(second), &Now::read());
    assert_eq!(commanded.unwrap().len(), 2);
    assert_eq!(in_force.borrow_and_update().len(), 2);
    let ended = in_force.wait_for(Overrides::is_empty);
    drop(
        tokio::time::timeout(Duration::from_secs(20), ended)
            .await
            .unwrap()
            .unwrap(),
    );
    assert!(begun.elapsed() >= second);
    token.cancel();
    keeping.await.unwrap();
    assert!(load(directory.path(), &Now::read()).is_empty());
}

#[test]
fn a_backend_in_maintenance_is_drained_unless_a_command_says_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("10.0.0.1"), "").unwrap();
    let maintenance = Maintenance::read(directory.path()).unwrap();
    let drained = |map: &OverrideMap| {
        let all = maintenance.drain(&records(), map.of_records(&records()));
        let states = all.into_iter();
        states
            .map(|((key, address), state)| (format!("{key} {address}"), state))
            .collect::<Vec<_>>()
    };
    let mut map = OverrideMap::default();
    let (http, tls) = (
        "default/web:http/TCP 10.0.0.1:80",
        "default/web:tls/TCP 10.0.0.1:443",
    );
    // The one that its file drains needs nothing more; a Service has no backends.
    let drain = Administrative::Drain;
    assert_eq!(drained(&map), [state(http, drain), state(tls, drain)]);
    command(&mut map, BackendCommand::Disable, "web/10.0.0.1:80").unwrap();
    let disabled = Administrative::Disabled;
    assert_eq!(drained(&map), [state(http, disabled), state(tls, drain)]);
}

#[test]
fn a_backend_in_maintenance_is_enabled_by_command() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    store.lock().maintenance = maintenance_of("10.0.0.1");
    store.follow(&records());
    let drain = Administrative::Drain;
    let states = |store: &OverrideStore| {
        let states = store.in_force().borrow().clone();
        let states = states.into_iter().map(|(_, state)| state);
        states.collect::<Vec<_>>()
    };
    assert_eq!(states(&store), [drain; 2]);
    let enable = BackendCommand::Enable;
    let places = store.command(enable, &name("web/10.0.0.1"), None, &Now::read());
    assert_eq!(places.unwrap().len(), 2);
    assert_eq!(states(&store), [Administrative::Enabled; 2]);
}

/// Maintenance of the backend that one file is named after.
fn maintenance_of(name: &str) -> Maintenance {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(name), "").unwrap();
    Maintenance::read(directory.path()).unwrap()
}

#[tokio::test]
async fn a_directory_that_cannot_be_read_at_the_start_leaves_backends_in_maintenance() {
    let root = tempfile::tempdir().unwrap();
    maintenance_of("10.0.0.2:80").save(root.path()).unwrap();
    let store = store(root.path());
    let mut in_force = store.in_force();
    assert_eq!(in_force.borrow_and_update().len(), 1);
    // Neither an unknown director nor a missing directory ends that, but a director without one does.
    let (directory, seen) = watch::channel(None);
    let token = CancellationToken::new();
    let keeping = tokio::spawn(store.clone().keep_maintenance(seen, token.clone()));
    tokio::task::yield_now().await;
    directory.send_replace(Some(Some(root.path().join("none"))));
    let period = Duration::from_millis(1_500);
    let changed = tokio::time::timeout(period, in_force.changed()).await;
    assert!(changed.is_err(), "it has changed");
    directory.send_replace(Some(None));
    let ended = in_force.wait_for(Overrides::is_empty);
    drop(
        tokio::time::timeout(Duration::from_secs(20), ended)
            .await
            .unwrap()
            .unwrap(),
    );
    token.cancel();
    keeping.await.unwrap();
    // The next run knows of it.
    assert_eq!(Maintenance::load(root.path()), Maintenance::default());
}

#[tokio::test]
async fn files_come_and_go_and_a_missing_directory_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("maintenance");
    std::fs::create_dir(&directory).unwrap();
    let (in_force, mut seen) = watch::channel(Overrides::new());
    let (_health, health) = watch::channel(Health::new());
    let store = OverrideStore::open(root.path(), in_force, health);
    store.follow(&records());
    let (_path, path) = watch::channel(Some(Some(directory.clone())));
    let token = CancellationToken::new();
    let keeping = tokio::spawn(store.clone().keep_maintenance(path, token.clone()));
    std::fs::write(directory.join("10.0.0.2:80"), "").unwrap();
    let drained = seen.wait_for(|all| !all.is_empty()).await.unwrap().clone();
    let places: Vec<_> = drained
        .keys()
        .map(|(_, address)| address.to_string())
        .collect();
    assert_eq!(places, ["10.0.0.2:80"]);
    std::fs::rename(&directory, root.path().join("away")).unwrap();
    std::fs::write(root.path().join("away/10.0.0.1:80"), "").unwrap();
    std::fs::remove_file(root.path().join("away/10.0.0.2:80")).unwrap();
    // What comes next is the directory's new content, not nothing.
    std::fs::rename(root.path().join("away"), &directory).unwrap();
    let is_other = |all: &Overrides<RecordKey>| *all != drained;
    let next = seen.wait_for(is_other).await.unwrap().clone();
    let places: Vec<_> = next
        .keys()
        .map(|(_, address)| address.to_string())
        .collect();
    assert_eq!(places, ["10.0.0.1:80"]);
    token.cancel();
    keeping.await.unwrap();
}
