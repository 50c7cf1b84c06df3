// SPDX-License-Identifier: Apache-2.0

//! The conformance table, with packets, on all programs together.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::time::Instant;

use portolan_e2e::cluster::Cluster;
use portolan_e2e::conformance::{Patience, Row, Stage, report};
use portolan_e2e::figure::figure;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Protocol, has_sctp};

/// The rows that this kernel can play.
fn rows(test: &str) -> Vec<Row> {
    let (playable, left_out): (Vec<_>, Vec<_>) = Row::all()
        .into_iter()
        .partition(|row| row.protocol != Protocol::Sctp || has_sctp());
    if !left_out.is_empty() {
        let reason = format!("{} rows need SCTP, which this kernel lacks", left_out.len());
        lane::missing(test, &reason);
    }
    playable
}

#[test]
fn every_row_of_the_table() {
    const NAME: &str = "every_row_of_the_table";
    if !lane::provides(NAME, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let rows = rows(NAME);
    let cluster = Cluster::new().unwrap();
    let stage = Stage::new(&cluster.rig).unwrap();
    cluster
        .put("table.json", &stage.objects(&cluster.rig, &rows))
        .unwrap();
    let start = Instant::now();
    let outcomes = stage.play(&rows, Patience::of_lane()).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    let wrong = report(&outcomes);
    for line in &wrong {
        println!("wrong {line}");
    }
    figure("conformance_rows_played_in", seconds, "s", None);
    assert!(wrong.is_empty(), "{} rows went wrong", wrong.len());
}
