// SPDX-License-Identifier: Apache-2.0

//! Refusals, as the real kernel has them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use portolan_model::Family;
use portolan_model::ipset::{Set, SetEntry, SetKind};
use portolan_model::ipvs::{
    ForwardingMethod, RealServerConfig, Tunnel, VirtualServer, VirtualServerKey,
};
use portolan_netlink::Errno;
use portolan_plan::{KernelState, Step};

/// Reason the model refuses a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("no set {0}")]
    NoSet(String),
    #[error("set exists with another header")]
    OtherHeader,
    #[error("two entries are one")]
    EqualEntries,
    #[error("set is full")]
    SetFull,
    #[error("entry does not fit the set")]
    UnfitEntry,
    #[error("{0}")]
    Errno(Errno),
}

/// Refuses the steps that the real kernel refuses.
pub(super) fn check(state: &KernelState, step: &Step) -> Result<(), Refusal> {
    let no_set = |name: &String| Refusal::NoSet(name.clone());
    let set = |name: &String| state.sets.get(name).ok_or_else(|| no_set(name));
    let server = |key| {
        state
            .virtual_servers
            .get(key)
            .ok_or(Refusal::Errno(Errno::ESRCH))
    };
    match step {
        Step::CreateSet { name, header } => {
            let fits = state.sets.get(name).is_none_or(|set| set.header == *header);
            ensure(fits, Refusal::OtherHeader)
        }
        Step::ReplaceSet { set, .. } => {
            set.entries.iter().try_for_each(|entry| fits(set, entry))?;
            let identities: BTreeSet<_> = set.entries.iter().map(SetEntry::identity).collect();
            ensure(identities.len() == set.entries.len(), Refusal::EqualEntries)?;
            room(set, 0)
        }
        Step::AddEntries { name, entries } => {
            let set = set(name)?;
            entries.iter().try_for_each(|entry| fits(set, entry))?;
            let there: BTreeSet<_> = set.entries.iter().map(SetEntry::identity).collect();
            let added: BTreeSet<_> = entries.iter().map(SetEntry::identity).collect();
            room(set, added.difference(&there).count())
        }
        Step::DelEntries { name, .. } => set(name).map(drop),
        Step::WriteRules { rules, .. } => {
            rules.sets.iter().try_for_each(|name| set(name).map(drop))
        }
        Step::AddRoute { vip, .. } => ensure(!state.routes.contains_key(vip), EXISTS),
        Step::SetRoute { .. } | Step::DelRoute { .. } => Ok(()),
        Step::AddVirtualServer { key, .. } => ensure(server(key).is_err(), EXISTS),
        Step::SetVirtualServer { key, .. } | Step::DelVirtualServer { key } => {
            server(key).map(drop)
        }
        // Applied one by one.
        Step::FillVirtualServer { .. } => Ok(()),
        Step::AddRealServer {
            key,
            address,
            config,
        } => {
            real_server(key, *address, config)?;
            ensure(!server(key)?.real_servers.contains_key(address), EXISTS)
        }
        Step::SetRealServer {
            key,
            address,
            config,
        } => {
            real_server(key, *address, config)?;
            has_real_server(server(key)?, address)
        }
        Step::DelRealServer { key, address } => has_real_server(server(key)?, address),
    }
}

/// As the kernel's `ip_vs_genl_set_cmd` and `ip_vs_add_dest`.
pub(super) fn real_server(
    key: &VirtualServerKey,
    address: SocketAddr,
    config: &RealServerConfig,
) -> Result<(), Refusal> {
    let in_range =
        i32::try_from(config.weight).is_ok() && config.thresholds.lower <= config.thresholds.upper;
    ensure(in_range, Refusal::Errno(Errno::ERANGE))?;
    let is_of_family = key.family() == Family::of(address.ip());
    let fits = match config.forwarding {
        ForwardingMethod::Tunnel(Tunnel::Gue { port, .. }) => port != 0,
        ForwardingMethod::Tunnel(_) => true,
        _ => is_of_family,
    };
    ensure(fits, Refusal::Errno(Errno::EINVAL))
}

pub(super) fn has_real_server(server: &VirtualServer, address: &SocketAddr) -> Result<(), Refusal> {
    let is_there = server.real_servers.contains_key(address);
    ensure(is_there, Refusal::Errno(Errno::ENOENT))
}

pub(super) const EXISTS: Refusal = Refusal::Errno(Errno::EEXIST);

pub(super) fn ensure(good: bool, refusal: Refusal) -> Result<(), Refusal> {
    if good { Ok(()) } else { Err(refusal) }
}

pub(super) fn room(set: &Set, more: usize) -> Result<(), Refusal> {
    let limit = usize::try_from(set.header.max_entries).unwrap_or(usize::MAX);
    let bounded = set.header.kind != SetKind::BitmapPort;
    ensure(
        !bounded || set.entries.len() + more <= limit,
        Refusal::SetFull,
    )
}

pub(super) fn fits(set: &Set, entry: &SetEntry) -> Result<(), Refusal> {
    let (kind, address) = match entry {
        SetEntry::Ip(ip) => (SetKind::HashIp, Some(*ip)),
        SetEntry::IpPort(ip, ..) => (SetKind::HashIpPort, Some(*ip)),
        SetEntry::IpPortMark(ip, ..) => (SetKind::HashIpPortMark, Some(*ip)),
        SetEntry::IpPortIp(ip, ..) => (SetKind::HashIpPortIp, Some(*ip)),
        SetEntry::IpPortNet(ip, ..) => (SetKind::HashIpPortNet, Some(*ip)),
        SetEntry::Port(_) => (SetKind::BitmapPort, None),
    };
    let family = address.is_none_or(|ip| Family::of(ip) == set.header.family);
    // The kernel's sets have no range of all addresses.
    let is_all = matches!(entry, SetEntry::IpPortNet(.., net) if net.prefix_len() == 0);
    let fits = kind == set.header.kind && family && !is_all;
    ensure(fits, Refusal::UnfitEntry)
}
