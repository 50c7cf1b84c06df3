//! The table for readers: rows of the same answers folded into one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::expect::{Expectation, Seen, expect};
use super::row::{Kind, Policy, Row, Source};
use super::situation::Situation;
use crate::rig::{Family, Protocol};

const HEAD: &str = "\
<!-- Written by `cargo run -p portolan-e2e --bin portolan-conformance-table`. -->

Who answers, by where the ready endpoints are. *Here* is the node that traffic from outside and to
the node port arrives at, *there* the other one; the askers *there* ask the virtual addresses by
way of their own node. All rows hold for TCP, UDP and SCTP, IPv4 and IPv6.
*Source* is the address that the answering pod sees: the asker's own, or (masqueraded) that of the
node which forwards, which towards its own pods is their gateway's.
";

/// One line of answers.
type Cells = Vec<String>;

/// The whole table as Markdown.
#[must_use]
pub fn markdown() -> String {
    // The same answers for several kinds or askers make one line.
    let mut lines: Vec<(Cells, BTreeMap<(Kind, Policy), BTreeSet<Source>>)> = Vec::new();
    for kind in Kind::ALL {
        for policy in Policy::ALL {
            for source in Source::ALL {
                let cells = cells(kind, policy, source);
                let at = lines.iter().position(|(known, _)| *known == cells);
                let at = at.unwrap_or_else(|| {
                    lines.push((cells, BTreeMap::new()));
                    lines.len() - 1
                });
                let sources = lines[at].1.entry((kind, policy)).or_default();
                sources.insert(source);
            }
        }
    }
    let mut text = HEAD.to_owned();
    let names = Situation::ALL.map(Situation::name);
    let _ = write!(
        text,
        "\n| frontend, asked from | source | {} |\n",
        names.join(" | ")
    );
    let _ = writeln!(text, "|{}", "---|".repeat(names.len() + 2));
    for (cells, askers) in &lines {
        let _ = writeln!(text, "| {} | {} |", asked(askers), cells.join(" | "));
    }
    text
}

/// Frontends with the same askers are named together.
fn asked(askers: &BTreeMap<(Kind, Policy), BTreeSet<Source>>) -> String {
    let mut by_sources: Vec<(&BTreeSet<Source>, Vec<String>)> = Vec::new();
    for ((kind, policy), sources) in askers {
        let name = frontend(*kind, *policy);
        match by_sources.iter_mut().find(|(known, _)| *known == sources) {
            Some((_, names)) => names.push(name),
            None => by_sources.push((sources, vec![name])),
        }
    }
    let part = |(sources, names): &(&BTreeSet<Source>, Vec<String>)| {
        let sources: Vec<_> = sources.iter().map(|source| asker(*source)).collect();
        format!("{} from {}", names.join(", "), sources.join(", "))
    };
    by_sources.iter().map(part).collect::<Vec<_>>().join("; ")
}

fn frontend(kind: Kind, policy: Policy) -> String {
    let kind = match kind {
        Kind::ClusterIp => "ClusterIP",
        Kind::NodePort => "NodePort",
        Kind::ExternalIp => "ExternalIP",
        Kind::LoadBalancer => "LoadBalancer",
    };
    match policy {
        Policy::Cluster => format!("{kind} *Cluster*"),
        Policy::Local => format!("{kind} **Local**"),
    }
}

fn asker(source: Source) -> &'static str {
    match source {
        Source::Pod => "a pod here",
        Source::Endpoint => "the endpoint here itself",
        Source::PodThere => "a pod there",
        Source::Node => "the node here",
        Source::NodeThere => "the node there",
        Source::Outside => "outside",
    }
}

/// The source, then an answer for each situation.
fn cells(kind: Kind, policy: Policy, source: Source) -> Cells {
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
    let own = seen.contains(&Seen::Asker);
    let masqueraded = seen.iter().any(|s| !matches!(s, Seen::Asker));
    match (own, masqueraded) {
        (true, true) => "asker; gateway to itself",
        (true, false) => "asker",
        (false, _) if matches!(source, Source::Node) => "node",
        (false, _) => "node",
    }
    .into()
}
