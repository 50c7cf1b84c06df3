// SPDX-License-Identifier: Apache-2.0

//! Announcements of virtual addresses to the neighbours.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use portolan_dataplane::Announcer;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::Asked;

/// Announcements that are sent at the same time.
const MOST: usize = 8;
/// Announcements that wait for one of those, besides the ones that the sender may leave.
const WAITING: usize = 64;

/// Addresses that neighbours are to be told about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// The interface to the neighbours.
    pub(crate) interface: String,
    /// The addresses.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Number of rounds.
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

/// Sends announcements until the sender has gone: those of an address one after the other, others at the same time.
/// They end when the host is no longer to answer for its addresses by their interface: another director may have
/// them now.
pub(crate) async fn announce(announcements: Announcements) {
    announce_by(announcements, send).await;
}

async fn announce_by(
    announcements: Announcements,
    send: impl Fn(&Announcement) -> io::Result<Failures> + Clone + Send + 'static,
) {
    let Announcements {
        waiting: mut incoming,
        asked,
    } = announcements;
    let mut waiting = VecDeque::new();
    let mut running = FuturesUnordered::new();
    let mut busy = BTreeSet::new();
    let mut is_open = true;
    loop {
        while running.len() < MOST
            && let Some(announcement) = take(&mut waiting, &busy)
        {
            busy.extend(&announcement.addresses);
            running.push(one(announcement, asked.clone(), send.clone()));
        }
        tokio::select! {
            received = incoming.recv(), if is_open && waiting.len() < WAITING => match received {
                Some(announcement) => waiting.push_back(announcement),
                None => is_open = false,
            },
            Some(ended) = running.next(), if !running.is_empty() => {
                busy.retain(|address| !ended.contains(address));
            }
            else => return,
        }
    }
}

/// Takes the first announcement with an address that is neither busy nor in an earlier one. Its other addresses stay.
fn take(waiting: &mut VecDeque<Announcement>, busy: &BTreeSet<IpAddr>) -> Option<Announcement> {
    let mut before = busy.clone();
    let (index, free) = waiting.iter().enumerate().find_map(|(index, each)| {
        let free: BTreeSet<_> = each.addresses.difference(&before).copied().collect();
        before.extend(&each.addresses);
        (!free.is_empty()).then_some((index, free))
    })?;
    let announcement = waiting.get_mut(index)?;
    announcement
        .addresses
        .retain(|address| !free.contains(address));
    let taken = Announcement {
        addresses: free,
        ..announcement.clone()
    };
    if announcement.addresses.is_empty() {
        drop(waiting.remove(index));
    }
    Some(taken)
}

/// Sends an announcement for as long as the host answers by its interface; returns its addresses.
async fn one(
    announcement: Announcement,
    mut asked: watch::Receiver<Option<Asked>>,
    send: impl Fn(&Announcement) -> io::Result<Failures> + Clone + Send + 'static,
) -> BTreeSet<IpAddr> {
    let interface = &announcement.interface;
    tokio::select! {
        biased;
        _ = asked.wait_for(|asked| !answers_by(interface, asked.as_ref())) => {
            tracing::info!(interface, "announcements ended: the host has the addresses no longer");
        }
        () = rounds(&announcement, send) => {}
    }
    announcement.addresses
}

/// Returns `true` if a host answers for its virtual addresses by an interface.
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

    #[tokio::test(start_paused = true)]
    async fn a_slow_announcement_holds_back_its_own_addresses_alone() {
        let (sender, waiting) = mpsc::channel(2);
        let (_role, asked_receiver) = watch::channel(asked(true));
        let (rounds, mut sent) = mpsc::channel(100);
        let announcements = Announcements {
            waiting,
            asked: asked_receiver,
        };
        let task = tokio::spawn(announce_by(announcements, move |announcement| {
            for address in &announcement.addresses {
                let round = (address.to_string(), announcement.count);
                rounds.try_send(round).unwrap();
            }
            Ok(Failures::new())
        }));
        for each in [
            announcement(50, &["192.0.2.1"]),
            announcement(2, &["192.0.2.1", "192.0.2.2"]),
        ] {
            sender.send(each).await.unwrap();
        }
        drop(sender);
        task.await.unwrap();
        let mut all = Vec::new();
        while let Some(round) = sent.recv().await {
            all.push(round);
        }
        let at = |address: &str, count: u32| -> Vec<usize> {
            let all = all.iter().enumerate();
            let those = all.filter(|(_, round)| round.0 == address && round.1 == count);
            those.map(|(at, _)| at).collect()
        };
        let (slow, later) = (at("192.0.2.1", 50), at("192.0.2.1", 2));
        let other = at("192.0.2.2", 2);
        assert_eq!((slow.len(), later.len(), other.len()), (50, 2, 2));
        assert!(other.last() < slow.last(), "{all:?}");
        assert!(slow.last() < later.first(), "{all:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn at_most_so_many_announcements_are_sent_at_the_same_time() {
        let (sender, waiting) = mpsc::channel(2 * MOST);
        let (_role, asked_receiver) = watch::channel(asked(true));
        let (rounds, mut sent) = mpsc::channel(100);
        let announcements = Announcements {
            waiting,
            asked: asked_receiver,
        };
        let task = tokio::spawn(announce_by(announcements, move |announcement| {
            rounds.try_send(announcement.addresses.clone()).unwrap();
            Ok(Failures::new())
        }));
        for number in 0..2 * MOST {
            let address = format!("192.0.2.{number}");
            sender.send(announcement(2, &[&address])).await.unwrap();
        }
        drop(sender);
        task.await.unwrap();
        let mut all = Vec::new();
        while let Some(round) = sent.recv().await {
            all.push(round);
        }
        // An announcement has ended after its second round, and before it no other one begins.
        let mut begun = BTreeSet::new();
        let together = all.iter().take_while(|round| begun.insert(*round)).count();
        assert_eq!((all.len(), together), (4 * MOST, MOST), "{all:?}");
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
