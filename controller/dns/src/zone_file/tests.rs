// SPDX-License-Identifier: Apache-2.0

//! A server of the zone files gives the zone's answers, except those of CoreDNS's kubernetes plugin
//! that no zone can express.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, RecordType};
use hickory_proto::serialize::txt::Parser;

use proptest::prelude::*;

use super::{ExportConfig, Written, export, render, serial_of, write};
use crate::name::absolute;
use crate::testing::{changes, cluster_ip, config, external, zone_of};
use crate::zone::tests::changes::any_change;
use crate::{NamesChange, PodMode, SharedZone, Zone, ZoneConfig};

mod names;

const TYPES: [RecordType; 9] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::SRV,
    RecordType::TXT,
    RecordType::PTR,
    RecordType::CNAME,
    RecordType::SOA,
    RecordType::NS,
    RecordType::MX,
];

/// An authoritative server of all zones, as simple as can be (RFC 1034 §4.3.2).
struct Reader {
    records: BTreeMap<Name, Vec<(u32, RData)>>,
    origins: Vec<Name>,
}

impl Reader {
    fn new(zone: &Zone) -> Self {
        let config = zone.config();
        let origins: Vec<_> = config
            .zones
            .iter()
            .chain(&config.reverse)
            .cloned()
            .collect();
        let mut records: BTreeMap<Name, Vec<_>> = BTreeMap::new();
        for origin in &origins {
            let text = render(zone, origin, zone.serial());
            let (parsed, sets) = Parser::new(text, None, Some(origin.clone()))
                .parse()
                .unwrap();
            assert_eq!(parsed, *origin);
            for record in sets.values().flat_map(|set| set.records_without_rrsigs()) {
                let own = records.entry(record.name.clone()).or_default();
                own.push((record.ttl, record.data.clone()));
            }
        }
        Self { records, origins }
    }

    fn serves(&self, name: &Name) -> bool {
        self.origins.iter().any(|origin| origin.zone_of(name))
    }

    fn exists(&self, name: &Name) -> bool {
        self.records.keys().any(|owner| name.zone_of(owner))
    }

    fn answer(&self, name: &Name, kind: RecordType) -> (ResponseCode, BTreeSet<String>) {
        let (mut name, mut answers) = (name.clone(), BTreeSet::new());
        loop {
            if !self.serves(&name) {
                return (ResponseCode::NoError, answers);
            }
            if !self.exists(&name) {
                return (ResponseCode::NXDomain, answers);
            }
            let own = self
                .records
                .get(&name)
                .map(Vec::as_slice)
                .unwrap_or_default();
            let alias = own.iter().find_map(|(ttl, data)| match data {
                RData::CNAME(target) => Some((ttl, target.0.clone())),
                _ => None,
            });
            match alias {
                Some((ttl, target)) if kind != RecordType::CNAME => {
                    if !answers.insert(format!("{name} {ttl} {target}")) {
                        return (ResponseCode::NoError, answers);
                    }
                    name = target;
                }
                _ => {
                    let own = own.iter().filter(|(_, data)| data.record_type() == kind);
                    answers.extend(own.map(|(ttl, data)| format!("{name} {ttl} {data}")));
                    return (ResponseCode::NoError, answers);
                }
            }
        }
    }
}

fn direct(zone: &Zone, name: &Name, kind: RecordType) -> (ResponseCode, BTreeSet<String>) {
    let answer = zone.answer(name, kind);
    let lines = answer
        .answers
        .iter()
        .map(|record| format!("{} {} {}", record.name, record.ttl, record.data));
    (answer.code, lines.collect())
}

/// All names in the file, and next to each some that are not.
fn names(reader: &Reader) -> BTreeSet<Name> {
    let mut names = BTreeSet::new();
    for owner in reader.records.keys() {
        let mut name = owner.clone();
        while reader.serves(&name) {
            for label in ["nothing", "svc1", "_tcp", "_http", "10-0-0-1", "7"] {
                names.extend(name.prepend_label(label));
            }
            names.insert(name.clone());
            name = name.base_name();
        }
    }
    // The names that stand in for names without records.
    names.retain(|name| name.iter().all(|label| label != b"_"));
    names
}

/// Returns `true` if the plugin finds names below this one that cannot be listed: those below a
/// Pod's name or an IPv6 address's.
fn has_others_below(name: &Name) -> bool {
    let labels: Vec<_> = name.iter().collect();
    match labels.as_slice() {
        [.., b"pod", b"cluster", b"local"] | [.., b"pod", b"second", b"example"] => {
            labels.len() >= 5
        }
        [.., b"ip6", b"arpa"] => labels.len() >= 34,
        _ => false,
    }
}

/// The plugin's answer where a server of the zone gives this one. All but the first and the last
/// differ because the existence of a zone's name does not depend on the type.
fn of_plugin(
    reader: &Reader,
    name: &Name,
    kind: RecordType,
    of_file: (ResponseCode, BTreeSet<String>),
) -> (ResponseCode, BTreeSet<String>) {
    let nothing = |code| (code, BTreeSet::new());
    let apex = reader.origins.contains(name);
    if kind == RecordType::SOA && !apex {
        return nothing(ResponseCode::NoError);
    }
    if of_file.0 == ResponseCode::NXDomain && of_file.1.is_empty()
        || apex && kind != RecordType::TXT
    {
        return of_file;
    }
    let labels: Vec<_> = name.iter().collect();
    let own = reader.records.get(name);
    let reverse = labels.last() == Some(&&b"arpa"[..]);
    let upper = matches!(
        labels.as_slice(),
        [b"svc" | b"pod", _, _] | [_, b"svc" | b"pod", _, _]
    );
    // Something stands for a name without records.
    let stands = name
        .prepend_label("_")
        .is_ok_and(|below| reader.records.contains_key(&below));
    let fixed = matches!(
        labels.as_slice(),
        [b"ns", b"dns", ..] | [b"dns-version", ..]
    );
    let code = match kind {
        RecordType::TXT if fixed => return of_text(labels[0], of_file),
        RecordType::TXT if own.is_none() || apex => ResponseCode::NXDomain,
        RecordType::PTR if labels[0] == b"ns" => ResponseCode::NXDomain,
        _ if labels[0] == b"dns-version" => ResponseCode::NXDomain,
        RecordType::PTR if reverse && own.is_some() => return of_file,
        _ if reverse => ResponseCode::NXDomain,
        _ if own.is_none() && !upper && !stands => ResponseCode::NXDomain,
        _ => ResponseCode::NoError,
    };
    let alias = own.is_some_and(|own| matches!(own.as_slice(), [(_, RData::CNAME(_))]));
    let followed = matches!(kind, RecordType::A | RecordType::AAAA);
    let (_, answers) = of_file;
    if code == ResponseCode::NXDomain || alias && kind != RecordType::CNAME && !followed {
        return nothing(code);
    }
    match own.map(Vec::as_slice) {
        Some([(ttl, RData::CNAME(target))]) if followed => {
            let first = format!("{name} {ttl} {}", target.0);
            (
                code,
                followed_by_plugin(reader, name, kind, &target.0, first, answers),
            )
        }
        _ => (code, answers),
    }
}

/// The aliases and addresses of the plugin: an alias that leads to nothing in its own zone is left
/// out, and an alias into another zone begins anew.
fn followed_by_plugin(
    reader: &Reader,
    name: &Name,
    kind: RecordType,
    target: &Name,
    first: String,
    answers: BTreeSet<String>,
) -> BTreeSet<String> {
    let mut zones = reader.origins.iter().filter(|origin| origin.zone_of(name));
    let inside = zones.any(|zone| zone.zone_of(target));
    if !inside && reader.serves(target) {
        let of_file = reader.answer(target, kind);
        let (_, mut more) = of_plugin(reader, target, kind, of_file);
        more.insert(first);
        return more;
    }
    let mut ends = answers.iter().filter_map(|line| line.rsplit(' ').next());
    let ends =
        ends.any(|end| absolute(end).is_none_or(|end| !reader.serves(&end)) || !end.ends_with('.'));
    if ends { answers } else { BTreeSet::new() }
}

fn of_text(
    label: &[u8],
    of_file: (ResponseCode, BTreeSet<String>),
) -> (ResponseCode, BTreeSet<String>) {
    match label {
        b"ns" => (ResponseCode::NXDomain, BTreeSet::new()),
        _ => of_file,
    }
}

fn compare(zone: &Zone) -> usize {
    let reader = Reader::new(zone);
    let mut compared = 0;
    let names = names(&reader).into_iter();
    for name in names.filter(|name| !has_others_below(&name.base_name())) {
        for kind in TYPES {
            let of_file = reader.answer(&name, kind);
            assert_eq!(
                of_plugin(&reader, &name, kind, of_file),
                direct(zone, &name, kind),
                "{name} {kind}"
            );
            compared += 1;
        }
    }
    compared
}

#[test]
fn files_give_the_answers_that_we_give() {
    for pods in [PodMode::Disabled, PodMode::Verified] {
        let mut config = ZoneConfig { pods, ..config() };
        config.add_zone("second.example").unwrap();
        // An alias into a second zone is followed here, and by a server that has both files.
        let changes = changes().into_iter();
        let compared = compare(&zone_of(config, changes));
        assert!(compared > 10_000, "{compared}");
    }
}

#[test]
fn bytes_that_mean_something_are_escaped() {
    let changes = [NamesChange::Service(external(
        "odd",
        "a;b.$x.@.(y).c d.\"é.e",
    ))];
    let zone = zone_of(config(), changes);
    assert_eq!(zone.problems().count(), 0);
    let text = render(&zone, &absolute("cluster.local").unwrap(), 1);
    let target = r"a\059b.\036x.\064.\040y\041.c\032d.\034\195\169.e.";
    assert!(
        text.contains(&format!("odd.testns.svc CNAME {target}\n")),
        "{text}"
    );
}

#[test]
fn the_serial_grows_when_and_only_when_the_content_changes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db.cluster.local");
    let mut zone = zone_of(config(), changes());
    let origin = absolute("cluster.local").unwrap();
    let round = |zone: &Zone| write(&path, 1000, |serial| render(zone, &origin, serial)).unwrap();
    assert_eq!(round(&zone), Written::Replaced(1000));
    assert_eq!(round(&zone), Written::Unchanged);
    zone.apply(NamesChange::Service(cluster_ip("new", &["10.0.0.8"])));
    assert_eq!(round(&zone), Written::Replaced(1001));
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(serial_of(&text), Some(1001));
    // Another process, with another serial, continues from the file's.
    let rebuilt = zone_of(
        config(),
        changes()
            .into_iter()
            .chain([NamesChange::Service(cluster_ip("new", &["10.0.0.8"]))]),
    );
    assert_eq!(round(&rebuilt), Written::Unchanged);
    // A file that is damaged is replaced.
    std::fs::write(&path, [0xff, 0xfe]).unwrap();
    assert_eq!(round(&rebuilt), Written::Replaced(1000));
    std::fs::write(&path, render(&zone, &origin, u32::MAX)).unwrap();
    zone.apply(NamesChange::Namespace("another".to_owned()));
    assert_eq!(round(&zone), Written::Replaced(0));
    let names: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["db.cluster.local"]);
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error_until_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("eu-1");
    let path = place.join("db.cluster.local");
    // A file is in the way of the directory.
    std::fs::write(&place, "").unwrap();
    assert!(write(&path, 1, |serial| serial.to_string()).is_err());
    std::fs::remove_file(&place).unwrap();
    let written = write(&path, 1, |serial| serial.to_string());
    assert_eq!(written.unwrap(), Written::Replaced(1));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "1");
}

#[tokio::test(start_paused = true)]
async fn files_follow_the_zone_at_a_bounded_rate() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db.cluster.local");
    let zone = Arc::new(SharedZone::new(Zone::new(config(), 0).unwrap()));
    let config = ExportConfig {
        files: vec![(absolute("cluster.local").unwrap(), path.clone())],
        interval: Duration::from_secs(10),
        retry: Duration::from_secs(1),
        first_serial: 1,
    };
    let task = tokio::spawn(export(Arc::clone(&zone), config, std::future::pending()));
    let serial = || {
        std::fs::read_to_string(&path)
            .ok()
            .as_deref()
            .and_then(serial_of)
    };
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        serial(),
        None,
        "nothing is written before everything is known"
    );

    zone.apply(changes().into_iter().chain([NamesChange::Synced]));
    let started = tokio::time::Instant::now();
    while serial().is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Many changes within the interval are one new file.
    for i in 0..50 {
        zone.apply([NamesChange::Service(cluster_ip(
            "moving",
            &[&format!("10.0.1.{i}")],
        ))]);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(serial(), Some(1));
    while serial() == Some(1) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(started.elapsed() >= Duration::from_secs(10));
    assert_eq!(serial(), Some(2));
    assert!(
        std::fs::read_to_string(&path)
            .unwrap()
            .contains("moving.testns.svc A 10.0.1.49\n")
    );
    task.abort();
}

/// A change that waits for a reader keeps all later readers waiting, so none may hold the zone for long.
#[tokio::test(start_paused = true)]
async fn files_are_rendered_piece_by_piece() {
    let directory = tempfile::tempdir().unwrap();
    let many = (0..1_000).map(|i| {
        let address = format!("10.96.{}.{}", i / 250, i % 250);
        NamesChange::Service(cluster_ip(&format!("s{i}"), &[&address]))
    });
    let config = ZoneConfig {
        reverse: vec![absolute("96.10.in-addr.arpa").unwrap()],
        ..config()
    };
    let zone = Arc::new(SharedZone::new(zone_of(config, many)));
    for origin in ["cluster.local", "96.10.in-addr.arpa"] {
        let path = directory.path().join(origin);
        let config = ExportConfig {
            files: vec![(absolute(origin).unwrap(), path.clone())],
            interval: Duration::from_secs(10),
            retry: Duration::from_secs(1),
            first_serial: 1,
        };
        let before = zone.reads();
        let task = tokio::spawn(export(Arc::clone(&zone), config, std::future::pending()));
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(zone.reads() - before > 10, "{origin}: {}", zone.reads());
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() > 1_000, "{text}");
        task.abort();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn files_of_any_cluster_give_the_answers_that_we_give(
        changes in prop::collection::vec(any_change(), 0..25),
    ) {
        let config = ZoneConfig { pods: PodMode::Verified, ..config() };
        compare(&zone_of(config, changes));
    }
}
