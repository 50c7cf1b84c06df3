// SPDX-License-Identifier: Apache-2.0

//! The agent's command line. Every flag has an environment variable, for use in manifests.

mod config_file;
mod kernel;
mod kube_proxy;
mod run;
mod tune;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use portolan_runtime::{DocsCommand, LogArgs};

pub use config_file::StartError;
pub use kernel::KernelArgs;
pub use kube_proxy::KubeProxyArgs;
pub use run::{RunArgs, Source};
pub use tune::TuneArgs;

/// Keeps a node's kernel equal to the node's service table.
#[derive(Debug, Parser)]
#[command(
    name = "portolan-agent",
    version,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    /// The command; without one, the agent runs.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Flags of a run.
    #[command(flatten)]
    pub run: RunArgs,

    /// Flags of logging.
    #[command(flatten)]
    pub logs: LogArgs,
}

/// Commands other than a run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Remove from the kernel everything that the agent programmed, and nothing else.
    Cleanup(CleanupArgs),

    /// Load the kernel modules and write the kernel settings that a run with the same flags needs, and
    /// end. The agent can then run without privileges, with the capabilities `CAP_NET_ADMIN` and
    /// `CAP_NET_RAW` and a read-only /proc/sys. Ends with an error that names what a
    /// run cannot do without.
    Prepare(Box<PrepareArgs>),

    /// Forget the cluster of this node. The next controller that the agent reaches determines it
    /// anew. A running agent notices.
    Forget(ForgetArgs),

    /// Shell completions and manual pages.
    #[command(flatten)]
    Docs(DocsCommand),
}

/// Flags of `prepare`.
#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// Load no module and write no setting: list what is missing. The exit code is 1 if anything is.
    /// Probes still create and delete objects of their own, and the kernel may load modules for them.
    #[arg(long)]
    pub check: bool,

    /// Flags of a run. All are accepted; those of the kernel count.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Flags of `forget`.
#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// State directory of the agent.
    #[arg(long, env = "PORTOLAN_STATE_DIR", default_value = "/var/lib/portolan")]
    pub state_dir: PathBuf,
}

/// Flags of `cleanup`.
#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// Keep everything that is shared with a kube-proxy in IPVS mode which has programmed this node
    /// already, and remove the rest: the way back without a gap.
    #[arg(long)]
    pub hand_over: Option<OtherProxy>,

    /// Flags of the kernel, as the agent ran with them.
    #[command(flatten)]
    pub kernel: KernelArgs,
}

/// The proxy to take over from, or to hand over to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OtherProxy {
    /// A kube-proxy in IPVS mode.
    KubeProxy,
}

#[cfg(test)]
mod tests;
