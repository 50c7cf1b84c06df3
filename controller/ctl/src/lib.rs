// SPDX-License-Identifier: Apache-2.0

//! `portolanctl`: shows the state of controllers and nodes, confirms deletions that are held back, and writes
//! the objects of a fleet. A library, so that the controller can be this program too: an image then has the code once.

#![forbid(unsafe_code)]

mod agent;
mod answers;
mod args;
mod check;
mod client;
mod clusters;
mod columns;
mod commands;
mod deletions;
mod diff;
mod dns;
mod env;
mod explain;
mod fleet;
mod forward;
mod health;
mod imports;
mod migrate;
mod nodes;
mod problems;
#[cfg(test)]
mod reference;
mod reply;
mod status;
mod table;
mod top;
mod trace;
mod version;
mod wait;
mod watch;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Cli, Command};

/// Exit code of errors. 1 is a difference of `diff` and `trace`, a timeout of `wait` and a failure of `check`.
const ERROR: u8 = 2;

/// Runs `portolanctl` with the arguments of the process; its exit code.
#[must_use]
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Nothing is left to do if this fails.
            let _ = writeln!(std::io::stderr(), "portolanctl: {error:#}");
            ExitCode::from(ERROR)
        }
    }
}

/// Runs the command; its exit code.
async fn run(cli: Cli) -> anyhow::Result<u8> {
    if let Command::Docs(docs) = &cli.command {
        docs.run(Cli::command())?;
        return Ok(0);
    }
    if let Command::Migrate { predecessor } = &cli.command {
        let migration = migrate::run(&cli.connect, predecessor).await?;
        std::io::stderr().write_all(migration.report.as_bytes())?;
        std::io::stdout().write_all(migration.values.as_bytes())?;
        return Ok(migration.code);
    }
    if let Command::Top(args) = &cli.command
        && !args.once
    {
        return Box::pin(top::live(&cli.connect, args)).await;
    }
    if let Some(interval) = cli.watch {
        return watch::run(&cli, interval).await;
    }
    let reply = commands::run(&cli).await?;
    reply.write_notes();
    std::io::stdout().write_all(reply.format(cli.output)?.as_bytes())?;
    Ok(reply.code)
}
