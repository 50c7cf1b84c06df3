// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent`: keeps a node's kernel equal to its service table.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use portolan_agent::args::{Cli, Command};
use portolan_agent::check_config::check_config;
use portolan_agent::{app, cleanup, prepare};

#[tokio::main]
async fn main() -> ExitCode {
    let mut cli = Cli::parse();
    cli.run.kube_proxy.set_log_level(&mut cli.logs);
    cli.logs.init();
    if cli.run.check_config && cli.command.is_none() {
        let errors = check_config(&cli.run);
        errors.iter().for_each(|error| tracing::error!("{error}"));
        return match errors.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(2),
        };
    }
    let result = match cli.command {
        Some(Command::Cleanup(args)) => cleanup::run(args).await,
        Some(Command::Prepare(args)) => prepare::run(*args).await,
        Some(Command::Forget(args)) => app::forget(&args),
        Some(Command::Docs(docs)) => docs.run(Cli::command()).map_err(Into::into),
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
