// SPDX-License-Identifier: Apache-2.0

//! Command-line flags of DNS.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use portolan_dns::{Bind, DnsServerArgs, MAX_TTL, PodMode, ServiceKey, ZoneConfig};
use portolan_runtime::duration_within;

use super::etcd::ExportArgs;
use crate::args::Source;

/// Flags of zones, records and exports.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct DnsArgs {
    /// A zone with the cluster's names, such as cluster.local; may be repeated, PTR records point
    /// into the first one. Without it there is no DNS. Needs permission to list and watch
    /// Namespaces.
    #[arg(long = "dns-zone", env = "PORTOLAN_DNS_ZONE", value_delimiter = ',')]
    zones: Vec<String>,

    /// A zone with the names of imported Services, such as clusterset.local, with --source clusters; may be repeated.
    /// Each cluster has its own: its agents get it (--dns-bind-address of the agent); zone files are in a directory
    /// with the cluster's name below --dns-zone-dir, and keys of etcd below --dns-etcd-prefix, a hyphen and that name.
    #[arg(
        long = "dns-clusterset-zone",
        env = "PORTOLAN_DNS_CLUSTERSET_ZONE",
        value_delimiter = ','
    )]
    clusterset_zones: Vec<String>,

    /// An address for CoreDNS's grpc plugin that answers with the imports of one cluster, as CLUSTER=ADDRESS:PORT or
    /// CLUSTER=unix:///PATH; may be repeated.
    #[arg(
        long = "dns-clusterset-listen",
        env = "PORTOLAN_DNS_CLUSTERSET_LISTEN",
        value_delimiter = ',',
        value_parser = listener
    )]
    clusterset_listen: Vec<(String, Bind)>,

    /// The networks that PTR records are served for; may be repeated. Default: all.
    #[arg(
        long = "dns-network",
        env = "PORTOLAN_DNS_NETWORK",
        value_delimiter = ','
    )]
    networks: Vec<ipnet::IpNet>,

    /// TTL of records, in whole seconds.
    #[arg(long = "dns-ttl", env = "PORTOLAN_DNS_TTL", default_value = "5s",
        value_parser = duration_within(Duration::ZERO, Duration::from_secs(MAX_TTL as u64)))]
    ttl: Duration,

    /// The Pods that have names (a-b-c-d.NAMESPACE.pod.ZONE). `verified` needs permission to list and
    /// watch Pods.
    #[arg(
        long = "dns-pods",
        env = "PORTOLAN_DNS_PODS",
        default_value = "disabled"
    )]
    pods: Pods,

    /// Name endpoints without a hostname after their Pod instead of their address.
    #[arg(
        long = "dns-endpoint-pod-names",
        env = "PORTOLAN_DNS_ENDPOINT_POD_NAMES"
    )]
    endpoint_pod_names: bool,

    /// Give headless Services names for their endpoints in one topology zone.
    #[arg(long = "dns-zonal", env = "PORTOLAN_DNS_ZONAL")]
    zonal: bool,

    /// Services with cluster IPs but without a ready endpoint have no name (CoreDNS: `ignore
    /// empty_service`).
    #[arg(
        long = "dns-ignore-empty-service",
        env = "PORTOLAN_DNS_IGNORE_EMPTY_SERVICE"
    )]
    ignore_empty: bool,

    /// A Namespace that has names; may be repeated. Default: all.
    #[arg(
        long = "dns-namespace",
        env = "PORTOLAN_DNS_NAMESPACE",
        value_delimiter = ','
    )]
    namespaces: Vec<String>,

    /// Endpoints have no names, and so headless Services have none (CoreDNS: `noendpoints`).
    #[arg(
        long = "dns-no-endpoints",
        env = "PORTOLAN_DNS_NO_ENDPOINTS",
        conflicts_with_all = ["zonal", "ignore_empty"]
    )]
    no_endpoints: bool,

    /// The Service of the name servers, as namespace/name, which NS records point to.
    #[arg(long = "dns-name-server", env = "PORTOLAN_DNS_NAME_SERVER", value_parser = name_server)]
    name_server: Option<ServiceKey>,

    #[command(flatten)]
    pub(super) server: DnsServerArgs,

    /// A directory for zone files, one of each zone, as CoreDNS's file and auto plugins read them.
    #[arg(long = "dns-zone-dir", env = "PORTOLAN_DNS_ZONE_DIR")]
    zone_dir: Option<PathBuf>,

    /// Shortest time between two writes of the zone files.
    #[arg(long = "dns-zone-interval", env = "PORTOLAN_DNS_ZONE_INTERVAL", default_value = "5s",
        value_parser = duration_within(Duration::from_secs(1), Duration::from_secs(3_600)))]
    zone_interval: Duration,

    #[command(flatten)]
    pub(super) etcd: ExportArgs,
}

/// `--dns-pods`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Pods {
    /// No Pod.
    #[default]
    Disabled,
    /// Any address in an existing Namespace.
    Insecure,
    /// Existing Pods.
    Verified,
}

/// A Service that is not named as namespace/name.
#[derive(Debug, thiserror::Error)]
#[error("expected namespace/name")]
struct ServiceKeyError;

fn name_server(text: &str) -> Result<ServiceKey, ServiceKeyError> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(ServiceKey::new(namespace, name))
        }
        _ => Err(ServiceKeyError),
    }
}

/// An address that is not written as CLUSTER=ADDRESS.
#[derive(Debug, thiserror::Error)]
#[error("expected CLUSTER=ADDRESS:PORT or CLUSTER=unix:///PATH")]
struct ListenerError;

fn listener(text: &str) -> Result<(String, Bind), ListenerError> {
    let (cluster, address) = text.split_once('=').ok_or(ListenerError)?;
    let address = address.parse().map_err(|_| ListenerError)?;
    match cluster {
        "" => Err(ListenerError),
        _ => Ok((cluster.to_owned(), address)),
    }
}

impl DnsArgs {
    /// Returns `true` if there are names of imported Services.
    pub(crate) fn is_clusterset_on(&self) -> bool {
        !self.clusterset_zones.is_empty()
    }

    /// The addresses that answer with the imports of one cluster.
    pub(super) fn clusterset_listeners(&self) -> &[(String, Bind)] {
        &self.clusterset_listen
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.zones.is_empty()
    }

    /// Checks that clap cannot make.
    pub(crate) fn validate(&self, source: Source) -> anyhow::Result<()> {
        let exports = self.zone_dir.is_some() || self.server.is_on() || self.etcd.is_on();
        ensure!(
            self.is_on() || self.is_clusterset_on() || !exports,
            "--dns-bind-address, --dns-zone-dir and --dns-etcd-endpoint need --dns-zone"
        );
        self.validate_clusterset(source)?;
        if self.is_on() {
            ensure!(
                source != Source::Controller,
                "--dns-zone: a relay has no names; use the controllers behind it"
            );
            ensure!(
                source != Source::Etcd,
                "--dns-zone: --source etcd has no names"
            );
            self.zone_config()?;
        }
        self.etcd.validate()
    }

    fn validate_clusterset(&self, source: Source) -> anyhow::Result<()> {
        if !self.is_clusterset_on() {
            ensure!(
                self.clusterset_listen.is_empty(),
                "--dns-clusterset-listen needs --dns-clusterset-zone"
            );
            return Ok(());
        }
        ensure!(
            source == Source::Clusters,
            "--dns-clusterset-zone is for --source clusters"
        );
        ensure!(
            !self.server.is_on(),
            "--dns-bind-address: it says no cluster; use --dns-clusterset-listen"
        );
        self.clusterset_config().map(drop)
    }

    /// The configuration of the zones of imported Services.
    pub(super) fn clusterset_config(&self) -> anyhow::Result<ZoneConfig> {
        let mut zones = self.clusterset_zones.iter();
        let first = zones.next().context("--dns-clusterset-zone: missing")?;
        let mut config = ZoneConfig::clusterset(first).context("--dns-clusterset-zone")?;
        for zone in zones {
            config.add_zone(zone).context("--dns-clusterset-zone")?;
        }
        self.with_settings(config).context("--dns-clusterset-zone")
    }

    pub(super) fn zone_config(&self) -> anyhow::Result<ZoneConfig> {
        let mut zones = self.zones.iter();
        let first = zones.next().context("--dns-zone: missing")?;
        let mut config = ZoneConfig::new(first).context("--dns-zone")?;
        for zone in zones {
            config.add_zone(zone).context("--dns-zone")?;
        }
        self.with_settings(config)
    }

    fn with_settings(&self, mut config: ZoneConfig) -> anyhow::Result<ZoneConfig> {
        if !self.networks.is_empty() {
            config = config.with_networks(&self.networks);
        }
        let config = ZoneConfig {
            ttl: u32::try_from(self.ttl.as_secs()).unwrap_or(MAX_TTL),
            pods: self.pod_mode(),
            endpoint_pod_names: self.endpoint_pod_names,
            zonal: self.zonal,
            ignore_empty: self.ignore_empty,
            namespaces: self
                .namespaces
                .iter()
                .map(|name| name.to_ascii_lowercase())
                .collect(),
            endpoints: !self.no_endpoints,
            name_server: self.name_server.clone(),
            ..config
        };
        config.validate()?;
        Ok(config)
    }

    /// Whether the addresses of Pods are needed.
    /// Reads the files that are named, as a run does at its start.
    pub(crate) fn check_files(&self) -> anyhow::Result<()> {
        self.etcd.check_files()
    }

    pub(crate) fn needs_pods(&self) -> bool {
        self.is_on() && self.pods == Pods::Verified
    }

    fn pod_mode(&self) -> PodMode {
        match self.pods {
            Pods::Disabled => PodMode::Disabled,
            Pods::Insecure => PodMode::Insecure,
            Pods::Verified => PodMode::Verified,
        }
    }

    pub(super) fn zone_dir(&self) -> Option<&PathBuf> {
        self.zone_dir.as_ref()
    }

    pub(super) fn zone_interval(&self) -> Duration {
        self.zone_interval
    }
}

#[cfg(test)]
mod tests;
