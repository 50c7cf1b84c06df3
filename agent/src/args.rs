// SPDX-License-Identifier: Apache-2.0

//! The agent's command line. Every flag has an environment variable, for use in manifests.

mod backend;
mod check;
mod config;
mod config_file;
mod export;
mod kernel;
mod kube_proxy;
mod run;
mod socket;
mod status;
mod tune;
mod userspace;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use portolan_runtime::{DocsCommand, LogArgs};

pub(crate) use backend::full_name;
pub use backend::{BackendArgs, BackendCommand, BackendName, BadBackendName};
pub use check::{BadCheckedName, CheckCommand, CheckRunArgs, CheckedName};
pub use config::{ConfigCommand, ExplainArgs, FilesArgs, ImportArgs, ImportProgram};
pub use config_file::StartError;
pub use export::{ExportArgs, ExportFormat, ExportFrom};
pub use kernel::{DataplaneKind, KernelArgs};
pub use kube_proxy::KubeProxyArgs;
pub use run::{RunArgs, Source};
pub(crate) use run::{node_name, validate_name};
pub use socket::SocketArgs;
pub use status::{StatusArgs, StatusOutput};
pub use tune::TuneArgs;
pub use userspace::{RunCommandArgs, UserspaceArgs, UserspaceListen};

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

impl Cli {
    /// The flags of a run: of the agent itself, or of a command that accepts all of them.
    #[must_use]
    pub fn run_args(&self) -> Option<&RunArgs> {
        match &self.command {
            None => Some(&self.run),
            Some(Command::Run(args)) => Some(&args.run),
            Some(Command::Prepare(args)) => Some(&args.run),
            Some(Command::Plan(args)) => Some(&args.run),
            Some(Command::Apply(args)) => Some(&args.run),
            Some(Command::Export(args)) => Some(&args.run),
            Some(_) => None,
        }
    }

    /// Returns `true` if kube-proxy's verbosity asks for the log level debug.
    #[must_use]
    pub fn is_verbose(&self) -> bool {
        self.run_args()
            .is_some_and(|run| run.kube_proxy.is_verbose())
    }
}

/// Commands other than a run.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command that reaches the Services of files, or of a cluster, by their addresses and names, without any
    /// right on this machine: for development and tests. Without a command, serve them on this machine until
    /// SIGTERM: see --userspace-listen.
    Run(Box<RunCommandArgs>),

    /// Remove from the kernel everything that the agent programmed, and nothing else. Refuses beside a running
    /// agent with the same state directory.
    Cleanup(CleanupArgs),

    /// Load the kernel modules and write the kernel settings that a run with the same flags needs, and
    /// end. The agent can then run without privileges, with the capabilities `CAP_NET_ADMIN` and
    /// `CAP_NET_RAW` and a read-only /proc/sys. Ends with an error that names what a
    /// run cannot do without.
    Prepare(Box<PrepareArgs>),

    /// Compare the kernel with files, and print the steps that would make it equal. Changes nothing.
    /// The exit code is 0 without a step, 2 with some, and 1 after an error.
    Plan(Box<PlanArgs>),

    /// Make the kernel equal to files once, without an agent that goes on running, and end. Refuses
    /// beside a running agent with the same state directory. Removed TCP real servers get weight 0;
    /// those whose connections or drain timeout have ended are deleted, here and by later calls.
    Apply(Box<ApplyArgs>),

    /// Let the running agent read its files at once, and wait until the kernel is programmed. The exit
    /// code is 1 if a file or an object is bad, if deletions are held back, or if something could not be
    /// programmed.
    Reload(ReloadArgs),

    /// Show the load balancers of the running agent: which backends are up, connections, and rates. The
    /// first answer takes two seconds, in which the rates are measured.
    Status(StatusArgs),

    /// Let this director answer for its virtual addresses, or not, or print whether it does: for a `Director`
    /// with `spec.vips.role: Command`. Waits until the kernel is programmed. The exit code is 1 if the agent
    /// refuses, or something could not be programmed.
    Director(DirectorArgs),

    /// Take a backend of a load balancer out of service, or into service again, whatever the file says. The
    /// command outlives restarts of the agent and changes of the file. Waits until the kernel is programmed. The
    /// exit code is 1 if there is no such backend, or something could not be programmed.
    Backend(BackendArgs),

    /// Print the node's table in another program's format: for a look, for a comparison, or for an
    /// emergency without an agent. Changes nothing. What the format cannot express is named on standard
    /// error.
    Export(Box<ExportArgs>),

    /// Print what IPVS has in the kernel, whoever programmed it, as load balancers and the settings of a `Director`, and on
    /// standard error what became of each setting. Changes nothing. The exit code is 0 if all of it has the same
    /// meaning, 2 with warnings, and 1 after an error, and then nothing is printed.
    Import(ImportKernelArgs),

    /// Check, import and explain files of load balancers.
    #[command(subcommand)]
    Config(ConfigCommand),

    /// Run the health checks of load balancers.
    #[command(subcommand)]
    Check(CheckCommand),

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

impl PrepareArgs {
    /// Checks what only concerns `prepare`.
    ///
    /// # Errors
    /// If the dataplane needs no preparation.
    pub fn validate(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.run.kernel.dataplane != DataplaneKind::Userspace,
            "--dataplane userspace needs no preparation"
        );
        Ok(())
    }
}

/// Flags of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Format of the output.
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: PlanOutput,

    /// Flags of a run with `--source file`. All are accepted; those of the table and the kernel count.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Formats of `plan`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanOutput {
    /// A line for each changed object, and a summary.
    Text,
    /// One JSON object with `steps`, `refused` and `problems`.
    Json,
}

/// Flags of `apply`.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// Apply the files once. Required: without it, the agent itself is what keeps applying them.
    #[arg(long, required = true)]
    pub once: bool,

    /// Flags of a run with `--source file`. All are accepted; those of the table and the kernel count.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Flags of `reload`.
#[derive(Debug, Args)]
pub struct ReloadArgs {
    /// The running agent.
    #[command(flatten)]
    pub agent: SocketArgs,
}

/// Flags of `director`.
#[derive(Debug, Args)]
pub struct DirectorArgs {
    /// New role of this host, or `show` for the role that it has.
    pub command: DirectorCommand,

    /// The running agent.
    #[command(flatten)]
    pub agent: SocketArgs,
}

/// Commands of `director`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DirectorCommand {
    /// Answer for the virtual addresses, and announce them.
    Active,
    /// Answer for none of them.
    Standby,
    /// Print the role.
    Show,
}

impl DirectorCommand {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Standby => "standby",
            Self::Show => "show",
        }
    }
}

/// Flags of `import`.
#[derive(Debug, Args)]
pub struct ImportKernelArgs {
    /// Where from. `config import` reads files.
    pub from: ImportFrom,

    /// Name of the `Director` object, if there are settings for one. Default: the host's name.
    #[arg(long, value_name = "NAME")]
    pub director: Option<String>,

    /// Join virtual servers that differ in nothing but their addresses and ports.
    #[arg(long)]
    pub merge: bool,
}

/// Source that `import` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportFrom {
    /// IPVS in this network namespace.
    Kernel,
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
    /// Hand this node over to a kube-proxy that has programmed it. Objects stay until it serves the same, so
    /// that there is no gap. From --dataplane ipvs to one in IPVS mode, which keeps what both share; from
    /// --dataplane nftables to one in any mode.
    #[arg(long)]
    pub hand_over: Option<OtherProxy>,

    /// State directory of the agent. It has what a `Director` has made in the kernel.
    #[arg(long, env = "PORTOLAN_STATE_DIR", default_value = "/var/lib/portolan")]
    pub state_dir: PathBuf,

    /// Flags of the kernel, as the agent ran with them.
    #[command(flatten)]
    pub kernel: KernelArgs,
}

/// The proxy to take over from, or to hand over to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OtherProxy {
    /// A kube-proxy.
    KubeProxy,
}

#[cfg(test)]
mod tests;
