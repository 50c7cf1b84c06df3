// SPDX-License-Identifier: Apache-2.0

//! `--config`: a KubeProxyConfiguration in place of flags. The command line and the environment win.
//!
//! Each field becomes kube-proxy's flag of the same meaning, which the agent accepts.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{
    Arg, ArgMatches, Command as Flags, CommandFactory as _, FromArgMatches as _, Parser as _,
};
use portolan_kube_proxy_config::{Becomes, Config, ConfigError, Field, parse};
use serde_json::Value;

use super::{Cli, RunArgs};

/// kube-proxy's flags that the agent has by another name.
const RENAMED: [(&str, &str); 1] = [("logging-format", "log-format")];

/// The command that has one dataplane and ports of its own, whatever the file says.
const RUN: &str = "run";

/// Fields that have no effect in it: their values are those of a node's kube-proxy.
const NOT_OF_RUN: [&str; 3] = ["mode", "metricsBindAddress", "healthzBindAddress"];

/// The argument between the flags and the command of `run`.
const END_OF_FLAGS: &str = "--";

/// A command line that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The flags, or a request for help.
    #[error(transparent)]
    Flags(#[from] clap::Error),
    /// The file of `--config`.
    #[error("--config {file}: {error}")]
    File {
        /// Its path.
        file: String,
        /// Its error.
        error: FileError,
    },
}

/// A file of `--config` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] std::io::Error),
    /// It is no KubeProxyConfiguration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// One of its values is none for the flag of the same meaning.
    #[error(transparent)]
    Flags(#[from] clap::Error),
}

impl Cli {
    /// Parses a command line, and the file of `--config`. Returns also what in the file has no effect,
    /// with the reason.
    ///
    /// # Errors
    /// If a flag or the file cannot be used.
    pub fn start(
        args: impl IntoIterator<Item = OsString>,
    ) -> Result<(Self, Vec<String>), StartError> {
        let mut args: Vec<OsString> = args.into_iter().collect();
        let mut flags = Self::command();
        let matches = flags.clone().try_get_matches_from(&args)?;
        // Global flags, as those of logging, become arguments of the commands.
        flags.build();
        let cli = Self::from_arg_matches(&matches)?;
        let Some((run, flags, matches)) = cli.run_of(&flags, &matches) else {
            return Ok((cli, Vec::new()));
        };
        let Some(path) = run.kube_proxy.config.as_deref() else {
            return Ok((cli, Vec::new()));
        };
        let wrong = |error: FileError| StartError::File {
            file: path.display().to_string(),
            error,
        };
        let (config, mut notes) = read(path).map_err(wrong)?;
        let (more, without_effect) = flags_of(&config, flags, matches);
        notes.extend(without_effect);
        // Behind the flags there may be a command, or values that begin with a dash.
        let end = args.iter().position(|arg| arg == END_OF_FLAGS);
        let end = end.unwrap_or(args.len());
        let behind = args.split_off(end);
        args.extend(more.into_iter().map(OsString::from));
        args.extend(behind);
        let cli = Self::try_parse_from(args).map_err(|error| wrong(error.into()))?;
        Ok((cli, notes))
    }

    /// The flags of a run, of the agent itself or of a command, with their definition and their matches.
    fn run_of<'a>(
        &'a self,
        flags: &'a Flags,
        matches: &'a ArgMatches,
    ) -> Option<(&'a RunArgs, &'a Flags, &'a ArgMatches)> {
        let run = self.run_args()?;
        match matches.subcommand() {
            None => Some((run, flags, matches)),
            Some((name, matches)) => Some((run, flags.find_subcommand(name)?, matches)),
        }
    }
}

/// Reads the file. Unknown fields have no effect, as in kube-proxy.
fn read(path: &Path) -> Result<(Config, Vec<String>), FileError> {
    let text = std::fs::read_to_string(path)?;
    let (config, unknown) = parse(&text, true)?;
    let unknown = unknown.iter().map(ToString::to_string);
    Ok((config, unknown.collect()))
}

/// The flags of a configuration that are not set otherwise, and the fields without effect.
fn flags_of(config: &Config, flags: &Flags, matches: &ArgMatches) -> (Vec<String>, Vec<String>) {
    let (mut more, mut notes) = (Vec::new(), Vec::new());
    for setting in config.settings() {
        let Some(field) = Field::at(setting.path) else {
            continue;
        };
        let note = |reason: &str| format!("{} has no effect: {reason}", field.path);
        let renamed = RENAMED.iter().find(|(theirs, _)| *theirs == field.flag);
        let name = renamed.map_or(field.flag, |(_, ours)| ours);
        let known = flags.get_arguments().find(|arg| is_named(arg, name));
        match (known, field.becomes) {
            _ if !config.reads(field.modes) => notes.push(note("this mode does not read it")),
            _ if flags.get_name() == RUN && NOT_OF_RUN.contains(&field.path) => {
                notes.push(note("run has sockets of its own"));
            }
            (Some(arg), _) => {
                let source = matches.value_source(arg.get_id().as_str());
                let is_set = [
                    Some(ValueSource::CommandLine),
                    Some(ValueSource::EnvVariable),
                ];
                if is_set.contains(&source) {
                    let own = arg.get_long().unwrap_or(name);
                    notes.push(note(&format!("--{own} or its environment variable is set")));
                } else {
                    more.push(format!("--{name}={}", flag_value(&setting.value)));
                }
            }
            (None, Becomes::Nothing(reason) | Becomes::Always(reason)) => notes.push(note(reason)),
            (None, Becomes::Value(..) | Becomes::Rule) => {
                notes.push(note("the agent has no such flag"));
            }
        }
    }
    (more, notes)
}

fn is_named(arg: &Arg, name: &str) -> bool {
    let aliases = arg.get_all_aliases().unwrap_or_default();
    !name.is_empty() && (arg.get_long() == Some(name) || aliases.contains(&name))
}

/// A value as a flag has it.
fn flag_value(value: &Value) -> String {
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    match value {
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Object(map) => {
            let pairs = map
                .iter()
                .map(|(key, value)| format!("{key}={}", text(value)));
            pairs.collect::<Vec<_>>().join(",")
        }
        other => text(other),
    }
}

#[cfg(test)]
mod tests;
