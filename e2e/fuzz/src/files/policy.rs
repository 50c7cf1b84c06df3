// SPDX-License-Identifier: Apache-2.0

//! The fuzz target of files of policies.
//!
//! Invariants: places are within the text. Reading is repeatable. A document whose object is in
//! force makes the same object without any other document. An object that is in force or refused
//! without other documents is in force or refused with them.

use std::collections::BTreeMap;

use portolan_director::read::{Format, documents};
use portolan_policy::{File, Kind, Object, ObjectName, Reading, read};
use serde_json::Value;

use super::place::assert_within;
use super::{file, kind, nested, seed};

/// Runs an input. Returns what was read; nothing if the input is no text.
///
/// # Panics
/// If an invariant is violated.
pub fn check(input: &[u8]) -> Option<Reading> {
    let (name, text) = file(input)?;
    let reading = read(&[File { name, text }]);
    assert_eq!(read(&[File { name, text }]), reading, "the second reading");
    for problem in &reading.problems {
        assert_within(problem.at, text, problem);
    }
    for other in &reading.not_ours {
        assert_within(other.at, text, &other.kind);
    }
    stand_alone(name, text, &reading);
    Some(reading)
}

/// Checks that each object in force is what one of the documents is when read alone, and that no
/// object gets lost.
fn stand_alone(name: &str, text: &str, reading: &Reading) {
    let refused = reading.refused();
    let mut alone: BTreeMap<ObjectName, Vec<Object>> = BTreeMap::new();
    for document in documents(text, Format::of(name)).into_iter().flatten() {
        let text = document.to_json().to_string();
        let name = "x.json";
        let read = read(&[File { name, text: &text }]);
        for name in [read.objects.names(), read.refused()].concat() {
            let is_there = reading.objects.get(&name).is_some() || refused.contains(&name);
            assert!(is_there, "{name:?} is lost: {reading:?}");
            let object = read.objects.get(&name);
            alone.entry(name).or_default().extend(object);
        }
    }
    for name in reading.objects.names() {
        let object = reading.objects.get(&name).expect("an object by its name");
        let alone = alone.get(&name).map_or(&[][..], Vec::as_slice);
        assert!(alone.contains(&object), "{name:?}: {object:?}: {alone:?}");
    }
}

/// The initial inputs, by name.
///
/// # Panics
/// If an embedded file is no YAML.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let good = include_str!("../../../../controller/policy/tests/policy_files/good.yaml");
    let all = documents(good, Format::Yaml);
    let all: Vec<Value> = all.iter().flatten().map(|one| one.to_json()).collect();
    let first_of = |kind: Kind| {
        let mut all = all.iter();
        let found = all.find(|document| document["kind"] == kind.to_string());
        found.expect("a document of each kind").to_string()
    };
    let cluster = first_of(Kind::Cluster);
    vec![
        ("good", seed(kind::YAML, good)),
        ("set", seed(kind::JSON, &first_of(Kind::ClusterSet))),
        ("cluster", seed(kind::JSON, &cluster)),
        ("export", seed(kind::JSON, &first_of(Kind::ExportPolicy))),
        ("import", seed(kind::JSON, &first_of(Kind::ImportPolicy))),
        ("traffic", seed(kind::JSON, &first_of(Kind::TrafficPolicy))),
        (
            "twice",
            seed(kind::YAML, &format!("{cluster}\n---\n{cluster}\n")),
        ),
        ("broken", seed(kind::JSON, "{\"ä\": 1,\n}")),
        ("nested", seed(kind::YAML, &nested(1000))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_reach_what_they_are_for() {
        for (name, input) in seeds() {
            let reading = check(&input).unwrap();
            let objects = reading.objects.names().len();
            let expected = match name {
                "good" => objects > 5,
                "broken" | "nested" => objects == 0 && reading.is_incomplete(),
                _ => objects == 1,
            };
            assert!(expected, "{name}: {reading:?}");
        }
    }
}
