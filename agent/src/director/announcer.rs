// SPDX-License-Identifier: Apache-2.0

//! Announcements of virtual addresses to the neighbours.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use portolan_dataplane::Announcer;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Addresses that neighbours are to be told about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// The interface to the neighbours.
    pub(crate) interface: String,
    /// The addresses.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// How often.
    pub(crate) count: u32,
    /// Time between two rounds.
    pub(crate) interval: Duration,
}

/// Sends announcements, one after the other, until the sender has gone.
pub(crate) async fn announce(mut announcements: mpsc::Receiver<Announcement>) {
    while let Some(announcement) = announcements.recv().await {
        for round in 0..announcement.count {
            if round > 0 {
                sleep(announcement.interval).await;
            }
            let this = announcement.clone();
            let sent = tokio::task::spawn_blocking(move || send(&this)).await;
            match sent {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let interface = &announcement.interface;
                    tracing::warn!(interface, %error, "virtual addresses are not announced");
                }
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        let count = announcement.addresses.len();
        tracing::info!(
            interface = announcement.interface,
            count,
            "virtual addresses announced"
        );
    }
}

/// One round.
fn send(announcement: &Announcement) -> std::io::Result<()> {
    let announcer = Announcer::open(&announcement.interface)?;
    let mut addresses = announcement.addresses.iter();
    addresses.try_for_each(|address| announcer.announce(*address))
}
