// SPDX-License-Identifier: Apache-2.0

//! Settings of a director's host in the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use portolan_netlink::announced::AnnouncedRoutes;
use portolan_netlink::ipvs::{Ipvs, IpvsError};
use portolan_netlink::neighbour::ProxyNeighbours;
use portolan_netlink::{Errno, SocketError, interface_index, interface_name, ipvs};
use portolan_plan::VipBinding;
use portolan_plan::host::{HostDesired, HostState, HostStep, Neighbour, Owned, Timeouts};

use super::blocking::blocking;
use super::{Kernel, ROUTE_MARK};
use crate::{DataplaneError, HostPlane};

impl HostPlane for Kernel {
    async fn observe_host(
        &mut self,
        desired: &HostDesired,
        owned: &Owned,
    ) -> Result<HostState, DataplaneError> {
        blocking(|| observe(&mut self.ipvs, desired, owned))
    }

    async fn apply_host(&mut self, steps: &[HostStep]) -> Vec<(HostStep, String)> {
        let failed = |step: &HostStep| {
            let error = apply(&mut self.ipvs, step).err()?;
            Some((step.clone(), error.to_string()))
        };
        blocking(|| steps.iter().filter_map(failed).collect())
    }

    fn bind_by(&mut self, binding: VipBinding) {
        self.config.vip_binding = binding;
        self.seen = None;
    }
}

fn observe(
    ipvs: &mut Ipvs,
    desired: &HostDesired,
    owned: &Owned,
) -> Result<HostState, DataplaneError> {
    let ipvs::Timeouts { tcp, tcp_fin, udp } = ipvs.timeouts()?;
    let names = desired.sysctls.keys().chain(&desired.not_strict);
    let names = names.chain(&desired.forwarding);
    let sysctls: BTreeMap<_, _> = names.map(|name| (name.clone(), value(name))).collect();
    let mut state = HostState {
        timeouts: Timeouts { tcp, tcp_fin, udp },
        sysctls,
        daemons: ipvs.daemons()?,
        neighbours: neighbours().map_err(DataplaneError::RouteSocket)?,
        announced: BTreeSet::new(),
    };
    let mut tables = owned.tables.clone();
    tables.extend(desired.announced.iter().map(|(table, _)| *table));
    for table in tables {
        let found = announced().and_then(|mut routes| routes.read(table));
        let found = found.map_err(DataplaneError::RouteSocket)?;
        state
            .announced
            .extend(found.into_iter().map(|vip| (table, vip)));
    }
    Ok(state)
}

fn announced() -> Result<AnnouncedRoutes, SocketError> {
    AnnouncedRoutes::open(ROUTE_MARK.protocol)
}

fn neighbour_socket() -> Result<ProxyNeighbours, SocketError> {
    ProxyNeighbours::open(ROUTE_MARK.protocol)
}

/// Our proxy neighbours; those of interfaces that have just gone are gone too.
fn neighbours() -> Result<BTreeSet<Neighbour>, SocketError> {
    let found = neighbour_socket()?.read()?;
    let named = found.into_iter().filter_map(|(index, address)| {
        let interface = interface_name(index)?;
        Some(Neighbour { interface, address })
    });
    Ok(named.collect())
}

/// Reason why a step of a host was not done.
#[derive(Debug, thiserror::Error)]
enum HostStepError {
    #[error("no such setting")]
    NoSetting,
    #[error("there is no interface {0}")]
    NoInterface(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Ipvs(#[from] IpvsError),
    #[error(transparent)]
    Socket(#[from] SocketError),
}

fn apply(ipvs: &mut Ipvs, step: &HostStep) -> Result<(), HostStepError> {
    match step {
        HostStep::SetTimeouts(timeouts) => {
            let Timeouts { tcp, tcp_fin, udp } = *timeouts;
            ipvs.set_timeouts(&ipvs::Timeouts { tcp, tcp_fin, udp })?;
        }
        HostStep::SetSysctl { name, value } => {
            let path = path(name).ok_or(HostStepError::NoSetting)?;
            std::fs::write(path, value)?;
        }
        HostStep::AddDaemon { role, daemon } => match ipvs.add_daemon(*role, daemon) {
            Err(IpvsError::Socket(SocketError::Refused(Errno::ENODEV))) => {
                return Err(HostStepError::NoInterface(daemon.interface.clone()));
            }
            result => result?,
        },
        HostStep::DelDaemon { role } => match ipvs.del_daemon(*role) {
            Err(IpvsError::Socket(SocketError::Refused(Errno::ESRCH))) => {}
            result => result?,
        },
        HostStep::AddNeighbour(neighbour) => {
            let Neighbour { interface, address } = neighbour;
            let index = interface_index(interface)
                .map_err(|_| HostStepError::NoInterface(interface.clone()))?;
            neighbour_socket()?.add((index, *address))?;
        }
        HostStep::DelNeighbour(neighbour) => {
            // With an interface its entries are gone.
            if let Ok(index) = interface_index(&neighbour.interface) {
                let proxy = (index, neighbour.address);
                let deleted = neighbour_socket().and_then(|mut it| it.del(proxy));
                unless(Errno::ENOENT, deleted)?;
            }
        }
        HostStep::Announce { table, vip } => announced()?.add(*table, *vip)?,
        HostStep::Withdraw { table, vip } => {
            let deleted = announced().and_then(|mut routes| routes.del(*table, *vip));
            unless(Errno::ESRCH, deleted)?;
        }
    }
    Ok(())
}

/// A deletion of something that is gone is no failure.
fn unless(errno: Errno, result: Result<(), SocketError>) -> Result<(), SocketError> {
    match result {
        Err(SocketError::Refused(refused)) if refused == errno => Ok(()),
        result => result,
    }
}

/// The value of a setting, its fields separated by one space.
fn value(name: &str) -> Result<String, String> {
    let read = || {
        let path = path(name).ok_or(io::ErrorKind::NotFound)?;
        std::fs::read_to_string(path)
    };
    let text = read().map_err(|error| error.to_string())?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The file of a setting in the notation of `sysctl`: dots are slashes, and slashes dots. `None` for a name
/// that leads elsewhere.
fn path(name: &str) -> Option<PathBuf> {
    let swapped: String = name
        .chars()
        .map(|c| match c {
            '.' => '/',
            '/' => '.',
            other => other,
        })
        .collect();
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_inside = swapped.starts_with("net/") && swapped.split('/').all(is_plain);
    is_inside.then(|| Path::new("/proc/sys").join(swapped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_below_net_alone() {
        let text = |name| path(name).map(|path| path.display().to_string());
        assert_eq!(
            text("net.ipv4.vs.sloppy_tcp").unwrap(),
            "/proc/sys/net/ipv4/vs/sloppy_tcp"
        );
        assert_eq!(
            text("net.ipv6.conf.eth0/7.proxy_ndp").unwrap(),
            "/proc/sys/net/ipv6/conf/eth0.7/proxy_ndp"
        );
        for bad in [
            "kernel.panic",
            "net.//.kernel.panic",
            "net",
            "net..x",
            "net./.x",
            "net.",
        ] {
            assert_eq!(text(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_value_is_read_with_single_spaces() {
        let found = value("net.ipv4.ip_local_port_range").unwrap();
        let fields: Vec<_> = found.split(' ').collect();
        assert_eq!(fields.len(), 2, "{found:?}");
        value("net.ipv4.portolan_none").unwrap_err();
    }
}
