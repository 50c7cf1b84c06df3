//! The command line. Every flag has a twin in the environment, for the chart.

mod run;
mod tune;

use std::net::IpAddr;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use portolan_dataplane::{IptablesMode, Kernel, KernelConfig};
use portolan_model::Family;
use portolan_model::ipvs::VirtualServerConfig;
use portolan_plan::{Config, Masquerade, Names};
use portolan_runtime::LogFormat;

pub use run::{RunArgs, Source};
pub use tune::TuneArgs;

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
            ..KernelConfig::default()
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
    use std::time::Duration;

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
    fn kube_proxys_flags_of_health_and_addresses_are_taken() {
        let healthz = |flag: &str| {
            let listen = parse(&[flag]).run.healthz_listen();
            listen.map(|address| address.map(|address| address.to_string()))
        };
        for (flag, expected) in [
            ("--healthz-listen=[::1]:1", Some("[::1]:1")),
            ("--healthz-bind-address=0.0.0.0", Some("0.0.0.0:10256")),
            ("--healthz-bind-address=::", Some("[::]:10256")),
            ("--healthz-listen=", None),
        ] {
            assert_eq!(healthz(flag).unwrap().as_deref(), expected, "{flag}");
        }
        assert!(
            healthz("--healthz-listen=x")
                .unwrap_err()
                .to_string()
                .contains("healthz-listen")
        );

        let cli = parse(&[
            "--nodeport-addresses=10.0.0.0/8,fd00::/8",
            "--ipvs-strict-arp",
            "--ipvs-tcp-timeout=15m0s",
            "--conntrack-tcp-timeout-established=0",
        ]);
        let config = cli.run.kernel_config().unwrap();
        assert!(!config.node_port_addresses.take_all(Family::V6));
        assert!(config.tuning.strict_arp);
        assert_eq!(config.tuning.timeouts.tcp, 900);
        assert_eq!(config.tuning.conntrack.tcp_established, 0);
        assert_eq!(config.tuning.conntrack.tcp_close_wait, 3600);
        let bad = parse(&["--node-port-addresses=eth0"]).run.kernel_config();
        assert!(
            bad.unwrap_err()
                .to_string()
                .contains("--node-port-addresses")
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
