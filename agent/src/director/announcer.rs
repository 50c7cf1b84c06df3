// SPDX-License-Identifier: Apache-2.0

//! Announcements of virtual addresses to the neighbours.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use portolan_dataplane::Announcer;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::Asked;

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

/// Announcements that wait, and whether they are still true.
#[derive(Debug)]
pub(crate) struct Announcements {
    pub(super) waiting: mpsc::Receiver<Announcement>,
    pub(super) asked: watch::Receiver<Option<Asked>>,
}

/// The addresses of a round that could not be announced, and why.
type Failures = Vec<(IpAddr, io::Error)>;

/// Sends announcements, one after the other, until the sender has gone. They end when the host is no longer to answer for
/// its addresses by their interface: another director may have them now.
pub(crate) async fn announce(announcements: Announcements) {
    announce_by(announcements, send).await;
}

async fn announce_by(
    announcements: Announcements,
    send: impl Fn(&Announcement) -> io::Result<Failures> + Clone + Send + 'static,
) {
    let Announcements {
        mut waiting,
        mut asked,
    } = announcements;
    while let Some(announcement) = waiting.recv().await {
        let interface = &announcement.interface;
        tokio::select! {
            biased;
            _ = asked.wait_for(|asked| !answers_by(interface, asked.as_ref())) => {
                tracing::info!(interface, "announcements ended: the host has the addresses no longer");
            }
            () = rounds(&announcement, send.clone()) => {}
        }
    }
}

/// Whether a host answers for its virtual addresses by an interface.
fn answers_by(interface: &str, asked: Option<&Asked>) -> bool {
    asked.is_some_and(|Asked { host, .. }| {
        host.answers() && host.interface.as_deref() == Some(interface)
    })
}

/// All rounds of an announcement.
async fn rounds(
    announcement: &Announcement,
    send: impl Fn(&Announcement) -> io::Result<Failures> + Clone + Send + 'static,
) {
    let interface = &announcement.interface;
    let mut told = BTreeSet::new();
    for round in 0..announcement.count {
        if round > 0 {
            sleep(announcement.interval).await;
        }
        let (send, this) = (send.clone(), announcement.clone());
        match tokio::task::spawn_blocking(move || send(&this)).await {
            Ok(Ok(failures)) => {
                let mut sent = announcement.addresses.clone();
                for (address, error) in failures {
                    tracing::warn!(interface, %address, %error, "a virtual address is not announced");
                    sent.remove(&address);
                }
                told.append(&mut sent);
            }
            Ok(Err(error)) => {
                tracing::warn!(interface, %error, "virtual addresses are not announced");
            }
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    tracing::info!(interface, count = told.len(), "virtual addresses announced");
}

/// One round.
fn send(announcement: &Announcement) -> io::Result<Failures> {
    let announcer = Announcer::open(&announcement.interface)?;
    Ok(each(&announcement.addresses, |address| {
        announcer.announce(address)
    }))
}

/// Announces each address. One that fails keeps no other from being announced.
fn each(addresses: &BTreeSet<IpAddr>, announce: impl Fn(IpAddr) -> io::Result<()>) -> Failures {
    let failed = |address: &IpAddr| announce(*address).err().map(|error| (*address, error));
    addresses.iter().filter_map(failed).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use portolan_plan::host::Host;

    use super::*;

    fn asked(is_active: bool) -> Option<Asked> {
        let host = Host {
            interface: Some("eth0".to_owned()),
            is_active,
            ..Host::default()
        };
        Some(Asked {
            number: 1,
            host: Arc::new(host),
        })
    }

    fn announcement(count: u32, addresses: &[&str]) -> Announcement {
        Announcement {
            interface: "eth0".to_owned(),
            addresses: addresses.iter().map(|each| each.parse().unwrap()).collect(),
            count,
            interval: Duration::from_millis(200),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn announcements_end_on_standby() {
        let (sender, waiting) = mpsc::channel(1);
        let (role, asked_receiver) = watch::channel(asked(true));
        let (rounds, mut sent) = mpsc::channel(2_000);
        let announcements = Announcements {
            waiting,
            asked: asked_receiver,
        };
        let task = tokio::spawn(announce_by(announcements, move |announcement| {
            rounds.try_send(announcement.count).unwrap();
            Ok(Failures::new())
        }));
        sender
            .send(announcement(1_000, &["192.0.2.1"]))
            .await
            .unwrap();
        for _ in 0..3 {
            assert_eq!(sent.recv().await, Some(1_000));
        }
        role.send_replace(asked(false));
        // What comes on standby is not sent either.
        sender.send(announcement(7, &["192.0.2.1"])).await.unwrap();
        let taken = sender.reserve().await.unwrap();
        role.send_replace(asked(true));
        taken.send(announcement(2, &["192.0.2.1"]));
        drop(sender);
        task.await.unwrap();
        let mut rest = Vec::new();
        while let Some(count) = sent.recv().await {
            rest.push(count);
        }
        // A round may have been on its way.
        let late = rest.iter().filter(|count| **count == 1_000).count();
        assert!(late <= 1, "{rest:?}");
        assert_eq!(rest[late..], [2, 2]);
    }

    #[test]
    fn an_address_that_fails_keeps_no_other_from_being_announced() {
        let addresses = announcement(1, &["192.0.2.1", "192.0.2.2", "2001:db8::1"]).addresses;
        let tried = RefCell::new(BTreeSet::new());
        let failures = each(&addresses, |address| {
            tried.borrow_mut().insert(address);
            match address.is_ipv4() {
                true => Err(io::Error::from(io::ErrorKind::NetworkDown)),
                false => Ok(()),
            }
        });
        assert_eq!(*tried.borrow(), addresses);
        let failed: Vec<_> = failures
            .iter()
            .map(|(address, _)| address.to_string())
            .collect();
        assert_eq!(failed, ["192.0.2.1", "192.0.2.2"]);
    }
}
