//! `portolanctl`: asks a controller who has what, and why.

#![forbid(unsafe_code)]

mod client;
mod columns;
mod deletions;
mod diff;
mod dns;
mod explain;
mod nodes;
mod table;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};
use portolan_model::NodeTable;
use portolan_select::Explanation;
use serde_json::Value;

use client::{Client, encoded};

/// Where dumps are asked for.
const ADMIN: &str = "http://127.0.0.1:9444";
/// Where actions are asked for: over TCP they need a token.
const SOCKET: &str = "unix:///run/portolan/controller.sock";

/// Asks a controller at its Unix socket, or at its admin address, which answers on loopback only:
/// run it beside the controller, or through a port that is forwarded to it.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// The controller's admin address as http://HOST:PORT, or its socket as unix:///PATH. Default:
    /// http://127.0.0.1:9444; for `confirm` without a token
    /// unix:///run/portolan/controller.sock.
    #[arg(long, env = "PORTOLAN_CONTROLLER")]
    controller: Option<String>,

    /// A file with the controller's token (its --debug-token-file), which `confirm` needs over
    /// TCP.
    #[arg(long, env = "PORTOLAN_DEBUG_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

/// What to ask.
#[derive(Debug, Subcommand)]
enum Command {
    /// Which revision each node has.
    Nodes {
        /// Only those that have not programmed the newest.
        #[arg(long)]
        behind: bool,
        /// How it is written.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
    /// What a node must program.
    Table {
        /// The node.
        node: String,
        /// How it is written.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
    /// What differs between what two nodes must have; of one node, between what its kernel has and
    /// what it must have.
    Diff {
        /// The node.
        node: String,
        /// The other node.
        other: Option<String>,
    },
    /// Where connections to an address go that come in on a node, and why nowhere else.
    Explain {
        /// `ADDRESS:PORT`, with `/tcp`, `/udp` or `/sctp`; TCP if it does not say.
        address: String,
        /// The node.
        #[arg(long)]
        node: String,
    },
    /// What is answered to a DNS question.
    Dns {
        /// The name.
        name: String,
        /// The type of records.
        #[arg(default_value = "A")]
        r#type: String,
    },
    /// Let a node program a table that its agent holds back because it would delete too much; or,
    /// with --deletions, let the controller believe the deletions that it holds back itself.
    Confirm {
        /// The node.
        #[arg(required_unless_present = "deletions")]
        node: Option<String>,
        /// The deletions that the controller holds back.
        #[arg(long, conflicts_with = "node")]
        deletions: bool,
    },
    /// The deletions that the controller holds back.
    Deletions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let written = match run(Cli::parse()).await {
        Ok(text) => std::io::stdout().write_all(text.as_bytes()),
        Err(error) => {
            // Nowhere is left to say that this fails.
            let _ = writeln!(std::io::stderr(), "portolanctl: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    if written.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

async fn run(cli: Cli) -> anyhow::Result<String> {
    let is_action = matches!(cli.command, Command::Confirm { .. });
    let default = match is_action && cli.token_file.is_none() {
        true => SOCKET,
        false => ADMIN,
    };
    let controller = cli.controller.as_deref().unwrap_or(default);
    let client = Client::new(controller, cli.token_file);
    let table = async |node: &str| -> anyhow::Result<NodeTable> {
        table::parse(
            client
                .get(&format!("/debug/table/{}", encoded(node)))
                .await?,
        )
    };
    match cli.command {
        Command::Nodes { behind, output } => {
            let answer = client.get("/debug/nodes").await?;
            nodes::show(answer, behind, output == Output::Json)
        }
        Command::Table { node, output } => {
            if output == Output::Json {
                let path = format!("/debug/table/{}", encoded(&node));
                return pretty(&client.get(&path).await?);
            }
            Ok(table::show(&table(&node).await?))
        }
        Command::Diff {
            node,
            other: Some(other),
        } => {
            let (a, b) = (table(&node).await?, table(&other).await?);
            Ok(diff::of_two(&node, &a, &other, &b))
        }
        Command::Diff { node, other: None } => {
            let path = format!("/debug/diff/{}", encoded(&node));
            diff::of_one(&node, client.get(&path).await?)
        }
        Command::Explain { address, node } => {
            let (address, protocol) = address.rsplit_once('/').unwrap_or((&address, "tcp"));
            let path = format!(
                "/debug/explain?address={}&protocol={}&node={}",
                encoded(address),
                encoded(protocol),
                encoded(&node)
            );
            let answer = client.get(&path).await?;
            let explanation: Explanation =
                serde_json::from_value(answer).context("the controller's answer")?;
            Ok(explain::show(&explanation))
        }
        Command::Dns { name, r#type } => {
            let (name, kind) = (encoded(&name), encoded(&r#type));
            let path = format!("/debug/dns?name={name}&type={kind}");
            Ok(dns::show(&client.get(&path).await?))
        }
        Command::Deletions => Ok(deletions::show(
            &client.get("/debug/deletions").await?,
            "is held",
        )),
        Command::Confirm { node: None, .. } => {
            let answer = client.post("/debug/confirm-deletions").await?;
            Ok(deletions::show(&answer, "is confirmed"))
        }
        Command::Confirm {
            node: Some(node), ..
        } => {
            let path = format!("/debug/confirm/{}", encoded(&node));
            let answer = client.post(&path).await?;
            let revision = &answer["revision"];
            Ok(format!("node {node}: revision {revision} is confirmed\n"))
        }
    }
}

fn pretty(value: &Value) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}
