// SPDX-License-Identifier: Apache-2.0

//! The table for readers: rows of the same answers folded into one.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::expect::{Expectation, Seen, expect};
use super::row::{Kind, Policy, Row, Source};
use super::situation::Situation;
use crate::rig::{Family, Protocol};

const HEAD: &str = "\
<!-- Written by `cargo run -p portolan-e2e --bin portolan-conformance-table`. -->

Which pods answer, by the state of the two pods behind the Service, one on each node. *Here* is the
node at which traffic from outside and to the node port arrives, *there* the other one; askers there
reach the other addresses by way of their own node. *Source* is the address that the answering pod
sees: the asker's own; or that of the node which forwards, which towards its own pods is their
gateway. A – stands where the question makes no sense. All holds for TCP, UDP and SCTP, IPv4 and IPv6.
";

/// One line of answers, with its clients.
struct Line {
    cells: Vec<String>,
    askers: Vec<Source>,
}

/// The whole table as Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    let situations = Situation::ALL.map(Situation::name).join(" | ");
    let _ = writeln!(
        text,
        "\n| frontend | policy | asked from | source | {situations} |"
    );
    let _ = writeln!(text, "|{}", "---|".repeat(Situation::ALL.len() + 4));
    for policy in Policy::ALL {
        // Kinds with equal answers for all clients are merged.
        let mut blocks: Vec<(String, String)> = Vec::new();
        for kind in Kind::ALL {
            let block = block(kind, policy);
            match blocks.iter_mut().find(|(_, known)| *known == block) {
                Some((names, _)) => *names += &format!(", {}", frontend(kind)),
                None => blocks.push((frontend(kind).into(), block)),
            }
        }
        for (names, block) in blocks {
            for line in block.lines() {
                let _ = writeln!(text, "| {names} | {} | {line}", policy_name(policy));
            }
        }
    }
    text
}

/// The answers of a frontend: one line for all clients with equal answers.
fn block(kind: Kind, policy: Policy) -> String {
    let mut lines: Vec<Line> = Vec::new();
    for source in Source::ALL {
        let cells = cells(kind, policy, source);
        match lines.iter_mut().find(|line| line.cells == cells) {
            Some(line) => line.askers.push(source),
            None => lines.push(Line {
                cells,
                askers: vec![source],
            }),
        }
    }
    let mut text = String::new();
    for line in lines {
        let askers: Vec<_> = line.askers.into_iter().map(asker).collect();
        let _ = writeln!(text, "{} | {} |", askers.join(", "), line.cells.join(" | "));
    }
    text
}

fn frontend(kind: Kind) -> &'static str {
    match kind {
        Kind::ClusterIp => "cluster IP",
        Kind::NodePort => "node port",
        Kind::ExternalIp => "external IP",
        Kind::LoadBalancer => "load-balancer IP",
    }
}

fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Cluster => "Cluster",
        Policy::Local => "Local",
    }
}

fn asker(source: Source) -> &'static str {
    match source {
        Source::Pod => "a pod here",
        Source::Endpoint => "the endpoint here",
        Source::PodThere => "a pod there",
        Source::Node => "the node here",
        Source::NodeThere => "the node there",
        Source::Outside => "outside",
    }
}

/// The source, then an answer for each situation.
fn cells(kind: Kind, policy: Policy, source: Source) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut cells = vec![String::new()];
    for situation in Situation::ALL {
        let row = Row {
            kind,
            policy,
            family: Family::V4,
            protocol: Protocol::Tcp,
            source,
            situation,
        };
        cells.push(if row.has_an_answer() {
            cell(&expect(&row), &mut seen)
        } else {
            "–".into()
        });
    }
    cells[0] = source_words(source, &seen);
    cells
}

fn cell(expectation: &Expectation, all_seen: &mut BTreeSet<Seen>) -> String {
    match expectation {
        Expectation::Dropped => "dropped".into(),
        Expectation::Refused => "refused".into(),
        Expectation::Answers(places) => {
            all_seen.extend(places.values().flatten());
            let names: Vec<_> = places.keys().map(ToString::to_string).collect();
            names.join(" + ")
        }
    }
}

fn source_words(source: Source, seen: &BTreeSet<Seen>) -> String {
    let forwarding = if seen.iter().any(|seen| matches!(seen, Seen::Gateway(_))) {
        "node or gateway"
    } else {
        "node"
    };
    match (seen.contains(&Seen::Asker), source) {
        (true, Source::Endpoint) => "asker; by itself: gateway",
        (true, _) => "asker",
        (false, _) => forwarding,
    }
    .into()
}

#[cfg(test)]
mod tests {
    /// Regenerate with `cargo run -p portolan-e2e --bin portolan-conformance-table`.
    #[test]
    fn the_table_that_is_checked_in_is_the_one_that_is_tested() {
        let checked_in = include_str!("../../conformance/TABLE.md");
        assert_eq!(
            super::markdown(),
            checked_in,
            "write conformance/TABLE.md anew"
        );
    }

    #[test]
    fn the_documentation_has_the_table() {
        let table = include_str!("../../conformance/TABLE.md");
        let table = &table[table.find("| frontend ").unwrap()..];
        let page = include_str!("../../../docs/semantics.md");
        assert!(
            page.contains(table.trim()),
            "paste it anew into docs/semantics.md"
        );
    }
}
