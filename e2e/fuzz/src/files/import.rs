// SPDX-License-Identifier: Apache-2.0

//! The fuzz target of the importers of other directors' configurations.
//!
//! An input for keepalived is several files, separated by zero bytes: the first one is
//! `keepalived.conf`, and a pattern of `include` matches all whose numbers, from 1, it contains.
//!
//! Invariants: what an importer writes is read without problems as what it imported. An import
//! with an error has no objects. Importing is repeatable, and notes name lines of their files.

use portolan_director::File;
use portolan_director::import::{Class, Import, ipvsadm, keepalived, ldirectord};

use super::director::survives;
use super::seed;

/// The importers and their options.
pub mod kind {
    /// The files of a keepalived.
    pub const KEEPALIVED: u8 = b'k';
    /// A ldirectord.cf.
    pub const LDIRECTORD: u8 = b'l';
    /// A ldirectord.cf of which a part is enough.
    pub const LDIRECTORD_PARTIAL: u8 = b'p';
    /// The output of `ipvsadm -Sn`.
    pub const IPVSADM: u8 = b'i';
    /// The output of `ipvsadm -Sn`, with equal services joined.
    pub const IPVSADM_MERGED: u8 = b'm';
}

/// Name of the first file.
const FIRST: &str = "first";

/// Runs an input. Returns the import; nothing if the input is no text.
///
/// # Panics
/// If an invariant is violated.
pub fn check(input: &[u8]) -> Option<Import> {
    let (kind, text) = input.split_first()?;
    let text = std::str::from_utf8(text).ok()?;
    let import = import(*kind, text)?;
    assert_eq!(
        self::import(*kind, text).as_ref(),
        Some(&import),
        "the second import"
    );
    if import.count(Class::Error) > 0 {
        assert_eq!(import.generation, portolan_director::Generation::default());
        assert_eq!((import.exit_code(), import.to_yaml()), (1, String::new()));
    }
    survives(&import.generation);
    let files = files(*kind, text);
    for note in &import.notes {
        let lines = files.iter().find(|(name, _)| *name == note.file);
        let lines = lines.map_or(0, |(_, text)| text.lines().count() as u64);
        assert!(note.line <= lines, "not within the file: {note}");
    }
    Some(import)
}

fn import(kind: u8, text: &str) -> Option<Import> {
    let file = File { name: FIRST, text };
    let director = "lb1";
    let ldirectord = |allow_partial| {
        let options = ldirectord::Options {
            allow_partial,
            director,
        };
        ldirectord::import(file, options)
    };
    Some(match kind {
        kind::KEEPALIVED => {
            let files = files(kind, text);
            let (_, text) = files.first()?;
            let file = File { name: FIRST, text };
            keepalived_of(file, &files[1..], director)
        }
        kind::LDIRECTORD => ldirectord(false),
        kind::LDIRECTORD_PARTIAL => ldirectord(true),
        kind::IPVSADM => ipvsadm::import(file, false),
        kind::IPVSADM_MERGED => ipvsadm::import(file, true),
        _ => return None,
    })
}

fn keepalived_of(first: File<'_>, others: &[(String, String)], director: &str) -> Import {
    let include = |_: &str, pattern: &str| {
        let matching = others.iter().filter(|(name, _)| pattern.contains(name));
        let files = matching.map(|(name, text)| (name.clone(), Ok(text.clone())));
        files.collect()
    };
    let options = keepalived::Options {
        include: &include,
        config_id: Some("a"),
        director,
    };
    keepalived::import(first, &options)
}

/// The files of an input, by name.
fn files(kind: u8, text: &str) -> Vec<(String, String)> {
    let texts: Vec<&str> = if kind == kind::KEEPALIVED {
        text.split('\0').collect()
    } else {
        vec![text]
    };
    let names = std::iter::once(String::from(FIRST)).chain((1..).map(|n: usize| n.to_string()));
    names.zip(texts.into_iter().map(str::to_owned)).collect()
}

/// The initial inputs, by name.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let keepalived = include_str!("../../../../common/director/tests/import/keepalived.conf");
    let ldirectord = include_str!("../../../../common/director/tests/import/ldirectord.cf");
    let ipvsadm = include_str!("../../../../common/director/tests/import/rules.ipvsadm");
    let included = "$P=80\ninclude 1 2\n@a virtual_server 192.0.2.1 ${P} {\nprotocol TCP\n\
                    real_server 10.0.0.1 ${P} {\nweight 1\n}\n}\n\
                    \0# one\n$Q=$P$P\n\0include 1\nvirtual_server_group g { 192.0.2.8-11 80 }\n";
    let equal = "-A -t 192.0.2.1:80\n-A -t 192.0.2.1:81\n-a -t 192.0.2.1:80 -r 10.0.0.1 -m\n";
    let mysql = "virtual = 192.0.2.1:3306\n real = 10.0.0.1->10.0.0.4:3306 masq\n";
    let doubled: String = (1..100)
        .map(|n| format!("$V{n}=$V{}$V{}\n", n - 1, n - 1))
        .collect();
    vec![
        ("keepalived", seed(kind::KEEPALIVED, keepalived)),
        ("ldirectord", seed(kind::LDIRECTORD, ldirectord)),
        ("ipvsadm", seed(kind::IPVSADM, ipvsadm)),
        ("included", seed(kind::KEEPALIVED, included)),
        ("partial", seed(kind::LDIRECTORD_PARTIAL, mysql)),
        ("merged", seed(kind::IPVSADM_MERGED, equal)),
        (
            "endless",
            seed(
                kind::KEEPALIVED,
                &format!("include 1\n\0{}", "include 1\n".repeat(99)),
            ),
        ),
        (
            "doubled",
            seed(
                kind::KEEPALIVED,
                &format!("$V0=ab\n{doubled}include $V99\n"),
            ),
        ),
        (
            "blocks",
            seed(
                kind::KEEPALIVED,
                &("a {\n".repeat(4000) + &"}\n".repeat(4000)),
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_reach_what_they_are_for() {
        for (name, input) in seeds() {
            let import = check(&input).unwrap();
            let is_good = !["endless", "doubled", "blocks"].contains(&name);
            assert_eq!(
                import.exit_code() == 1,
                !is_good,
                "{name}: {}",
                import.report()
            );
            assert_eq!(!import.to_yaml().is_empty(), is_good, "{name}");
        }
    }
}
