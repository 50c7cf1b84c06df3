// SPDX-License-Identifier: Apache-2.0

//! `portolanctl trace`: the way of one packet through a node, by its table and by its kernel.

mod controller;
mod probe;
mod show;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use portolan_model::trace::{Origin, Trace};

use tokio::time::{Instant, sleep};

use crate::args::ConnectArgs;
use crate::client::{Client, clients, encoded, of_agent};
use crate::reply::{Output, Reply};

/// Longest wait for a counter of IPVS to rise.
const COUNTED: Duration = Duration::from_secs(5);

/// Pause between two looks at the counters.
const LOOK: Duration = Duration::from_millis(500);

/// Exit code of a difference.
const DIFFERENT: u8 = 1;

/// Arguments of `trace`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TraceArgs {
    /// Where the packet comes from: `pod` for a pod of the node, `node` for the node itself, `outside`, or an
    /// address.
    #[arg(value_name = "FROM")]
    from: String,

    /// The address and port that it is sent to.
    #[arg(value_name = "TO:PORT")]
    to: std::net::SocketAddr,

    /// The protocol.
    #[arg(long, default_value = "tcp")]
    protocol: Transport,

    /// The node that the agent must be that of. A controller is asked then for the reasons of each
    /// destination, and its answer is compared too.
    #[arg(long)]
    node: Option<String>,

    /// Socket of the agent as unix:///PATH (its --debug-listen), or its admin address as
    /// http://HOST:PORT.
    #[arg(long, default_value = "unix:///run/portolan/agent.sock")]
    address: String,

    /// Open one connection from this host (a datagram for UDP), and compare its end and the counters of IPVS
    /// with the way. Only with FROM `node`, over TCP or UDP.
    #[arg(long)]
    probe: bool,
}

/// Transport protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    Tcp,
    Udp,
    Sctp,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// Asks the agent, with --node a controller too, and compares.
pub(crate) async fn run(
    connect: &ConnectArgs,
    args: &TraceArgs,
    output: Output,
) -> anyhow::Result<Reply> {
    ensure!(
        !args.probe || args.from == "node" && args.protocol != Transport::Sctp,
        "--probe: only FROM node over TCP or UDP can be probed from here"
    );
    let agent = of_agent(&args.address, connect.timeout)?;
    let mut trace = ask(&agent, args).await?;
    let mut notes = Vec::new();
    if let Some(node) = &args.node {
        ensure!(
            trace.node == *node,
            "--node {node}: the agent at {} is that of node {}",
            args.address,
            trace.node
        );
        let controllers = clients(connect, false).await?;
        notes = controller::compare(&controllers, args.protocol.name(), &mut trace).await?;
    }
    if args.probe && trace.packet.origin == Origin::Node {
        let end = probe::probe(args.to, args.protocol == Transport::Udp).await?;
        let after = counted(&agent, args, &trace).await?;
        probe::compare(&mut trace, &after, end);
    }
    let text = show::text(&trace, output == Output::Wide);
    let code = match trace.differences.is_empty() {
        true => 0,
        false => DIFFERENT,
    };
    let reply = Reply::new(serde_json::to_value(&trace)?, text);
    Ok(reply.with_code(code).with_notes(notes))
}

/// The answer after a probe, once a counter has risen. IPVS sums its counters every two seconds.
async fn counted(agent: &Client, args: &TraceArgs, before: &Trace) -> anyhow::Result<Trace> {
    let deadline = Instant::now() + COUNTED;
    loop {
        let after = ask(agent, args).await?;
        if !probe::has_counters(before)
            || probe::has_risen(before, &after)
            || Instant::now() > deadline
        {
            return Ok(after);
        }
        sleep(LOOK).await;
    }
}

async fn ask(agent: &Client, args: &TraceArgs) -> anyhow::Result<Trace> {
    let path = format!(
        "/debug/trace?from={}&to={}&protocol={}",
        encoded(&args.from),
        encoded(&args.to.to_string()),
        args.protocol.name()
    );
    let answer = agent.get(&path).await?;
    serde_json::from_value(answer).context("the agent's answer is of another version")
}
