//! The command line. Every flag has a twin in the environment, for the chart.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use portolan_runtime::{DebugArgs, LogFormat};
use portolan_select::{SelectConfig, SourceRanges};

use crate::certs::CertsArgs;
use crate::deletions::GuardArgs;
use crate::dns::DnsArgs;
use crate::identity::IdentityArgs;
use crate::relay::UpstreamArgs;
use crate::reviews::ReviewArgs;
use crate::streams::StreamArgs;

/// Computes the service table of each node and streams it to the agents.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Cli {
    /// What to do; without a command, the controller runs.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// How to run.
    #[command(flatten)]
    pub(crate) run: Args,
}

/// Anything but running.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make an authority and certificates of it, for trying it out.
    Certs(CertsArgs),
}

/// How the controller runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where Services, EndpointSlices and Nodes come from; or, with `controller`, the tables.
    #[arg(long, env = "PORTOLAN_SOURCE", default_value = "kubernetes")]
    pub(crate) source: Source,

    /// A file or directory of Kubernetes objects (YAML or JSON), for `--source file`; may be
    /// repeated.
    #[arg(
        long,
        env = "PORTOLAN_FILE",
        value_delimiter = ',',
        required_if_eq("source", "file")
    )]
    pub(crate) file: Vec<PathBuf>,

    /// How often files are looked at, in milliseconds.
    #[arg(long, env = "PORTOLAN_FILE_POLL_MS", default_value = "1000",
        value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    file_poll_ms: u64,

    /// A kubeconfig for `--source kubernetes`; else `KUBECONFIG`, else the pod's ServiceAccount.
    #[arg(long, env = "PORTOLAN_KUBECONFIG")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig.
    #[arg(long, env = "PORTOLAN_CONTEXT")]
    pub(crate) context: Option<String>,

    /// The cluster's name; agents must say the same. Empty for a single cluster.
    #[arg(long, env = "PORTOLAN_CLUSTER", default_value = "")]
    pub(crate) cluster: String,

    /// The cluster's identity: an agent whose node belongs to another one takes no table. Default:
    /// with `--source kubernetes` the UID of the namespace kube-system, which needs permission to
    /// `get` it; with `--source file` none, so that every agent takes the table; a relay has that
    /// of the controller behind it.
    #[arg(long, env = "PORTOLAN_CLUSTER_ID", value_parser = cluster_id)]
    pub(crate) cluster_id: Option<String>,

    /// Serve agents whose node has no Node object. Default: with `--source file`, as files may well
    /// have no Nodes; not with `--source kubernetes`, where a node without one was deleted, or never
    /// was. A relay has no Nodes to look at.
    #[arg(long, env = "PORTOLAN_ALLOW_UNKNOWN_NODES", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    allow_unknown_nodes: Option<bool>,

    /// What `spec.loadBalancerSourceRanges` of a Service hold for. `load-balancer`: load-balancer
    /// IPs only, as kube-proxy does. `all`: node ports and external IPs too, unless an ingress point
    /// of the load balancer is a host name or has the `ipMode` `Proxy`. A balancer that proxies and
    /// sets no `ipMode` is cut off by `all`.
    #[arg(long, env = "PORTOLAN_SOURCE_RANGES", default_value = "load-balancer")]
    source_ranges: SourceRanges,

    /// Watch the metadata of all Pods for the annotation portolan.dev/weight. Needs permission to
    /// list and watch Pods, and costs the API server about as much as all else together. Pods in
    /// files are always read.
    #[arg(long, env = "PORTOLAN_POD_WEIGHTS")]
    pub(crate) pod_weights: bool,

    /// How often all tables are computed from scratch, part by part, and compared with those that
    /// are kept up to date change by change, in seconds; 0 for never. A difference is logged,
    /// counted and repaired.
    #[arg(long, env = "PORTOLAN_ORACLE_PERIOD", default_value = "60")]
    oracle_period: u64,

    /// Where agents connect.
    #[arg(long, env = "PORTOLAN_LISTEN", default_value = "[::]:9443")]
    pub(crate) listen: SocketAddr,

    /// Serve agents without TLS. Anybody who reaches the port can read the tables, and is believed
    /// to be the agent of any node.
    #[arg(long, env = "PORTOLAN_PLAINTEXT")]
    pub(crate) plaintext: bool,

    /// Where /livez, /readyz and /metrics are served; below /debug dumps, on loopback only.
    #[arg(long, env = "PORTOLAN_ADMIN_LISTEN", default_value = "[::]:9444")]
    pub(crate) admin_listen: SocketAddr,

    /// Where /debug is served too, and who may do what there.
    #[command(flatten)]
    pub(crate) debug: DebugArgs,

    /// Write the ports that were bound, as `agents=PORT admin=PORT`, to this file.
    #[arg(long, env = "PORTOLAN_PORT_FILE")]
    pub(crate) port_file: Option<PathBuf>,

    /// How log lines look; RUST_LOG chooses what is logged.
    #[arg(long, env = "PORTOLAN_LOG_FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Who is let in.
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,

    /// Whether the API server is asked about them.
    #[command(flatten)]
    pub(crate) review: ReviewArgs,

    /// Deletion guard.
    #[command(flatten)]
    pub(crate) guard: GuardArgs,

    /// Write Kubernetes Events about problems with objects and about held deletions, with
    /// --source kubernetes. Stops without the permission to create events.events.k8s.io.
    #[arg(long, env = "PORTOLAN_EVENTS", value_name = "BOOL", default_value_t = true,
        action = clap::ArgAction::Set)]
    pub(crate) events: bool,

    /// Names for CoreDNS.
    #[command(flatten)]
    pub(crate) dns: DnsArgs,
    /// How agents are served.
    #[command(flatten)]
    pub(crate) streams: StreamArgs,

    /// Where a relay's tables come from.
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
}

impl Args {
    pub(crate) fn source_timeout(&self) -> Duration {
        let poll = (self.source == Source::File).then(|| self.file_poll());
        self.guard.source_timeout(poll)
    }

    pub(crate) fn file_poll(&self) -> Duration {
        Duration::from_millis(self.file_poll_ms)
    }

    pub(crate) fn audit_pause(&self) -> Option<Duration> {
        (self.oracle_period > 0).then(|| Duration::from_secs(self.oracle_period))
    }

    /// Whether agents of nodes without a Node object are refused.
    pub(crate) fn refuses_unknown_nodes(&self) -> bool {
        let allowed = self.allow_unknown_nodes;
        !allowed.unwrap_or(self.source == Source::File)
    }

    pub(crate) fn select(&self) -> SelectConfig {
        SelectConfig {
            source_ranges: self.source_ranges,
        }
    }
}

/// An identity can be said in a header, and is as long as a name at most.
fn cluster_id(text: &str) -> Result<String, String> {
    let is_good =
        (1..=253).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_good
        .then(|| text.to_owned())
        .ok_or_else(|| "expected 1 to 253 visible ASCII characters".to_owned())
}

/// Where objects come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// A Kubernetes API server.
    Kubernetes,
    /// Files.
    File,
    /// Another controller: this one is a relay.
    Controller,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, clap::Error> {
        let args = [&["portolan-controller"], args].concat();
        Cli::try_parse_from(args).map(|cli| cli.run)
    }

    #[test]
    fn plaintext_must_be_said() {
        let refused = |args: &[&str]| {
            let args = parse(args).unwrap();
            args.identity.validate(args.plaintext).is_err()
        };
        assert!(refused(&[]));
        assert!(!refused(&["--plaintext"]));
        assert!(!refused(&["--tls-dir", "/nowhere"]));
        assert!(refused(&["--tls-dir", "/nowhere", "--plaintext"]));
    }

    #[test]
    fn the_file_source_needs_a_file() {
        assert!(parse(&["--source", "file"]).is_err());
        assert!(parse(&["--source", "file", "--file", "a.yaml"]).is_ok());
    }

    #[test]
    fn a_relay_needs_a_controller() {
        assert!(parse(&["--source", "controller"]).is_err());
        let args = ["--source=controller", "--upstream=a:1,b:2"];
        let parsed = parse(&args).unwrap();
        assert_eq!(parsed.upstream.upstreams().unwrap().len(), 2);
        assert!(parsed.upstream.validate().is_err(), "without TLS");
        assert!(parse(&[]).is_ok());
    }

    #[test]
    fn streams_are_served_as_the_library_does_unless_said_otherwise() {
        let shown = |args: &[&str]| format!("{:?}", parse(args).unwrap().streams.config());
        let default = format!("{:?}", portolan_serve::ServeConfig::default());
        assert_eq!(shown(&[]), default);
        for flag in [
            "--snapshots=3",
            "--stall-timeout=3",
            "--buckets-timeout=3",
            "--catch-up-timeout=3",
        ] {
            assert_ne!(shown(&[flag]), default, "{flag}");
        }
    }

    #[test]
    fn unknown_nodes_are_refused_where_there_are_nodes() {
        let refuses = |args: &[&str]| parse(args).unwrap().refuses_unknown_nodes();
        let file = ["--source=file", "--file=a"];
        assert!(refuses(&[]));
        assert!(!refuses(&["--allow-unknown-nodes"]));
        assert!(!refuses(&file));
        assert!(refuses(
            &[&file[..], &["--allow-unknown-nodes=false"]].concat()
        ));
        for bad in ["", "a b", "ä"] {
            assert!(parse(&["--cluster-id", bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn certificates_are_made_without_the_flags_to_run() {
        let args = ["portolan-controller", "certs", "--dir", "d", "--node", "a"];
        let cli = Cli::try_parse_from(args).unwrap();
        assert!(matches!(cli.command, Some(Command::Certs(_))));
    }

    #[test]
    fn source_ranges_hold_for_load_balancer_ips_unless_said_otherwise() {
        let parsed = parse(&["--plaintext"]).unwrap();
        assert_eq!(parsed.select(), SelectConfig::default());
        let ranges = parsed.select().source_ranges;
        assert_eq!(ranges, SourceRanges::LoadBalancer);
        assert!(!parsed.pod_weights);
        let more = ["--plaintext", "--source-ranges=all", "--pod-weights"];
        let parsed = parse(&more).unwrap();
        assert_eq!(parsed.select().source_ranges, SourceRanges::All);
        assert!(parsed.pod_weights);
    }
}
