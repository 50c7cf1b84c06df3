//! The command line. Every flag has a twin in the environment, for the chart.

mod run;
mod tune;

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
use portolan_dataplane::{IptablesMode, KernelConfig};
use portolan_model::{Family, ipvs};
use portolan_plan::{Config, DetectLocal, MarkMask, Names, VipBinding};
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
    Cleanup(CleanupArgs),

    /// Forget to which cluster this node belongs: the next controller that the agent reaches says
    /// which one it is. A running agent notices.
    Forget(ForgetArgs),
}

/// What to forget.
#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// The directory of the agent that is to forget.
    #[arg(long, env = "PORTOLAN_STATE_DIR", default_value = "/var/lib/portolan")]
    pub state_dir: PathBuf,
}

/// How to clean up.
#[derive(Debug, Args)]
pub struct CleanupArgs {
    /// Leave what is shared with a kube-proxy in IPVS mode that has programmed this node by now,
    /// and take away the rest: the way back, without a gap.
    #[arg(long)]
    pub hand_over: Option<OtherProxy>,

    /// How the kernel was programmed.
    #[command(flatten)]
    pub kernel: KernelArgs,
}

/// Whom to take over from, or to hand over to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OtherProxy {
    /// A kube-proxy in IPVS mode.
    KubeProxy,
}

/// How the kernel is programmed.
#[derive(Debug, Args)]
pub struct KernelArgs {
    /// The scheduler of virtual servers (rr, wrr, lc, wlc, sh, mh ...), unless their Service names
    /// one. Default: rr. With mh, a client of a Service with ClientIP affinity has the same pod at
    /// all of the Service's addresses, also after the affinity's timeout.
    #[arg(long, alias = "ipvs-scheduler", env = "PORTOLAN_SCHEDULER", value_parser = parse_scheduler)]
    scheduler: Option<&'static str>,

    /// Masquerade all connections to cluster IPs.
    #[arg(long, env = "PORTOLAN_MASQUERADE_ALL", default_value_t = false,
        num_args = 0..=1, default_missing_value = "true", require_equals = true,
        action = clap::ArgAction::Set)]
    masquerade_all: bool,

    /// How packets of the node's own pods are told from others: their connections to cluster IPs
    /// are not masqueraded, and those to external addresses not held to local destinations.
    #[arg(
        long,
        env = "PORTOLAN_DETECT_LOCAL_MODE",
        default_value = "ClusterCIDR"
    )]
    detect_local_mode: DetectLocalMode,

    /// Where pods are, for --detect-local-mode ClusterCIDR; the first network of each family
    /// counts. Without one, only the node's own connections to cluster IPs are masqueraded.
    #[arg(long, env = "PORTOLAN_CLUSTER_CIDR", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,

    /// The bridge that the node's pods hang on, for --detect-local-mode BridgeInterface.
    #[arg(long, env = "PORTOLAN_POD_BRIDGE_INTERFACE")]
    pod_bridge_interface: Option<String>,

    /// What the names of the pods' interfaces begin with, for --detect-local-mode
    /// InterfaceNamePrefix.
    #[arg(long, env = "PORTOLAN_POD_INTERFACE_NAME_PREFIX")]
    pod_interface_name_prefix: Option<String>,

    /// Virtual servers of addresses in these networks are never deleted (kube-proxy's
    /// --ipvs-exclude-cidrs).
    #[arg(long, env = "PORTOLAN_IPVS_EXCLUDE_CIDRS", value_delimiter = ',')]
    ipvs_exclude_cidrs: Vec<IpNet>,

    /// Which bits of the packet mark may be used to lead connections of this node and its pods past
    /// externalTrafficPolicy Local: one mark per Service port. Nobody else may use them.
    #[arg(long, env = "PORTOLAN_SHORT_CIRCUIT_MASK", default_value = "0x3fff0000",
        value_parser = parse_mark)]
    short_circuit_mask: u32,

    /// Which bit of the packet mark means "masquerade"; bit 14 is 0x4000.
    #[arg(long, alias = "iptables-masquerade-bit", env = "PORTOLAN_MASQUERADE_BIT",
        default_value = "14", value_parser = clap::value_parser!(u32).range(0..=31))]
    masquerade_bit: u32,

    /// The node's own address, one per family: the source of its own connections to services.
    /// Default: the first address of the first interface.
    #[arg(long, env = "PORTOLAN_NODE_IP", value_delimiter = ',')]
    node_ip: Vec<IpAddr>,

    /// How packets to virtual addresses arrive on the node: by a local route for each, or as
    /// addresses of the dummy device portolan-vips, for those who rely on addresses. With these the
    /// node's own connections have the virtual address as their source, and to bind 10,000 of them
    /// takes seconds, to unbind as many of IPv6 half a minute.
    #[arg(long, env = "PORTOLAN_VIP_BINDING", default_value = "route")]
    vip_binding: Binding,

    /// Which iptables to write rules with.
    #[arg(long, env = "PORTOLAN_IPTABLES", default_value = "auto")]
    iptables: Iptables,

    /// What the names of sets and chains begin with, `-` left out.
    #[arg(long, env = "PORTOLAN_NAME_PREFIX", default_value = "KUBE")]
    name_prefix: String,
}

/// kube-proxy's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DetectLocalMode {
    /// By --cluster-cidr.
    #[value(name = "ClusterCIDR")]
    ClusterCidr,
    /// By the Node's spec.podCIDRs.
    #[value(name = "NodeCIDR")]
    NodeCidr,
    /// By --pod-bridge-interface.
    #[value(name = "BridgeInterface")]
    BridgeInterface,
    /// By --pod-interface-name-prefix.
    #[value(name = "InterfaceNamePrefix")]
    InterfaceNamePrefix,
}

/// One of the kernel's schedulers: it would look for a module of any other name.
fn parse_scheduler(name: &str) -> Result<&'static str, String> {
    let unknown = || format!("expected one of {}", ipvs::SCHEDULERS.join(", "));
    ipvs::scheduler(name).ok_or_else(unknown)
}

/// As `0x3fff0000` or in decimal.
fn parse_mark(text: &str) -> Result<u32, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

/// How virtual addresses are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Binding {
    /// Local routes.
    Route,
    /// Addresses of a dummy device.
    Address,
}

impl From<Binding> for VipBinding {
    fn from(binding: Binding) -> Self {
        match binding {
            Binding::Route => Self::Route,
            Binding::Address => Self::Address,
        }
    }
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
            vip_binding: self.vip_binding.into(),
            node_ips: self.node_ip.clone(),
            ..KernelConfig::default()
        })
    }

    /// What to program, in all families.
    ///
    /// # Errors
    /// If the name prefix or the mask cannot be used, or a flag is missing
    /// that the detect-local mode needs.
    pub fn plan_config(&self) -> anyhow::Result<Config> {
        let masquerade_mark = 1 << self.masquerade_bit;
        let mask = self.short_circuit_mask;
        Ok(Config {
            names: Names::new(&self.name_prefix).context("--name-prefix")?,
            scheduler: self.scheduler,
            masquerade_all: self.masquerade_all,
            detect_local: self.detect_local()?,
            masquerade_mark,
            short_circuit_mask: MarkMask::new(mask, masquerade_mark)
                .with_context(|| format!("--short-circuit-mask {mask:#x}"))?,
            exclude_cidrs: self.ipvs_exclude_cidrs.clone(),
            vip_binding: self.vip_binding.into(),
            ..Config::default()
        })
    }

    fn detect_local(&self) -> anyhow::Result<DetectLocal> {
        let interface = |flag: &str, name: &Option<String>| match name {
            Some(name) if is_interface(name) => Ok(name.clone()),
            Some(name) => bail!("{flag} {name:?}: not the name of an interface"),
            None => bail!("--detect-local-mode needs {flag}"),
        };
        let networks = self.cluster_cidr.iter().map(IpNet::trunc).collect();
        Ok(match self.detect_local_mode {
            DetectLocalMode::ClusterCidr => DetectLocal::ClusterCidr(networks),
            DetectLocalMode::NodeCidr => DetectLocal::NodeCidr,
            DetectLocalMode::BridgeInterface => DetectLocal::Bridge(interface(
                "--pod-bridge-interface",
                &self.pod_bridge_interface,
            )?),
            DetectLocalMode::InterfaceNamePrefix => DetectLocal::InterfacePrefix(interface(
                "--pod-interface-name-prefix",
                &self.pod_interface_name_prefix,
            )?),
        })
    }
}

/// Whether iptables would take it for one interface: at most 15 bytes (`IFNAMSIZ`), and no `+` at
/// the end, which would stand for any continuation.
fn is_interface(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b'"' && byte != b'\'';
    let start = |c: char| c != '-' && c != '!';
    (1..=15).contains(&name.len())
        && name.bytes().all(plain)
        && name.starts_with(start)
        && !name.ends_with('+')
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
        assert_eq!(config.scheduler, Some("mh"));
        assert_eq!(
            (config.masquerade_all, config.masquerade_mark),
            (true, 0x8000)
        );
    }

    #[test]
    fn a_scheduler_that_the_kernel_does_not_have_is_refused() {
        for name in ["", "nosuch", "RR", "ftp", "0123456789abcdef"] {
            let flag = format!("--scheduler={name}");
            let error = Cli::try_parse_from(["portolan-agent", &flag]).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("expected one of rr, wrr, lc"), "{error}");
        }
    }

    #[test]
    fn kube_proxys_flags_are_taken_as_its_manifests_write_them() {
        let masquerades = |flag: &str| {
            let cli = parse(&[flag, "--ipvs-sync-period=1m0s"]);
            assert_eq!(cli.run.sync_period(), Duration::from_secs(60));
            cli.run.kernel.plan_config().unwrap().masquerade_all
        };
        assert!(masquerades("--masquerade-all=true"));
        assert!(!masquerades("--masquerade-all=false"));
        assert!(!masquerades("--ipvs-strict-arp=true"));
        for bad in ["0", "0s", "25h", "x"] {
            let flag = format!("--sync-period={bad}");
            assert!(
                Cli::try_parse_from(["portolan-agent", &flag]).is_err(),
                "{bad}"
            );
        }
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
        let metrics = |flags: &[&str]| parse(flags).run.admin_listen().unwrap().to_string();
        for (flags, expected) in [
            (&[][..], "127.0.0.1:10249"),
            (&["--metrics-bind-address=0.0.0.0"], "0.0.0.0:10249"),
            (&["--admin-listen=[::]:1"], "[::]:1"),
        ] {
            assert_eq!(metrics(flags), expected, "{flags:?}");
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
        assert!(!config.node_port_addresses.accepts_all(Family::V6));
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
    fn what_a_detect_local_mode_needs_is_asked_for() {
        let config = |args: &[&str]| parse(args).run.kernel.plan_config();
        let found = |args: &[&str]| config(args).unwrap().detect_local;
        let refused = |args: &[&str]| config(args).unwrap_err().to_string();
        assert_eq!(found(&[]), DetectLocal::default());
        let node = "--detect-local-mode=NodeCIDR";
        assert_eq!(found(&[node]), DetectLocal::NodeCidr);
        let bridge = "--detect-local-mode=BridgeInterface";
        let name = "--pod-bridge-interface=cni0";
        assert_eq!(found(&[bridge, name]), DetectLocal::Bridge("cni0".into()));
        assert!(refused(&[bridge]).contains("--pod-bridge-interface"));
        let prefix = "--detect-local-mode=InterfaceNamePrefix";
        let name = "--pod-interface-name-prefix=veth";
        assert_eq!(
            found(&[prefix, name]),
            DetectLocal::InterfacePrefix("veth".into())
        );
        for bad in ["a b", "a/b", "", "-x", "sixteen-letters-", "veth+"] {
            let name = format!("--pod-interface-name-prefix={bad}");
            assert!(
                refused(&[prefix, &name]).contains("not the name of an interface"),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_mask_that_means_something_else_is_refused() {
        let config = |mask: &str| {
            let flag = format!("--short-circuit-mask={mask}");
            parse(&[&flag]).run.kernel.plan_config()
        };
        assert_eq!(
            config("0xff0000").unwrap().short_circuit_mask.bits(),
            0xff0000
        );
        let refused = format!("{:#}", config("0xff00").unwrap_err());
        assert_eq!(
            refused,
            "--short-circuit-mask 0xff00: it has the bit 0x4000, which means something else"
        );
        let cli = ["portolan-agent", "--short-circuit-mask=0xzz"];
        assert!(Cli::try_parse_from(cli).is_err());
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
    fn a_takeover_keeps_kube_proxys_names() {
        let files = ["--source=file", "--file=/etc/x", "--takeover=kube-proxy"];
        let run = parse(&files).run;
        assert!(run.takeover().asked && run.validate().is_ok());
        let named = parse(&[&files[..], &["--name-prefix=OWN"]].concat());
        let refused = named.run.validate().unwrap_err().to_string();
        assert!(refused.contains("--name-prefix"), "{refused}");
        let back = parse(&["cleanup", "--hand-over=kube-proxy"]);
        assert!(matches!(
            back.command,
            Some(Command::Cleanup(args)) if args.hand_over == Some(OtherProxy::KubeProxy)
        ));
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
