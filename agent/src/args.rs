//! The command line. Every flag has a twin in the environment, for the chart.

mod kernel;
mod run;
mod tune;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use portolan_runtime::LogFormat;

pub use kernel::KernelArgs;
pub use run::{RunArgs, Source};
pub use tune::TuneArgs;

/// Keeps a node's kernel equal to its service table.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; without a command, the agent runs.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// How to run.
    #[command(flatten)]
    pub run: RunArgs,

    /// How log lines look; RUST_LOG chooses what is logged.
    #[arg(
        long,
        env = "PORTOLAN_LOG_FORMAT",
        default_value = "text",
        global = true
    )]
    pub log_format: LogFormat,
}

/// Anything but running.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take away from the kernel all that the agent put there, and nothing else.
    Cleanup(CleanupArgs),

    /// Forget to which cluster this node belongs: the next controller that the agent reaches says
    /// which one it is. A running agent notices.
    Forget(ForgetArgs),
}

/// What to forget.
#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// The directory of the agent that is to forget.
    #[arg(long, env = "PORTOLAN_STATE_DIR", default_value = "/var/lib/portolan")]
    pub state_dir: PathBuf,
}

/// How to clean up.
#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// Leave what is shared with a kube-proxy in IPVS mode that has programmed this node by now,
    /// and take away the rest: the way back, without a gap.
    #[arg(long)]
    pub hand_over: Option<OtherProxy>,

    /// How the kernel was programmed.
    #[command(flatten)]
    pub kernel: KernelArgs,
}

/// Whom to take over from, or to hand over to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OtherProxy {
    /// A kube-proxy in IPVS mode.
    KubeProxy,
}

#[cfg(test)]
mod tests;
