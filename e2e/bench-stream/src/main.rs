//! What the stream to thousands of agents costs, beside the plain ways to do it.
//!
//! Three processes: the server, alone on one processor; a client with thousands of thin agents on
//! the other; and the driver, which tells both what to do, and has one whole agent of its own to
//! check that what was sent is right. Baselines run in the same way, so that their ratios mean
//! something on a machine that nothing is known of.

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

/// The controller's.
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
    /// Be the server; the driver starts it
    Serve(server::ServerArgs),
    /// Be the thin agents; the driver starts it
    Agents(client::ClientArgs),
}

fn main() -> Result<()> {
    match Cli::parse().role {
        Role::Run(args) => driver::run(&args),
        Role::Serve(args) => server::run(args),
        Role::Agents(args) => client::run(args),
    }
}
