// SPDX-License-Identifier: Apache-2.0

//! The controller's command line. Every flag has an environment variable, for use in manifests.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand, ValueEnum};
use portolan_etcd::EtcdArgs;
use portolan_runtime::{
    DebugArgs, DocsCommand, LogArgs, duration_within, milliseconds_within, parse_duration,
};
use portolan_select::{SelectConfig, SourceRanges};
use portolan_source::objects::ProxyName;
use portolan_telemetry::OtlpArgs;

use crate::authority::SelfManagedArgs;
use crate::certs::CertsArgs;
use crate::clusters::ClustersArgs;
use crate::deletions::SourceGuardArgs;
use crate::dns::DnsArgs;
use crate::edges::EdgeArgs;
use crate::identity::IdentityArgs;
use crate::publish::PublishArgs;
use crate::relay::UpstreamArgs;
use crate::reviews::ReviewArgs;
use crate::streams::StreamArgs;

/// Bounds of the poll period of files.
const FILE_POLL: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(3_600)];

/// Headings of `--help`.
const SOURCE: &str = "Source";
const TABLES: &str = "Tables";
const AGENTS: &str = "Agents";
const ADMIN: &str = "Administration";

/// Computes the service table of each node and streams it to the agents.
#[derive(Debug, Parser)]
#[command(
    name = "portolan-controller",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Cli {
    /// The command; without one, the controller runs.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Flags of a run.
    #[command(flatten)]
    pub(crate) run: Args,

    /// Flags of logging.
    #[command(flatten)]
    pub(crate) logs: LogArgs,
}

/// Commands other than a run.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a certificate authority and certificates for a trial.
    Certs(CertsArgs),

    /// Print the definitions of the policy's resources (CRDs) as YAML, for `--policy-kubernetes`.
    Crds,

    /// Shell completions and manual pages.
    #[command(flatten)]
    Docs(DocsCommand),
}

/// Flags of a run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Source of Services, EndpointSlices, Nodes and LoadBalancers; with `controller`, of complete tables.
    #[arg(long, env = "PORTOLAN_SOURCE", default_value = "kubernetes", help_heading = SOURCE)]
    pub(crate) source: Source,

    /// A file or directory of Kubernetes objects (YAML or JSON), for `--source file`; may be
    /// repeated.
    #[arg(
        long,
        env = "PORTOLAN_FILE",
        value_delimiter = ',',
        required_if_eq("source", "file"),
        help_heading = SOURCE
    )]
    pub(crate) file: Vec<PathBuf>,

    /// Poll period of files.
    #[arg(long, env = "PORTOLAN_FILE_POLL", default_value = "1s", help_heading = SOURCE,
        value_parser = duration_within(FILE_POLL[0], FILE_POLL[1]))]
    file_poll: Duration,

    /// Former name of --file-poll, in milliseconds.
    #[arg(long, env = "PORTOLAN_FILE_POLL_MS", hide = true, conflicts_with = "file_poll",
        value_parser = milliseconds_within(FILE_POLL[0], FILE_POLL[1]))]
    file_poll_ms: Option<Duration>,

    /// Kubeconfig for `--source kubernetes`. Default: `KUBECONFIG`, else the pod's ServiceAccount.
    #[arg(long, env = "PORTOLAN_KUBECONFIG", help_heading = SOURCE)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig.
    #[arg(long, env = "PORTOLAN_CONTEXT", help_heading = SOURCE)]
    pub(crate) context: Option<String>,

    /// Serve the Services whose label service.kubernetes.io/service-proxy-name is NAME, and no
    /// others. Default: the Services without the label.
    #[arg(long, env = "PORTOLAN_SERVICE_PROXY_NAME", value_name = "NAME", help_heading = SOURCE)]
    pub(crate) service_proxy_name: Option<ProxyName>,

    /// Watch the metadata of all Pods for the annotation portolan.dev/weight. Needs permission to
    /// list and watch Pods, and costs the API server about as much as all other watches together.
    /// Pods in files are always read.
    #[arg(long, env = "PORTOLAN_POD_WEIGHTS", help_heading = SOURCE)]
    pub(crate) pod_weights: bool,

    /// Name of the cluster, equal to the agents'; empty for a single cluster.
    #[arg(long, env = "PORTOLAN_CLUSTER", default_value = "", help_heading = TABLES)]
    pub(crate) cluster: String,

    /// Identity of the cluster: agents whose node belongs to another one refuse the table. Default:
    /// with `--source kubernetes` the UID of the namespace kube-system, which needs permission to
    /// `get` it; with `--source file` and `--source etcd` none, so that every agent accepts the table; on a relay the
    /// identity of the controller behind it.
    #[arg(long, env = "PORTOLAN_CLUSTER_ID", value_parser = cluster_id, help_heading = TABLES)]
    pub(crate) cluster_id: Option<String>,

    /// Addresses that `spec.loadBalancerSourceRanges` of a Service applies to. `load-balancer`: only
    /// load-balancer IPs, as in kube-proxy. `all`: node ports and external IPs too, unless an ingress
    /// point of the load balancer is a host name or has the `ipMode` `Proxy`. A load balancer that
    /// proxies and sets no `ipMode` is cut off by `all`.
    #[arg(long, env = "PORTOLAN_SOURCE_RANGES", default_value = "load-balancer",
        help_heading = TABLES)]
    source_ranges: SourceRanges,

    /// Period of audits, which compute all tables from scratch, a part at a time, and compare them
    /// with the tables in force; 0 for none. Differences are logged, counted and repaired.
    #[arg(long, env = "PORTOLAN_AUDIT_PERIOD", default_value = "1m",
        value_parser = parse_duration, help_heading = TABLES)]
    audit_period: Duration,

    /// Former name of --audit-period.
    #[arg(long, env = "PORTOLAN_ORACLE_PERIOD", hide = true, conflicts_with = "audit_period",
        value_parser = parse_duration)]
    oracle_period: Option<Duration>,

    /// Address for agents.
    #[arg(long, env = "PORTOLAN_LISTEN", default_value = "[::]:9443", help_heading = AGENTS)]
    pub(crate) listen: SocketAddr,

    /// Serve agents without TLS, which disables authentication: every client that reaches the port
    /// can read the tables and act as the agent of any node.
    #[arg(long, env = "PORTOLAN_PLAINTEXT", help_heading = AGENTS)]
    pub(crate) plaintext: bool,

    /// Serve agents whose node has no Node object. Default: true with `--source file`,
    /// `--source clusters` and `--source etcd`, false with `--source kubernetes`, where such a node was deleted or never existed. Relays have no Nodes
    /// to check.
    #[arg(long, env = "PORTOLAN_ALLOW_UNKNOWN_NODES", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = AGENTS)]
    allow_unknown_nodes: Option<bool>,

    /// Address of /livez, /readyz and /metrics, and of dumps below /debug, which answer on loopback
    /// only.
    #[arg(long, alias = "metrics-bind-address", env = "PORTOLAN_ADMIN_LISTEN",
        default_value = "127.0.0.1:9444", help_heading = ADMIN)]
    pub(crate) admin_listen: SocketAddr,

    /// Check the flags and the files that they name, print what is wrong, and end: exit code 0, or 2
    /// with problems. No port is bound and nothing is connected.
    #[arg(long, env = "PORTOLAN_CHECK_CONFIG", help_heading = ADMIN)]
    pub(crate) check_config: bool,

    /// File that receives the bound ports, as `agents=PORT admin=PORT`.
    #[arg(long, env = "PORTOLAN_PORT_FILE", help_heading = ADMIN)]
    pub(crate) port_file: Option<PathBuf>,

    /// Write Kubernetes Events about problems with objects and about held deletions, with
    /// --source kubernetes. Stops without the permission to create events.events.k8s.io.
    #[arg(long, env = "PORTOLAN_EVENTS", value_name = "BOOL", default_value_t = true,
        action = clap::ArgAction::Set, help_heading = SOURCE)]
    pub(crate) events: bool,

    /// Flags of several clusters.
    #[command(flatten)]
    pub(crate) clusters: ClustersArgs,

    /// Flags of an edge controller.
    #[command(flatten, next_help_heading = "Edge controller")]
    pub(crate) edge: EdgeArgs,

    /// Flags of the debug socket.
    #[command(flatten)]
    pub(crate) debug: DebugArgs,

    /// Flags of streams.
    #[command(flatten)]
    pub(crate) streams: StreamArgs,

    /// Where spans go.
    #[command(flatten)]
    pub(crate) otlp: OtlpArgs,

    /// Flags of authentication.
    #[command(flatten)]
    pub(crate) identity: IdentityArgs,

    /// Flags of the controller's own authority.
    #[command(flatten)]
    pub(crate) self_managed: SelfManagedArgs,

    /// Flags of the publication for agents.
    #[command(flatten)]
    pub(crate) publish: PublishArgs,

    /// Flags of token reviews.
    #[command(flatten)]
    pub(crate) review: ReviewArgs,

    /// Flags of the deletion guard.
    #[command(flatten)]
    pub(crate) guard: SourceGuardArgs,

    /// Flags of etcd.
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,

    /// Flags of DNS.
    #[command(flatten, next_help_heading = "DNS")]
    pub(crate) dns: DnsArgs,

    /// Flags of a relay.
    #[command(flatten, next_help_heading = "Relay")]
    pub(crate) upstream: UpstreamArgs,
}

impl Args {
    /// The cluster of the source; `None` for several.
    pub(crate) fn cluster(&self) -> Option<Arc<str>> {
        (self.source != Source::Clusters).then(|| self.cluster.as_str().into())
    }

    pub(crate) fn source_timeout(&self) -> Option<Duration> {
        let poll = (self.source == Source::File).then(|| self.file_poll());
        self.guard.source_timeout(poll)
    }

    pub(crate) fn file_poll(&self) -> Duration {
        self.file_poll_ms.unwrap_or(self.file_poll)
    }

    /// The period of audits; `None` for none.
    pub(crate) fn audit_period(&self) -> Option<Duration> {
        let period = self.oracle_period.unwrap_or(self.audit_period);
        (!period.is_zero()).then_some(period)
    }

    /// Returns `true` if agents of nodes without a Node object are refused.
    pub(crate) fn refuses_unknown_nodes(&self) -> bool {
        let allowed = self.allow_unknown_nodes;
        !allowed.unwrap_or(matches!(
            self.source,
            Source::File | Source::Etcd | Source::Clusters
        ))
    }

    /// Checks the flags of TLS, identity and publication without reading files.
    pub(crate) fn validate_identity(&self) -> anyhow::Result<()> {
        let managed = &self.self_managed;
        self.identity.validate(self.plaintext, managed.is_on())?;
        if managed.is_on() {
            managed.names(self.publish.publish_service.as_ref())?;
        }
        ensure!(
            !self.identity.cluster_tokens || self.source == Source::Clusters,
            "--cluster-tokens needs --source clusters"
        );
        for (flag, is_set) in [
            ("--tls-self-managed", managed.is_on()),
            ("--publish", self.publish.publish.is_some()),
        ] {
            ensure!(
                !is_set || self.source == Source::Kubernetes,
                "{flag} needs --source kubernetes"
            );
        }
        ensure!(
            self.source == Source::Kubernetes || !self.identity.lacks_keys(),
            "--token-issuer without --source kubernetes needs --token-jwks-file"
        );
        Ok(())
    }

    /// Reads the files of certificate authorities that are read later in a run.
    pub(crate) fn check_authorities(&self) -> anyhow::Result<()> {
        let managed = self.self_managed.is_on();
        let client_ca = managed.then(|| self.identity.client_ca()).flatten();
        for path in [&client_ca, &self.publish.publish_ca].into_iter().flatten() {
            let file = portolan_tls::read(path)?;
            let text = String::from_utf8_lossy(&file.content);
            portolan_tls::read_pem(&text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    pub(crate) fn select(&self) -> SelectConfig {
        SelectConfig {
            source_ranges: self.source_ranges,
        }
    }
}

/// An identity that agents would not accept.
#[derive(Debug, thiserror::Error)]
#[error("expected 1 to 253 visible ASCII characters")]
struct ClusterIdError;

/// Accepts identities that fit into a header, and have at most the length of a Kubernetes name.
fn cluster_id(text: &str) -> Result<String, ClusterIdError> {
    let is_good =
        (1..=253).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_good.then(|| text.to_owned()).ok_or(ClusterIdError)
}

/// Sources of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// A Kubernetes API server.
    Kubernetes,
    /// Files.
    File,
    /// Several clusters, each with a source of its own.
    Clusters,
    /// An etcd with the objects of a fleet of directors.
    Etcd,
    /// Another controller; this one is a relay.
    Controller,
}

#[cfg(test)]
mod tests;
