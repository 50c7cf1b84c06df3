// SPDX-License-Identifier: Apache-2.0

//! Years of a Secret, by a simulated clock.

use super::*;

const DAYS: u32 = 300;
/// Afternoon of 2026-01-01.
const START: u64 = 1_767_279_600;

fn day(day: f64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(START) + DAY.mul_f64(day)
}

/// Applies all changes that are due; their names, and the authorities in the end.
fn settle(data: &mut Data, now: SystemTime) -> (Vec<Change>, Box<Authorities>) {
    let mut changes = Vec::new();
    loop {
        match decide(data, now, DAYS).unwrap() {
            Verdict::Use(authorities) => return (changes, authorities),
            Verdict::Write(change, written) => {
                changes.push(change);
                *data = written;
            }
        }
        assert!(changes.len() < 4, "no end: {changes:?}");
    }
}

fn certificates(bundle: &str) -> usize {
    bundle.matches("BEGIN CERTIFICATE").count()
}

#[test]
fn an_authority_is_created_once_and_succeeded_without_a_gap_in_trust() {
    let mut data = Data::new();
    let (changes, first) = settle(&mut data, day(0.0));
    assert_eq!(changes, [Change::Create]);
    assert_eq!(data.keys().collect::<Vec<_>>(), ["ca.crt", "ca.key"]);
    let old = first.bundle();
    assert_eq!(certificates(&old), 1);

    // Nothing happens for two thirds of its life.
    assert_eq!(settle(&mut data, day(199.9)).0, []);
    let (changes, announced) = settle(&mut data, day(200.1));
    assert_eq!(changes, [Change::Announce]);
    assert_eq!(announced.signer().cert(), old, "the old one still signs");
    let both = announced.bundle();
    assert_eq!(certificates(&both), 2);
    assert!(both.starts_with(&old));

    assert_eq!(settle(&mut data, day(201.0)).0, []);
    let (changes, promoted) = settle(&mut data, day(201.2));
    assert_eq!(changes, [Change::Promote]);
    assert_ne!(promoted.signer().cert(), old);
    assert!(both.contains(promoted.signer().cert()), "it was announced");
    let bundle = promoted.bundle();
    assert!(bundle.contains(&old) && certificates(&bundle) == 2);

    assert_eq!(settle(&mut data, day(202.0)).0, []);
    let (changes, alone) = settle(&mut data, day(202.2));
    assert_eq!(changes, [Change::Retire]);
    assert_eq!(alone.bundle(), promoted.signer().cert());
    assert_eq!(data.keys().collect::<Vec<_>>(), ["ca.crt", "ca.key"]);
    assert_eq!(settle(&mut data, day(399.0)).0, []);
    assert_eq!(settle(&mut data, day(401.0)).0, [Change::Announce]);
}

/// Whenever an agent took the bundle within the last day, it trusts the signer of now.
#[test]
fn every_signer_was_published_a_day_before() {
    let mut data = Data::new();
    let mut published = Vec::new();
    let first = settle(&mut data, day(0.0)).1.bundle();
    for quarter in 0..4 * 900 {
        let (_, authorities) = settle(&mut data, day(f64::from(quarter) / 4.0));
        let signer = authorities.signer().cert();
        let a_day_ago = published.iter().rev().nth(3).unwrap_or(&first);
        assert!(a_day_ago.contains(signer), "day {}", quarter / 4);
        published.push(authorities.bundle());
    }
    assert!(!published.last().unwrap().contains(&first));
}

#[test]
fn an_expired_authority_is_replaced_at_once() {
    let mut data = Data::new();
    let old = settle(&mut data, day(0.0)).1.bundle();
    let (changes, new) = settle(&mut data, day(301.0));
    assert_eq!(changes, [Change::Create]);
    assert!(!new.bundle().contains(&old));

    // With a successor, that one signs: it was published.
    let mut data = Data::new();
    settle(&mut data, day(0.0));
    settle(&mut data, day(299.5));
    let (changes, _) = settle(&mut data, day(300.1));
    assert_eq!(changes, [Change::Promote]);
}

#[test]
fn unusable_content_is_named_and_never_replaced() {
    let mut good = Data::new();
    settle(&mut good, day(0.0));
    let mut other = Data::new();
    settle(&mut other, day(0.0));
    let cases: [(&str, Option<&[u8]>, &str); 6] = [
        ("ca.key", None, "key ca.key: missing"),
        ("ca.crt", None, "key ca.crt: missing"),
        ("ca.crt", Some(b"x"), "key ca.crt: no certificate in PEM"),
        ("ca.key", Some(b"x"), "key ca.key: no key of an authority"),
        (
            "ca.key",
            Some(&other["ca.key"]),
            "key ca.key: not the key of ca.crt",
        ),
        ("next-ca.key", Some(b"x"), "key next-ca.crt: missing"),
    ];
    for (key, value, expected) in cases {
        let mut data = good.clone();
        data.remove(key);
        data.extend(value.map(|value| (key.to_owned(), value.to_vec())));
        let error = decide(&data, day(400.0), DAYS).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    // As a chart may create it.
    let empty = Data::from([
        ("ca.crt".to_owned(), Vec::new()),
        ("ca.key".to_owned(), Vec::new()),
    ]);
    let verdict = decide(&empty, day(0.0), DAYS).unwrap();
    assert!(matches!(verdict, Verdict::Write(Change::Create, _)));
}
