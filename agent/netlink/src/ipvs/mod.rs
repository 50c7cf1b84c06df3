// SPDX-License-Identifier: Apache-2.0

//! IPVS: virtual servers and their real servers (kernel: `net/netfilter/ipvs/ip_vs_ctl.c`).
//!
//! [`Ipvs::apply`] programs a batch, [`Ipvs::dump`] reads everything back. Nothing is flushed, ever:
//! the kernel keeps deleted real servers for two to three minutes in a list that each addition
//! scans. The kernel sends no notifications of changes.

mod attr;
mod daemon;
mod family;
mod glimpse;
mod reply;
mod request;
mod sockopt;
#[cfg(test)]
mod tests;
mod timeouts;
mod tunnel;
mod usage;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use portolan_model::ipvs::{
    Connections, RealServers, SharedConfigs, VirtualServer, VirtualServerConfig, VirtualServerKey,
};
use portolan_model::{Family, Protocol};

pub use daemon::SyncDaemons;
pub use glimpse::Glimpse;
pub use reply::Info;
pub use request::Request;
pub use timeouts::Timeouts;
pub use usage::{Totals, Usage};

use crate::socket::{Bus, Socket, SocketError};
use crate::wire::Writer;
use crate::{Errno, Malformed};
use reply::{Dests, Services};
use request::{GET_DEST, GET_INFO, GET_SERVICE};
use sockopt::Sockopt;

/// Bytes per send. Measured: larger sends gain nothing, at 64 KiB the system calls begin to show.
const SEND_SIZE: usize = 256 << 10;

/// The most listings of virtual servers beyond the first, while others change them.
const LISTINGS: u32 = 5;

/// A guess where the number of real servers is not known; a wrong one costs another system call.
const DESTS_EXPECTED: u32 = 64;

/// Addresses of probed virtual servers: kube-proxy's (`CanUseIPVSProxier`), and its counterpart in IPv6.
/// Both are reserved for documentation (RFC 5737, RFC 3849).
const PROBE_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 0);
const PROBE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0xc633, 0x6400);
const PROBE_PORT: u16 = 20_000;

/// Reason IPVS cannot be programmed or read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IpvsError {
    /// The kernel has no IPVS: the module `ip_vs` is not loaded, or missing.
    #[error("the kernel has no IPVS")]
    NoIpvs,
    /// The socket failed. Unless the error states otherwise, the effect of a batch is unknown.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// IPv4 objects cannot be read, which is done by IPVS's socket options.
    #[error("cannot read IPVS by socket option: {0}")]
    Sockopt(Errno),
}

impl From<Malformed> for IpvsError {
    fn from(error: Malformed) -> Self {
        Self::Socket(error.into())
    }
}

/// A request of a batch that failed; all others are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("IPVS request {index}: {errno}")]
pub struct RequestError {
    /// The request's index among those given to [`Ipvs::apply`].
    pub index: usize,
    /// The kernel's error; [`Request`] lists the errors and their causes.
    pub errno: Errno,
}

/// State of IPVS in a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Virtual servers with a type here, and their real servers.
    pub virtual_servers: BTreeMap<VirtualServerKey, VirtualServer>,
    /// Number of others: other protocols, other forwarding methods.
    pub skipped: usize,
}

/// A virtual server, read without its real servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Its configuration.
    pub config: VirtualServerConfig,
    /// Number of its real servers; known for IPv4 only.
    pub real_servers: Option<u32>,
}

/// The IPVS of the network namespace of the thread that opened it. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Ipvs {
    socket: Socket,
    sockopt: Sockopt,
    /// The generic netlink family's number, which is the type of its messages.
    family: u16,
}

impl Ipvs {
    /// Opens the sockets and finds IPVS in the kernel, which may load the module for it.
    ///
    /// # Errors
    /// [`IpvsError::NoIpvs`] if the kernel has none, [`IpvsError::Socket`] with `EPERM` without the
    /// capability.
    pub fn open() -> Result<Self, IpvsError> {
        let mut socket = Socket::open(Bus::Generic)?;
        let family = family::resolve(&mut socket, "IPVS")?.ok_or(IpvsError::NoIpvs)?;
        let sockopt = Sockopt::open()?;
        let mut ipvs = Self {
            socket,
            sockopt,
            family,
        };
        // The kernel checks the capability only now.
        ipvs.info()?;
        Ok(ipvs)
    }

    /// Number of netlink requests so far.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.socket.requests()
    }

    /// The kernel's version of IPVS.
    ///
    /// # Errors
    /// [`IpvsError::Socket`].
    pub fn info(&mut self) -> Result<Info, IpvsError> {
        let fill = |writer: &mut Writer| request::write_header(writer, GET_INFO);
        Ok(self.socket.request(self.family, fill, reply::read_info)?)
    }

    /// Executes requests in their order and returns those that failed, in order; an empty result
    /// means that all are applied. Each object changes atomically, the batch does not.
    ///
    /// # Errors
    /// [`IpvsError::Socket`]: it is unknown which requests were executed, read the kernel again.
    pub fn apply<R: Borrow<Request>>(
        &mut self,
        requests: impl IntoIterator<Item = R>,
    ) -> Result<Vec<RequestError>, IpvsError> {
        let mut errors = Vec::new();
        let mut batch = self.socket.batch(SEND_SIZE);
        for (index, request) in requests.into_iter().enumerate() {
            let request = request.borrow();
            if request.is_valid() {
                batch.push(self.family, 0, |writer| request.write(writer))?;
            } else {
                batch.skip();
                errors.push(RequestError {
                    index,
                    errno: Errno::EINVAL,
                });
            }
        }
        let refused = batch.finish()?;
        errors.extend(refused.iter().map(|r| RequestError {
            index: r.index,
            errno: r.errno,
        }));
        errors.sort_by_key(|error| error.index);
        Ok(errors)
    }

    /// Reads all objects of both families. It is no snapshot: objects that change meanwhile may be read before
    /// or after the change.
    ///
    /// # Errors
    /// [`IpvsError::Socket`], [`IpvsError::Sockopt`].
    pub fn dump(&mut self) -> Result<State, IpvsError> {
        let (mut state, mut shared) = (State::default(), SharedConfigs::default());
        for family in Family::ALL {
            let services = self.all_services(family)?;
            state.skipped += services.skipped;
            for (key, mut service) in services.known {
                if family == Family::V4 && may_have_engine(&key, &service.config) {
                    service.config.engine = self.engine(&key)?.map(Into::into);
                }
                // A virtual server may have been deleted since.
                let Some(dests) = self.dests(&key, service.real_servers)? else {
                    continue;
                };
                state.skipped += dests.skipped;
                let configs = dests
                    .known
                    .into_iter()
                    .map(|(address, dest)| (address, dest.config));
                let real_servers = Arc::new(configs.collect());
                let config = shared.share(service.config);
                state.virtual_servers.insert(
                    key,
                    VirtualServer {
                        config,
                        real_servers,
                    },
                );
            }
        }
        Ok(state)
    }

    /// Reads the virtual servers of a family without their real servers: for IPv4 in two
    /// system calls, fit for a check every few seconds. For IPv6 the kernel must be asked for those
    /// of both families.
    ///
    /// # Errors
    /// [`IpvsError::Socket`], [`IpvsError::Sockopt`].
    pub fn dump_services(
        &mut self,
        family: Family,
    ) -> Result<BTreeMap<VirtualServerKey, Summary>, IpvsError> {
        Ok(self.services(family)?.known.into_iter().collect())
    }

    /// Shows all IPv4 virtual servers without copying them, cheap enough for every few seconds. Those
    /// without a type here are left out.
    ///
    /// # Errors
    /// [`IpvsError::Sockopt`].
    pub fn glance(
        &self,
        mut each: impl FnMut(VirtualServerKey, Glimpse<'_>),
    ) -> Result<(), IpvsError> {
        self.sockopt.glance(|service| {
            if let Some((key, glimpse)) = service {
                each(key, glimpse);
            }
        })
    }

    /// Whether the kernel has a scheduler, or can load it; `false` also if that failed otherwise.
    ///
    /// # Errors
    /// As [`Self::probe`].
    pub fn has_scheduler(&mut self, name: &str) -> Result<bool, IpvsError> {
        Ok(self.probe(Family::V4, name)?.is_none())
    }

    /// Whether the kernel accepts virtual servers of a family with a scheduler, which it loads if it can.
    /// Returns the error if not: `ENOENT` without the scheduler, `EAFNOSUPPORT` without the family.
    ///
    /// IPVS reports that only when a virtual server is added, so one is added and deleted at an unused
    /// address. Both requests are one send, which the kernel executes as a whole: a killed process leaves
    /// nothing. Nothing is added if a virtual server with the scheduler exists.
    ///
    /// # Errors
    /// [`IpvsError::Socket`], [`IpvsError::Sockopt`].
    pub fn probe(&mut self, family: Family, scheduler: &str) -> Result<Option<Errno>, IpvsError> {
        let mut services = self.dump_services(family)?;
        // Left by an older version that was killed in between; it has no real servers.
        let left = VirtualServerKey::new(Protocol::Tcp, PROBE_V4.into(), PROBE_PORT);
        let is_empty = |service: &Summary| service.real_servers == Some(0);
        if services.get(&left).is_some_and(is_empty) {
            self.apply([Request::DelService { key: left }])?;
            services.remove(&left);
        }
        let mut of_family = services.iter().filter(|(key, _)| key.family() == family);
        if of_family.any(|(_, service)| &*service.config.scheduler == scheduler) {
            return Ok(None);
        }
        let address: IpAddr = match family {
            Family::V4 => PROBE_V4.into(),
            Family::V6 => PROBE_V6.into(),
        };
        let mut keys =
            (PROBE_PORT..).map(|port| VirtualServerKey::new(Protocol::Tcp, address, port));
        let Some(key) = keys.find(|key| !services.contains_key(key)) else {
            return Ok(Some(Errno::EEXIST));
        };
        let config = VirtualServerConfig {
            scheduler: scheduler.to_owned().into(),
            ..VirtualServerConfig::round_robin()
        };
        let config = Arc::new(config);
        let tried = [
            Request::AddService { key, config },
            Request::DelService { key },
        ];
        let refused = self.apply(&tried)?;
        Ok(refused.first().map(|error| error.errno))
    }

    /// Reads the real servers of one virtual server; empty if there is none of that key.
    ///
    /// # Errors
    /// [`IpvsError::Socket`], [`IpvsError::Sockopt`].
    pub fn real_servers(&mut self, key: &VirtualServerKey) -> Result<RealServers, IpvsError> {
        let dests = self.dests(key, None)?.unwrap_or_default();
        Ok(dests
            .known
            .into_iter()
            .map(|(address, dest)| (address, dest.config))
            .collect())
    }

    /// Counts the connections of each real server of a virtual server; empty if there is none of
    /// that key.
    ///
    /// # Errors
    /// [`IpvsError::Socket`], [`IpvsError::Sockopt`].
    pub fn connections(
        &mut self,
        key: &VirtualServerKey,
    ) -> Result<BTreeMap<SocketAddr, Connections>, IpvsError> {
        let dests = self.dests(key, None)?.unwrap_or_default();
        Ok(dests
            .known
            .into_iter()
            .map(|(address, dest)| (address, dest.connections))
            .collect())
    }

    /// The virtual servers of a family, also while the kernel resizes its table.
    ///
    /// Linux 7 does that soon after additions. A listing by netlink has several parts, and each begins at a position in
    /// the table: a listing lacks some virtual servers then, and is not marked as interrupted
    /// (`ip_vs_genl_dump_services`). Two listings in turn with the same virtual servers are complete.
    fn all_services(&mut self, family: Family) -> Result<Services, IpvsError> {
        let mut services = self.services(family)?;
        let is_empty = services.known.is_empty() && services.skipped == 0;
        // Those of IPv4 come in one part.
        if family == Family::V4 || is_empty {
            return Ok(services);
        }
        let keys = |services: &Services| -> BTreeSet<_> {
            let known = services.known.iter();
            known.map(|(key, _)| *key).collect()
        };
        for _ in 0..LISTINGS {
            let again = self.services(family)?;
            let is_same = keys(&services) == keys(&again) && services.skipped == again.skipped;
            services = again;
            if is_same {
                break;
            }
        }
        Ok(services)
    }

    fn services(&mut self, family: Family) -> Result<Services, IpvsError> {
        match family {
            Family::V4 => self.sockopt.services(),
            Family::V6 => {
                let fill = |writer: &mut Writer| request::write_header(writer, GET_SERVICE);
                Ok(self
                    .socket
                    .dump(self.family, fill, reply::read_v6_service)?)
            }
        }
    }

    /// `None` if the virtual server does not exist, which the kernel reports for IPv4 only.
    fn dests(
        &mut self,
        key: &VirtualServerKey,
        expected: Option<u32>,
    ) -> Result<Option<Dests>, IpvsError> {
        match key.family() {
            Family::V4 => {
                let dests = self
                    .sockopt
                    .dests(key, expected.unwrap_or(DESTS_EXPECTED))?;
                // Not all that can be read is shown: tunnels, and real servers of the other family.
                let is_partial = |dests: &Dests| {
                    dests.skipped > 0 || dests.known.len() < expected.unwrap_or(1) as usize
                };
                if dests.as_ref().is_some_and(is_partial) {
                    return self.dests_by_netlink(key).map(Some);
                }
                Ok(dests)
            }
            Family::V6 => self.dests_by_netlink(key).map(Some),
        }
    }

    fn dests_by_netlink(&mut self, key: &VirtualServerKey) -> Result<Dests, IpvsError> {
        let fill = |writer: &mut Writer| {
            request::write_header(writer, GET_DEST);
            request::write_service(writer, key, None);
        };
        Ok(self.socket.dump(self.family, fill, reply::read_dest)?)
    }

    /// The persistence engine of a virtual server; `None` without one, and without the virtual server.
    fn engine(&mut self, key: &VirtualServerKey) -> Result<Option<String>, IpvsError> {
        let fill = |writer: &mut Writer| {
            request::write_header(writer, GET_SERVICE);
            request::write_service(writer, key, None);
        };
        match self.socket.request(self.family, fill, reply::read_engine) {
            Err(SocketError::Refused(Errno::ESRCH)) => Ok(None),
            engine => Ok(engine?),
        }
    }
}

/// Returns `true` if a virtual server can have an engine with an effect: the one of Linux reads SIP
/// over UDP (`net/netfilter/ipvs/ip_vs_pe_sip.c`).
fn may_have_engine(key: &VirtualServerKey, config: &VirtualServerConfig) -> bool {
    config.persistence.is_some()
        && key
            .protocol()
            .is_none_or(|protocol| protocol == Protocol::Udp)
}
