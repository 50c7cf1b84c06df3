// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent`: keeps a node's kernel equal to its service table.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use portolan_agent::args::{CheckCommand, Cli, Command, StartError};
use portolan_agent::check_config::{early_end, unparsed_code};
use portolan_agent::choice::NothingUsable;
use portolan_agent::{
    app, backends, check_run, cleanup, config, director, docs, export, import_kernel, once,
    overview, prepare, reload,
};

/// Exit code of `--dataplane auto` if no dataplane can be used (`EX_UNAVAILABLE` of sysexits.h).
const UNAVAILABLE: u8 = 69;

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
    let args: Vec<OsString> = std::env::args_os().collect();
    let (mut cli, notes) = match Cli::start(args.iter().cloned()) {
        Ok(started) => started,
        Err(StartError::Flags(error)) => {
            // Nothing is left to do if this fails.
            let _ = error.print();
            return match error.use_stderr() {
                true => ExitCode::from(unparsed_code(&args)),
                false => ExitCode::SUCCESS,
            };
        }
        Err(error) => {
            // Nothing is left to do if this fails.
            let _ = writeln!(std::io::stderr(), "portolan-agent: {error}");
            return ExitCode::from(unparsed_code(&args));
        }
    };
    if cli.is_verbose() {
        cli.logs.default_level("debug");
    }
    if matches!(&cli.command, Some(Command::Run(args)) if !args.command.is_empty()) {
        // The command's own output is what counts.
        cli.logs.default_level("warn");
    }
    cli.logs.init();
    for note in notes {
        tracing::info!("--config: {note}");
    }
    if let Some(end) = early_end(&cli) {
        let errors = end.errors.iter();
        errors.for_each(|error| tracing::error!("{error}"));
        return ExitCode::from(end.code);
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
