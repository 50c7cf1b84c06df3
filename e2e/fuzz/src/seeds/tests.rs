// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use super::*;

#[test]
fn the_agents_seeds_reach_what_they_are_for() {
    let outcomes: BTreeMap<_, _> = agent()
        .into_iter()
        .map(|(name, input)| (name, crate::agent::check(&input)))
        .collect();
    let whole = table().records.len();
    assert!(whole >= 3);
    let at = |name: &str| {
        let outcome = outcomes[name];
        (
            outcome.taken,
            outcome.dropped,
            outcome.records,
            outcome.refused,
        )
    };
    assert_eq!(at("snapshot"), (1, 0, whole, 0));
    assert_eq!(at("empty"), (1, 0, 0, 0));
    assert_eq!(at("delta"), (2, 0, whole - 1, 0));
    assert_eq!(at("shared"), (2, 0, whole - 1, 0));
    assert_eq!(at("not-shared"), (1, 1, whole, 0));
    assert_eq!(at("refused"), (2, 0, whole, 1));
    assert_eq!(at("refused-whole"), (2, 0, 1, 1));
    assert_eq!(at("resumed"), (2, 0, whole, 0));
    assert_eq!(at("wrong"), (1, 1, whole, 0));
}

#[test]
fn the_controllers_seeds_reach_what_they_are_for() {
    let outcomes: BTreeMap<_, _> = controller()
        .into_iter()
        .map(|(name, input)| (name, crate::controller::check(&input)))
        .collect();
    for admitted in ["messages", "hello", "longest-name", "body", "claims"] {
        let outcome = outcomes[admitted];
        assert!(
            outcome.admitted == 1 && outcome.frames > 0,
            "{admitted}: {outcome:?}"
        );
    }
    for refused in ["token", "too-long-name"] {
        let nothing = crate::controller::Outcome::default();
        assert_eq!(outcomes[refused], nothing, "{refused}");
    }
    // One endpoint is a multicast address.
    assert_eq!(outcomes["objects"].troubled, 1);
    assert!(outcomes["objects"].computed > table().records.len());
}

#[test]
fn a_dictionary_has_the_words_of_all_texts_once() {
    let seeds = [
        ("a", b"yapiVersion: v1\nmh-port \xff\n".to_vec()),
        ("b", b"mh-port: \"ping\"".to_vec()),
    ];
    assert_eq!(
        dictionary(&seeds),
        "\"mh-port\"\n\"ping\"\n\"yapiVersion\"\n"
    );
}
