// SPDX-License-Identifier: Apache-2.0

//! Flags of commands that ask the running agent.

use clap::{Args, ValueEnum};

use super::SocketArgs;

/// Flags of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// One load balancer, with a second table of its backends: since when each is up or down, and why.
    #[arg(value_name = "[NAMESPACE/]NAME")]
    pub name: Option<String>,

    /// Format of the output.
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub output: StatusOutput,

    /// Print no table: end with exit code 0 if the table is programmed and each load balancer has quorum or a
    /// serving sorry server, else with 3 and the reasons on standard error.
    #[arg(long, conflicts_with = "output")]
    pub healthy: bool,

    /// The running agent.
    #[command(flatten)]
    pub agent: SocketArgs,
}

/// Formats of `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusOutput {
    /// A line for each virtual server.
    Table,
    /// One JSON object with everything that is known, backends included.
    Json,
    /// The same as YAML.
    Yaml,
}
