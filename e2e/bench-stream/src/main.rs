// SPDX-License-Identifier: Apache-2.0

//! The cost of the stream to thousands of agents, compared with plain ways to serve it.
//!
//! Three processes take part: the server, alone on one processor; a client with thousands of thin
//! agents on another; and the driver, which controls both and runs one whole agent to check the
//! correctness of the data sent. Baselines run in the same way, so that ratios are meaningful on
//! any machine.

#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes of what the bench itself makes"
)]

mod client;
mod driver;
mod server;
mod usage;
mod words;
mod world;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The controller's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Measure, and print the figures
    Run(driver::DriverArgs),
    /// Measure two tiers of relays, and print the figures
    Relay(driver::RelayArgs),
    /// Be the server; the driver starts it
    Serve(server::ServerArgs),
    /// Be the thin agents; the driver starts it
    Agents(client::ClientArgs),
}

fn main() -> Result<()> {
    match Cli::parse().role {
        Role::Run(args) => driver::run(&args),
        Role::Relay(args) => driver::run_relay(&args),
        Role::Serve(args) => server::run(args),
        Role::Agents(args) => client::run(args),
    }
}
