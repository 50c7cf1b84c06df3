//! `portolan-controller`: computes the service table of each node and streams it to the agents.

#![forbid(unsafe_code)]

mod app;
mod args;
mod debug;
mod metrics;
mod writer;

use std::process::ExitCode;

use clap::Parser as _;

#[tokio::main]
async fn main() -> ExitCode {
    let args = args::Args::parse();
    args.log_format.init();
    match app::run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
