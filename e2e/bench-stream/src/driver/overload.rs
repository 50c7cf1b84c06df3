// SPDX-License-Identifier: Apache-2.0

//! More changes than can be delivered one by one: agents must not fall behind, and the server's
//! memory must not grow.

use anyhow::{Result, bail};

use super::Bench;
use super::child::Client;
use super::delta::advance;
use super::figures::{at_least, at_most, quantile, remark, say};
use super::verify::Verifier;
use crate::server::Kind;
use crate::words::{Ask, Told};

/// Seconds of load before the measured load, to fill buffers that every server allocates once.
const WARM_UP: u32 = 2;

/// The limit of the server's growth, in MB.
const GROWTH_MB: f64 = 5.0;

/// The cost of changes under load.
struct Load {
    /// Time of each change until the last agent had it, sorted, in nanoseconds.
    last_ns: Vec<u64>,
    /// Growth of the server's resident memory, in MB.
    growth_mb: f64,
    /// Processor time, in percent of one processor.
    cpu: f64,
    revision: u64,
}

pub(super) fn run(bench: &Bench<'_>) -> Result<()> {
    let args = bench.args;
    let ours = ours(bench)?;
    // Printed before the baseline, which takes long.
    say(
        "stream_load_last_p50",
        quantile(&ours.last_ns, 0.5)? / 1e6,
        "ms",
    );
    say(
        "stream_load_last_p99",
        quantile(&ours.last_ns, 0.99)? / 1e6,
        "ms",
    );
    say("stream_load_cpu", ours.cpu, "percent");
    at_most("stream_load_growth", ours.growth_mb, "MB", GROWTH_MB);
    let queue = {
        let mut running = bench.serve(Kind::Queue, &[])?;
        let mut client = bench.agents()?;
        let how = running.fresh(args.many);
        running.take_in(&mut client, how)?;
        load(bench, &mut running, &mut client, args.queue_seconds)?
    };
    let delay = |load: &Load, share| Ok::<_, anyhow::Error>(quantile(&load.last_ns, share)? / 1e6);
    remark(&format!(
        "the queue had {} s of load; its delay grows as long as it lasts",
        args.queue_seconds
    ));
    say("stream_load_queue_last_p50", delay(&queue, 0.5)?, "ms");
    say("stream_load_queue_last_p99", delay(&queue, 0.99)?, "ms");
    say("stream_load_queue_growth", queue.growth_mb, "MB");
    at_least(
        "stream_load_last_p99_queue_to_ours",
        delay(&queue, 0.99)? / delay(&ours, 0.99)?,
        "x",
        100.0,
    );
    Ok(())
}

fn ours(bench: &Bench<'_>) -> Result<Load> {
    let args = bench.args;
    let mut running = bench.serve(Kind::Ours, &[])?;
    let mut client = bench.agents()?;
    let mut world = bench.world.clone();
    let mut verifier = Verifier::start(&world, None)?;
    verifier.lead_to(running.port);
    verifier.check(&world, 1)?;
    let how = running.fresh(args.many);
    running.take_in(&mut client, how)?;
    let warm = load(bench, &mut running, &mut client, WARM_UP)?;
    say("stream_load_growth_at_first", warm.growth_mb, "MB");
    let load = load(bench, &mut running, &mut client, args.seconds)?;
    advance(&mut world, args.rate * (WARM_UP + args.seconds));
    verifier.check(&world, load.revision)?;
    remark("checked: the table after the load");
    Ok(load)
}

fn load(
    bench: &Bench<'_>,
    running: &mut super::Running,
    client: &mut Client,
    seconds: u32,
) -> Result<Load> {
    let rate = bench.args.rate;
    let server = &mut running.server;
    let before = server.usage()?;
    let loaded = server.ask(&Ask::Load { rate, seconds })?;
    let Told::Loaded {
        changes,
        resident_max,
    } = loaded
    else {
        bail!("no load but {loaded:?}");
    };
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else {
        bail!("a load of nothing");
    };
    client.reach(last.revision)?;
    let after = server.usage()?;
    let arrivals = client.arrivals(first.revision, last.revision)?;
    let delay = |change: &crate::words::Published| {
        let index = usize::try_from(change.revision - first.revision).ok()?;
        Some(arrivals.get(index)?.saturating_sub(change.at_ns))
    };
    let mut last_ns: Vec<u64> = changes.iter().filter_map(delay).collect();
    last_ns.sort_unstable();
    let resident_max = resident_max.max(after.resident);
    Ok(Load {
        growth_mb: (resident_max as f64 - before.resident as f64) / 1e6,
        cpu: (after.cpu_ns - before.cpu_ns) as f64 / 1e7 / f64::from(seconds),
        revision: last.revision,
        last_ns,
    })
}
