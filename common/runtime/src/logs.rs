// SPDX-License-Identifier: Apache-2.0

//! Logging to standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::journal::LogWriter;

/// The environment variable that selects log lines where no flag does.
const FILTER_VARIABLE: &str = "RUST_LOG";

/// The filter without a flag and without the environment variable.
const DEFAULT_FILTER: &str = "info";

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Readable lines.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Log flags of both programs.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// Format of log lines.
    #[arg(
        long,
        alias = "logging-format",
        env = "PORTOLAN_LOG_FORMAT",
        default_value = "text",
        global = true
    )]
    log_format: LogFormat,

    /// Level of log lines: error, warn, info, debug or trace. Levels of single targets follow after
    /// commas, as in info,portolan_serve=debug. Default: RUST_LOG, else info.
    #[arg(
        long,
        env = "PORTOLAN_LOG_LEVEL",
        value_parser = parse_filter,
        global = true
    )]
    log_level: Option<String>,
}

/// Accepts a filter that can be used, as it was written.
fn parse_filter(text: &str) -> Result<String, ParseError> {
    EnvFilter::builder().parse(text).map(|_| text.to_owned())
}

impl LogArgs {
    /// Starts logging. A second call has no effect. Colours are left out where standard error is not
    /// a terminal, or where `NO_COLOR` is set. Lines have priorities where systemd's journal reads them.
    pub fn init(&self) {
        let environment = std::env::var(FILTER_VARIABLE).ok();
        let filter = filter(self.log_level.as_deref(), environment.as_deref());
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(LogWriter::of_environment())
            .with_ansi(std::io::stderr().is_terminal() && !is_set("NO_COLOR"));
        // Fails only if logging was started before.
        let _ = match self.log_format {
            LogFormat::Text => builder.with_target(false).try_init(),
            LogFormat::Json => builder.json().try_init(),
        };
    }

    /// Sets a level that applies unless a flag or the environment names one.
    pub fn default_level(&mut self, level: &str) {
        if self.log_level.is_none() && !is_set(FILTER_VARIABLE) {
            self.log_level = Some(level.to_owned());
        }
    }
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
}

/// The filter of the flag, else that of the environment if it can be used, else the default.
fn filter(flag: Option<&str>, environment: Option<&str>) -> EnvFilter {
    let candidates = [flag, environment.filter(|text| !text.is_empty())];
    let mut parsed = candidates
        .into_iter()
        .flatten()
        .filter_map(|text| EnvFilter::builder().parse(text).ok());
    parsed
        .next()
        .unwrap_or_else(|| EnvFilter::new(DEFAULT_FILTER))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        logs: LogArgs,
    }

    fn parse(args: &[&str]) -> Result<LogArgs, clap::Error> {
        Cli::try_parse_from([&["x"], args].concat()).map(|cli| cli.logs)
    }

    #[test]
    fn levels_may_differ_by_target() {
        let logs = parse(&["--log-level=warn,portolan_serve=debug"]).unwrap();
        let level = logs.log_level.as_deref();
        let shown = filter(level, None).to_string();
        assert_eq!(shown, "portolan_serve=debug,warn");
        let error = parse(&["--log-level=portolan=loud"]).unwrap_err();
        assert!(error.to_string().contains("--log-level"), "{error}");
        assert_eq!(
            parse(&["--logging-format=json"]).unwrap().log_format,
            LogFormat::Json
        );
    }

    #[test]
    fn the_flag_precedes_the_environment() {
        for (flag, environment, expected) in [
            (Some("debug"), Some("trace"), "debug"),
            (None, Some("trace"), "trace"),
            (None, Some("portolan=loud"), "info"),
            (None, Some(""), "info"),
            (None, None, "info"),
        ] {
            let found = filter(flag, environment).to_string();
            assert_eq!(found, expected, "{flag:?} {environment:?}");
        }
    }
}
