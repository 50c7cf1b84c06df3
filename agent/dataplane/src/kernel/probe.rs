// SPDX-License-Identifier: Apache-2.0

//! Probe at start of the kernel's support for a family: one sentence about a missing part, in place of
//! thousands of objects that cannot be programmed.
//!
//! Objects are created and deleted in one send, which the kernel executes as a whole, so that even a killed
//! process leaves nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use portolan_model::ipset::{SetHeader, SetKind};
use portolan_model::{Families, Family};
use portolan_netlink::ipset::{IpsetError, Request};
use portolan_netlink::ipvs::IpvsError;
use portolan_plan::{RulesMode, SetName, VipBinding};

use super::blocking::blocking;
use super::{Kernel, REPLACEMENT_SET, VIP_DEVICE, sysctl};
use crate::{DataplaneError, Errno};

/// Sets that the trial rules of a family match. A killed agent may leave one, and the next uses it.
const TRIAL_SETS: [&str; 2] = ["PORTOLAN-TRIAL", "PORTOLAN-6-TRIAL"];

/// Attempts to delete such a set, and the pause between two.
const TRIAL_DELETIONS: usize = 200;
const TRIAL_PAUSE: Duration = Duration::from_millis(5);

/// Reason a family cannot be served on this node.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// The kernel has no IPv6, or was started with `ipv6.disable=1`.
    #[error("the kernel has no IPv6")]
    NoIpv6,
    /// IPv6 is disabled on the interface with the VIPs: the kernel refuses to add them.
    #[error("IPv6 is switched off: net.ipv6.conf.{interface}.disable_ipv6 is 1")]
    SwitchedOff {
        /// The interface.
        interface: &'static str,
    },
    /// IPVS refuses virtual servers of the family with the configured scheduler.
    #[error("IPVS refuses virtual servers with the scheduler {scheduler}: {errno}")]
    VirtualServer {
        /// The scheduler.
        scheduler: String,
        /// `ENOENT`: no such scheduler. `EAFNOSUPPORT`: no IPv6 in IPVS.
        errno: Errno,
    },
    /// A set of a required type cannot be created.
    #[error("no set of the type {} can be created: {errno}", kind.type_name())]
    Set {
        /// The type.
        kind: SetKind,
        /// Reason.
        errno: Errno,
    },
    /// IPVS cannot be used.
    #[error(transparent)]
    Ipvs(#[from] IpvsError),
    /// ipset cannot be used.
    #[error(transparent)]
    Ipset(#[from] IpsetError),
    /// The rules cannot be read or written.
    #[error(transparent)]
    Iptables(DataplaneError),
}

impl Kernel {
    /// Probes the requirements of a family: IPVS with a scheduler, the types of sets, and iptables unless rules are
    /// written on demand. Nothing stays in the kernel after [`Self::end_probes`].
    ///
    /// # Errors
    /// The first requirement that is not met.
    pub async fn probe(&mut self, family: Family, scheduler: &str) -> Result<(), Unusable> {
        if family == Family::V6 {
            self.probe_ipv6()?;
        }
        if let Some(errno) = blocking(|| self.ipvs.probe(family, scheduler))? {
            let scheduler = scheduler.to_owned();
            return Err(Unusable::VirtualServer { scheduler, errno });
        }
        blocking(|| self.probe_sets(family))?;
        if self.config.rules_mode == RulesMode::OnDemand {
            return Ok(());
        }
        self.write_trial(family).await
    }

    /// Writes rules that no packet reaches, with each match and target of ours, and deletes them: tools
    /// that can read may still be unable to write. `set` opens a raw socket, for which `CAP_NET_RAW` is
    /// needed too.
    async fn write_trial(&mut self, family: Family) -> Result<(), Unusable> {
        let set = TRIAL_SETS[usize::from(family == Family::V6)];
        let create = Request::Create {
            name: set.to_owned(),
            header: SetHeader {
                kind: SetKind::HashIpPort,
                family,
                max_entries: 1,
            },
            expected_entries: 1,
            exclusive: false,
        };
        let errors = blocking(|| self.ipset.apply(&[create]))?;
        if let Some(error) = errors.first() {
            let (kind, errno) = (SetKind::HashIpPort, error.errno);
            return Err(Unusable::Set { kind, errno });
        }
        let written = self.iptables.write_trial(family, set).await;
        self.trial_sets.insert(set);
        self.delete_trial_sets()?;
        written.map_err(Unusable::Iptables)
    }

    /// Deletes what probes have left: nftables lets go of a set a moment after its rules are deleted, so that this is
    /// for the end of all that can be done meanwhile.
    ///
    /// # Errors
    /// If ipset cannot be used.
    pub async fn end_probes(&mut self) -> Result<(), IpsetError> {
        for _ in 0..TRIAL_DELETIONS {
            self.delete_trial_sets()?;
            if self.trial_sets.is_empty() {
                break;
            }
            // The kernel tells nobody when it has let go.
            tokio::time::sleep(TRIAL_PAUSE).await;
        }
        Ok(())
    }

    /// Deletes the sets of trials that no rule refers to any more.
    fn delete_trial_sets(&mut self) -> Result<(), IpsetError> {
        let destroy = |set: &&'static str| Request::Destroy {
            name: (*set).to_owned(),
        };
        let mut left = BTreeSet::new();
        for set in std::mem::take(&mut self.trial_sets) {
            if !blocking(|| self.ipset.apply(&[destroy(&set)]))?.is_empty() {
                left.insert(set);
            }
        }
        self.trial_sets = left;
        Ok(())
    }

    /// Probes the tools that read and write the rules of a family.
    ///
    /// # Errors
    /// If one of them fails.
    pub async fn probe_rules(&mut self, family: Family) -> Result<(), DataplaneError> {
        self.iptables.probe(family).await
    }

    /// Restricts the kernel to these families. Objects of others stay untouched.
    pub fn serve(&mut self, families: Families) {
        self.iptables.keep_only(families);
    }

    fn probe_ipv6(&self) -> Result<(), Unusable> {
        if !sysctl::has_ipv6() {
            return Err(Unusable::NoIpv6);
        }
        let interface = match self.config.vip_binding {
            VipBinding::Route => "lo",
            // A device that does not exist yet gets the default.
            VipBinding::Address => [VIP_DEVICE, "default"]
                .into_iter()
                .find(|interface| sysctl::is_ipv6_off(interface).is_some())
                .unwrap_or("default"),
        };
        match sysctl::is_ipv6_off(interface) {
            Some(true) => Err(Unusable::SwitchedOff { interface }),
            _ => Ok(()),
        }
    }

    /// Creates and destroys a set of each type.
    fn probe_sets(&mut self, family: Family) -> Result<(), Unusable> {
        let kinds: BTreeSet<SetKind> = SetName::ALL.into_iter().map(SetName::kind).collect();
        let kinds: Vec<SetKind> = kinds.into_iter().collect();
        let name = || REPLACEMENT_SET.to_owned();
        let destroy = || Request::Destroy { name: name() };
        let create = |kind: &SetKind| Request::Create {
            name: name(),
            header: SetHeader {
                kind: *kind,
                family,
                max_entries: 1,
            },
            expected_entries: 1,
            exclusive: true,
        };
        // An agent killed during a replacement may have left a set of that name.
        let tried = kinds.iter().flat_map(|kind| [destroy(), create(kind)]);
        let tried: Vec<Request> = tried.chain([destroy()]).collect();
        let errors = self.ipset.apply(&tried)?;
        let refused = errors
            .iter()
            .find(|error| matches!(tried[error.index], Request::Create { .. }));
        refused.map_or(Ok(()), |error| {
            let kind = kinds[error.index / 2];
            let errno = error.errno;
            Err(Unusable::Set { kind, errno })
        })
    }
}
