// SPDX-License-Identifier: Apache-2.0

//! New connections through a node, by service proxy and by number of Services: connections a second, processor time
//! for each, and packets of one open flow. Each service proxy has network namespaces of its own. Its rounds alternate
//! with rounds of the direct way, whose kernel tracks connections too; ratios are of sums over pairs of rounds.
//!
//! `make bench-path` runs it in a guest, whose kernel has all planes. `PORTOLAN_TOOLS_BIN` has kube-proxy.
//! `PORTOLAN_BENCH_WAYS` and `PORTOLAN_BENCH_SERVICES` are lists of ways and of sizes.
#![allow(
    clippy::cast_precision_loss,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark"
)]

mod flows;
mod machine;
mod objects;
mod report;

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use portolan_e2e::lane::{Need, lane, provides};

use flows::{Kind, Round};
use machine::{Machine, Way};

/// The numbers of Services.
const SIZES: [usize; 3] = [10, 1_000, 10_000];
/// Measured pairs of rounds. One more comes first, in which caches are filled.
const PAIRS: usize = 7;

/// Pairs of rounds: the direct way, and the service proxy.
type Pairs = Vec<[Round; 2]>;

fn main() -> Result<()> {
    if !provides("bench-path", &[Need::Root, Need::Nftables]) {
        return Ok(());
    }
    let mut measured = BTreeMap::new();
    for services in sizes()? {
        for way in ways() {
            let rounds = match measure(way, services) {
                // The others are measured all the same: a mode of kube-proxy may not be ready in time.
                Err(error) if !way.is_ours() => {
                    println!(
                        "{} with {services} services: not measured: {error:#}",
                        way.name()
                    );
                    continue;
                }
                rounds => rounds?,
            };
            for (kind, pairs) in rounds {
                measured.insert((kind, services, way), pairs);
            }
        }
    }
    report::print(&measured);
    Ok(())
}

/// All rounds of a service proxy with a number of Services.
fn measure(way: Way, services: usize) -> Result<Vec<(Kind, Pairs)>> {
    let begin = Instant::now();
    // As many flows have gone through both.
    let direct = Machine::direct()?;
    let machine = Machine::start(way, services)?;
    println!(
        "{} with {services} services: programmed after {:.1} s",
        way.name(),
        begin.elapsed().as_secs_f64()
    );
    Kind::ALL
        .into_iter()
        .map(|kind| {
            let mut pairs = Vec::with_capacity(PAIRS);
            for pair in 0..=PAIRS {
                let rounds = [direct.round(kind)?, machine.round(kind)?];
                if pair > 0 {
                    pairs.push(rounds);
                }
            }
            Ok((kind, pairs))
        })
        .collect()
}

fn sizes() -> Result<Vec<usize>> {
    match std::env::var("PORTOLAN_BENCH_SERVICES") {
        Ok(sizes) => Ok(sizes.split(',').map(str::parse).collect::<Result<_, _>>()?),
        Err(_) => Ok(SIZES.to_vec()),
    }
}

/// The wanted ways that this kernel has, each left out with its reason.
fn ways() -> Vec<Way> {
    let wanted = std::env::var("PORTOLAN_BENCH_WAYS").unwrap_or_default();
    let is_wanted =
        |way: &Way| wanted.is_empty() || wanted.split(',').any(|wanted| wanted == way.name());
    let ipvs = portolan_e2e::lane::has_ipvs();
    let can_run = |way: &Way| {
        let missing = way.needs_ipvs() && !ipvs;
        if missing {
            println!("{}: this kernel ({}) has no IPVS", way.name(), lane());
        }
        !missing
    };
    Way::ALL
        .into_iter()
        .filter(is_wanted)
        .filter(can_run)
        .collect()
}
