// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use portolan_model::{Frontend, FrontendAddress, FrontendKind, Protocol, Record, RecordKey};

use super::*;

#[test]
fn a_table_is_not_followed_while_a_family_lacks_it() {
    let broken: Families = [Family::V4].into_iter().collect();
    // The other family has read all tables again.
    assert!(!is_complete(Surplus::Delete, broken, true));
    assert!(is_complete(Surplus::Delete, Families::NONE, true));
    assert!(!is_complete(Surplus::Delete, Families::NONE, false));
    assert!(!is_complete(Surplus::Keep, Families::NONE, true));
}

fn observed() -> Observed {
    Observed {
        generation: Some(5),
        ..Observed::default()
    }
}

#[test]
fn a_notice_of_a_change_counts_until_the_tables_are_read() {
    let mut observed = observed();
    assert!(observed.must_be_read(Some(true), 6));
    // The read failed, and there is no further notice.
    assert!(observed.must_be_read(Some(false), 6));
    assert!(observed.must_be_read(None, 5));
    // A transaction of ours must still follow the generation that was read.
    assert_eq!(observed.generation, Some(5));
}

#[test]
fn changes_of_other_tables_are_passed_over() {
    let mut told = observed();
    assert!(!told.must_be_read(Some(false), 6));
    assert_eq!(told.generation, Some(6));
    let mut untold = observed();
    assert!(!untold.must_be_read(None, 5));
    assert!(untold.must_be_read(None, 6));
    let mut doubtful = Observed::default();
    assert!(doubtful.must_be_read(Some(false), 6));
}

#[test]
fn nothing_is_read_for_an_hour_while_the_generation_stays() {
    let read_at = Instant::now();
    let after = |minutes: u64| read_at + Duration::from_secs(60 * minutes);
    let mut read = Observed {
        read_at: Some(read_at),
        ..observed()
    };
    assert!(read.is_proven(5, after(59)));
    assert!(!read.is_proven(5, after(60)));
    // Somebody has changed a table, ours perhaps.
    assert!(!read.is_proven(6, after(1)));
    read.is_due = true;
    assert!(!read.is_proven(5, after(1)));
    // Others made changes while we made one.
    let doubtful = Observed {
        read_at: Some(read_at),
        ..Observed::default()
    };
    assert!(!doubtful.is_proven(5, after(1)));
}

#[test]
fn clients_are_looked_at_again_a_second_after_a_change() {
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let both: Families = Family::ALL.into_iter().collect();
    let one: Families = [Family::V4].into_iter().collect();
    let mut due: ClientsDue = Family::ALL.into_iter().collect();
    assert_eq!(due.at(start, both), both);
    // The other family is not as its table says.
    assert_eq!(due.at(start, one), one);
    assert_eq!(due.again(both), None);

    due.looked(Family::V4, start);
    assert_eq!(due.again(both), Some(start + second));
    assert_eq!(due.at(start + second / 2, one), Families::NONE);
    assert_eq!(due.at(start + second, one), one);
    // A change meanwhile: there are two more looks.
    due.insert(Family::V4);
    assert_eq!(due.at(start, one), one);
    due.looked(Family::V4, start + second);
    assert_eq!(due.again(one), Some(start + 2 * second));
    due.looked(Family::V4, start + 2 * second);
    assert_eq!(due.again(one), None);
    assert_eq!(due.at(start + 9 * second, one), Families::NONE);
}

fn key(service: &str) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: service.into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    }
}

/// A table of Services with the last bytes of their addresses, or without an address.
fn table(services: &[(&str, Option<u8>)]) -> NodeTable {
    let record = |(service, last): &(&str, Option<u8>)| {
        let vip = |last: u8| FrontendAddress::Vip([10, 96, 0, last].into());
        let frontend = |last: u8| Frontend::new(FrontendKind::ClusterIp, vip(last), 80);
        let record = Record {
            frontends: last.map(frontend).into_iter().collect(),
            ..Record::new(key(service))
        };
        (key(service), Arc::new(record))
    };
    NodeTable {
        records: services.iter().map(record).collect(),
        ..NodeTable::default()
    }
}

#[test]
fn a_family_of_which_no_record_is_taken_is_broken() {
    let table = table(&[("a", Some(1)), ("b", Some(2))]);
    let ways = Ways::new(&table, &NodeFacts::default());
    let left_out = |services: &[&str]| -> BTreeMap<RecordKey, String> {
        let keys = services.iter().map(|service| key(service));
        keys.map(|key| (key, "refused".to_owned())).collect()
    };
    let is_broken = |services: &[&str]| is_everything(Family::V4, &ways, &left_out(services));
    assert!(is_broken(&["a", "b"]));
    assert!(!is_broken(&["a"]));
    // An empty family has all that it should.
    assert!(!is_everything(Family::V6, &ways, &left_out(&[])));
}

#[test]
fn the_error_of_a_record_ends_with_what_the_kernel_refused() {
    let (before, facts) = (
        table(&[("a", Some(1)), ("b", Some(2))]),
        NodeFacts::default(),
    );
    let mut failed = FailedRecords::default();
    let refused = ["a", "b"].map(|service| (Some(key(service)), "refused".to_owned()));
    failed.note(None, refused.to_vec(), true, &before);
    // The changed record has no way any more.
    let after = table(&[("a", None), ("b", Some(2))]);
    let mut ways = Ways::new(&before, &facts);
    let touched = ways.update(&before, &after, &facts).unwrap();
    failed.note(tried(Some(&touched), false), Vec::new(), true, &after);
    let left: Vec<_> = failed.errors().map(|(record, _)| record).collect();
    assert_eq!(left, [Some(key("b"))]);
    // All records were programmed, although only one has changed.
    failed.note(tried(Some(&touched), true), Vec::new(), true, &after);
    assert!(failed.is_empty());
}
