// SPDX-License-Identifier: Apache-2.0

//! Flags of commands that ask the running agent.

use std::time::Duration;

use clap::{Args, ValueEnum};
use portolan_runtime::duration_within;

use super::SocketArgs;

/// The shortest and the longest `--interval`.
const INTERVAL: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(3_600)];

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

    /// Show a live view in this terminal until `q` or Ctrl-C: what does not serve first. `s` sorts, `/` filters by
    /// name or address, arrows scroll. With a name, its backends too. The exit code is 2 without a terminal.
    #[arg(long, conflicts_with_all = ["output", "healthy"])]
    pub watch: bool,

    /// Time between two looks of `--watch`.
    #[arg(long, value_name = "DURATION", default_value = "1s", requires = "watch",
        value_parser = duration_within(INTERVAL[0], INTERVAL[1]))]
    pub interval: Duration,

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
