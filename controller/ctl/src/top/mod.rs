// SPDX-License-Identifier: Apache-2.0

//! `portolanctl top`: Services of a node by their use, and nodes by lag.

mod answer;
mod view;

use std::io::Write as _;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::ValueEnum;
use portolan_runtime::duration_within;
use portolan_terminal::{Live as _, has_terminal, watch};

use crate::args::ConnectArgs;
use crate::client::{Client, clients, of_agent};
use crate::columns::columns;
use crate::reply::Reply;
use answer::Top;
use view::{NODES, SERVICES, View, node_row, service_row};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Longest time of a question of the live view. Below the time that the view gives all of them together: what others
/// answer is shown beside the error.
const PATIENCE: Duration = Duration::from_secs(8);

/// Arguments of `top`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TopArgs {
    /// Print both tables once, for scripts.
    #[arg(long)]
    pub(crate) once: bool,

    /// Time between two questions. The agent reads the kernel every five seconds at most.
    #[arg(long, default_value = "5s", value_parser = duration_within(SECOND, HOUR))]
    interval: Duration,

    /// The order of Services: by new connections or bytes in a second, or by established connections.
    #[arg(long, default_value = "connections")]
    by: By,

    /// Services and nodes that are shown, at most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,

    /// Socket of the agent whose Services are shown, as unix:///PATH (its --debug-listen), or its admin address as
    /// http://HOST:PORT.
    #[arg(long, default_value = "unix:///run/portolan/agent.sock")]
    address: String,
}

/// Orders of Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Connections,
    Bytes,
    Active,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Bytes => "bytes",
            Self::Active => "active",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Connections => Self::Bytes,
            Self::Bytes => Self::Active,
            Self::Active => Self::Connections,
        }
    }
}

/// The programs that are asked.
#[derive(Debug)]
struct Asked {
    agent: Client,
    controllers: Vec<Client>,
    /// Set if the user names the controllers.
    names_controllers: bool,
    limit: u16,
}

/// Both tables of now.
pub(crate) async fn once(connect: &ConnectArgs, args: &TopArgs) -> anyhow::Result<Reply> {
    ensure!(args.once, "top is a live view: --once prints it once");
    let asked = asked(connect, args).await?;
    let top = asked.ask(args.by).await?;
    let reply = Reply::new(serde_json::to_value(&top)?, text(&top));
    Ok(reply.with_code(top.code))
}

/// Shows both tables until the user ends it.
pub(crate) async fn live(connect: &ConnectArgs, args: &TopArgs) -> anyhow::Result<u8> {
    if !has_terminal() {
        bail!("top needs a terminal: standard input or output is none; --once prints both tables");
    }
    let asked = asked(&impatient(connect), args).await?;
    let mut view = View::new(args.by);
    // Before the terminal changes: a wrong address is told as with --once.
    view.take(asked.ask(args.by).await);
    if let Some(error) = view.error.take() {
        bail!(error);
    }
    let by = view.order();
    watch(&mut view, args.interval, || Box::pin(asked.ask(by.get()))).await?;
    std::io::stdout().flush()?;
    Ok(0)
}

/// The flags for a live view.
fn impatient(connect: &ConnectArgs) -> ConnectArgs {
    ConnectArgs {
        timeout: connect.timeout.min(PATIENCE),
        ..connect.clone()
    }
}

async fn asked(connect: &ConnectArgs, args: &TopArgs) -> anyhow::Result<Asked> {
    Ok(Asked {
        agent: of_agent(&args.address, connect.timeout)?,
        controllers: clients(connect, false).await?,
        names_controllers: connect.names_controllers(),
        limit: args.limit,
    })
}

fn text(top: &Top) -> String {
    let table = |titles: &[&str], rows: Vec<Vec<String>>| {
        let mut all = vec![titles.iter().map(|title| (*title).to_owned()).collect()];
        all.extend(rows);
        columns(&all)
    };
    let mut text = table(&SERVICES, top.services.iter().map(service_row).collect());
    text.push('\n');
    text.push_str(&table(&NODES, top.nodes.iter().map(node_row).collect()));
    for note in &top.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

#[cfg(test)]
mod tests;
