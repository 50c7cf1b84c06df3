// SPDX-License-Identifier: Apache-2.0

//! `portolanctl health`: what the directors of a fleet say about the backends of their load balancers.

mod merge;
mod show;

use anyhow::ensure;
use serde_json::{Value, json};

use crate::reply::Reply;
use merge::Wanted;

/// Exit code when a backend is down, or a load balancer lacks quorum. That of `portolan-agent status --healthy`.
const UNHEALTHY: u8 = 3;

/// Arguments of `health`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct HealthArgs {
    /// A load balancer as NAMESPACE/NAME, or as NAME in the namespace default. Default: all.
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Only what this director says; may be repeated.
    #[arg(long, value_delimiter = ',', value_name = "NODE")]
    pub(crate) node: Vec<String>,
    /// Only backends that are down on a director, and load balancers that lack quorum there.
    #[arg(long)]
    pub(crate) down: bool,
}

/// Shows the answers of `/debug/health`, one of each controller. What several controllers say of a node is shown as
/// the one says to which it is connected.
///
/// # Errors
/// If an answer is none of a controller's, or nobody knows the load balancer of the name or one of the nodes.
pub(crate) fn show(answers: Vec<Value>, args: &HealthArgs, wide: bool) -> anyhow::Result<Reply> {
    let name = args.name.as_deref().map(full_name);
    let wanted = Wanted {
        name: name.as_deref(),
        nodes: &args.node,
    };
    let nodes = merge::nodes(answers)?;
    for asked in &args.node {
        ensure!(
            nodes.iter().any(|node| node.name() == asked),
            "no director {asked} has reported its health"
        );
    }
    let mut balancers = merge::merged(nodes, wanted);
    ensure!(
        name.is_none() || !balancers.is_empty(),
        "no director has a load balancer {}",
        name.unwrap_or_default()
    );
    let is_unhealthy = balancers.iter().any(merge::Balancer::is_unhealthy);
    let is_all_up = args.down && !is_unhealthy && !balancers.is_empty();
    if args.down {
        balancers.retain(merge::Balancer::is_unhealthy);
        for balancer in &mut balancers {
            balancer.backends.retain(merge::Backend::is_down);
        }
    }
    let text = match wide {
        _ if is_all_up => "no backend is down\n".to_owned(),
        true => show::by_node(&balancers),
        false => show::by_backend(&balancers),
    };
    let reply = Reply::new(json!(balancers), text);
    Ok(match is_unhealthy {
        true => reply.with_code(UNHEALTHY),
        false => reply,
    })
}

fn full_name(name: &str) -> String {
    match name.contains('/') {
        true => name.to_owned(),
        false => format!("default/{name}"),
    }
}

#[cfg(test)]
mod tests;
