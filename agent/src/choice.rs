// SPDX-License-Identifier: Apache-2.0

//! Choice of the dataplane: the one that the flag names, or with `auto` what the node has or can do.

use std::fmt;

use anyhow::Context as _;
use portolan_dataplane::{DataplaneError, Kernel, NftablesKernel, has_set, nftables};
use portolan_model::{Families, Family};
use portolan_nftables::TABLE;
use portolan_plan::{Config, SetName};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::app::{DEFAULT_SCHEDULER, open_ipvs};
use crate::args::{DataplaneKind, RunArgs};
use crate::families;

/// No dataplane can be used here, with the reason of each.
#[derive(Debug, thiserror::Error)]
#[error("this node can serve nothing: {}", .0.join(" \u{b7} "))]
pub struct NothingUsable(Vec<String>);

/// Reason a dataplane was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The flag names it.
    Flag,
    /// The node has objects of it.
    Present,
    /// It is the first that the kernel can do.
    Probe,
}

impl Reason {
    /// Its name in metrics and dumps.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Present => "present",
            Self::Probe => "probe",
        }
    }
}

/// The dataplane of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Its name, as the flag has it.
    pub dataplane: &'static str,
    /// Reason.
    pub reason: Reason,
}

impl Choice {
    /// Sockets: they are never chosen without the flag.
    pub(crate) const USERSPACE: Self = Self {
        dataplane: "userspace",
        reason: Reason::Flag,
    };

    /// Adds a metric that is always 1, with the choice as labels.
    pub fn register(self, registry: &mut Registry) {
        let labels = vec![
            ("dataplane", self.dataplane),
            ("reason", self.reason.as_str()),
        ];
        registry.register(
            "dataplane",
            "Dataplane of the node and the reason of the choice: named by the flag, present on the node, or \
             the first that the kernel can do",
            Info::new(labels),
        );
    }
}

/// The kernel of a dataplane, and the families that it can serve.
#[derive(Debug)]
pub(crate) enum Opened {
    Ipvs(Box<Kernel>, Families),
    Nftables(Box<NftablesKernel>, Families),
    /// Sockets need nothing of the kernel.
    Userspace,
}

/// A dataplane that `auto` may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Candidate {
    Ipvs,
    Nftables,
}

impl Candidate {
    fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
        }
    }

    async fn open(self, args: &RunArgs, config: &Config) -> anyhow::Result<Opened> {
        match self {
            Self::Ipvs => {
                let scheduler = config.scheduler.unwrap_or(DEFAULT_SCHEDULER);
                let (kernel, families) = open_ipvs(args, scheduler).await?;
                Ok(Opened::Ipvs(Box::new(kernel), families))
            }
            Self::Nftables => {
                let kernel = NftablesKernel::open(args.kernel_config()?);
                let mut kernel = kernel.context("this node can serve nothing")?;
                let families = families::settle_nftables(&mut kernel, args.families, config);
                let families = families.context("this node can serve nothing: nftables")?;
                Ok(Opened::Nftables(Box::new(kernel), families))
            }
        }
    }

    /// The reason that it cannot be used, as one phrase.
    fn unusable(self, error: &anyhow::Error) -> String {
        let reason = match (self, error.downcast_ref::<DataplaneError>()) {
            (Self::Nftables, Some(DataplaneError::Capabilities(_))) => {
                "needs CAP_NET_ADMIN in the host's network namespace".to_owned()
            }
            (
                Self::Ipvs,
                Some(DataplaneError::NoModule {
                    what: "IPVS",
                    reason,
                }),
            ) => {
                format!(
                    "not in this kernel (modprobe ip_vs), and its modules cannot be loaded: {reason}"
                )
            }
            (_, Some(error)) => error.to_string(),
            (_, None) => error.root_cause().to_string(),
        };
        format!("{}: {reason}", self.name())
    }
}

/// Opens the kernel for the dataplane that the flag names, or chooses one.
///
/// # Errors
/// If it cannot be used; with `auto`, [`NothingUsable`] if none can.
pub(crate) async fn open(args: &RunArgs, config: &Config) -> anyhow::Result<(Opened, Choice)> {
    let named = match args.kernel.dataplane {
        DataplaneKind::Ipvs => Candidate::Ipvs,
        DataplaneKind::Nftables => Candidate::Nftables,
        DataplaneKind::Userspace => return Ok((Opened::Userspace, Choice::USERSPACE)),
        DataplaneKind::Auto => return choose(args, config).await,
    };
    let choice = Choice {
        dataplane: named.name(),
        reason: Reason::Flag,
    };
    Ok((named.open(args, config).await?, choice))
}

async fn choose(args: &RunArgs, config: &Config) -> anyhow::Result<(Opened, Choice)> {
    let present = present(config);
    let mut unusable = Vec::new();
    for candidate in in_order(present) {
        let dataplane = candidate.name();
        match candidate.open(args, config).await {
            Ok(opened) => {
                let reason = match present == Some(candidate) {
                    true => Reason::Present,
                    false => Reason::Probe,
                };
                let others = unusable.join("; ");
                tracing::info!(dataplane, %reason, others, "dataplane chosen");
                return Ok((opened, Choice { dataplane, reason }));
            }
            Err(error) => unusable.push(candidate.unusable(&error)),
        }
    }
    Err(NothingUsable(unusable).into())
}

/// The candidates in the order in which they are tried.
fn in_order(present: Option<Candidate>) -> [Candidate; 2] {
    match present {
        Some(Candidate::Ipvs) => [Candidate::Ipvs, Candidate::Nftables],
        Some(Candidate::Nftables) | None => [Candidate::Nftables, Candidate::Ipvs],
    }
}

/// The dataplane that has programmed this node. After a change that was broken off there are objects of two;
/// those of nftables are in force then.
fn present(config: &Config) -> Option<Candidate> {
    let has_table = |family: &Family| match nftables::tables(*family) {
        Ok(names) => names.iter().any(|name| name == TABLE),
        Err(error) => {
            tracing::debug!(%family, %error, "tables of nftables cannot be read");
            false
        }
    };
    if Family::ALL.iter().any(has_table) {
        return Some(Candidate::Nftables);
    }
    let is_there = |family: &Family| {
        let name = config.names.set(SetName::VirtualServers, *family);
        has_set(&name).unwrap_or_else(|error| {
            tracing::debug!(%family, %error, "sets cannot be read");
            false
        })
    };
    let has_record = Family::ALL.iter().any(is_there);
    has_record.then_some(Candidate::Ipvs)
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_node_has_is_tried_first() {
        use Candidate::{Ipvs, Nftables};
        assert_eq!(in_order(None), [Nftables, Ipvs]);
        assert_eq!(in_order(Some(Nftables)), [Nftables, Ipvs]);
        assert_eq!(in_order(Some(Ipvs)), [Ipvs, Nftables]);
    }

    #[test]
    fn reasons_are_one_phrase_each() {
        let capabilities = || DataplaneError::Capabilities(vec!["CAP_NET_ADMIN"]);
        let error = anyhow::Error::from(capabilities()).context("this node can serve nothing");
        assert_eq!(
            Candidate::Nftables.unusable(&error),
            "nftables: needs CAP_NET_ADMIN in the host's network namespace"
        );
        let missing = DataplaneError::NoModule {
            what: "IPVS",
            reason: "modprobe: not found".to_owned(),
        };
        let error = anyhow::Error::from(missing).context("this node can serve nothing");
        let ipvs = Candidate::Ipvs.unusable(&error);
        let expected = "ipvs: not in this kernel (modprobe ip_vs), and its modules cannot be loaded: modprobe: \
                        not found";
        assert_eq!(ipvs, expected);
        let error = anyhow::anyhow!("this kernel has no \"fib\"").context("nftables");
        let nftables = Candidate::Nftables.unusable(&error);
        assert_eq!(nftables, "nftables: this kernel has no \"fib\"");
        let all = NothingUsable(vec![nftables, ipvs]).to_string();
        assert!(
            all.starts_with("this node can serve nothing: nftables: this kernel"),
            "{all}"
        );
    }
}
