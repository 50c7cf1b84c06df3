// SPDX-License-Identifier: Apache-2.0

//! Flags of a run.

use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};

use portolan_dataplane::{KernelConfig, NodePortAddresses};
use portolan_plan::Names;
use portolan_plan::host::Timeouts;
use portolan_runtime::{DebugArgs, duration_within, milliseconds_within};
use portolan_select::SourceRanges;
use portolan_source::objects::ProxyName;
use portolan_subscription::GuardArgs;
use portolan_telemetry::OtlpArgs;

use super::{DataplaneKind, KernelArgs, KubeProxyArgs, OtherProxy, TuneArgs, UserspaceArgs};
use crate::director::HostFlags;
use crate::dns::DnsArgs;
use crate::families::AskedFamilies;
use crate::identity::IdentityArgs;
use crate::kube_proxy::{HEALTHZ, METRICS, Search, TakeoverConfig};
use crate::subscribe::GuardConfig;

/// Source of the node's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// The stream of a controller.
    Controller,
    /// Files of Kubernetes objects on this host, without a controller.
    File,
}

/// Bounds of the poll period of files.
const FILE_POLL: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(3_600)];
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(31_536_000);

/// Headings of `--help`.
const TABLE: &str = "Table source";
const PROGRAMMING: &str = "Kernel programming";
const SERVERS: &str = "Health and administration";

/// Flags of a run.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Source of the node's table.
    #[arg(long, env = "PORTOLAN_SOURCE", default_value = "controller", help_heading = TABLE)]
    pub source: Source,

    /// Address of a controller, as host:port; may be repeated. A name stands for all addresses that
    /// it resolves to.
    #[arg(long, env = "PORTOLAN_CONTROLLER", value_delimiter = ',', help_heading = TABLE)]
    pub controller: Vec<String>,

    /// File with addresses of controllers, one host:port a line, with comments from # on; in place of
    /// --controller. It may be missing at first and is read again when it changes. The last good list
    /// stays in force while the file is bad, also over a restart (file `controllers` of --state-dir).
    #[arg(long, env = "PORTOLAN_CONTROLLER_FILE", value_name = "FILE",
        conflicts_with = "controller", help_heading = TABLE)]
    pub controller_file: Option<PathBuf>,

    /// A file or directory of Kubernetes objects (YAML or JSON), for `--source file`; may be
    /// repeated.
    #[arg(long, env = "PORTOLAN_FILE", value_delimiter = ',', help_heading = TABLE)]
    pub file: Vec<PathBuf>,

    /// Poll period of files.
    #[arg(long, env = "PORTOLAN_FILE_POLL", default_value = "1s", help_heading = TABLE,
        value_parser = duration_within(FILE_POLL[0], FILE_POLL[1]))]
    file_poll: Duration,

    /// Former name of --file-poll, in milliseconds.
    #[arg(long, env = "PORTOLAN_FILE_POLL_MS", hide = true, conflicts_with = "file_poll",
        value_parser = milliseconds_within(FILE_POLL[0], FILE_POLL[1]))]
    file_poll_ms: Option<Duration>,

    /// With `--source file`: serve the Services whose label
    /// service.kubernetes.io/service-proxy-name is NAME, and no others. Default: the Services without
    /// the label.
    #[arg(long, env = "PORTOLAN_SERVICE_PROXY_NAME", value_name = "NAME", help_heading = TABLE)]
    pub service_proxy_name: Option<ProxyName>,

    /// Addresses that `spec.loadBalancerSourceRanges` applies to, with `--source file`:
    /// `load-balancer` as in kube-proxy, or `all` (see the controller's flag).
    #[arg(long, env = "PORTOLAN_SOURCE_RANGES", default_value = "load-balancer",
        help_heading = TABLE)]
    pub source_ranges: SourceRanges,

    /// Name of this node (kube-proxy's --hostname-override). Default: the host's name.
    #[arg(long, alias = "hostname-override", env = "PORTOLAN_NODE_NAME", help_heading = TABLE)]
    node_name: Option<String>,

    /// Name of the cluster, equal to the controller's; empty for a single cluster.
    #[arg(long, env = "PORTOLAN_CLUSTER", default_value = "", help_heading = TABLE)]
    pub cluster: String,

    /// Directory for the agent's state: the last good table, drain deadlines, the fingerprint of the
    /// rules.
    #[arg(long, env = "PORTOLAN_STATE_DIR", default_value = "/var/lib/portolan",
        help_heading = TABLE)]
    pub state_dir: PathBuf,

    /// Period of complete comparisons of the kernel with the table, which repair foreign changes
    /// (kube-proxy's --ipvs-sync-period). At most a day.
    #[arg(long, alias = "ipvs-sync-period", env = "PORTOLAN_SYNC_PERIOD", default_value = "30s",
        help_heading = PROGRAMMING, value_parser = duration_within(SECOND, DAY))]
    sync_period: Duration,

    /// Period of quick checks between two comparisons. A check takes a few milliseconds and detects
    /// deleted or changed virtual servers (IPv4), sets and routes.
    #[arg(long, env = "PORTOLAN_CHECK_PERIOD", default_value = "5s",
        help_heading = PROGRAMMING, value_parser = duration_within(SECOND, DAY))]
    check_period: Duration,

    /// Time that connections to a removed TCP endpoint are kept before they are reset, where the
    /// Service does not set it; 0 resets them at once. Connections of a virtual server that is
    /// removed as a whole are reset in any case. The default is the idle timeout of IPVS.
    #[arg(long, env = "PORTOLAN_DRAIN_TIMEOUT", default_value = "15m",
        help_heading = PROGRAMMING, value_parser = duration_within(Duration::ZERO, YEAR))]
    drain_timeout: Duration,

    /// Address families to serve: auto, ipv4, ipv6, or ipv4,ipv6 (dual stack). With auto, a family is
    /// left out if its iptables do not work, or if IPv6 is disabled
    /// (net.ipv6.conf.lo.disable_ipv6). The agent refuses to start if a named family cannot be
    /// served, or if none can. Objects of a family that is not served are left untouched.
    #[arg(long, env = "PORTOLAN_FAMILIES", default_value = "auto", help_heading = PROGRAMMING)]
    pub families: AskedFamilies,

    /// Node addresses that accept node ports: networks, or the word `primary` for --node-ip. Without
    /// a network of a family, all addresses of that family except loopback and link-local ones.
    #[arg(
        long,
        alias = "nodeport-addresses",
        env = "PORTOLAN_NODE_PORT_ADDRESSES",
        value_delimiter = ',',
        help_heading = PROGRAMMING
    )]
    node_port_addresses: Vec<String>,

    /// Take over from a kube-proxy: wait, not ready, until it has ended on this node, adopt its virtual
    /// servers with their connections, serve all that its rules serve, then remove the rest. From one in
    /// IPVS mode to --dataplane nftables, IPVS is in between. No effect where kube-proxy has left nothing.
    #[arg(long, env = "PORTOLAN_TAKEOVER", help_heading = PROGRAMMING)]
    pub takeover: Option<OtherProxy>,

    /// Address of the metrics of a kube-proxy (its --metrics-bind-address), where --takeover looks
    /// for one that still runs.
    #[arg(long, env = "PORTOLAN_KUBE_PROXY_METRICS", default_value_t = METRICS,
        value_name = "ADDRESS", help_heading = PROGRAMMING)]
    kube_proxy_metrics: SocketAddr,

    /// Address of /healthz of a kube-proxy (its --healthz-bind-address), where --takeover looks for
    /// one that still runs.
    #[arg(long, env = "PORTOLAN_KUBE_PROXY_HEALTHZ", default_value_t = HEALTHZ,
        value_name = "ADDRESS", help_heading = PROGRAMMING)]
    kube_proxy_healthz: SocketAddr,

    /// Address of /livez, /readyz and /metrics (kube-proxy's --metrics-bind-address), and of dumps
    /// below /debug, which answer on loopback only.
    #[arg(
        long,
        alias = "metrics-bind-address",
        env = "PORTOLAN_ADMIN_LISTEN",
        default_value = "127.0.0.1:10249",
        help_heading = SERVERS
    )]
    admin_listen: String,

    /// Address of /healthz and /livez for load balancers and the kubelet (kube-proxy's
    /// --healthz-bind-address); empty for none.
    #[arg(
        long,
        alias = "healthz-bind-address",
        env = "PORTOLAN_HEALTHZ_LISTEN",
        default_value = "[::]:10256",
        help_heading = SERVERS
    )]
    healthz_listen: String,

    /// Metrics of use, as IPVS counts it, for at most this many Service ports; 0 for none. Each has three series, and the
    /// kernel is read at each scrape.
    #[arg(
        long,
        env = "PORTOLAN_SERVICE_METRICS",
        value_name = "COUNT",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=100_000),
        help_heading = SERVERS
    )]
    pub service_metrics: u32,

    /// Metrics of use, as IPVS has them, for at most this many real servers of load balancers; 0 for none. Each has ten
    /// series, and the kernel is read at each scrape.
    #[arg(
        long,
        env = "PORTOLAN_BACKEND_METRICS",
        value_name = "COUNT",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=100_000),
        help_heading = SERVERS
    )]
    pub backend_metrics: u32,

    /// File that receives the bound ports, as `admin=PORT` and `healthz=PORT`.
    #[arg(long, env = "PORTOLAN_PORT_FILE", help_heading = SERVERS)]
    pub port_file: Option<PathBuf>,

    /// Check flags and files, print all errors, and end: with exit code 0 without an error, else 2.
    /// Neither the kernel nor the network is used. Files that a run waits for may be missing.
    #[arg(long, help_heading = SERVERS)]
    pub check_config: bool,

    /// Flags of the debug socket.
    #[command(flatten)]
    pub debug: DebugArgs,

    /// Flags of kernel programming.
    #[command(flatten)]
    pub kernel: KernelArgs,

    /// Flags of kernel settings.
    #[command(flatten)]
    pub tune: TuneArgs,

    /// Flags of the userspace dataplane.
    #[command(flatten)]
    pub userspace: UserspaceArgs,

    /// Flags of TLS and tokens.
    #[command(flatten, next_help_heading = "TLS and identity")]
    pub identity: IdentityArgs,

    /// Limits of the deletion guard.
    #[command(flatten)]
    pub guard: GuardArgs,

    /// Flags of DNS.
    #[command(flatten, next_help_heading = "DNS")]
    pub dns: DnsArgs,

    /// Where spans go.
    #[command(flatten)]
    pub otlp: OtlpArgs,

    /// Flags of kube-proxy.
    #[command(flatten)]
    pub kube_proxy: KubeProxyArgs,
}

/// Parses an address. The port may be left out, as in kube-proxy.
fn socket_address(text: &str, port: u16) -> Result<SocketAddr, AddrParseError> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, port)),
        Err(_) => text.parse(),
    }
}

impl RunArgs {
    /// Checks combinations of flags that clap cannot express.
    ///
    /// # Errors
    /// If the source needs a missing flag, or flags exclude each other.
    pub fn validate(&self) -> anyhow::Result<()> {
        self.validate_takeover()?;
        self.validate_source(self.source)
    }

    /// Checks the flags that exclude a takeover.
    pub(crate) fn validate_takeover(&self) -> anyhow::Result<()> {
        if self.takeover.is_some() && self.kernel.plan_config()?.names != Names::default() {
            bail!("--takeover kube-proxy excludes --name-prefix: it needs kube-proxy's names");
        }
        let can_take_over = match self.kernel.dataplane {
            DataplaneKind::Ipvs | DataplaneKind::Nftables => true,
            DataplaneKind::Auto | DataplaneKind::Userspace => false,
        };
        if self.takeover.is_some() && !can_take_over {
            bail!("--takeover kube-proxy needs --dataplane ipvs or nftables");
        }
        Ok(())
    }

    /// Checks that the flags which a source needs are there. `plan` and `apply` have one of their own.
    pub(crate) fn validate_source(&self, source: Source) -> anyhow::Result<()> {
        match source {
            Source::Controller if self.controller.is_empty() && self.controller_file.is_none() => {
                bail!("--source controller needs --controller host:port or --controller-file FILE")
            }
            Source::Controller => self.identity.identity().validate().map_err(Into::into),
            Source::File if self.file.is_empty() => bail!("--source file needs --file"),
            _ => Ok(()),
        }
    }

    /// Checks that the dataplane is the one of commands that know no other.
    pub(crate) fn needs_ipvs(&self) -> anyhow::Result<()> {
        ensure!(
            self.kernel.dataplane == DataplaneKind::Ipvs,
            "this command is for --dataplane ipvs alone"
        );
        Ok(())
    }

    /// Checks the node's name if the flag is set. The host's name is not looked up.
    pub(crate) fn validate_node_name(&self) -> anyhow::Result<()> {
        validate_name("--node-name", self.node_name.as_deref())
    }

    /// Address of `/healthz`, if it is served.
    ///
    /// # Errors
    /// If the flag is not an address.
    pub fn healthz_listen(&self) -> anyhow::Result<Option<SocketAddr>> {
        if self.healthz_listen.is_empty() {
            return Ok(None);
        }
        let address = socket_address(&self.healthz_listen, HEALTHZ.port());
        let named = || format!("--healthz-listen {:?}", self.healthz_listen);
        address.map(Some).with_context(named)
    }

    /// Address of metrics.
    ///
    /// # Errors
    /// If the flag is not an address.
    pub fn admin_listen(&self) -> anyhow::Result<SocketAddr> {
        let address = socket_address(&self.admin_listen, METRICS.port());
        address.with_context(|| format!("--admin-listen {:?}", self.admin_listen))
    }

    /// Node addresses that accept node ports.
    ///
    /// # Errors
    /// If a value is neither a network nor the word `primary`.
    pub fn node_port_addresses(&self) -> anyhow::Result<NodePortAddresses> {
        NodePortAddresses::parse(&self.node_port_addresses).context("--node-port-addresses")
    }

    /// Configuration of the kernel's dataplane.
    ///
    /// # Errors
    /// If a flag cannot be used.
    pub fn kernel_config(&self) -> anyhow::Result<KernelConfig> {
        let mut config = self.kernel.kernel_config()?;
        let is_set = |ip: &IpAddr| {
            config
                .node_ips
                .iter()
                .any(|set| set.is_ipv4() == ip.is_ipv4())
        };
        let bound = self.kube_proxy.node_ip().filter(|ip| !is_set(ip));
        config.node_ips.extend(bound);
        Ok(KernelConfig {
            scheduler_pause: self.sync_period(),
            rules_record: Some(self.state_dir.join("rules.json")),
            node_port_addresses: self.node_port_addresses()?,
            tuning: self.tune.tuning(),
            ..config
        })
    }

    /// Poll period of files.
    #[must_use]
    pub fn file_poll(&self) -> Duration {
        self.file_poll_ms.unwrap_or(self.file_poll)
    }

    /// Drain timeout of removed endpoints whose Service sets none.
    #[must_use]
    pub fn drain_timeout(&self) -> Duration {
        self.drain_timeout
    }

    /// Limits of the deletion guard.
    #[must_use]
    pub fn guard(&self) -> GuardConfig {
        self.guard.config()
    }

    /// Configuration of a takeover from kube-proxy.
    #[must_use]
    pub fn takeover(&self) -> TakeoverConfig {
        TakeoverConfig::new(self.takeover.is_some(), self.guard())
    }

    /// Places where a running kube-proxy is looked for.
    #[must_use]
    pub fn kube_proxy_search(&self) -> Search {
        Search {
            processes: true,
            metrics: Some(self.kube_proxy_metrics),
            healthz: Some(self.kube_proxy_healthz),
        }
    }

    /// Period of complete comparisons.
    #[must_use]
    pub fn sync_period(&self) -> Duration {
        self.sync_period
    }

    /// Period of quick checks.
    #[must_use]
    pub fn check_period(&self) -> Duration {
        self.check_period
    }

    /// Flags that win over fields of a `Director`.
    pub(crate) fn host_flags(&self) -> HostFlags {
        let portolan_dataplane::Timeouts { tcp, tcp_fin, udp } = self.tune.tuning().timeouts;
        HostFlags {
            timeouts: Timeouts { tcp, tcp_fin, udp },
            binding: self.kernel.vip_binding(),
            marks: self.kernel.short_circuit_mask,
        }
    }

    /// Name of the node, in lower case as in Kubernetes.
    ///
    /// # Errors
    /// If the flag is missing and the host's name cannot be read.
    pub fn node_name(&self) -> anyhow::Result<String> {
        node_name(self.node_name.as_deref())
    }
}

/// Checks the name that a flag gives in place of the host's.
///
/// # Errors
/// If it is empty.
pub(crate) fn validate_name(flag: &str, name: Option<&str>) -> anyhow::Result<()> {
    ensure!(
        name.is_none_or(|name| !name.trim().is_empty()),
        "{flag} is empty"
    );
    Ok(())
}

/// The name of this node: that of `--node-name`, or the host's.
///
/// # Errors
/// If it is empty, or the host's name cannot be read.
pub(crate) fn node_name(flag: Option<&str>) -> anyhow::Result<String> {
    let name = match flag {
        Some(name) => name.to_owned(),
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .context("--node-name is not set, and the host's name cannot be read")?,
    };
    let name = name.trim().to_ascii_lowercase();
    if name.is_empty() {
        bail!("--node-name is empty");
    }
    Ok(name)
}
