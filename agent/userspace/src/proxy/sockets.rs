// SPDX-License-Identifier: Apache-2.0

//! Opening, swapping and closing.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use portolan_model::NodeTable;
use portolan_nftables::{List, WayKey, Ways};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::AbortHandle;

use super::{Applied, Listener, Mode, Proxy};
use crate::inside::InsideError;
use crate::listen::{Listen, Transport, listen};
use crate::places::Places;
use crate::shared::Shared;
use crate::way::Way;
use crate::{names, tcp, udp};

impl Proxy {
    /// Opens what is not open yet.
    pub(super) async fn open(&mut self, ways: &Ways, places: &Places, applied: &mut Applied) {
        for (place, key) in places {
            let Some(desired) = ways.ways.get(key) else {
                continue;
            };
            if self.listens(*place, *key, ways) {
                continue;
            }
            // Nothing listens for a way without endpoints: the kernel refuses by itself.
            let is_refused = desired.inside == List::Refuse;
            let record = &desired.record.key;
            let routed = self.route(place.at.ip()).await;
            let opened = match routed {
                Ok(()) if is_refused => continue,
                Ok(()) => self.socket(*place).await,
                Err(error) => Err(error),
            };
            let way = self.way(*key, ways);
            let listener = opened.and_then(|fd| Ok(spawn(*place, fd, way, &self.shared)?));
            match listener {
                Ok(task) => {
                    let way = Some(*key);
                    self.listeners.insert(*place, Listener { way, task });
                    applied.changed += 1;
                }
                Err(error) => {
                    let error = format!("{record}: cannot listen at {place}: {error}");
                    applied.errors.push((Some(record.clone()), error));
                    applied.again = true;
                }
            }
        }
    }

    /// Returns `true` if something listens at a place already, for this way or for one that it
    /// takes the place of: then its connections go on with the new lists.
    fn listens(&mut self, place: Listen, key: WayKey, ways: &Ways) -> bool {
        let Some(listener) = self.listeners.get_mut(&place) else {
            return false;
        };
        let before = listener.way.filter(|before| *before != key);
        let Some(before) = before else {
            return true;
        };
        let mut serving = self.serving.write().unwrap_or_else(PoisonError::into_inner);
        let way = serving.get(&before).map(Arc::clone);
        match way.filter(|_| !ways.ways.contains_key(&before)) {
            Some(way) => {
                serving.insert(key, way);
                listener.way = Some(key);
                true
            }
            None => {
                drop(serving);
                self.listeners.remove(&place);
                false
            }
        }
    }

    /// The state of a way, which is made if it is new.
    fn way(&self, key: WayKey, ways: &Ways) -> Arc<Way> {
        let mut serving = self.serving.write().unwrap_or_else(PoisonError::into_inner);
        let desired = &ways.ways[&key];
        let service = &self.services[&desired.record.key];
        let new = || Arc::new(Way::new(service, desired));
        Arc::clone(serving.entry(key).or_insert_with(new))
    }

    /// Swaps the lists of all ways.
    pub(super) fn swap(&self, ways: &Ways, keep: bool, applied: &mut Applied) {
        let mut serving = self.serving.write().unwrap_or_else(PoisonError::into_inner);
        for (key, desired) in &ways.ways {
            let service = &self.services[&desired.record.key];
            match serving.get(key) {
                Some(way) => applied.changed += usize::from(way.set(service, desired)),
                None => {
                    serving.insert(*key, Arc::new(Way::new(service, desired)));
                    applied.changed += 1;
                }
            }
        }
        if !keep {
            serving.retain(|key, _| ways.ways.contains_key(key));
        }
    }

    /// Closes what is left over.
    pub(super) async fn close(&mut self, ways: &Ways, places: &Places, applied: &mut Applied) {
        let before = self.listeners.len();
        self.listeners.retain(|place, _| {
            let way = places.get(place).and_then(|key| ways.ways.get(key));
            way.is_some_and(|way| way.inside != List::Refuse)
        });
        applied.changed += before - self.listeners.len();
        let Mode::Inside { inside, routed, .. } = &mut self.mode else {
            return;
        };
        let wanted: BTreeSet<_> = places.keys().map(|place| place.at.ip()).collect();
        let gone: Vec<_> = routed.difference(&wanted).copied().collect();
        for address in gone {
            if let Err(error) = inside.unroute(address).await {
                tracing::debug!(%address, %error, "route cannot be deleted");
            }
            routed.remove(&address);
        }
    }

    /// Routes an address to the namespace, if there is one.
    async fn route(&mut self, address: IpAddr) -> Result<(), InsideError> {
        match &mut self.mode {
            Mode::Inside { inside, routed, .. } if !address.is_loopback() => {
                if !routed.contains(&address) {
                    inside.route(address).await?;
                    routed.insert(address);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A socket that listens where clients are.
    async fn socket(&self, place: Listen) -> Result<OwnedFd, InsideError> {
        match &self.mode {
            Mode::Inside { inside, .. } => inside.listen(place).await,
            _ => Ok(listen(&place)?),
        }
    }
}

impl Proxy {
    /// Answers names inside of the namespaces.
    pub(super) async fn name(&mut self, table: &NodeTable) -> Result<(), InsideError> {
        let Mode::Inside {
            inside,
            names,
            server,
            ..
        } = &mut self.mode
        else {
            return Ok(());
        };
        names.follow(table);
        if server.is_empty() {
            let mut sockets = Vec::new();
            for place in names::SOCKETS {
                sockets.push((place.transport, inside.listen(place).await?));
            }
            for (transport, socket) in sockets {
                let task = match transport {
                    Transport::Tcp => {
                        let listener = TcpListener::from_std(socket.into())?;
                        tokio::spawn(names::serve_tcp(listener, names.server()))
                    }
                    Transport::Udp => {
                        let socket = UdpSocket::from_std(socket.into())?;
                        tokio::spawn(names::serve_udp(socket, names.server()))
                    }
                };
                server.push(Listener {
                    way: None,
                    task: task.abort_handle(),
                });
            }
        }
        Ok(())
    }
}

/// Starts to serve a way at a socket.
fn spawn(
    place: Listen,
    socket: OwnedFd,
    way: Arc<Way>,
    shared: &Shared,
) -> io::Result<AbortHandle> {
    let shared = shared.clone();
    let task = match place.transport {
        Transport::Tcp => {
            let listener = TcpListener::from_std(socket.into())?;
            tokio::spawn(tcp::serve(listener, way, shared))
        }
        Transport::Udp => {
            let socket = UdpSocket::from_std(socket.into())?;
            tokio::spawn(udp::serve(socket, way, shared))
        }
    };
    Ok(task.abort_handle())
}
