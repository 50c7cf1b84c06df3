// SPDX-License-Identifier: Apache-2.0

//! ipset (kernel: `net/netfilter/ipset/ip_set_core.c`).
//!
//! [`Ipset::apply`] changes sets in batches of messages of many entries each, [`Ipset::list`] reads
//! them back. The kernel sends no notifications of changes.

mod attr;
mod entry;
mod error;
mod listing;
mod plan;
mod request;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::Family;
use portolan_model::ipset::{SetHeader, SetKind};

pub use entry::EntryFault;
pub use error::{IpsetError, RequestError};
pub use listing::Listing;
pub use request::Request;

use crate::Errno;
use crate::socket::{Bus, Socket, SocketError};
use crate::wire::Writer;
use attr::command;
use plan::Part;

/// Bytes per send. Measured: fewer and larger sends are faster, up to this size.
const SEND_SIZE: usize = 1 << 20;

/// The sets of the network namespace of the thread that opened it. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Ipset {
    socket: Socket,
    /// The newest revision of each type that was created so far.
    revisions: BTreeMap<SetKind, u8>,
    /// Header of each set, `None` for another type; empty if unknown. Entries are checked against it.
    headers: Headers,
}

type Headers = BTreeMap<String, Option<SetHeader>>;

impl Ipset {
    /// Opens the socket and asks the kernel for ipset.
    ///
    /// # Errors
    /// [`IpsetError::NoIpset`] if the kernel has none, [`IpsetError::Protocol`] if it is too old,
    /// [`IpsetError::Socket`] with `EPERM` without the capability.
    pub fn open() -> Result<Self, IpsetError> {
        let mut socket = Socket::open(Bus::Netfilter)?;
        let kind = attr::SUBSYSTEM | command::PROTOCOL;
        match socket.request(kind, request::write_header, listing::read_protocol) {
            Ok(attr::PROTOCOL_VERSION..) => {}
            Ok(version) => return Err(IpsetError::Protocol(version)),
            Err(SocketError::Refused(Errno::EINVAL)) => return Err(IpsetError::NoIpset),
            Err(error) => return Err(error.into()),
        }
        Ok(Self {
            socket,
            revisions: BTreeMap::new(),
            headers: Headers::new(),
        })
    }

    /// Executes requests in their order and returns the failures, in order; an empty result means
    /// that all is applied. A bad entry does not prevent the others of its request, nor a failed
    /// request the later ones: put a swap in a batch of its own if it depends on another request.
    ///
    /// Entries are checked against the sets as this value last read or created them.
    ///
    /// # Errors
    /// [`IpsetError::Name`], [`IpsetError::Entry`], [`IpsetError::NoType`]: nothing was done.
    /// [`IpsetError::Socket`]: the effect is unknown, list the sets again.
    pub fn apply(&mut self, requests: &[Request]) -> Result<Vec<RequestError>, IpsetError> {
        let headers = self.check(requests)?;
        self.learn_types(requests)?;
        // Known again only if everything succeeds.
        self.headers.clear();
        let mut errors = BTreeMap::new();
        for segment in plan::segments(requests) {
            let rest = self.execute(requests, &segment, &mut errors)?;
            self.execute(requests, &rest, &mut errors)?;
        }
        if errors.is_empty() {
            self.headers = headers;
        }
        let error = |((index, entry), errno)| RequestError {
            index,
            entry,
            errno,
        };
        Ok(errors.into_iter().map(error).collect())
    }

    /// Number of netlink requests so far.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.socket.requests()
    }

    /// Reads all sets with their entries.
    ///
    /// # Errors
    /// [`IpsetError::Socket`].
    pub fn list(&mut self) -> Result<Listing, IpsetError> {
        self.list_with(0)
    }

    /// Reads the headers of the sets with a type here, without their entries.
    ///
    /// # Errors
    /// [`IpsetError::Socket`].
    pub fn list_headers(&mut self) -> Result<BTreeMap<String, SetHeader>, IpsetError> {
        let listing = self.list_with(attr::LIST_HEADERS)?;
        Ok(listing
            .sets
            .into_iter()
            .map(|(name, set)| (name, set.header))
            .collect())
    }

    /// Reads headers and numbers of entries of the sets with a type here, cheap enough for every few seconds.
    ///
    /// # Errors
    /// [`IpsetError::Socket`].
    pub fn counts(&mut self) -> Result<BTreeMap<String, (SetHeader, u32)>, IpsetError> {
        let kind = attr::SUBSYSTEM | command::LIST;
        let fill = write_list(attr::LIST_HEADERS);
        Ok(self.socket.dump(kind, fill, listing::read_count)?)
    }

    /// Reads the names of all sets, whatever their type.
    ///
    /// # Errors
    /// [`IpsetError::Socket`].
    pub fn names(&mut self) -> Result<BTreeSet<String>, IpsetError> {
        let kind = attr::SUBSYSTEM | command::LIST;
        Ok(self
            .socket
            .dump(kind, write_list(attr::LIST_NAMES), listing::read_name)?)
    }

    fn list_with(&mut self, flags: u32) -> Result<Listing, IpsetError> {
        let kind = attr::SUBSYSTEM | command::LIST;
        let listing: Listing = self.socket.dump(kind, write_list(flags), listing::read)?;
        self.headers = listing
            .other
            .iter()
            .map(|name| (name.clone(), None))
            .collect();
        let known = listing.sets.iter();
        self.headers
            .extend(known.map(|(name, set)| (name.clone(), Some(set.header.clone()))));
        Ok(listing)
    }

    /// Checks all requests before sending; returns the headers of the sets afterwards.
    fn check(&mut self, requests: &[Request]) -> Result<Headers, IpsetError> {
        let unknown = |request: &Request| match request {
            Request::Create { .. } => true,
            Request::Add { name, .. } | Request::Del { name, .. } => {
                !self.headers.contains_key(name)
            }
            _ => false,
        };
        if requests.iter().any(unknown) {
            self.list_with(attr::LIST_HEADERS)?;
        }
        let mut headers = self.headers.clone();
        for (index, request) in requests.iter().enumerate() {
            if let Some(name) = request.bad_name() {
                return Err(IpsetError::Name {
                    index,
                    name: name.to_owned(),
                });
            }
            if let Err((entry, fault)) = follow(&mut headers, request) {
                return Err(IpsetError::Entry {
                    index,
                    entry,
                    fault,
                });
            }
        }
        Ok(headers)
    }

    /// Asks for the revisions of types that are to be created for the first time.
    fn learn_types(&mut self, requests: &[Request]) -> Result<(), IpsetError> {
        for request in requests {
            let Request::Create {
                header: SetHeader { kind, .. },
                ..
            } = request
            else {
                continue;
            };
            if self.revisions.contains_key(kind) {
                continue;
            }
            let fill = |writer: &mut Writer| {
                request::write_header(writer);
                writer.string(attr::TYPE_NAME, kind.type_name());
                writer.u8(attr::FAMILY, request::family_number(*kind, Family::V4));
            };
            let message = attr::SUBSYSTEM | command::TYPE;
            match self.socket.request(message, fill, listing::read_revision) {
                Ok(revision) => self.revisions.insert(*kind, revision),
                Err(SocketError::Refused(errno)) => {
                    return Err(IpsetError::NoType { kind: *kind, errno });
                }
                Err(error) => return Err(error.into()),
            };
        }
        Ok(())
    }

    /// Sends messages, collects errors, and returns the messages to send again.
    fn execute(
        &mut self,
        requests: &[Request],
        parts: &[Part],
        errors: &mut BTreeMap<(usize, Option<usize>), Errno>,
    ) -> Result<Vec<Part>, IpsetError> {
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.socket.batch(SEND_SIZE);
        for part in parts {
            let request = &requests[part.request];
            batch.push(request.kind(), request.flags(), |writer| {
                request.write(writer, part.entries.clone(), &self.revisions);
            })?;
        }
        let mut rest = Vec::new();
        for refused in batch.finish()? {
            let Some(part) = parts.get(refused.index) else {
                continue;
            };
            let bad = listing::bad_entry(&refused.echo)
                .map(|index| part.entries.start + index)
                .filter(|entry| part.entries.contains(entry));
            errors.insert((part.request, bad), refused.errno);
            rest.extend(bad.into_iter().flat_map(|entry| part.after(entry)));
        }
        Ok(rest)
    }
}

fn write_list(flags: u32) -> impl Fn(&mut Writer) {
    move |writer| {
        request::write_header(writer);
        if flags != 0 {
            writer.be32(attr::FLAGS, flags);
        }
    }
}

/// Applies a request's effect to the headers, and checks its entries against them. A missing set is
/// left for the kernel to report.
fn follow(headers: &mut Headers, request: &Request) -> Result<(), (usize, EntryFault)> {
    match request {
        Request::Create { name, header, .. } => {
            headers
                .entry(name.clone())
                .or_insert_with(|| Some(header.clone()));
        }
        Request::Destroy { name } => drop(headers.remove(name)),
        Request::Add { name, entries } | Request::Del { name, entries } => {
            match headers.get(name) {
                None => {}
                Some(None) => {
                    return entries
                        .first()
                        .map_or(Ok(()), |_| Err((0, EntryFault::Kind)));
                }
                Some(Some(header)) => {
                    for (index, entry) in entries.iter().enumerate() {
                        entry::check(header, entry).map_err(|fault| (index, fault))?;
                    }
                }
            }
        }
        // Only sets of the same type and family can be swapped.
        Request::Swap { .. } | Request::Flush { .. } => {}
    }
    Ok(())
}
