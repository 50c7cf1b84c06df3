//! Logs go to standard error; `RUST_LOG` chooses what (default `info`).

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// Starts logging. A second call has no effect.
    pub fn init(self) {
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        // Fails only if logging has been started already.
        let _ = match self {
            Self::Text => builder.with_target(false).try_init(),
            Self::Json => builder.json().try_init(),
        };
    }
}
