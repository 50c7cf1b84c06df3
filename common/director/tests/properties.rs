// SPDX-License-Identifier: Apache-2.0

//! Properties of the parser and the writer.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use portolan_director::import::{ipvsadm, keepalived, ldirectord};
use portolan_director::{Already, Director, File, Generation, LoadBalancer, parse};
use proptest::prelude::*;

const GOOD: [&str; 6] = [
    include_str!("good/nat.yaml"),
    include_str!("good/dns.yaml"),
    include_str!("good/ftp.yaml"),
    include_str!("good/director.yaml"),
    include_str!("good/checks.yaml"),
    include_str!("good/marks.yaml"),
];

fn read(name: &str, text: &str) -> Option<Generation> {
    parse(&[File { name, text }], &Already::default()).ok()
}

/// A good file with some characters replaced.
fn damaged() -> impl Strategy<Value = String> {
    let place = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        "\\PC{0,3}|[\\[\\]{}:,&*!|>\n\t-]{1,3}",
    );
    (0..GOOD.len(), prop::collection::vec(place, 1..4)).prop_map(|(file, places)| {
        let mut characters: Vec<char> = GOOD[file].chars().collect();
        for (at, length, with) in places {
            let at = at.index(characters.len());
            let end = (at + length.index(8)).min(characters.len());
            characters.splice(at..end, with.chars());
        }
        characters.into_iter().collect()
    })
}

/// The files of the importers' tests with lines in another order, left out or cut.
fn imported() -> impl Strategy<Value = String> {
    let files = [
        include_str!("import/keepalived.conf"),
        include_str!("import/ldirectord.cf"),
        include_str!("import/rules.ipvsadm"),
    ];
    let line = (any::<prop::sample::Index>(), 0..80_usize);
    (0..files.len(), prop::collection::vec(line, 1..20)).prop_map(move |(file, lines)| {
        let all: Vec<&str> = files[file].lines().collect();
        let cut = lines.into_iter().map(|(at, length)| {
            let line = all[at.index(all.len())];
            line.get(..length).unwrap_or(line)
        });
        cut.collect::<Vec<_>>().join("\n")
    })
}

fn director(text: &str) -> Director {
    let mut director = Director::new("lb1");
    for name in ["a", "b.c/d"] {
        director
            .tags
            .annotations
            .insert(name.to_owned(), text.to_owned());
    }
    director.scripts.user = Some("portolan".to_owned());
    director
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_text_gives_objects_or_problems(text in "\\PC{0,200}|[a-z: \n\\[\\]{},&*'\"-]{0,200}") {
        let _ = read("x.yaml", &text);
        let _ = read("x.json", &text);
    }

    #[test]
    fn a_damaged_file_gives_problems_or_objects_that_survive_writing(text in damaged()) {
        if let Some(generation) = read("x.yaml", &text) {
            let written = generation.to_yaml();
            let again = read("x.yaml", &written).unwrap();
            prop_assert_eq!(&again.load_balancers, &generation.load_balancers, "{}", &written);
            prop_assert_eq!(&again.directors, &generation.directors, "{}", &written);
            prop_assert_eq!(again.to_yaml(), written);
        }
    }

    #[test]
    fn any_text_of_a_field_survives_writing(text in "\\PC{0,40}|[0-9a-fxo.:+_~eE-]{0,8}|[ \n\t\r#'\"\\\\:|>!&*%@`-]{0,6}|null|true|no|~|\\.inf|0o17") {
        let before = director(&text);
        let generation = read("x.yaml", &before.to_yaml()).unwrap();
        prop_assert_eq!(&generation.directors, &[before]);
    }

    #[test]
    fn any_text_can_be_given_to_importers(text in imported()) {
        let file = File { name: "x", text: &text };
        let include: &keepalived::Include<'_> = &|_, _| Vec::new();
        let imports = [
            keepalived::import(file, &keepalived::Options { include, config_id: None, director: "lb1" }),
            ldirectord::import(file, ldirectord::Options { allow_partial: true, director: "lb1" }),
            ipvsadm::import(file, true),
        ];
        for import in imports {
            // What was imported is right; what was not is told.
            let read = read("x.yaml", &import.to_yaml()).unwrap();
            prop_assert_eq!(&read.load_balancers, &import.generation.load_balancers);
            prop_assert!(import.exit_code() != 1 || read == Generation::default());
        }
    }

    #[test]
    fn places_are_within_the_file(text in damaged()) {
        let Err(problems) = parse(&[File { name: "x.yaml", text: &text }], &Already::default()) else {
            return Ok(());
        };
        let lines = text.split('\n').count() as u64;
        for problem in problems {
            prop_assert!(problem.at.line <= lines, "{problem}");
        }
    }
}

/// Types of the examples are as the specification has them.
#[test]
fn load_balancers_are_values_to_compare() {
    let balancers: Vec<Arc<LoadBalancer>> = GOOD
        .iter()
        .flat_map(|text| read("x.yaml", text).unwrap().load_balancers)
        .collect();
    assert_eq!(balancers.len(), 6);
}
