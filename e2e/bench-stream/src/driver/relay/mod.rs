// SPDX-License-Identifier: Apache-2.0

//! The cost of one change through two tiers of relays, compared with the same number of agents at the root itself, and
//! with what the simulation says.

mod args;
mod measure;
mod tree;

use anyhow::Result;
use portolan_e2e::scale::{Costs, Machines, Shape, TableCosts, spread, table};

use super::Bench;
use super::figures::{at_least, at_most, quantile, remark, say};
pub(crate) use args::RelayArgs;
use measure::{Direct, Measured, direct, tree_costs};
use tree::Tree;

/// Highest ratio of the root's processor time for a change with all agents to that with one agent for each relay.
const ROOT: f64 = 1.25;
/// Limit of memory of one stream, in KiB; that of `bench-stream`.
const KIB: f64 = 40.0;
/// Highest ratio of the time until the last agent has a change to the same work without relays, spread over the
/// processors.
const LAST: f64 = 2.0;
/// Limits of the ratio of a measured time to the simulated one.
const SIMULATED: (f64, f64) = (0.5, 2.0);

/// Measures, and prints the figures.
pub(crate) fn run(args: &RelayArgs) -> Result<()> {
    args.check()?;
    let driver = args.driver();
    let bench = Bench::new(&driver)?;
    remark(&format!(
        "a root, {} and {} relays, {} agents, {} changes; 2 processors for all of them",
        args.upper,
        args.lower(),
        args.agents(),
        args.changes
    ));
    let direct = direct(&bench, args)?;
    let mut tree = Tree::start(&bench, args)?;
    let few = tree_costs(&mut tree, args, 1)?;
    let many = tree_costs(&mut tree, args, args.each())?;
    drop(tree);
    let costs = say_direct(args, &direct, &few)?;
    say_tree(args, &direct, &few, &many)?;
    compare(args, costs, &many)?;
    carry(costs, &direct);
    Ok(())
}

/// Prints what agents cost at a root without relays; the costs of single steps.
fn say_direct(args: &RelayArgs, direct: &Direct, few: &Measured) -> Result<Costs> {
    let costs = direct.costs(args, few);
    let us = |ns: u64| ns as f64 / 1e3;
    say("relay_cost_work_in", us(costs.work_in_ns), "us");
    say("relay_cost_relay_in", us(costs.relay_in_ns), "us");
    say("relay_cost_relay_wait", us(costs.relay_wait_ns), "us");
    say("relay_cost_send", us(costs.send_ns), "us/stream");
    say("relay_cost_agent", us(costs.agent_ns), "us/agent");
    say("relay_cost_hop", us(costs.hop_ns), "us");
    let round = quantile(&direct.many.last_ns, 0.5)?;
    say("relay_direct_last_p50", round / 1e6, "ms");
    Ok(costs)
}

fn say_tree(args: &RelayArgs, direct: &Direct, few: &Measured, many: &Measured) -> Result<()> {
    let ms = |measured: &Measured, share| {
        Ok::<_, anyhow::Error>(quantile(&measured.last_ns, share)? / 1e6)
    };
    say("relay_few_last_p50", ms(few, 0.5)?, "ms");
    say("relay_last_p50", ms(many, 0.5)?, "ms");
    say("relay_last_p99", ms(many, 0.99)?, "ms");
    // The same work without relays: the agents of one relay, as often as there are relays, on two processors.
    let work = quantile(&direct.many.last_ns, 0.5)? / 1e6 * f64::from(args.lower()) / 2.0;
    at_most(
        "relay_last_p50_to_direct_work",
        ms(many, 0.5)? / work,
        "x",
        LAST,
    );
    say("relay_root_cpu_few", few.root_us, "us/change");
    say("relay_root_cpu", many.root_us, "us/change");
    at_most(
        "relay_root_cpu_to_few",
        many.root_us / few.root_us,
        "x",
        ROOT,
    );
    let to_direct = direct.many.root_us / many.root_us;
    at_least("relay_root_cpu_direct_to_relays", to_direct, "x", 2.0);
    say("relay_lower_cpu", many.lower_us, "us/change");
    at_most("relay_lower_resident", many.kib, "KiB/agent", KIB);
    Ok(())
}

/// Compares the measured tree with the simulated one.
fn compare(args: &RelayArgs, costs: Costs, many: &Measured) -> Result<()> {
    let shape = Shape {
        relays: vec![args.upper, args.lower_each],
        agents: args.each(),
    };
    let simulated = spread(&shape, costs, Machines::Shared(2));
    say("relay_simulated_last", simulated.last_ns as f64 / 1e6, "ms");
    let ratio = quantile(&many.last_ns, 0.5)? / simulated.last_ns as f64;
    at_most("relay_last_p50_to_simulated", ratio, "x", SIMULATED.1);
    at_least("relay_last_p50_to_simulated_low", ratio, "x", SIMULATED.0);
    Ok(())
}

/// Carries the costs to sizes that no machine here has.
fn carry(costs: Costs, direct: &Direct) {
    let shapes = [
        (5_000, vec![], 5_000),
        (40_000, vec![2, 4], 5_000),
        (100_000, vec![4, 5], 5_000),
        (100_000, vec![5, 10], 2_000),
    ];
    for (agents, relays, each) in shapes {
        let name = format!("relay_simulated_{agents}_by_{each}");
        let shape = Shape {
            relays,
            agents: each,
        };
        let arrival = spread(&shape, costs, Machines::Own);
        say(&format!("{name}_last"), arrival.last_ns as f64 / 1e6, "ms");
        say(
            &format!("{name}_root_cpu"),
            arrival.root_ns as f64 / 1e3,
            "us/change",
        );
    }
    let table_costs: TableCosts = direct.table;
    say(
        "relay_cost_endpoint_resident",
        table_costs.endpoint_bytes,
        "bytes",
    );
    say("relay_cost_endpoint_wire", table_costs.wire_bytes, "bytes");
    say("relay_cost_endpoint_send", table_costs.send_ns, "ns");
    let million = table(table_costs, 1e6, 5_000.0, 4.0, 10e9);
    say(
        "relay_table_1000000_resident",
        million.resident_bytes / 1e6,
        "MB",
    );
    say(
        "relay_table_1000000_snapshot",
        million.snapshot_bytes / 1e6,
        "MB",
    );
    say("relay_table_1000000_all_new", million.all_new_seconds, "s");
}
