// SPDX-License-Identifier: Apache-2.0

//! The cost of a whole table: processor time, bytes and memory per agent.

use anyhow::{Result, ensure};

use super::figures::{at_least, at_most, remark, say};
use super::kubernetes::kubernetes_bytes;
use super::verify::Verifier;
use super::{Bench, Intake, delta};
use crate::server::Kind;

/// The limits of memory per stream, in KiB.
const PLAIN_KIB: f64 = 40.0;
const TLS_KIB: f64 = 55.0;

pub(super) fn run(bench: &Bench<'_>) -> Result<()> {
    let naive = naive(bench)?;
    let ours = ours(bench)?;
    say("stream_snapshot_cpu_naive", naive.cpu_us, "us/agent");
    say("stream_snapshot_cpu", ours.cpu_us, "us/agent");
    at_least(
        "stream_snapshot_cpu_naive_to_ours",
        naive.cpu_us / ours.cpu_us,
        "x",
        100.0,
    );
    say("stream_full_state_naive", naive.down, "bytes");
    say("stream_full_state", ours.down, "bytes");
    match kubernetes_bytes(&bench.args.kubernetes_bytes, bench.args.size) {
        Ok(bytes) => {
            say("stream_full_state_kubernetes", bytes, "bytes");
            at_least(
                "stream_full_state_kubernetes_to_ours",
                bytes / ours.down,
                "x",
                50.0,
            );
        }
        Err(why) => remark(&format!(
            "skipped: stream_full_state_kubernetes_to_ours: {why:#}"
        )),
    }
    at_most("stream_resident_few", ours.kib, "KiB/stream", PLAIN_KIB);
    Ok(())
}

/// Measures rows of strings, cloned and encoded for each agent. Few agents: the cost is per agent.
fn naive(bench: &Bench<'_>) -> Result<Intake> {
    let mut running = bench.serve(Kind::Rows, &[])?;
    let mut client = bench.agents()?;
    let how = running.fresh(bench.args.naive);
    remark(&format!("naive: {} agents", how.agents));
    running.take_in(&mut client, how)
}

fn ours(bench: &Bench<'_>) -> Result<Intake> {
    let mut running = bench.serve(Kind::Ours, &[])?;
    let mut verifier = Verifier::start(&bench.world, None)?;
    verifier.lead_to(running.port);
    verifier.check(&bench.world, 1)?;
    remark("checked: a snapshot is the table");
    let mut client = bench.agents()?;
    let how = running.fresh(bench.args.few);
    running.take_in(&mut client, how)
}

/// Measures a snapshot and single changes with mutual TLS.
pub(super) fn run_tls(bench: &Bench<'_>) -> Result<()> {
    let mut running = bench.serve_tls()?;
    let mut client = bench.agents()?;
    let mut world = bench.world.clone();
    let mut verifier = Verifier::start(&world, Some(bench.dir.path()))?;
    verifier.lead_to(running.port);
    verifier.check(&world, 1)?;
    // The verifier's connection is not counted; it already paid for state that is built once.
    let how = running.fresh(bench.args.few);
    let intake = running.take_in(&mut client, how)?;
    ensure!(
        intake.connected.asked == 0,
        "agents without a table were asked"
    );
    say("stream_tls_snapshot_cpu", intake.cpu_us, "us/agent");
    at_most("stream_tls_resident", intake.kib, "KiB/stream", TLS_KIB);
    let agents = bench.args.few;
    let changes = delta::changes(&mut running, &mut client, agents, 100)?;
    say("stream_tls_change_cpu", changes.cpu_us, "us/agent");
    delta::advance(&mut world, 100 + delta::WARM_UP);
    verifier.check(&world, changes.revision)?;
    remark("checked: the table after all changes, by TLS");
    Ok(())
}
