// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent`: keeps a node's kernel equal to its service table.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use portolan_agent::args::{CheckCommand, Cli, Command, StartError};
use portolan_agent::check_config::check_config;
use portolan_agent::choice::NothingUsable;
use portolan_agent::{
    app, backends, check_run, cleanup, config, director, docs, export, import_kernel, once,
    overview, prepare, reload,
};

/// Exit code of `--check-config` with an error.
const BAD_CONFIG: u8 = 2;

/// Exit code of `--dataplane auto` if no dataplane can be used (`EX_UNAVAILABLE` of sysexits.h).
const UNAVAILABLE: u8 = 69;

/// Exit code of flags that cannot be used (`EX_USAGE` of sysexits.h). Not 2, which is the answer of
/// `plan` that there are steps.
const USAGE: u8 = 64;

fn main() -> ExitCode {
    // A process enters namespaces before it has threads.
    if let Some(code) = portolan_userspace::inside::asked(std::env::args_os()) {
        return code;
    }
    // Reconciliation allocates on whichever thread it runs.
    portolan_runtime::share_heap();
    start()
}

#[tokio::main]
async fn start() -> ExitCode {
    let (mut cli, notes) = match Cli::start(std::env::args_os()) {
        Ok(started) => started,
        Err(StartError::Flags(error)) => {
            // Nothing is left to do if this fails.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
        Err(error) => {
            // Nothing is left to do if this fails.
            let _ = writeln!(std::io::stderr(), "portolan-agent: {error}");
            return ExitCode::from(USAGE);
        }
    };
    cli.run.kube_proxy.set_log_level(&mut cli.logs);
    if matches!(&cli.command, Some(Command::Run(args)) if !args.command.is_empty()) {
        // The command's own output is what counts.
        cli.logs.default_level("warn");
    }
    cli.logs.init();
    for note in notes {
        tracing::info!("--config: {note}");
    }
    if cli.run.check_config && cli.command.is_none() {
        let errors = check_config(&cli.run);
        errors.iter().for_each(|error| tracing::error!("{error}"));
        return match errors.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(BAD_CONFIG),
        };
    }
    let result = match cli.command {
        Some(Command::Run(args)) => match Box::pin(app::run_command(*args)).await {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Some(Command::Cleanup(args)) => cleanup::run(args).await,
        Some(Command::Prepare(args)) => prepare::run(*args).await,
        Some(Command::Plan(args)) => return once::plan(*args).await,
        Some(Command::Apply(args)) => once::apply(*args).await,
        Some(Command::Reload(args)) => reload::run(&args.agent.address).await,
        Some(Command::Status(args)) => match overview::run(&args).await {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Some(Command::Director(args)) => director::ask(args.command, &args.agent.address).await,
        Some(Command::Backend(args)) => backends::command(&args).await,
        Some(Command::Export(args)) => export::run(*args).await,
        Some(Command::Import(args)) => match import_kernel::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Some(Command::Config(command)) => match config::run(&command) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Some(Command::Check(CheckCommand::Run(args))) => match check_run::run(&args).await {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Some(Command::Forget(args)) => app::forget(&args),
        Some(Command::Docs(command)) => docs::run(&command).map_err(Into::into),
        None => app::run(cli.run).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            match error.downcast_ref::<NothingUsable>() {
                Some(_) => ExitCode::from(UNAVAILABLE),
                None => ExitCode::FAILURE,
            }
        }
    }
}
