// SPDX-License-Identifier: Apache-2.0

//! `portolan-controller`: computes the service table of each node and streams it to the agents.

#![forbid(unsafe_code)]

mod app;
mod args;
mod authority;
mod certs;
mod check_config;
mod cluster;
mod clusters;
mod crds;
mod debug;
mod deletions;
mod dns;
mod edges;
#[cfg(test)]
mod fake_api;
mod identity;
mod keys;
mod mcs;
mod metrics;
mod object_name;
mod process_name;
mod publish;
mod publishing;
#[cfg(test)]
mod reference;
mod relay;
mod reviews;
mod status;
mod streams;
mod writer;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

/// Exit code of flags that cannot be used, as of those that cannot be parsed, and of `--check-config` with a problem.
const USAGE: u8 = 2;

/// With the system's allocator, the memory of threads other than the first grows page by page: two to
/// seven system calls for each agent that connects.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match is_portolanctl() {
        true => portolan_ctl::main(),
        false => serve(),
    }
}

/// Returns `true` if the program was called by the name of `portolanctl`: images have a link of
/// this name.
fn is_portolanctl() -> bool {
    let name = std::env::args_os().next();
    let name = name.as_deref().map(Path::new).and_then(Path::file_stem);
    name.is_some_and(|name| name == "portolanctl")
}

#[tokio::main]
async fn serve() -> ExitCode {
    let cli = args::Cli::parse();
    cli.logs.init();
    let result = match cli.command {
        Some(args::Command::Certs(args)) => certs::run(&args),
        Some(args::Command::Crds) => crds::print(&mut std::io::stdout()),
        Some(args::Command::Docs(docs)) => docs.run(args::Cli::command()).map_err(Into::into),
        None if cli.run.check_config => return check_config(&cli.run).await,
        None => {
            let problems = check_config::flags(&cli.run);
            if !problems.is_empty() {
                let problems = problems.iter();
                problems.for_each(|problem| tracing::error!("{problem}"));
                return ExitCode::from(USAGE);
            }
            app::run(cli.run).await
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints what is wrong with the flags and their files.
async fn check_config(args: &args::Args) -> ExitCode {
    let problems = check_config::problems(args).await;
    for problem in &problems {
        // Nothing is left to do if this fails.
        let _ = writeln!(std::io::stderr(), "portolan-controller: {problem}");
    }
    ExitCode::from(if problems.is_empty() { 0 } else { USAGE })
}
