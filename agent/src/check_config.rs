// SPDX-License-Identifier: Apache-2.0

//! Checks of a command line before anything is done: of its flags, and with `--check-config` also of files. Neither
//! the kernel nor the network is used.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;

use portolan_catalog::ObjectChange;
use portolan_source::file;
use portolan_subscription::read_controllers;

use crate::app::endpoints;
use crate::args::{
    CheckCommand, Cli, Command, ExportArgs, ExportFrom, RunArgs, Source, validate_name,
};

/// Flag that only checks.
const CHECK: &str = "--check-config";

/// Exit code of `--check-config` with an error.
const BAD_CONFIG: u8 = 2;

/// Exit code of flags that cannot be used (`EX_USAGE` of sysexits.h). Not 2, which is the answer of
/// `plan` that there are steps.
const USAGE: u8 = 64;

/// The end of a program that has done nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct Ending {
    /// The errors, a sentence each.
    pub errors: Vec<String>,
    /// The exit code.
    pub code: u8,
}

/// The end of a program before it does anything: by flags that cannot be used, or by `--check-config`.
#[must_use]
pub fn early_end(cli: &Cli) -> Option<Ending> {
    if cli.run_args().is_some_and(|run| run.check_config) {
        let errors = check_config(cli);
        let code = if errors.is_empty() { 0 } else { BAD_CONFIG };
        return Some(Ending { errors, code });
    }
    let errors = texts(flags(cli));
    (!errors.is_empty()).then(|| Ending {
        errors: errors.into_iter().collect(),
        code: USAGE,
    })
}

/// The exit code of a command line that could not be parsed.
#[must_use]
pub fn unparsed_code(args: &[OsString]) -> u8 {
    let mut flags = args.iter().take_while(|arg| arg.as_os_str() != "--");
    match flags.any(|arg| arg.as_os_str() == CHECK) {
        true => BAD_CONFIG,
        false => USAGE,
    }
}

/// All errors of flags and files. Files that a run waits for may be missing.
fn check_config(cli: &Cli) -> Vec<String> {
    let mut checks = flags(cli);
    let Some((run, source)) = table_of(cli) else {
        return texts(checks).into_iter().collect();
    };
    checks.push(run.node_name().map(drop));
    if matches!(cli.command, None | Some(Command::Run(_))) {
        checks.push(run.debug.token().map(drop));
        checks.push(run.otlp.check_files().map_err(Into::into));
    }
    let mut errors: Vec<String> = texts(checks).into_iter().collect();
    match source {
        Source::Controller => errors.extend(files_of_controllers(run)),
        Source::File => errors.extend(objects(run)),
    }
    errors
}

/// The source of a command's table, with the flags of it; `None` for a command without a table, or with that of an
/// agent.
fn table_of(cli: &Cli) -> Option<(&RunArgs, Source)> {
    match &cli.command {
        None => Some((&cli.run, cli.run.source)),
        Some(Command::Run(args)) => Some((&args.run, args.run.source)),
        Some(Command::Plan(args)) => Some((&args.run, Source::File)),
        Some(Command::Apply(args)) => Some((&args.run, Source::File)),
        Some(Command::Export(args)) if args.source() == ExportFrom::File => {
            Some((&args.run, Source::File))
        }
        Some(_) => None,
    }
}

/// The errors of checks. Several checks may find the same one.
fn texts(checks: Vec<anyhow::Result<()>>) -> BTreeSet<String> {
    let errors = checks.into_iter().filter_map(Result::err);
    errors.map(|error| format!("{error:#}")).collect()
}

/// Checks of the flags that a command uses, without a look at files.
fn flags(cli: &Cli) -> Vec<anyhow::Result<()>> {
    match &cli.command {
        None => of_agent(&cli.run),
        Some(Command::Run(args)) => {
            let mut checks = of_agent(&args.run);
            checks.push(args.validate_flags());
            checks
        }
        Some(Command::Prepare(args)) => {
            let mut checks = of_kernel(&args.run);
            checks.push(args.validate());
            checks
        }
        Some(Command::Plan(args)) => of_files_and_ipvs(&args.run),
        Some(Command::Apply(args)) => of_files_and_ipvs(&args.run),
        Some(Command::Export(args)) => of_export(args),
        Some(Command::Cleanup(args)) => vec![
            args.kernel.kernel_config().map(drop),
            args.kernel.plan_config().map(drop),
        ],
        Some(Command::Reload(args)) => vec![args.agent.validate()],
        Some(Command::Status(args)) => vec![args.agent.validate()],
        Some(Command::Director(args)) => vec![args.agent.validate()],
        Some(Command::Backend(args)) => vec![args.agent.validate()],
        Some(Command::Import(args)) => vec![validate_name("--director", args.director.as_deref())],
        Some(Command::Check(CheckCommand::Run(args))) => {
            vec![validate_name("--node-name", args.node_name.as_deref())]
        }
        Some(Command::Config(_) | Command::Forget(_) | Command::Docs(_)) => Vec::new(),
    }
}

/// Checks of an agent's flags.
fn of_agent(run: &RunArgs) -> Vec<anyhow::Result<()>> {
    let mut checks = of_kernel(run);
    checks.extend([
        run.validate(),
        run.validate_node_name(),
        run.admin_listen().map(drop),
        run.healthz_listen().map(drop),
        run.debug.validate(),
        run.dns.validate(run.source == Source::Controller),
        run.otlp.validate().map_err(Into::into),
    ]);
    if run.source == Source::Controller {
        checks.push(endpoints(&run.controller).map(drop));
    }
    checks
}

/// Checks of flags about the kernel.
fn of_kernel(run: &RunArgs) -> Vec<anyhow::Result<()>> {
    vec![
        run.kernel_config().map(drop),
        run.kernel.plan_config().map(drop),
    ]
}

/// Checks of the flags of `plan` and `apply`.
fn of_files_and_ipvs(run: &RunArgs) -> Vec<anyhow::Result<()>> {
    let mut checks = of_kernel(run);
    checks.push(run.needs_ipvs());
    checks.extend(of_files(run));
    checks
}

/// Checks of the flags of a table of files.
fn of_files(run: &RunArgs) -> [anyhow::Result<()>; 3] {
    [
        run.validate_takeover(),
        run.validate_source(Source::File),
        run.validate_node_name(),
    ]
}

fn of_export(args: &ExportArgs) -> Vec<anyhow::Result<()>> {
    let mut checks = of_kernel(&args.run);
    checks.push(args.validate());
    match args.source() {
        ExportFrom::Agent => checks.push(args.agent.validate()),
        ExportFrom::Disk => checks.push(args.run.validate_node_name()),
        ExportFrom::File => checks.extend(of_files(&args.run)),
    }
    checks
}

fn files_of_controllers(args: &RunArgs) -> Vec<String> {
    let mut errors = Vec::new();
    let identity = args.identity.identity();
    if identity.validate().is_ok()
        && let Err(error) = identity.open("tls")
    {
        errors.push(error.to_string());
    }
    match &args.controller_file {
        Some(path) if path.exists() => {
            errors.extend(read_controllers(path).err().map(|error| error.to_string()));
        }
        Some(path) => tracing::warn!("{}: missing: a run waits for it", path.display()),
        None => {}
    }
    errors
}

/// Errors of files of objects.
fn objects(args: &RunArgs) -> Vec<String> {
    let report = file::read(&args.file, &Arc::from(args.cluster.as_str()));
    problems(&report)
}

/// Problems of files and of the objects in them.
pub(crate) fn problems(report: &file::Report) -> Vec<String> {
    let of_objects = report.changes.iter().flat_map(|change| match change {
        ObjectChange::Put { problems, .. } | ObjectChange::Refused { problems, .. } => {
            problems.as_slice()
        }
        _ => &[],
    });
    let of_objects = of_objects.map(ToString::to_string);
    let of_files = report.problems.iter().map(ToString::to_string);
    of_files.chain(of_objects).collect()
}

#[cfg(test)]
mod tests;
