//! `portolan-controller`: computes the service table of each node and streams it to the agents.

#![forbid(unsafe_code)]

mod app;
mod args;
mod certs;
mod debug;
mod deletions;
mod dns;
mod identity;
mod keys;
mod metrics;
mod relay;
mod reviews;
mod streams;
mod writer;

use std::process::ExitCode;

use clap::Parser as _;

/// The memory of a thread other than the first grows by a page at a time with the system's, by two to
/// seven calls for each agent that connects.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = args::Cli::parse();
    cli.run.log_format.init();
    let result = match cli.command {
        Some(args::Command::Certs(args)) => certs::run(&args),
        None => app::run(cli.run).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
