// SPDX-License-Identifier: Apache-2.0

//! Flags of `export`.

use anyhow::ensure;
use clap::{Args, ValueEnum};
use portolan_model::{Families, Family};

use super::{RunArgs, SocketArgs};

/// Flags of `export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The format.
    pub format: ExportFormat,

    /// Where the table comes from. Default: file with --file, else agent.
    #[arg(long, value_name = "SOURCE")]
    from: Option<ExportFrom>,

    /// The family. Default: ipv4 for iptables, whose programs have one each, and for env; both for the
    /// others.
    #[arg(long, value_name = "FAMILY")]
    family: Option<ExportFamily>,

    /// iptables: add the jumps from built-in chains. Restoring them twice adds them twice.
    #[arg(long)]
    pub jumps: bool,

    /// iptables: leave out comments.
    #[arg(long)]
    pub short: bool,

    /// nft: the rules of a kube-proxy in nftables mode, in its table.
    #[arg(long)]
    pub kube_proxy: bool,

    /// ipvsadm: add the sets, routes and rules that virtual servers need, as comments. They are for
    /// people: `ipvsadm -R` ends with an error at a comment.
    #[arg(long)]
    pub full: bool,

    /// env: the namespace of the pods.
    #[arg(long, value_name = "NAMESPACE", default_value = "default")]
    pub namespace: String,

    /// The running agent.
    #[command(flatten)]
    pub agent: SocketArgs,

    /// Flags of a run. All are accepted; those of the table and the kernel count. Give those of the
    /// agent for the same result.
    #[command(flatten)]
    pub run: RunArgs,
}

impl ExportArgs {
    /// Checks that the flags of a format are used with it.
    ///
    /// # Errors
    /// If a flag is for another format.
    pub fn validate(&self) -> anyhow::Result<()> {
        ensure!(
            !self.jumps || self.format == ExportFormat::Iptables,
            "--jumps is for iptables alone"
        );
        ensure!(
            !self.short || self.format == ExportFormat::Iptables,
            "--short is for iptables alone: the others have no comments"
        );
        ensure!(
            !self.full || self.format == ExportFormat::Ipvsadm,
            "--full is for ipvsadm alone"
        );
        ensure!(
            !self.kube_proxy || self.format == ExportFormat::Nft,
            "--kube-proxy is for nft alone: iptables has a kube-proxy's rules anyway"
        );
        Ok(())
    }

    /// Where the table comes from.
    #[must_use]
    pub fn source(&self) -> ExportFrom {
        let default = match self.run.file.is_empty() {
            true => ExportFrom::Agent,
            false => ExportFrom::File,
        };
        self.from.unwrap_or(default)
    }

    /// The families of a text that has room for both.
    #[must_use]
    pub fn families(&self) -> Families {
        match self.family {
            Some(family) => [family.into()].into_iter().collect(),
            None => Family::ALL.into_iter().collect(),
        }
    }

    /// The family of a text that has room for one.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family.map_or(Family::V4, Into::into)
    }
}

/// Formats of `export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Rules of a kube-proxy in iptables mode, for `iptables-restore --noflush`.
    Iptables,
    /// The tables of --dataplane nftables, for `nft -f`.
    Nft,
    /// Virtual servers of --dataplane ipvs, for `ipvsadm -R`.
    Ipvsadm,
    /// The environment variables that a kubelet gives the pods of --namespace for Services, with the
    /// ports of a Service in the order of their numbers.
    Env,
}

/// Where `export` takes the table from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFrom {
    /// The running agent: the table in force.
    Agent,
    /// The last good table in --state-dir.
    Disk,
    /// The files of --file.
    File,
}

/// Families of `export`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExportFamily {
    /// IPv4.
    #[value(name = "ipv4", alias = "v4")]
    V4,
    /// IPv6.
    #[value(name = "ipv6", alias = "v6")]
    V6,
}

impl From<ExportFamily> for Family {
    fn from(family: ExportFamily) -> Self {
        match family {
            ExportFamily::V4 => Self::V4,
            ExportFamily::V6 => Self::V6,
        }
    }
}
