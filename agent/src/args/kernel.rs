// SPDX-License-Identifier: Apache-2.0

//! Flags of how the kernel is programmed, shared by runs and clean-ups.

use std::ffi::OsStr;
use std::net::IpAddr;

use anyhow::{Context as _, bail};
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, ValueEnum};
use ipnet::IpNet;
use portolan_dataplane::{IptablesMode, KernelConfig};
use portolan_model::{Family, ipvs};
use portolan_plan::{Config, DetectLocal, MarkUsers, Names, VipBinding};

/// Flags of kernel programming.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernel programming")]
pub struct KernelArgs {
    /// Dataplane of the node: IPVS with ipset and iptables, or nftables alone. With nftables, flags about
    /// IPVS, short circuits, the binding of VIPs and iptables have no effect; VIPs are not bound. With auto:
    /// the one that has programmed the node already, else nftables, else IPVS. An agent that starts with
    /// another value of these than before changes over. With userspace, sockets of the agent serve clients on
    /// this machine, and the kernel is not programmed: for development and tests.
    #[arg(long, alias = "proxy-mode", env = "PORTOLAN_DATAPLANE", default_value = "ipvs",
        value_parser = DataplaneParser)]
    pub dataplane: DataplaneKind,

    /// Default scheduler of virtual servers (rr, wrr, lc, wlc, sh, mh ...), where the Service names
    /// none. Default: rr. With mh, a client of a Service with ClientIP affinity reaches the same pod
    /// at all addresses of the Service, also after the affinity's timeout.
    #[arg(long, alias = "ipvs-scheduler", env = "PORTOLAN_SCHEDULER",
        value_parser = parse_scheduler)]
    scheduler: Option<&'static str>,

    /// Masquerade all connections to cluster IPs.
    #[arg(long, env = "PORTOLAN_MASQUERADE_ALL", default_value_t = false,
        num_args = 0..=1, default_missing_value = "true", require_equals = true,
        action = clap::ArgAction::Set)]
    masquerade_all: bool,

    /// Keep TCP segments from endpoints of imports to the size of the path, as this node knows it: by its
    /// interfaces, by the `mtu` of a route, or by ICMP messages that arrived. So connections to other clusters
    /// pass smaller links whose ICMP messages are lost behind them.
    #[arg(long, env = "PORTOLAN_CLAMP_REMOTE_MSS", default_value_t = true,
        num_args = 0..=1, default_missing_value = "true", require_equals = true,
        action = clap::ArgAction::Set)]
    clamp_remote_mss: bool,

    /// Detection of packets from the node's own pods. Their connections to cluster IPs are not
    /// masqueraded, and those to external addresses are not limited to local endpoints.
    #[arg(
        long,
        env = "PORTOLAN_DETECT_LOCAL_MODE",
        default_value = "ClusterCIDR"
    )]
    detect_local_mode: DetectLocalMode,

    /// Networks of pods, for --detect-local-mode ClusterCIDR; the first one of each family counts.
    /// Without one, only the node's own connections to cluster IPs are masqueraded.
    #[arg(long, env = "PORTOLAN_CLUSTER_CIDR", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,

    /// Bridge of the node's pods, for --detect-local-mode BridgeInterface.
    #[arg(long, env = "PORTOLAN_POD_BRIDGE_INTERFACE")]
    pod_bridge_interface: Option<String>,

    /// Prefix of the names of pod interfaces, for --detect-local-mode InterfaceNamePrefix.
    #[arg(long, env = "PORTOLAN_POD_INTERFACE_NAME_PREFIX")]
    pod_interface_name_prefix: Option<String>,

    /// Networks whose virtual servers are never deleted (kube-proxy's --ipvs-exclude-cidrs).
    #[arg(long, env = "PORTOLAN_IPVS_EXCLUDE_CIDRS", value_delimiter = ',')]
    ipvs_exclude_cidrs: Vec<IpNet>,

    /// Bits of the packet mark that lead connections of this node and its pods past
    /// externalTrafficPolicy Local: one mark per Service port. Ranges of ports and checks with via Service of load
    /// balancers have marks of these bits too. No other program may use them. Default:
    /// 0x3fff0000, or free bits where rules of other programs (Calico, Cilium ...) use some of these.
    #[arg(long, env = "PORTOLAN_SHORT_CIRCUIT_MASK", value_parser = parse_mark)]
    pub short_circuit_mask: Option<u32>,

    /// Bit of the packet mark that requests masquerading; bit 14 is 0x4000.
    #[arg(long, alias = "iptables-masquerade-bit", env = "PORTOLAN_MASQUERADE_BIT",
        default_value = "14", value_parser = clap::value_parser!(u32).range(0..=31))]
    masquerade_bit: u32,

    /// The node's own address, one per family: the source of its own connections to Services.
    /// Default: the first address of the first interface.
    #[arg(long, env = "PORTOLAN_NODE_IP", value_delimiter = ',')]
    node_ip: Vec<IpAddr>,

    /// Binding of virtual addresses to the node: by a local route for each, or as addresses of the
    /// dummy device portolan-vips, for programs that rely on addresses. As addresses, they become the
    /// source of the node's own connections; adding 10,000 of them takes seconds, and removing as
    /// many of IPv6 half a minute. Default: as the `Director` of this host says, else route.
    #[arg(long, env = "PORTOLAN_VIP_BINDING")]
    vip_binding: Option<Binding>,

    /// Variant of iptables that writes rules. With auto: that of the kubelet (its chain
    /// KUBE-IPTABLES-HINT or KUBE-KUBELET-CANARY in mangle), else the one with most rules, else the
    /// host's default; the first of them that can create a chain.
    #[arg(long, env = "PORTOLAN_IPTABLES", default_value = "auto")]
    iptables: Iptables,

    /// Prefix of the names of sets and chains, without the `-` that follows it.
    #[arg(long, env = "PORTOLAN_NAME_PREFIX", default_value = "KUBE")]
    name_prefix: String,
}

/// Kinds of dataplane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DataplaneKind {
    /// IPVS, ipset and iptables.
    Ipvs,
    /// nftables.
    Nftables,
    /// Dataplane that the node has, or can do.
    Auto,
    /// Sockets of the agent.
    Userspace,
}

/// Parser of [`DataplaneKind`] that knows the modes of a kube-proxy that the agent does not have.
#[derive(Debug, Clone, Copy)]
struct DataplaneParser;

impl TypedValueParser for DataplaneParser {
    type Value = DataplaneKind;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<DataplaneKind, clap::Error> {
        let reason = match value.to_str() {
            // kube-proxy's own default.
            Some("iptables" | "") => {
                "the agent has no iptables mode: nftables behaves the same, and `portolan-agent export iptables` \
                 prints the rules"
            }
            Some("kernelspace") => "kernelspace is kube-proxy's mode on Windows",
            _ => return EnumValueParser::new().parse_ref(command, arg, value),
        };
        let mut error = clap::Error::new(ErrorKind::ValueValidation).with_cmd(command);
        let named = arg.map_or_else(String::new, ToString::to_string);
        let value = value.to_string_lossy().into_owned();
        error.insert(ContextKind::InvalidArg, ContextValue::String(named));
        error.insert(ContextKind::InvalidValue, ContextValue::String(value));
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![reason.into()]),
        );
        Err(error)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = DataplaneKind::value_variants().iter();
        Some(Box::new(values.filter_map(ValueEnum::to_possible_value)))
    }
}

/// Detection modes, by kube-proxy's names.
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

/// A scheduler that the kernel does not have.
#[derive(Debug, thiserror::Error)]
#[error("expected one of {}", ipvs::SCHEDULERS.join(", "))]
struct UnknownScheduler;

/// Accepts the kernel's own schedulers only: it would load a module for any other name.
fn parse_scheduler(name: &str) -> Result<&'static str, UnknownScheduler> {
    ipvs::scheduler(name).ok_or(UnknownScheduler)
}

/// Parses a mark such as `0x3fff0000`, or in decimal.
fn parse_mark(text: &str) -> Result<u32, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

/// Binding of virtual addresses to the node.
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

/// Variants of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Iptables {
    /// The kubelet's variant, else that with most rules.
    Auto,
    /// iptables-nft.
    Nft,
    /// iptables-legacy.
    Legacy,
}

impl KernelArgs {
    /// Configuration of the kernel's dataplane.
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
            vip_binding: self.vip_binding().unwrap_or_default(),
            node_ips: self.node_ip.clone(),
            ..KernelConfig::default()
        })
    }

    /// Configuration of the desired state, for all families.
    ///
    /// # Errors
    /// If the name prefix or the mask cannot be used, or the detect-local mode needs a missing flag.
    pub fn plan_config(&self) -> anyhow::Result<Config> {
        let masquerade_mark = 1 << self.masquerade_bit;
        Ok(Config {
            names: Names::new(&self.name_prefix).context("--name-prefix")?,
            scheduler: self.scheduler,
            masquerade_all: self.masquerade_all,
            detect_local: self.detect_local()?,
            masquerade_mark,
            short_circuit_mask: MarkUsers::default()
                .choose(self.short_circuit_mask, masquerade_mark)?,
            asked_marks: self.short_circuit_mask,
            exclude_cidrs: self.ipvs_exclude_cidrs.clone(),
            vip_binding: self.vip_binding().unwrap_or_default(),
            clamp_remote_mss: self.clamp_remote_mss,
            ..Config::default()
        })
    }

    /// The binding of virtual addresses, if the flag says one.
    pub(crate) fn vip_binding(&self) -> Option<VipBinding> {
        self.vip_binding.map(Into::into)
    }

    fn detect_local(&self) -> anyhow::Result<DetectLocal> {
        let interface = |flag: &str, name: &Option<String>| match name {
            Some(name) if is_interface(name) => Ok(name.clone()),
            Some(name) => bail!("{flag} {name:?}: not an interface name"),
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

/// Returns `true` if iptables reads a name as that of one interface: at most 15 bytes (`IFNAMSIZ`),
/// and no `+` at the end, which matches any continuation.
fn is_interface(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b'"' && byte != b'\'';
    let start = |c: char| c != '-' && c != '!';
    (1..=15).contains(&name.len())
        && name.bytes().all(plain)
        && name.starts_with(start)
        && !name.ends_with('+')
}
