//! The command line. Every flag has a twin in the environment, for the chart.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use portolan_dataplane::{IptablesMode, Kernel, KernelConfig};
use portolan_model::Family;
use portolan_model::ipvs::VirtualServerConfig;
use portolan_plan::{Config, Masquerade, Names};
use portolan_runtime::LogFormat;

use crate::identity::IdentityArgs;

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
    Cleanup(KernelArgs),
}

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

    /// A controller's address, as host:port; may be repeated.
    #[arg(long, env = "PORTOLAN_CONTROLLER", value_delimiter = ',')]
    pub controller: Vec<String>,

    /// Speak to the controller without TLS, and let it believe that we are whoever we say.
    #[arg(long, env = "PORTOLAN_PLAINTEXT")]
    pub plaintext: bool,

    /// A file or directory of Kubernetes objects (YAML or JSON), for `--source file`; may be
    /// repeated.
    #[arg(long, env = "PORTOLAN_FILE", value_delimiter = ',')]
    pub file: Vec<PathBuf>,

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

    /// How often the kernel is read and compared, in seconds, in case somebody else changed it
    /// (kube-proxy's --ipvs-sync-period).
    #[arg(long, alias = "ipvs-sync-period", env = "PORTOLAN_SYNC_PERIOD", default_value = "30",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    sync_period: u64,

    /// Where /livez, /readyz and /metrics are served; /debug answers on loopback only.
    #[arg(long, env = "PORTOLAN_ADMIN_LISTEN", default_value = "[::]:10249")]
    pub admin_listen: SocketAddr,

    /// Write the port that was bound, as `admin=PORT`, to this file.
    #[arg(long, env = "PORTOLAN_PORT_FILE")]
    pub port_file: Option<PathBuf>,

    /// How to program the kernel.
    #[command(flatten)]
    pub kernel: KernelArgs,

    /// How the stream is secured.
    #[command(flatten)]
    pub identity: IdentityArgs,
}

/// How the kernel is programmed.
#[derive(Debug, Args)]
pub struct KernelArgs {
    /// The scheduler of virtual servers (rr, wrr, lc, wlc, sh, mh ...).
    #[arg(
        long,
        alias = "ipvs-scheduler",
        env = "PORTOLAN_SCHEDULER",
        default_value = "rr"
    )]
    scheduler: String,

    /// Masquerade all connections to cluster IPs.
    #[arg(long, env = "PORTOLAN_MASQUERADE_ALL")]
    masquerade_all: bool,

    /// Masquerade connections to cluster IPs that come from outside these networks, the first of
    /// each family.
    #[arg(long, env = "PORTOLAN_CLUSTER_CIDR", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,

    /// Which bit of the packet mark means "masquerade"; bit 14 is 0x4000.
    #[arg(long, alias = "iptables-masquerade-bit", env = "PORTOLAN_MASQUERADE_BIT",
        default_value = "14", value_parser = clap::value_parser!(u32).range(0..=31))]
    masquerade_bit: u32,

    /// The node's own address, one per family: the source of its own connections to services.
    /// Default: the first address of the first interface.
    #[arg(long, env = "PORTOLAN_NODE_IP", value_delimiter = ',')]
    node_ip: Vec<IpAddr>,

    /// Which iptables to write rules with.
    #[arg(long, env = "PORTOLAN_IPTABLES", default_value = "auto")]
    iptables: Iptables,

    /// What the names of sets and chains begin with, `-` left out.
    #[arg(long, env = "PORTOLAN_NAME_PREFIX", default_value = "KUBE")]
    name_prefix: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Iptables {
    /// kubelet's, else the host's default.
    Auto,
    /// iptables-nft.
    Nft,
    /// iptables-legacy.
    Legacy,
}

impl RunArgs {
    /// Checks what clap cannot.
    ///
    /// # Errors
    /// If flags are missing that the source needs.
    pub fn validate(&self) -> anyhow::Result<()> {
        match self.source {
            Source::Controller if self.controller.is_empty() => {
                bail!("--source controller needs --controller host:port")
            }
            Source::Controller => self.identity.validate(self.plaintext),
            Source::File if self.file.is_empty() => bail!("--source file needs --file"),
            Source::File => Ok(()),
        }
    }

    /// How often files are looked at.
    #[must_use]
    pub fn file_poll(&self) -> Duration {
        Duration::from_millis(self.file_poll_ms)
    }

    /// How often the kernel is compared.
    #[must_use]
    pub fn sync_period(&self) -> Duration {
        Duration::from_secs(self.sync_period)
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

impl KernelArgs {
    /// How to use the kernel.
    ///
    /// # Errors
    /// If a family has more than one node address.
    pub fn kernel_config(&self) -> anyhow::Result<KernelConfig> {
        for family in Family::ALL {
            let of_family = self.node_ip.iter().filter(|ip| Family::of(**ip) == family);
            if of_family.count() > 1 {
                bail!("--node-ip: more than one {family} address");
            }
        }
        let iptables = match self.iptables {
            Iptables::Auto => IptablesMode::Auto,
            Iptables::Nft => IptablesMode::Nft,
            Iptables::Legacy => IptablesMode::Legacy,
        };
        Ok(KernelConfig {
            iptables,
            node_ips: self.node_ip.clone(),
        })
    }

    /// What to program.
    ///
    /// # Errors
    /// If the name prefix or the scheduler's name cannot be used.
    pub fn plan_config(&self) -> anyhow::Result<Config> {
        if self.scheduler.is_empty() || self.scheduler.len() > 15 {
            bail!(
                "--scheduler {:?}: expected 1 to 15 characters",
                self.scheduler
            );
        }
        let masquerade = if self.masquerade_all {
            Masquerade::All
        } else if self.cluster_cidr.is_empty() {
            Masquerade::FromVip
        } else {
            Masquerade::From(self.cluster_cidr.iter().map(IpNet::trunc).collect())
        };
        Ok(Config {
            families: Kernel::families().into_iter().collect(),
            names: Names::new(&self.name_prefix).context("--name-prefix")?,
            scheduler: VirtualServerConfig {
                scheduler: self.scheduler.clone(),
                ..VirtualServerConfig::round_robin()
            },
            masquerade,
            masquerade_mark: 1 << self.masquerade_bit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Cli {
        Cli::try_parse_from([&["portolan-agent"], args].concat()).unwrap()
    }

    #[test]
    fn kube_proxys_flags_are_taken() {
        let cli = parse(&[
            "--hostname-override=Node-1",
            "--ipvs-scheduler=mh",
            "--ipvs-sync-period=10",
            "--masquerade-all",
            "--iptables-masquerade-bit=15",
        ]);
        assert_eq!(cli.run.node_name().unwrap(), "node-1");
        assert_eq!(cli.run.sync_period(), Duration::from_secs(10));
        let config = cli.run.kernel.plan_config().unwrap();
        assert_eq!(config.scheduler.scheduler, "mh");
        assert_eq!(
            (config.masquerade, config.masquerade_mark),
            (Masquerade::All, 0x8000)
        );
    }

    #[test]
    fn what_a_source_needs_is_asked_for() {
        let refused = |args: &[&str]| parse(args).run.validate().unwrap_err().to_string();
        assert!(refused(&[]).contains("--controller"));
        assert!(refused(&["--controller=a:1"]).contains("--plaintext"));
        assert!(refused(&["--source=file"]).contains("--file"));
        assert!(
            parse(&["--controller=a:1", "--plaintext"])
                .run
                .validate()
                .is_ok()
        );
        assert!(
            parse(&["--source=file", "--file=/etc/x"])
                .run
                .validate()
                .is_ok()
        );
    }

    #[test]
    fn one_node_address_per_family() {
        let config = |ips: &str| {
            parse(&[&format!("--node-ip={ips}")])
                .run
                .kernel
                .kernel_config()
        };
        assert!(config("192.168.0.1,fd00::1").is_ok());
        assert!(config("192.168.0.1,192.168.0.2").is_err());
    }
}
