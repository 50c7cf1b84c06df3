//! The command line. Every flag has a twin in the environment, for the chart.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use portolan_runtime::LogFormat;
use portolan_select::{SelectConfig, SourceRanges};

/// Computes the service table of each node and streams it to the agents.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Args {
    /// Where Services, EndpointSlices and Nodes come from.
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

    /// What `spec.loadBalancerSourceRanges` of a Service hold for. `all`: load-balancer IPs; node
    /// ports and external IPs too if all ingress points of the load balancer are IPs that nodes
    /// answer for themselves. `load-balancer`: load-balancer IPs only, as kube-proxy does.
    #[arg(long, env = "PORTOLAN_SOURCE_RANGES", default_value = "all")]
    source_ranges: SourceRanges,

    /// Watch the metadata of all Pods for the annotation portolan.dev/weight. Needs permission to
    /// list and watch Pods, and costs the API server about as much as all else together. Pods in
    /// files are always read.
    #[arg(long, env = "PORTOLAN_POD_WEIGHTS")]
    pub(crate) pod_weights: bool,

    /// Where agents connect.
    #[arg(long, env = "PORTOLAN_LISTEN", default_value = "[::]:9443")]
    pub(crate) listen: SocketAddr,

    /// Serve agents without TLS. Anybody who reaches the port can read the tables; TLS is not
    /// built yet, so this must be said.
    #[arg(long, env = "PORTOLAN_PLAINTEXT", required = true, action = clap::ArgAction::SetTrue)]
    pub(crate) plaintext: bool,

    /// Where /livez, /readyz and /metrics are served; /debug answers on loopback only.
    #[arg(long, env = "PORTOLAN_ADMIN_LISTEN", default_value = "[::]:9444")]
    pub(crate) admin_listen: SocketAddr,

    /// Write the ports that were bound, as `agents=PORT admin=PORT`, to this file.
    #[arg(long, env = "PORTOLAN_PORT_FILE")]
    pub(crate) port_file: Option<PathBuf>,

    /// How log lines look; RUST_LOG chooses what is logged.
    #[arg(long, env = "PORTOLAN_LOG_FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

impl Args {
    pub(crate) fn file_poll(&self) -> Duration {
        Duration::from_millis(self.file_poll_ms)
    }

    pub(crate) fn select(&self) -> SelectConfig {
        SelectConfig {
            source_ranges: self.source_ranges,
        }
    }
}

/// Where objects come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// A Kubernetes API server.
    Kubernetes,
    /// Files.
    File,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_must_be_said() {
        assert!(Args::try_parse_from(["portolan-controller"]).is_err());
        assert!(Args::try_parse_from(["portolan-controller", "--plaintext"]).is_ok());
    }

    #[test]
    fn the_file_source_needs_a_file() {
        let args = ["portolan-controller", "--plaintext", "--source", "file"];
        assert!(Args::try_parse_from(args).is_err());
        assert!(Args::try_parse_from(args.into_iter().chain(["--file", "a.yaml"])).is_ok());
    }

    #[test]
    fn source_ranges_hold_for_all_unless_said_otherwise() {
        let args = ["portolan-controller", "--plaintext"];
        let parsed = Args::try_parse_from(args).unwrap();
        assert_eq!(parsed.select(), SelectConfig::default());
        assert!(!parsed.pod_weights);
        let more = ["--source-ranges", "load-balancer", "--pod-weights"];
        let parsed = Args::try_parse_from(args.into_iter().chain(more)).unwrap();
        let ranges = parsed.select().source_ranges;
        assert_eq!(ranges, SourceRanges::LoadBalancer);
        assert!(parsed.pod_weights);
    }
}
