//! `portolan-agent`: keeps a node's kernel equal to its service table.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use portolan_agent::args::{Cli, Command};
use portolan_agent::{app, cleanup};

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.log_format.init();
    let result = match cli.command {
        Some(Command::Cleanup(args)) => cleanup::run(args).await,
        Some(Command::Forget(args)) => app::forget(&args),
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
