// SPDX-License-Identifier: Apache-2.0

//! Notifications of changes of tables, waited for by tokio.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::os::unix::net;

use portolan_netlink::nftables::Changes;
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use crate::DataplaneError;

/// A subscription, and its socket as tokio waits for it.
#[derive(Debug)]
pub(super) struct Watched {
    changes: Changes,
    /// The same socket. Of this type only readiness is used, which all sockets have.
    ready: UnixDatagram,
}

impl Watched {
    /// Subscribes. Must be called within a tokio runtime.
    pub(super) fn open() -> Option<Self> {
        let open = || {
            let changes = Changes::open().map_err(DataplaneError::Nftables)?;
            let ready = net::UnixDatagram::from(changes.as_fd().try_clone_to_owned()?);
            ready.set_nonblocking(true)?;
            let ready = UnixDatagram::from_std(ready)?;
            Ok::<_, DataplaneError>(Self { changes, ready })
        };
        open()
            .inspect_err(|error| {
                tracing::warn!(%error, "changes of tables are not notified: they are noticed by checks");
            })
            .ok()
    }

    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Reads what has been told; returns whether any of it is about a table of this name, or may be.
    pub(super) fn read(&mut self, table: &str) -> bool {
        self.changes.read(table)
    }

    /// Waits until a table of this name has changed, or may have.
    pub(super) async fn touched(&mut self, table: &str) {
        loop {
            if self.ready.readable().await.is_err() {
                return std::future::pending().await;
            }
            let mut is_touched = false;
            let changes = &mut self.changes;
            // It reads until nothing is left. A message that comes later makes the socket ready again.
            let _ = self.ready.try_io(Interest::READABLE, || {
                is_touched = changes.read(table);
                Err::<(), _>(io::Error::from(ErrorKind::WouldBlock))
            });
            if is_touched {
                return;
            }
        }
    }
}
