//! How the agent runs: where its table comes from, and what it serves.

use std::net::{AddrParseError, IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};

use portolan_dataplane::{KernelConfig, NodePortAddresses};
use portolan_plan::Names;
use portolan_runtime::DebugArgs;
use portolan_select::SourceRanges;

use super::tune::seconds;
use super::{KernelArgs, OtherProxy, TuneArgs};
use crate::dns::DnsArgs;
use crate::families::AskedFamilies;
use crate::identity::IdentityArgs;
use crate::kube_proxy::TakeoverConfig;
use crate::subscribe::HoldConfig;

/// kube-proxy's.
const HEALTHZ_PORT: u16 = 10256;
/// kube-proxy's.
const METRICS_PORT: u16 = 10249;

/// Where the table comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// A controller's stream.
    Controller,
    /// Files of Kubernetes objects on this host; no controller needed.
    File,
}

/// How the agent runs.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where the table comes from.
    #[arg(long, env = "PORTOLAN_SOURCE", default_value = "controller")]
    pub source: Source,

    /// A controller's address, as host:port; may be repeated. A name stands for all addresses that
    /// it resolves to.
    #[arg(long, env = "PORTOLAN_CONTROLLER", value_delimiter = ',')]
    pub controller: Vec<String>,

    /// Speak to the controller without TLS, and let it believe that we are whoever we say.
    #[arg(long, env = "PORTOLAN_PLAINTEXT")]
    pub plaintext: bool,

    /// A file or directory of Kubernetes objects (YAML or JSON), for `--source file`; may be
    /// repeated.
    #[arg(long, env = "PORTOLAN_FILE", value_delimiter = ',')]
    pub file: Vec<PathBuf>,

    /// What `spec.loadBalancerSourceRanges` hold for, with `--source file`:
    /// `load-balancer` as kube-proxy does, or `all` (see the controller's flag).
    #[arg(long, env = "PORTOLAN_SOURCE_RANGES", default_value = "load-balancer")]
    pub source_ranges: SourceRanges,

    /// How often files are looked at, in milliseconds.
    #[arg(long, env = "PORTOLAN_FILE_POLL_MS", default_value = "1000",
        value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    file_poll_ms: u64,

    /// This node's name (kube-proxy's --hostname-override). Default: the host's name.
    #[arg(long, alias = "hostname-override", env = "PORTOLAN_NODE_NAME")]
    node_name: Option<String>,

    /// The cluster's name; the controller must say the same. Empty for a single cluster.
    #[arg(long, env = "PORTOLAN_CLUSTER", default_value = "")]
    pub cluster: String,

    /// How often the kernel is read and compared, in seconds or as `30s`, in case somebody else
    /// changed it (kube-proxy's --ipvs-sync-period). At most a day.
    #[arg(long, alias = "ipvs-sync-period", env = "PORTOLAN_SYNC_PERIOD", default_value = "30",
        value_parser = period)]
    sync_period: u32,

    /// How often the kernel is looked at between two comparisons, in seconds: a few milliseconds
    /// tell whether virtual servers (IPv4), sets or routes were deleted or changed.
    #[arg(long, env = "PORTOLAN_CHECK_PERIOD", default_value = "5",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    check_period: u64,

    /// How long a TCP destination that has gone may keep its connections, in seconds, where the
    /// Service does not say: from then on they are reset. 0 resets them at once. Those of a virtual
    /// server that goes as a whole are reset in any case. The default is IPVS's own limit for idle
    /// connections.
    #[arg(long, env = "PORTOLAN_DRAIN_TIMEOUT", default_value = "900",
        value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    drain_timeout: u64,

    /// A directory of the agent's own, to remember the last good table, and until when
    /// destinations drain.
    #[arg(long, env = "PORTOLAN_STATE_DIR", default_value = "/var/lib/portolan")]
    pub state_dir: PathBuf,

    /// The first table of a stream is held back if it would delete more than so many percent of
    /// the records in force, and those are more than 100; 100 holds none.
    #[arg(long, env = "PORTOLAN_HOLD_DELETIONS_ABOVE", default_value = "50",
        value_parser = clap::value_parser!(u8).range(0..=100))]
    hold_deletions_above: u8,

    /// After so many seconds a table that is held back counts as confirmed, if its controller
    /// still stands by it. 0: only an operator confirms it (POST /debug/confirm over --debug-listen).
    #[arg(long, env = "PORTOLAN_HOLD_SECONDS", default_value = "30",
        value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    hold_seconds: u64,

    /// Take over what a kube-proxy in IPVS mode left on this node, which must not run any more: its
    /// virtual servers with their connections, then take the rest of it away. Where there is
    /// nothing of the kind, this does nothing.
    #[arg(long, env = "PORTOLAN_TAKEOVER")]
    pub takeover: Option<OtherProxy>,

    /// Where /livez, /readyz and /metrics are served (kube-proxy's --metrics-bind-address); below
    /// /debug dumps, on loopback only.
    #[arg(
        long,
        alias = "metrics-bind-address",
        env = "PORTOLAN_ADMIN_LISTEN",
        default_value = "127.0.0.1:10249"
    )]
    admin_listen: String,

    /// Where /debug is served too, and who may do what there.
    #[command(flatten)]
    pub debug: DebugArgs,

    /// Where /healthz and /livez are served, for load balancers and the kubelet (kube-proxy's
    /// --healthz-bind-address); empty for nowhere.
    #[arg(
        long,
        alias = "healthz-bind-address",
        env = "PORTOLAN_HEALTHZ_LISTEN",
        default_value = "[::]:10256"
    )]
    healthz_listen: String,

    /// Which of the node's addresses take node ports: those in these networks, or the word
    /// `primary` for --node-ip. In a family without a network all do; loopback and link-local ones
    /// never.
    #[arg(
        long,
        alias = "nodeport-addresses",
        env = "PORTOLAN_NODE_PORT_ADDRESSES",
        value_delimiter = ','
    )]
    node_port_addresses: Vec<String>,

    /// Which families to serve: auto, ipv4, ipv6, or ipv4,ipv6 (dual). With auto the agent serves those
    /// that the node can: a family is left out if its iptables do not work, or if IPv6 is switched off
    /// (net.ipv6.conf.lo.disable_ipv6). The agent refuses to start if a family that is named cannot be
    /// served, or none can. What is programmed for a family that is not served stays as it is.
    #[arg(long, env = "PORTOLAN_FAMILIES", default_value = "auto")]
    pub families: AskedFamilies,

    /// Write the port that was bound, as `admin=PORT`, to this file.
    #[arg(long, env = "PORTOLAN_PORT_FILE")]
    pub port_file: Option<PathBuf>,

    /// How to program the kernel.
    #[command(flatten)]
    pub kernel: KernelArgs,

    /// Settings of the kernel.
    #[command(flatten)]
    pub tune: TuneArgs,

    /// How the stream is secured.
    #[command(flatten)]
    pub identity: IdentityArgs,

    /// Names for CoreDNS.
    #[command(flatten)]
    pub dns: DnsArgs,
}

/// An address with a port; kube-proxy takes one without a port too.
fn socket_address(text: &str, port: u16) -> Result<SocketAddr, AddrParseError> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, port)),
        Err(_) => text.parse(),
    }
}

/// Whole seconds, 1 to a day.
fn period(text: &str) -> Result<u32, String> {
    match seconds(text)? {
        period @ 1..=86_400 => Ok(period),
        _ => Err("expected a second to a day".to_owned()),
    }
}

impl RunArgs {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// If flags are missing that the source needs, or exclude each other.
    pub fn validate(&self) -> anyhow::Result<()> {
        if self.takeover.is_some() && self.kernel.plan_config()?.names != Names::default() {
            bail!("--takeover kube-proxy needs its names: it excludes --name-prefix");
        }
        match self.source {
            Source::Controller if self.controller.is_empty() => {
                bail!("--source controller needs --controller host:port")
            }
            Source::Controller => self.identity.validate(self.plaintext),
            Source::File if self.file.is_empty() => bail!("--source file needs --file"),
            _ => Ok(()),
        }
    }

    /// Where `/healthz` is served, if anywhere.
    ///
    /// # Errors
    /// If it is not an address with a port.
    pub fn healthz_listen(&self) -> anyhow::Result<Option<SocketAddr>> {
        if self.healthz_listen.is_empty() {
            return Ok(None);
        }
        let address = socket_address(&self.healthz_listen, HEALTHZ_PORT);
        let named = || format!("--healthz-listen {:?}", self.healthz_listen);
        address.map(Some).with_context(named)
    }

    /// Where metrics are served.
    ///
    /// # Errors
    /// If it is not an address with a port.
    pub fn admin_listen(&self) -> anyhow::Result<SocketAddr> {
        let address = socket_address(&self.admin_listen, METRICS_PORT);
        address.with_context(|| format!("--admin-listen {:?}", self.admin_listen))
    }

    /// Which of the node's addresses take node ports.
    ///
    /// # Errors
    /// If there is anything but networks or the word `primary`.
    pub fn node_port_addresses(&self) -> anyhow::Result<NodePortAddresses> {
        NodePortAddresses::parse(&self.node_port_addresses).context("--node-port-addresses")
    }

    /// How to use the kernel.
    ///
    /// # Errors
    /// If a flag cannot be used.
    pub fn kernel_config(&self) -> anyhow::Result<KernelConfig> {
        Ok(KernelConfig {
            rules_record: Some(self.state_dir.join("rules.json")),
            node_port_addresses: self.node_port_addresses()?,
            tuning: self.tune.tuning(),
            ..self.kernel.kernel_config()?
        })
    }

    /// How often files are looked at.
    #[must_use]
    pub fn file_poll(&self) -> Duration {
        Duration::from_millis(self.file_poll_ms)
    }

    /// How long destinations drain that have gone, where the Service does not say.
    #[must_use]
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_secs(self.drain_timeout)
    }

    /// Which tables are held back.
    #[must_use]
    pub fn hold(&self) -> HoldConfig {
        let after = Duration::from_secs(self.hold_seconds);
        HoldConfig {
            above_percent: self.hold_deletions_above,
            confirmed_after: (!after.is_zero()).then_some(after),
        }
    }

    /// Whether to take over.
    #[must_use]
    pub fn takeover(&self) -> TakeoverConfig {
        TakeoverConfig {
            asked: self.takeover.is_some(),
            hold: self.hold(),
        }
    }

    /// How often the kernel is compared.
    #[must_use]
    pub fn sync_period(&self) -> Duration {
        Duration::from_secs(self.sync_period.into())
    }

    /// How often the kernel is looked at.
    #[must_use]
    pub fn check_period(&self) -> Duration {
        Duration::from_secs(self.check_period)
    }

    /// The node's name, in lower case as Kubernetes has it.
    ///
    /// # Errors
    /// If none was given and the host's name cannot be read.
    pub fn node_name(&self) -> anyhow::Result<String> {
        let name = match &self.node_name {
            Some(name) => name.clone(),
            None => std::fs::read_to_string("/proc/sys/kernel/hostname")
                .context("--node-name was not given, and the host's name cannot be read")?,
        };
        let name = name.trim().to_ascii_lowercase();
        if name.is_empty() {
            bail!("--node-name is empty");
        }
        Ok(name)
    }
}
