// SPDX-License-Identifier: Apache-2.0

//! The fuzz target of a director's files, in YAML and JSON.
//!
//! Invariants: places are within the text. Reading is repeatable. Objects without problems are the
//! same after they were written and read again, in both notations, and are written as before.

use portolan_director::{Already, File, Generation, NotOurs, Problem, parse};
use serde::Serialize;

use super::place::assert_within;
use super::{file, kind, nested, seed};

/// Runs an input. Returns the objects, or the problems; nothing if the input is no text.
///
/// # Panics
/// If an invariant is violated.
pub fn check(input: &[u8]) -> Option<Result<Generation, Vec<Problem>>> {
    let (name, text) = file(input)?;
    let read = read(name, text);
    assert_eq!(self::read(name, text), read, "the second reading");
    let problems = match &read {
        Ok(generation) => {
            for NotOurs { at, kind, .. } in &generation.not_ours {
                assert_within(*at, text, kind);
            }
            survives(generation);
            &generation.warnings
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            problems
        }
    };
    for problem in problems {
        assert_within(problem.at, text, problem);
    }
    Some(read)
}

fn read(name: &str, text: &str) -> Result<Generation, Vec<Problem>> {
    parse(&[File { name, text }], &Already::default())
}

/// Checks that objects are the same after writing and reading.
pub(super) fn survives(generation: &Generation) {
    let written = generation.to_yaml();
    let again = read("x.yaml", &written).unwrap_or_else(|e| panic!("{e:#?}\n{written}"));
    assert_eq!(again.load_balancers, generation.load_balancers, "{written}");
    assert_eq!(again.directors, generation.directors, "{written}");
    assert_eq!(again.to_yaml(), written, "the second writing");
    for object in &generation.load_balancers {
        let again = from_json(&object.to_document());
        assert_eq!(again.load_balancers, std::slice::from_ref(object));
    }
    for object in &generation.directors {
        let again = from_json(&object.to_document());
        assert_eq!(again.directors, std::slice::from_ref(object));
    }
}

fn from_json(document: &impl Serialize) -> Generation {
    let text = serde_json::to_string(document).expect("a document");
    read("x.json", &text).unwrap_or_else(|e| panic!("{e:#?}\n{text}"))
}

/// The initial inputs, by name.
///
/// # Panics
/// If an embedded file has problems.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let good = [
        (
            "nat",
            include_str!("../../../../common/director/tests/good/nat.yaml"),
        ),
        (
            "dns",
            include_str!("../../../../common/director/tests/good/dns.yaml"),
        ),
        (
            "ftp",
            include_str!("../../../../common/director/tests/good/ftp.yaml"),
        ),
        (
            "director",
            include_str!("../../../../common/director/tests/good/director.yaml"),
        ),
        (
            "checks",
            include_str!("../../../../common/director/tests/good/checks.yaml"),
        ),
        (
            "marks",
            include_str!("../../../../common/director/tests/good/marks.yaml"),
        ),
    ];
    let mut seeds: Vec<_> = good
        .iter()
        .map(|(name, text)| (*name, seed(kind::YAML, text)))
        .collect();
    let nat = read("x.yaml", good[0].1).expect("a good file");
    let nat = nat.load_balancers[0].to_document();
    let nat = serde_json::to_string_pretty(&nat).expect("a document");
    seeds.push(("json", seed(kind::JSON, &nat)));
    seeds.push(("broken", seed(kind::JSON, "{\"ä\": 1,\n}")));
    seeds.push((
        "aliases",
        seed(kind::YAML, "a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n"),
    ));
    seeds.push(("nested", seed(kind::YAML, &nested(1000))));
    seeds.push(("nested-json", seed(kind::JSON, &nested(1000))));
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_reach_what_they_are_for() {
        for (name, input) in seeds() {
            let read = check(&input).unwrap();
            let is_good = !["broken", "aliases", "nested", "nested-json"].contains(&name);
            assert_eq!(read.is_ok(), is_good, "{name}: {read:?}");
            let objects = read.map_or(0, |read| read.load_balancers.len() + read.directors.len());
            assert_eq!(objects > 0, is_good, "{name}");
        }
    }
}
