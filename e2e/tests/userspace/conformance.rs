// SPDX-License-Identifier: Apache-2.0

//! The rows of the conformance table that the userspace dataplane promises: a command in place of the node itself.

use portolan_e2e::conformance::{
    Difference, KnownDifferences, Patience, Row, Source, Stage, report,
};
use portolan_e2e::rig::Protocol;

use super::skip;
use super::stage::{Stage as Agent, rig};

/// Rows that end otherwise than with a dataplane of the kernel.
const DIFFERENCES: &str = include_str!("differences.txt");

/// TCP and UDP as the command asks. Pods, other machines and SCTP are not served.
fn rows() -> Vec<Row> {
    let rows = Row::all().into_iter();
    rows.filter(|row| row.source == Source::Node && row.protocol != Protocol::Sctp)
        .collect()
}

#[test]
fn rows_of_the_table_that_a_command_sees() {
    if skip("rows_of_the_table_that_a_command_sees") {
        return;
    }
    let (rows, rig) = (rows(), rig());
    // Four kinds, two policies and two families: four situations by both protocols, eight by TCP.
    assert_eq!(rows.len(), 4 * 2 * 2 * (4 * 2 + 8));
    let stage = Stage::new(&rig).unwrap();
    let objects = stage.objects(&rig, &rows);
    // The command starts when the first table is served.
    let agent = Agent::new(rig, &objects, &[]);
    let stage = stage.with_command(agent.inside.clone());
    let outcomes = stage.play(&rows, Patience::of_lane()).unwrap();
    let _ = report(&outcomes);
    let wrong = outcomes.iter().filter(|outcome| !outcome.is_right());
    let differences: Vec<_> = wrong.map(Difference::from).collect();
    let known = KnownDifferences::parse(DIFFERENCES).unwrap();
    let unknown: Vec<_> = differences
        .iter()
        .filter(|it| known.reason(it).is_none())
        .collect();
    assert!(
        unknown.is_empty(),
        "{} of {}: {unknown:#?}",
        unknown.len(),
        rows.len()
    );
    let unused = known.unused(&differences);
    assert!(
        unused.is_empty(),
        "differences that were not seen: {unused:#?}"
    );
    agent.stop();
}
