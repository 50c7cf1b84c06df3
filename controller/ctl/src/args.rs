// SPDX-License-Identifier: Apache-2.0

//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use portolan_etcd::EtcdArgs;
use portolan_runtime::{DocsCommand, duration_within};

use crate::agent::{AgentArgs, AgentCommand};
use crate::env::EnvArgs;
use crate::fleet::{ApplyArgs, DeleteArgs, GetArgs};
use crate::health::HealthArgs;
use crate::migrate::Predecessor;
use crate::reply::Output;
use crate::table::TableArgs;
use crate::top::TopArgs;
use crate::trace::TraceArgs;

const HUNDRED_MS: Duration = Duration::from_millis(100);
const DAY: Duration = Duration::from_secs(86_400);

/// Shows the state of controllers and nodes, confirms deletions that are held back, and writes the objects of a
/// fleet to etcd.
///
/// Dumps are served on a controller's loopback address and Unix socket only. Run portolanctl beside the
/// controller, or with --kubeconfig, --context or --namespace, which forward a port to the pods of the
/// controllers. Exit codes: 0; 1 for a difference found by diff or trace, a timeout of wait and a failure of
/// check; 2 for errors; 3 for settings that migrate cannot convert, and backends that are down; 4 for objects that have changed since the
/// version that a write is based on.
#[derive(Debug, Parser)]
#[command(name = "portolanctl", version)]
pub(crate) struct Cli {
    /// The controllers to ask.
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// Output format.
    #[arg(short, long, default_value = "table", global = true)]
    pub(crate) output: Output,

    /// Repeat the command at this interval, and show each change.
    #[arg(short, long, global = true, value_name = "INTERVAL", num_args = 0..=1,
        require_equals = true, default_missing_value = "2s",
        value_parser = duration_within(HUNDRED_MS, DAY))]
    pub(crate) watch: Option<Duration>,

    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Connection to the controllers.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectArgs {
    /// Admin address of a controller as http://HOST:PORT, or its socket as unix:///PATH; may be
    /// repeated. Default: http://127.0.0.1:9444; for confirm without a token
    /// unix:///run/portolan/controller.sock.
    #[arg(
        long,
        env = "PORTOLANCTL_CONTROLLER",
        value_delimiter = ',',
        global = true
    )]
    pub(crate) controller: Vec<String>,

    /// File with the token of the controller or agent (its --debug-token-file), which confirm needs over TCP.
    #[arg(long, env = "PORTOLAN_DEBUG_TOKEN_FILE", global = true)]
    pub(crate) token_file: Option<PathBuf>,

    /// Forward a port to the controllers' pods, with this kubeconfig. Takes precedence over
    /// --controller, as the next two flags do.
    #[arg(long, global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Forward a port to the controllers' pods, with this context of the kubeconfig.
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,

    /// Forward a port to the controllers' pods in this namespace. Default: kube-system. For env, the
    /// namespace of the pods. Default: default.
    #[arg(short, long, global = true)]
    pub(crate) namespace: Option<String>,

    /// The cluster, of a controller that serves several. Not required for a single one.
    #[arg(long, env = "PORTOLANCTL_CLUSTER", value_name = "NAME", global = true)]
    pub(crate) cluster: Option<String>,

    /// Time limit of a request, and of wait as a whole.
    #[arg(long, default_value = "30s", global = true,
        value_parser = duration_within(HUNDRED_MS, DAY))]
    pub(crate) timeout: Duration,
}

/// Arguments of `diff`.
#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// The node.
    #[arg(required_unless_present = "file")]
    pub(crate) node: Option<String>,
    /// The other node.
    pub(crate) other: Option<String>,
    /// A file or directory of objects of a fleet; may be repeated.
    #[arg(
        short,
        long,
        value_name = "PATH",
        value_delimiter = ',',
        conflicts_with = "node"
    )]
    pub(crate) file: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
}

/// Commands about clusters.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ClusterCommand {
    /// List the clusters: whether they are served, their state and the part of their share that they get in
    /// imports, the newest revision, the last contact with the source, and the agents that are connected and have
    /// programmed that revision.
    List,
    /// Have a cluster lose its share in imports, step by step. `spec.drain` of the policy comes first. Without
    /// the controller's --state-dir a restart ends it.
    Drain {
        /// The cluster.
        name: String,
        /// Percentage of its share that it keeps.
        #[arg(long, value_name = "PERCENT", default_value_t = 0,
            value_parser = clap::value_parser!(u8).range(0..=100))]
        to: u8,
        /// The time that this takes.
        #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration_within(Duration::ZERO, DAY))]
        over: Duration,
    },
    /// End the drain of a cluster: its share rises over `spec.loss.rampUp`.
    Undrain {
        /// The cluster.
        name: String,
    },
}

/// Commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show a summary of each controller.
    Status,
    /// List the nodes, with the revisions that they were sent and have programmed.
    Nodes {
        /// Only nodes that have not programmed the newest revision.
        #[arg(long)]
        behind: bool,
    },
    /// Show the health of load balancers' backends, as the checks of each director see it, and where directors
    /// disagree; with -o wide, a line for each director. Exit code 3 if a director that is connected says that a
    /// backend is down, or that a load balancer lacks quorum.
    Health(HealthArgs),
    /// Show the clusters of a controller that serves several.
    Cluster {
        /// The command.
        #[command(subcommand)]
        command: ClusterCommand,
    },
    /// Show the table of a node; with -o iptables, nft or ipvsadm, in the words of that program.
    Table(TableArgs),
    /// Compare the tables of two nodes; of one node, its kernel with its table; with --file, the objects of
    /// files with those of the fleet. Exit code 1 if they differ.
    Diff(DiffArgs),
    /// Write objects of files to the fleet's etcd: all of them, if all are good and none has changed since the
    /// version in its metadata.resourceVersion, else since it was read. Up to 128 objects of 1 MiB
    /// together are one transaction. Exit code 4 if one has changed.
    Apply(ApplyArgs),
    /// Show objects of the fleet's etcd.
    Get(GetArgs),
    /// Delete objects of the fleet's etcd. Exit code 4 if one has changed since it was read.
    Delete(DeleteArgs),
    /// Explain which endpoints a node uses for an address, and why not the others.
    Explain {
        /// `ADDRESS:PORT`, followed by `/tcp`, `/udp` or `/sctp`; TCP by default.
        address: String,
        /// The node.
        #[arg(long)]
        node: String,
    },
    /// Explain an import of the cluster of --cluster: which clusters serve it with which share, and why the
    /// others do not.
    ExplainImport {
        /// The import, as NAMESPACE/NAME.
        name: String,
    },
    /// Explain an export of the cluster of --cluster: its conditions, and who imports it.
    ExplainExport {
        /// The Service, as NAMESPACE/NAME.
        name: String,
    },
    /// Show which imports another policy would change, with the objects and states of now. Nothing is written.
    PlanPolicy {
        /// A file of policy objects; all files together are the whole policy.
        #[arg(required = true, value_name = "FILE")]
        file: Vec<PathBuf>,
    },
    /// List the problems of objects and files.
    Problems,
    /// Show Services of a node by connections and bytes, as IPVS counts them, and nodes by lag, live.
    Top(TopArgs),
    /// Trace the first packet of a connection through the node of an agent on this host: the rules, entries,
    /// virtual server and real servers that the node's table asks for, and beside them those of the kernel.
    /// Exit code 1 if they differ.
    Trace(TraceArgs),
    /// Wait until a Service or a revision is programmed on all nodes: those whose agent has connected
    /// to a controller that is asked. A change of the Service counts from when the controller has
    /// received it. Exit code 1 if --timeout passes first.
    Wait {
        /// A Service as NAMESPACE/NAME, or the number of a revision.
        target: String,
        /// Wait until no node forwards new connections of the Service to this address of an endpoint
        /// either, as IP or IP:PORT: for preStop hooks. Never true while it is the Service's last
        /// endpoint and still serves.
        #[arg(long, value_name = "ADDRESS", value_parser = endpoint_address)]
        without: Option<String>,
        /// Wait for connected agents only.
        #[arg(long)]
        skip_disconnected: bool,
    },
    /// Answer a DNS question.
    Dns {
        /// The name.
        name: String,
        /// The record type.
        #[arg(default_value = "A")]
        r#type: String,
    },
    /// Confirm a table that the agent of a node holds back because it deletes too much; with
    /// --deletions, the deletions that a controller holds back.
    Confirm {
        /// The node.
        #[arg(required_unless_present = "deletions")]
        node: Option<String>,
        /// The deletions that the controller holds back.
        #[arg(long, conflicts_with = "node")]
        deletions: bool,
    },
    /// List the deletions that the controller holds back.
    Deletions,
    /// Check that programs run well: they are ready and their metrics report no errors, refusals, held
    /// deletions or broken credentials. Prints a line for each check. Exit code 1 if one failed. Reads
    /// /readyz and /metrics of --controller and --agent, which also answer to other hosts if
    /// --admin-listen of the program is not on loopback.
    Check {
        /// Admin address of an agent as http://HOST:PORT, or its socket as unix:///PATH; may be
        /// repeated.
        #[arg(long, value_delimiter = ',', value_name = "ADDRESS")]
        agent: Vec<String>,
        /// Address to connect to by TCP, as HOST:PORT; may be repeated. With it or --agent, no
        /// controller is asked unless one is named.
        #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
        connect: Vec<String>,
    },
    /// Print the environment variables that a kubelet gives the pods of --namespace for Services, as
    /// NAME=VALUE lines (-o env), or as an object (-o json). No controller is asked.
    Env(EnvArgs),
    /// Convert the configuration of a predecessor.
    Migrate {
        /// The predecessor.
        #[command(subcommand)]
        predecessor: Predecessor,
    },
    /// Ask the agent on this node.
    Agent(AgentArgs),
    /// Show the versions of portolanctl and of the controllers.
    Version {
        /// Only portolanctl's version.
        #[arg(long)]
        client: bool,
    },
    /// Shell completions and manual pages.
    #[command(flatten)]
    Docs(DocsCommand),
}

impl Command {
    /// Returns `true` if it changes the state of a controller.
    pub(crate) fn is_action(&self) -> bool {
        match self {
            Self::Agent(args) => args.command == AgentCommand::Confirm,
            Self::Cluster { command } => !matches!(command, ClusterCommand::List),
            _ => matches!(self, Self::Confirm { .. }),
        }
    }

    /// Returns `true` if repeating it makes sense.
    pub(crate) fn can_be_watched(&self) -> bool {
        !self.is_action()
            && !matches!(
                self,
                Self::Wait { .. }
                    | Self::Migrate { .. }
                    | Self::Apply(_)
                    | Self::Delete(_)
                    | Self::Docs(_)
            )
    }
}

/// A text that is no address of endpoints.
#[derive(Debug, thiserror::Error)]
#[error("expected IP or IP:PORT")]
struct EndpointAddressError;

fn endpoint_address(text: &str) -> Result<String, EndpointAddressError> {
    let is_good = text.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok();
    is_good.then(|| text.to_owned()).ok_or(EndpointAddressError)
}

#[cfg(test)]
mod tests;
